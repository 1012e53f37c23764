// Gather rows by index, and scatter-add gradients into rows. Gradients of a row are summed in the
// order of their positions: keys of index and position are sorted, so that the result is
// deterministic.

__kernel void gather_rows(const long count, const long inner, const long num_indices,
                          const long rows, __global const ELEMENT* in, const long in_at,
                          __global const I* index, const long index_at, __global ELEMENT* out)
{
  const long id = get_global_id(0);
  if (id >= count) return;
  const long i = id % inner, position = id / inner % num_indices, outer = id / inner / num_indices;
  const long row = index[index_at + position];
  const bool is_inside = row >= 0 && row < rows;
  STORE(out, id, is_inside ? LOAD(in, in_at + (outer * rows + row) * inner + i) : (T)MISSING);
}

// one element for each index, as by torch.gather
__kernel void gather_elements(const long count, const long inner, const long num_indices,
                              const long rows, __global const ELEMENT* in, const long in_at,
                              __global const I* index, const long index_at, __global ELEMENT* out)
{
  const long id = get_global_id(0);
  if (id >= count) return;
  const long i = id % inner, outer = id / inner / num_indices;
  const long row = index[index_at + id];
  const bool is_inside = row >= 0 && row < rows;
  STORE(out, id, is_inside ? LOAD(in, in_at + (outer * rows + row) * inner + i) : (T)MISSING);
}

// key: index in the upper half, position in the lower; padding keys sort behind all others
__kernel void make_keys(const long num_indices, const long num_keys, __global const I* index,
                        const long index_at,
                        __global ulong* out)
{
  const long id = get_global_id(0);
  if (id >= num_keys) return;
  out[id] = id < num_indices ? ((ulong)index[index_at + id] << 32) | (uint)id : (ulong)-1;
}

// a step of a bitonic sort: compare and exchange keys at an `offset`, in runs of `run_length`
__kernel void compare_exchange(const long num_keys, const long run_length, const long offset,
                               __global ulong* keys)
{
  const long id = get_global_id(0), partner = id ^ offset;
  if (id >= num_keys || partner <= id) return;
  const ulong a = keys[id], b = keys[partner];
  if ((a > b) == ((id & run_length) == 0)) { keys[id] = b; keys[partner] = a; }
}

// a work item for each column of each key: the first key of a row sums all gradients of the row
__kernel void scatter_add(const long num_indices, const long inner, const long rows,
                          const long padding_index,
                          __global const ulong* keys,
                          __global const ELEMENT* grad, const long grad_at,
                          __global ELEMENT* out)
{
  const long id = get_global_id(0), i = id % inner, position = id / inner;
  if (position >= num_indices) return;
  const long row = keys[position] >> 32;
  const bool is_first = position == 0 || (long)(keys[position - 1] >> 32) != row;
  if (row == padding_index || row >= rows || !is_first) return;
  T sum = 0;
  for (long k = position; k < num_indices && (long)(keys[k] >> 32) == row; k++)
    sum += LOAD(grad, grad_at + (long)(keys[k] & 0xffffffff) * inner + i);
  STORE(out, row * inner + i, sum);
}
