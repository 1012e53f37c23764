// Maximum or minimum (IS_MIN) of each row, and its first index. NaN precedes every number. One
// work-group per row.

// whether x at index i precedes y at index j; j is negative if there is no y
#define PRECEDES(x, i, y, j) \
  ((j) < 0 || (x != x && y == y) || (IS_MIN ? x < y : x > y) || \
   ((i) < (j) && (x == y || (x != x && y != y))))

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void extremum(const int size, __global const ELEMENT* in, const long in_at, __global ELEMENT* out,
              __global long* indices)
{
  __local T values[ITEMS];
  __local int firsts[ITEMS];
  const int item = get_local_id(0);
  const long row = get_group_id(0);
  in += in_at + row * size;
  T value = 0;
  int first = -1;
  for (int i = item; i < size; i += ITEMS) {
    const T x = LOAD(in, i);
    if (PRECEDES(x, i, value, first)) { value = x; first = i; }
  }
  values[item] = value;
  firsts[item] = first;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_ = ITEMS / 2; half_ > 0; half_ /= 2) {
    if (item < half_ && firsts[item + half_] >= 0) {
      const T x = values[item + half_], y = values[item];
      if (PRECEDES(x, firsts[item + half_], y, firsts[item])) {
        values[item] = x;
        firsts[item] = firsts[item + half_];
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (item == 0) { STORE(out, row, values[0]); indices[row] = firsts[0]; }
}
