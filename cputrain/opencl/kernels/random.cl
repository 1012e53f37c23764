// Random numbers by Philox 4x32: element i has the counter first + i under the seed, so that the
// numbers are equal on all devices and for all work-group sizes.

#include <pyopencl-random123/philox.cl>

inline philox4x32_ctr_t philox_bits(const ulong seed, const ulong id)
{
  philox4x32_ctr_t counter;
  philox4x32_key_t key;
  counter.v[0] = (uint)id; counter.v[1] = (uint)(id >> 32); counter.v[2] = 0; counter.v[3] = 0;
  key.v[0] = (uint)seed; key.v[1] = (uint)(seed >> 32);
  return philox4x32(counter, key);
}

// uniform in [0, 1), with all binary digits of T, or with as many as elements in memory have
#if IS_DOUBLE
#define UNIFORM(bits) ((T)((((ulong)bits.v[0] << 32) | bits.v[1]) >> 11) * 0x1p-53)
#define UNIFORM_2(bits) ((T)((((ulong)bits.v[2] << 32) | bits.v[3]) >> 11) * 0x1p-53)
#define UNIFORM_ELEMENT(bits) UNIFORM(bits)
#else
#define UNIFORM(bits) ((T)(bits.v[0] >> 8) * 0x1p-24f)
#define UNIFORM_ELEMENT(bits) ((T)(bits.v[0] >> (32 - DIGITS)) / (1 << DIGITS))
#define UNIFORM_2(bits) ((T)(bits.v[2] >> 8) * 0x1p-24f)
#endif

#define SHARED_ARGUMENTS const long count, const ulong seed, const ulong first
#define BEGIN const long id = get_global_id(0); if (id >= count) return; \
  const philox4x32_ctr_t bits = philox_bits(seed, first + id);

__kernel void uniform(SHARED_ARGUMENTS, __global ELEMENT* out, const long out_at, const T low,
                      const T high)
{
  BEGIN
  const T value = ROUNDED(low + UNIFORM_ELEMENT(bits) * (high - low));
  STORE(out, out_at + id, value < high || low == high ? value : low);
}

__kernel void normal(SHARED_ARGUMENTS, __global ELEMENT* out, const long out_at, const T mean,
                     const T deviation)
{
  BEGIN
  const T radius = sqrt(-2 * log(1 - UNIFORM(bits))), angle = 2 * (T)M_PI * UNIFORM_2(bits);
  STORE(out, out_at + id, mean + deviation * radius * cos(angle));
}

__kernel void bernoulli(SHARED_ARGUMENTS, __global OUT* out, const long out_at, const T probability)
{
  BEGIN
  STORE_OUT(out, out_at + id, UNIFORM(bits) < probability ? 1 : 0);
}

__kernel void bernoulli_tensor(SHARED_ARGUMENTS, __global OUT* out, const long out_at,
                               __global const ELEMENT* probability, const long probability_at)
{
  BEGIN
  const T p = LOAD(probability, probability_at + id);
  STORE_OUT(out, out_at + id, p >= 0 && p <= 1 ? UNIFORM(bits) < p : MISSING);
}

__kernel void integers(SHARED_ARGUMENTS, __global OUT* out, const long out_at, const long low,
                       const ulong range)
{
  BEGIN
  const ulong wide = ((ulong)bits.v[0] << 32) | bits.v[1];
  STORE_OUT(out, out_at + id, low + (long)(range ? wide % range : wide));
}

// kept elements are scaled, so that the mean is preserved
__kernel void dropout(SHARED_ARGUMENTS, __global ELEMENT* out, const long out_at,
                      __global uchar* mask,
                      __global const ELEMENT* in, const long in_at, const T probability,
                      const T scale)
{
  BEGIN
  const bool is_kept = UNIFORM(bits) < probability;
  mask[id] = is_kept;
  STORE(out, out_at + id, is_kept ? LOAD(in, in_at + id) * scale : (T)0);
}
