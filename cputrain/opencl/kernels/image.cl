// What an entry of a table means for a place of an image: see conv.cl. Beyond the edges is nothing.

inline T read_in(__global const T* in, const int4 t, const int first, const int h, const int w,
                 const int H, const int W)
{
  const bool inside = !CHECKED || ((uint)(h + t.z) < (uint)H && (uint)(w + t.w) < (uint)W);
  return inside ? in[first + t.y] : (T)0;
}
