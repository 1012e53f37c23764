// Winograd convolutions F(4 x 4, 3 x 3): 3 x 3 kernels with stride 1. Each 6 x 6 input tile and
// each kernel is transformed to 36 numbers. The convolution is then 36 matrix products, with a
// fourth of the multiplications, whose results are transformed to 4 x 4 output tiles. The macros
// are the 1-d transforms and their transposes, applied to rows and then to columns.

// 6 input elements to 6
#define TRANSFORM_INPUT(to, d) { \
  to(0, 4 * d(0) - 5 * d(2) + d(4)) \
  to(1, -4 * (d(1) + d(2)) + d(3) + d(4)) \
  to(2, 4 * (d(1) - d(2)) - d(3) + d(4)) \
  to(3, 2 * (d(3) - d(1)) - d(2) + d(4)) \
  to(4, 2 * (d(1) - d(3)) - d(2) + d(4)) \
  to(5, 4 * d(1) - 5 * d(3) + d(5)) }
// 3 kernel elements to 6
#define TRANSFORM_WEIGHT(to, g) { \
  to(0, g(0) / 4) \
  to(1, -(g(0) + g(1) + g(2)) / 6) \
  to(2, -(g(0) - g(1) + g(2)) / 6) \
  to(3, g(0) / 24 + g(1) / 12 + g(2) / 6) \
  to(4, g(0) / 24 - g(1) / 12 + g(2) / 6) \
  to(5, g(2)) }
// 6 products to 4 output elements
#define TRANSFORM_OUTPUT(to, m) { \
  to(0, m(0) + m(1) + m(2) + m(3) + m(4)) \
  to(1, m(1) - m(2) + 2 * (m(3) - m(4))) \
  to(2, m(1) + m(2) + 4 * (m(3) + m(4))) \
  to(3, m(1) - m(2) + 8 * (m(3) - m(4)) + m(5)) }
// transposes, for the weight gradient: 4 output gradients to 6, and 6 products to 3 kernel elements
#define TRANSFORM_GRADIENT(to, y) { \
  to(0, y(0)) \
  to(1, y(0) + y(1) + y(2) + y(3)) \
  to(2, y(0) - y(1) + y(2) - y(3)) \
  to(3, y(0) + 2 * y(1) + 4 * y(2) + 8 * y(3)) \
  to(4, y(0) - 2 * y(1) + 4 * y(2) - 8 * y(3)) \
  to(5, y(3)) }
#define TRANSFORM_WEIGHT_GRADIENT(to, m) { \
  to(0, m(0) / 4 - (m(1) + m(2)) / 6 + (m(3) + m(4)) / 24) \
  to(1, (m(2) - m(1)) / 6 + (m(3) - m(4)) / 12) \
  to(2, (m(3) + m(4) - m(1) - m(2)) / 6 + m(5)) }

#define FOR(i, n) _Pragma("unroll") for (int i = 0; i < n; i++)

#define TILE_ARGUMENTS const int num_items, const int planes, const int P, const int Q, \
  const int tiles_p, const int tiles_q, const int tiles
#define BEGIN const int id = get_global_id(0); if (id >= num_items) return; \
  const int tile = id % tiles, plane = id / tiles; \
  const int image = tile / (tiles_p * tiles_q); \
  const int p = tile / tiles_q % tiles_p * 4, q = tile % tiles_q * 4;

// 6 x 6 input tiles, each around a 4 x 4 output tile, to [36][planes][tiles]
__kernel void transform_input(TILE_ARGUMENTS, const int H, const int W, const int pad_h,
                              const int pad_w,
                              __global const ELEMENT* in, const int in_at, __global T* out)
{
  BEGIN
  in += in_at + (image * planes + plane) * H * W;
  T d[6][6], rows_done[6][6];
  FOR(i, 6) FOR(j, 6) {
    const int h = p + i - pad_h, w = q + j - pad_w;
    d[i][j] = (uint)h < (uint)H && (uint)w < (uint)W ? LOAD(in, h * W + w) : (T)0;
  }
#define D(i) d[i][j]
#define TO(i, value) rows_done[i][j] = value;
  FOR(j, 6) TRANSFORM_INPUT(TO, D)
#undef D
#undef TO
#define D(j) rows_done[i][j]
#define TO(j, value) out[((i * 6 + j) * planes + plane) * tiles + tile] = value;
  FOR(i, 6) TRANSFORM_INPUT(TO, D)
#undef D
#undef TO
}

// 4 x 4 tiles of the output gradient to [36][planes][tiles]
__kernel void transform_gradient(TILE_ARGUMENTS, __global const ELEMENT* in, const int in_at,
                                 __global T* out)
{
  BEGIN
  in += in_at + (image * planes + plane) * P * Q;
  T d[4][4], rows_done[6][4];
  FOR(i, 4) FOR(j, 4)
    d[i][j] = p + i < P && q + j < Q ? LOAD(in, (p + i) * Q + q + j) : (T)0;
#define D(i) d[i][j]
#define TO(i, value) rows_done[i][j] = value;
  FOR(j, 4) TRANSFORM_GRADIENT(TO, D)
#undef D
#undef TO
#define D(j) rows_done[i][j]
#define TO(j, value) out[((i * 6 + j) * planes + plane) * tiles + tile] = value;
  FOR(i, 6) TRANSFORM_GRADIENT(TO, D)
#undef D
#undef TO
}

// 36 products of each tile to 4 x 4 output tiles
__kernel void transform_output(TILE_ARGUMENTS, __global const T* in, __global const ELEMENT* bias,
                               const int bias_at,
                               __global ELEMENT* out, const int out_at)
{
  BEGIN
  out += out_at + (image * planes + plane) * P * Q;
  const T bias_value = HAS_BIAS ? LOAD(bias, bias_at + plane) : (T)0;
  T d[6][6], rows_done[4][6];
  FOR(i, 6) FOR(j, 6) d[i][j] = in[((i * 6 + j) * planes + plane) * tiles + tile];
#define D(i) d[i][j]
#define TO(i, value) rows_done[i][j] = value;
  FOR(j, 6) TRANSFORM_OUTPUT(TO, D)
#undef D
#undef TO
#define D(j) rows_done[i][j]
#define TO(j, value) \
  if (p + i < P && q + j < Q) STORE(out, (p + i) * Q + q + j, (value) + bias_value);
  FOR(i, 4) TRANSFORM_OUTPUT(TO, D)
#undef D
#undef TO
}

// weight (rows, columns, 3, 3) to [36][rows][columns]; ROTATED, for the input gradient: each kernel
// rotated by 180 degrees, to [36][columns][rows]
__kernel void transform_weight(const int rows, const int columns, __global const ELEMENT* in,
                               const int in_at,
                               __global T* out)
{
  const int id = get_global_id(0);
  if (id >= rows * columns) return;
  const int row = id / columns, column = id % columns;
  const int to = ROTATED ? column * rows + row : id;
  in += in_at + id * 9;
  T rows_done[6][3];
#define D(i) LOAD(in, ROTATED ? 8 - (i) * 3 - j : (i) * 3 + j)
#define TO(i, value) rows_done[i][j] = value;
  FOR(j, 3) TRANSFORM_WEIGHT(TO, D)
#undef D
#undef TO
#define D(j) rows_done[i][j]
#define TO(j, value) out[(i * 6 + j) * rows * columns + to] = value;
  FOR(i, 6) TRANSFORM_WEIGHT(TO, D)
#undef D
#undef TO
}

// 36 numbers of each kernel to the weight gradient
__kernel void transform_weight_gradient(const int rows, const int columns, __global const T* in,
                                        __global ELEMENT* out,
                                        const int out_at)
{
  const int id = get_global_id(0);
  if (id >= rows * columns) return;
  out += out_at + id * 9;
  T rows_done[3][6];
#define D(i) in[((i) * 6 + j) * rows * columns + id]
#define TO(i, value) rows_done[i][j] = value;
  FOR(j, 6) TRANSFORM_WEIGHT_GRADIENT(TO, D)
#undef D
#undef TO
#define D(j) rows_done[i][j]
#define TO(j, value) STORE(out, i * 3 + (j), value);
  FOR(i, 3) TRANSFORM_WEIGHT_GRADIENT(TO, D)
#undef D
#undef TO
}
