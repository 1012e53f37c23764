// A convolution, and the gradient of its input: rows are channels that are written, columns are
// places (image, p, q), and what is added up are pairs of a channel that is read and a place in the
// window. A table has for each of these: where its weight is, how far from the place's first element
// what it is multiplied with is, and how many rows and columns of the image that is away.

#define PARAMETERS \
  const int M, const int N, const int K, \
  __global const T* weight, const int w_at, const int w_m, const int w_group, \
  __global const T* in, const int in_at, const int in_n, const int in_group, \
  const int H, const int W, const int in_h, const int in_w, \
  const int P, const int Q, const int step_h, const int step_w, const int add_h, const int add_w, \
  __global const int4* table, __global const T* bias, const int bias_at, \
  __global T* out, const int out_at, const int out_n, const int out_m, const int out_group, \
  const int out_p, const int out_q
#define A_BY_K 1
#define B_BY_K 0
#define ROWS M
#define COLUMNS N
#define BEGIN 0
#define END K
#define PREPARE \
  const int group = get_group_id(2); \
  weight += w_at + group * w_group; \
  out += out_at + group * out_group; \
  const int column = first_column + item % BN; \
  const int image = column / (P * Q), place = column % (P * Q); \
  const int h = place / Q * step_h + add_h, w = place % Q * step_w + add_w; \
  const int in_first = in_at + group * in_group + image * in_n + h * in_h + w * in_w; \
  const bool is_there = column < N;
#define AT_K(begin)
#define A_AT(row, k) ((row) < M && (k) < K ? weight[(row) * w_m + table[k].x] : (T)0)
#define B_AT(k, unused) (is_there && (k) < K ? read_in(in, table[k], in_first, h, w, H, W) : (T)0)
#define AT_COLUMN(column) \
  const int there = (column) / (P * Q) * out_n + (column) % (P * Q) / Q * out_p \
                    + (column) % Q * out_q;
#define WRITE(row, column, value) \
  out[there + (row) * out_m] = (value) + (HAS_BIAS ? bias[bias_at + group * M + (row)] : (T)0);
