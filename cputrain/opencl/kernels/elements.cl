// Elements in memory, and the numbers that kernels compute with: half (float16) and bfloat
// (bfloat16) are floats in a kernel, by functions that devices without 16-bit arithmetic have, too.

typedef ushort bfloat;

inline ushort bfloat_bits(const float x)
{
  const uint bits = as_uint(x);
  return x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float rounded_to_half(const float x)
{
  ushort bits;
  vstore_half_rte(x, 0, (half*)&bits);
  return vload_half(0, (const half*)&bits);
}

#define rounded_to_bfloat(x) as_float((uint)bfloat_bits(x) << 16)
#define rounded_to_float(x) (x)
#define rounded_to_double(x) (x)

#define LOAD_half(p, i) vload_half(i, p)
#define LOAD_bfloat(p, i) as_float((uint)(p)[i] << 16)
#define STORE_half(p, i, x) vstore_half_rte((float)(x), i, p)
#define STORE_bfloat(p, i, x) (p)[i] = bfloat_bits((float)(x))

#define LOAD_float(p, i) (p)[i]
#define LOAD_double(p, i) (p)[i]
#define LOAD_long(p, i) (p)[i]
#define LOAD_int(p, i) (p)[i]
#define LOAD_short(p, i) (p)[i]
#define LOAD_char(p, i) (p)[i]
#define LOAD_uchar(p, i) (p)[i]
#define STORE_float(p, i, x) (p)[i] = (x)
#define STORE_double(p, i, x) (p)[i] = (x)
#define STORE_long(p, i, x) (p)[i] = (x)
#define STORE_int(p, i, x) (p)[i] = (x)
#define STORE_short(p, i, x) (p)[i] = (x)
#define STORE_char(p, i, x) (p)[i] = (x)
#define STORE_uchar(p, i, x) (p)[i] = (x)
