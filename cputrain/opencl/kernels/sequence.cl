// Sequences: numbers in equal steps, and sums of all elements so far.

__kernel void arange(const long count, const T start, const T step, __global ELEMENT* out,
                     const long out_at)
{
  const long id = get_global_id(0);
  if (id < count) STORE(out, out_at + id, start + (T)id * step);
}

// a work item for each sum, which adds in order, as torch does on the CPU
__kernel void cumsum(const long count, const long length, const long inner,
                     __global const ELEMENT* in,
                     const long in_at, __global RESULT* out)
{
  const long id = get_global_id(0);
  if (id >= count) return;
  const long begin = id / inner * length * inner + id % inner;
  SUM sum = 0;
  for (long i = 0; i < length; ++i) {
    sum += (SUM)LOAD(in, in_at + begin + i * inner);
    STORE_RESULT(out, begin + i * inner, sum);
  }
}
