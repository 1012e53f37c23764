// Rows that are picked by numbers, and what goes back to them. What goes to one row is added up in
// the order of the numbers: they are sorted, each with its place.

__kernel void picked(const long count, const long inner, const long many, const long rows,
                     __global const T* in, const long in_at,
                     __global const I* index, const long index_at, __global T* out)
{
  const long at = get_global_id(0);
  if (at >= count) return;
  const long i = at % inner, place = at / inner % many, outer = at / inner / many;
  const long row = index[index_at + place];
  out[at] = row >= 0 && row < rows ? in[in_at + (outer * rows + row) * inner + i] : (T)MISSING;
}

// the number above, its place below; and what is behind all numbers
__kernel void keys(const long many, const long all, __global const I* index, const long index_at,
                   __global ulong* out)
{
  const long at = get_global_id(0);
  if (at >= all) return;
  out[at] = at < many ? ((ulong)index[index_at + at] << 32) | (uint)at : (ulong)-1;
}

// one step of a sort by exchanges: of pairs that are `apart`, in runs of `run`
__kernel void exchanged(const long all, const long run, const long apart, __global ulong* keys)
{
  const long at = get_global_id(0), other = at ^ apart;
  if (at >= all || other <= at) return;
  const ulong a = keys[at], b = keys[other];
  if ((a > b) == ((at & run) == 0)) { keys[at] = b; keys[other] = a; }
}

// an item for each column of each place: the first place of a number adds up all of that number
__kernel void added(const long many, const long inner, const long rows, const long left_out,
                    __global const ulong* keys, __global const T* grad, const long grad_at,
                    __global T* out)
{
  const long at = get_global_id(0), i = at % inner, place = at / inner;
  if (place >= many) return;
  const long row = keys[place] >> 32;
  if (row == left_out || row >= rows || (place > 0 && (long)(keys[place - 1] >> 32) == row)) return;
  T sum = 0;
  for (long next = place; next < many && (long)(keys[next] >> 32) == row; next++)
    sum += grad[grad_at + (long)(keys[next] & 0xffffffff) * inner + i];
  out[row * inner + i] = sum;
}
