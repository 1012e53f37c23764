// Random numbers: element i of what is drawn is made of the counter FIRST + i under the seed, by
// Philox 4x32, whatever the device and whoever computes it.

#include <pyopencl-random123/philox.cl>

inline philox4x32_ctr_t drawn(const ulong seed, const ulong at)
{
  philox4x32_ctr_t counter;
  philox4x32_key_t key;
  counter.v[0] = (uint)at; counter.v[1] = (uint)(at >> 32); counter.v[2] = 0; counter.v[3] = 0;
  key.v[0] = (uint)seed; key.v[1] = (uint)(seed >> 32);
  return philox4x32(counter, key);
}

// from 0, without 1
#if IS_DOUBLE
#define EVEN(bits) ((T)((((ulong)bits.v[0] << 32) | bits.v[1]) >> 11) * 0x1p-53)
#define EVEN_TOO(bits) ((T)((((ulong)bits.v[2] << 32) | bits.v[3]) >> 11) * 0x1p-53)
#else
#define EVEN(bits) ((T)(bits.v[0] >> 8) * 0x1p-24f)
#define EVEN_TOO(bits) ((T)(bits.v[2] >> 8) * 0x1p-24f)
#endif

#define DRAWN const long count, const ulong seed, const ulong first
#define BEGIN const long at = get_global_id(0); if (at >= count) return; \
  const philox4x32_ctr_t bits = drawn(seed, first + at);

__kernel void uniform(DRAWN, __global T* out, const long out_at, const T low, const T high)
{
  BEGIN
  const T found = low + EVEN(bits) * (high - low);
  out[out_at + at] = found < high || low == high ? found : low;
}

__kernel void normal(DRAWN, __global T* out, const long out_at, const T mean, const T deviation)
{
  BEGIN
  const T radius = sqrt(-2 * log(1 - EVEN(bits))), angle = 2 * (T)M_PI * EVEN_TOO(bits);
  out[out_at + at] = mean + deviation * radius * cos(angle);
}

__kernel void bernoulli(DRAWN, __global OUT* out, const long out_at, const T chance)
{
  BEGIN
  out[out_at + at] = EVEN(bits) < chance ? 1 : 0;
}

__kernel void bernoullis(DRAWN, __global OUT* out, const long out_at, __global const T* chance, const long chance_at)
{
  BEGIN
  const T one = chance[chance_at + at];
  out[out_at + at] = one >= 0 && one <= 1 ? EVEN(bits) < one : MISSING; // no chance: this cannot raise
}

__kernel void integers(DRAWN, __global OUT* out, const long out_at, const long low, const ulong range)
{
  BEGIN
  const ulong wide = ((ulong)bits.v[0] << 32) | bits.v[1];
  out[out_at + at] = (OUT)(low + (long)(range ? wide % range : wide));
}

// what is left of each element, so that the mean stays
__kernel void dropout(DRAWN, __global T* out, const long out_at, __global uchar* mask, __global const T* in,
                      const long in_at, const T chance, const T scale)
{
  BEGIN
  const bool stays = EVEN(bits) < chance;
  mask[at] = stays;
  out[out_at + at] = stays ? in[in_at + at] * scale : (T)0;
}
