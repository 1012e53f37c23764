// Convolutions of 3 x 3 with steps of one, by way of Winograd's F(4 x 4, 3 x 3): tiles of 6 x 6 of
// the image and the window become 36 numbers each, that are multiplied instead: a product of
// matrices for each of the 36, with a fourth of the multiplications. The transforms and their
// transposes, which the gradient of the window needs, are these, for rows and then for columns.

// six of the image
#define OF_IMAGE(to, d) { \
  to(0, 4 * d(0) - 5 * d(2) + d(4)) \
  to(1, -4 * (d(1) + d(2)) + d(3) + d(4)) \
  to(2, 4 * (d(1) - d(2)) - d(3) + d(4)) \
  to(3, 2 * (d(3) - d(1)) - d(2) + d(4)) \
  to(4, 2 * (d(1) - d(3)) - d(2) + d(4)) \
  to(5, 4 * d(1) - 5 * d(3) + d(5)) }
// three of the window to six
#define OF_WINDOW(to, g) { \
  to(0, g(0) / 4) \
  to(1, -(g(0) + g(1) + g(2)) / 6) \
  to(2, -(g(0) - g(1) + g(2)) / 6) \
  to(3, g(0) / 24 + g(1) / 12 + g(2) / 6) \
  to(4, g(0) / 24 - g(1) / 12 + g(2) / 6) \
  to(5, g(2)) }
// six of what was multiplied to four that are written
#define TO_OUTPUT(to, m) { \
  to(0, m(0) + m(1) + m(2) + m(3) + m(4)) \
  to(1, m(1) - m(2) + 2 * (m(3) - m(4))) \
  to(2, m(1) + m(2) + 4 * (m(3) + m(4))) \
  to(3, m(1) - m(2) + 8 * (m(3) - m(4)) + m(5)) }
// the transposes: four of a gradient to six, and six to three of the window
#define OF_GRADIENT(to, y) { \
  to(0, y(0)) \
  to(1, y(0) + y(1) + y(2) + y(3)) \
  to(2, y(0) - y(1) + y(2) - y(3)) \
  to(3, y(0) + 2 * y(1) + 4 * y(2) + 8 * y(3)) \
  to(4, y(0) - 2 * y(1) + 4 * y(2) - 8 * y(3)) \
  to(5, y(3)) }
#define TO_WINDOW(to, m) { \
  to(0, m(0) / 4 - (m(1) + m(2)) / 6 + (m(3) + m(4)) / 24) \
  to(1, (m(2) - m(1)) / 6 + (m(3) - m(4)) / 12) \
  to(2, (m(3) + m(4) - m(1) - m(2)) / 6 + m(5)) }

#define FOR(i, n) _Pragma("unroll") for (int i = 0; i < n; i++)

#define TILES const int count, const int planes, const int P, const int Q, \
  const int tiles_p, const int tiles_q, const int tiles
#define BEGIN const int at = get_global_id(0); if (at >= count) return; \
  const int tile = at % tiles, plane = at / tiles; \
  const int image = tile / (tiles_p * tiles_q); \
  const int p = tile / tiles_q % tiles_p * 4, q = tile % tiles_q * 4;

// tiles of 6 x 6 around those of 4 x 4 that are written: [36][planes][tiles]
__kernel void of_image(TILES, const int H, const int W, const int pad_h, const int pad_w,
                       __global const T* in, const int in_at, __global T* out)
{
  BEGIN
  in += in_at + (image * planes + plane) * H * W;
  T d[6][6], half_[6][6];
  FOR(i, 6) FOR(j, 6) {
    const int h = p + i - pad_h, w = q + j - pad_w;
    d[i][j] = (uint)h < (uint)H && (uint)w < (uint)W ? in[h * W + w] : (T)0;
  }
#define D(i) d[i][j]
#define TO(i, value) half_[i][j] = value;
  FOR(j, 6) OF_IMAGE(TO, D)
#undef D
#undef TO
#define D(j) half_[i][j]
#define TO(j, value) out[((i * 6 + j) * planes + plane) * tiles + tile] = value;
  FOR(i, 6) OF_IMAGE(TO, D)
#undef D
#undef TO
}

// tiles of 4 x 4 of a gradient: [36][planes][tiles]
__kernel void of_gradient(TILES, __global const T* in, const int in_at, __global T* out)
{
  BEGIN
  in += in_at + (image * planes + plane) * P * Q;
  T d[4][4], half_[6][4];
  FOR(i, 4) FOR(j, 4)
    d[i][j] = p + i < P && q + j < Q ? in[(p + i) * Q + q + j] : (T)0;
#define D(i) d[i][j]
#define TO(i, value) half_[i][j] = value;
  FOR(j, 4) OF_GRADIENT(TO, D)
#undef D
#undef TO
#define D(j) half_[i][j]
#define TO(j, value) out[((i * 6 + j) * planes + plane) * tiles + tile] = value;
  FOR(i, 6) OF_GRADIENT(TO, D)
#undef D
#undef TO
}

__kernel void to_output(TILES, __global const T* in, __global const T* bias, const int bias_at,
                        __global T* out, const int out_at)
{
  BEGIN
  out += out_at + (image * planes + plane) * P * Q;
  const T more = HAS_BIAS ? bias[bias_at + plane] : (T)0;
  T d[6][6], half_[4][6];
  FOR(i, 6) FOR(j, 6) d[i][j] = in[((i * 6 + j) * planes + plane) * tiles + tile];
#define D(i) d[i][j]
#define TO(i, value) half_[i][j] = value;
  FOR(j, 6) TO_OUTPUT(TO, D)
#undef D
#undef TO
#define D(j) half_[i][j]
#define TO(j, value) if (p + i < P && q + j < Q) out[(p + i) * Q + q + j] = (value) + more;
  FOR(i, 4) TO_OUTPUT(TO, D)
#undef D
#undef TO
}

// of a weight (rows, columns, 3, 3): [36][rows][columns]; where it is TURNED, that of the gradient of
// the input: [36][columns][rows], each window the other way round
__kernel void of_window(const int rows, const int columns, __global const T* in, const int in_at,
                        __global T* out)
{
  const int at = get_global_id(0);
  if (at >= rows * columns) return;
  const int row = at / columns, column = at % columns;
  const int to = TURNED ? column * rows + row : at;
  in += in_at + at * 9;
  T half_[6][3];
#define D(i) in[TURNED ? 8 - (i) * 3 - j : (i) * 3 + j]
#define TO(i, value) half_[i][j] = value;
  FOR(j, 3) OF_WINDOW(TO, D)
#undef D
#undef TO
#define D(j) half_[i][j]
#define TO(j, value) out[(i * 6 + j) * rows * columns + to] = value;
  FOR(i, 6) OF_WINDOW(TO, D)
#undef D
#undef TO
}

// and its gradient
__kernel void to_window(const int rows, const int columns, __global const T* in, __global T* out,
                        const int out_at)
{
  const int at = get_global_id(0);
  if (at >= rows * columns) return;
  out += out_at + at * 9;
  T half_[3][6];
#define D(i) in[((i) * 6 + j) * rows * columns + at]
#define TO(i, value) half_[i][j] = value;
  FOR(j, 6) TO_WINDOW(TO, D)
#undef D
#undef TO
#define D(j) half_[i][j]
#define TO(j, value) out[i * 3 + (j)] = value;
  FOR(i, 3) TO_WINDOW(TO, D)
#undef D
#undef TO
}
