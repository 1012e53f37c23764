// Weight gradient of a convolution as a matrix product: rows are output channels, columns are pairs
// of an input channel and a kernel position, and the sum is over positions (image, p, q). It may be
// split into parts (split-k), each summed by a work-group of its own into a part of `out`.

#define PARAMETERS \
  const int M, const int N, const int K, \
  __global const ELEMENT* grad, const int grad_at, const int grad_n, const int grad_m, \
  const int grad_group, const int grad_p, const int grad_q, \
  __global const ELEMENT* in, const int in_at, const int in_n, const int in_group, \
  const int H, const int W, const int in_h, const int in_w, \
  const int P, const int Q, const int stride_h, const int stride_w, const int start_h, \
  const int start_w, __global const int4* table, const int num_parts, const int part_length, \
  __global RESULT* out
#define A_BY_K 1
#define B_BY_K 1
#define ROWS M
#define COLUMNS N
#define BEGIN (part * part_length)
#define END end
#define PREPARE \
  const int group = get_group_id(2) / num_parts, part = get_group_id(2) % num_parts; \
  const int end = min(K, (part + 1) * part_length); \
  const int groups = get_num_groups(2) / num_parts; \
  grad += grad_at + group * grad_group; \
  in += in_at + group * in_group; \
  out += ((long)part * groups + group) * M * N; \
  __local int4 column_table[BN]; \
  for (int i = item; i < BN; i += ITEMS) \
    column_table[i] = table[min(first_column + i, N - 1)]; \
  barrier(CLK_LOCAL_MEM_FENCE);
#define AT_K(begin) \
  const int k_position = (begin) + item % BK; \
  const int image = k_position / (P * Q), position = k_position % (P * Q); \
  const int p_ = position / Q, q_ = position % Q; \
  const int h = p_ * stride_h + start_h, w = q_ * stride_w + start_w; \
  const int grad_base = image * grad_n + p_ * grad_p + q_ * grad_q; \
  const int in_base = image * in_n + h * in_h + w * in_w; \
  const bool is_valid = k_position < end;
#define A_AT(row, unused) \
  ((row) < M && is_valid ? LOAD_FACTOR(grad, grad_base + (row) * grad_m) : 0)
#define B_AT(unused, column) \
  ((column) < N && is_valid \
       ? read_in(in, column_table[(column) - first_column], in_base, h, w, H, W) : 0)
#define AT_COLUMN(column)
#define WRITE(row, column, value) STORE_RESULT(out, (row) * N + (column), value);
