// Read the input element of a table entry at a position of an image (see conv.cl); 0 in the
// padding.

inline FACTOR read_in(__global const ELEMENT* in, const int4 entry, const int base, const int h,
                      const int w, const int H, const int W)
{
  const bool is_inside =
      !CHECKED || ((uint)(h + entry.z) < (uint)H && (uint)(w + entry.w) < (uint)W);
  return is_inside ? LOAD_FACTOR(in, base + entry.y) : 0;
}
