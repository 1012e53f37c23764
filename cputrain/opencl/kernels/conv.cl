// Convolution, and its input gradient, as a matrix product: rows are written channels, columns are
// written positions (image, p, q), and the sum is over pairs of a read channel and a kernel
// position. An entry of the table is such a pair: offset of its weight, offset of its input element
// from the first element of the position, and row and column distance, to check for padding.

#define PARAMETERS \
  const int M, const int N, const int K, \
  __global const ELEMENT* weight, const int weight_at, const int weight_m, const int weight_group, \
  __global const ELEMENT* in, const int in_at, const int in_n, const int in_group, \
  const int H, const int W, const int in_h, const int in_w, \
  const int P, const int Q, const int stride_h, const int stride_w, const int start_h, \
  const int start_w, __global const int4* table, __global const ELEMENT* bias, const int bias_at, \
  __global ELEMENT* out, const int out_at, const int out_n, const int out_m, const int out_group, \
  const int out_p, const int out_q
#define A_BY_K 1
#define B_BY_K 0
#define ROWS M
#define COLUMNS N
#define BEGIN 0
#define END K
#define PREPARE \
  const int group = get_group_id(2); \
  weight += weight_at + group * weight_group; \
  out += out_at + group * out_group; \
  const int column = first_column + item % BN; \
  const int image = column / (P * Q), position = column % (P * Q); \
  const int h = position / Q * stride_h + start_h, w = position % Q * stride_w + start_w; \
  const int in_base = in_at + group * in_group + image * in_n + h * in_h + w * in_w; \
  const bool is_column = column < N;
#define AT_K(begin)
#define A_AT(row, k) ((row) < M && (k) < K ? LOAD_FACTOR(weight, (row) * weight_m + table[k].x) : 0)
#define B_AT(k, unused) (is_column && (k) < K ? read_in(in, table[k], in_base, h, w, H, W) : 0)
#define AT_COLUMN(column) \
  const int out_at_column = (column) / (P * Q) * out_n + (column) % (P * Q) / Q * out_p \
                    + (column) % Q * out_q;
#define WRITE(row, column, value) \
  STORE(out, out_at_column + (row) * out_m, \
        (value) + (HAS_BIAS ? LOAD(bias, bias_at + group * M + (row)) : (T)0));
