// The gradient of a convolution's weight: rows are channels that were written, columns are pairs of
// a channel that was read and a place in the window, and what is added up are places (image, p, q).
// Several groups of items can divide those among them; each writes what it has.

#define PARAMETERS \
  const int M, const int N, const int K, \
  __global const T* grad, const int grad_at, const int grad_n, const int grad_m, \
  const int grad_group, const int grad_p, const int grad_q, \
  __global const T* in, const int in_at, const int in_n, const int in_group, \
  const int H, const int W, const int in_h, const int in_w, \
  const int P, const int Q, const int step_h, const int step_w, const int add_h, const int add_w, \
  __global const int4* table, const int parts, const int each, __global T* out
#define A_BY_K 1
#define B_BY_K 1
#define ROWS M
#define COLUMNS N
#define BEGIN (part * each)
#define END end
#define PREPARE \
  const int group = get_group_id(2) / parts, part = get_group_id(2) % parts; \
  const int end = min(K, (part + 1) * each); \
  const int groups = get_num_groups(2) / parts; \
  grad += grad_at + group * grad_group; \
  in += in_at + group * in_group; \
  out += ((long)part * groups + group) * M * N; \
  __local int4 window[BN]; \
  for (int i = item; i < BN; i += ITEMS) \
    window[i] = table[min(first_column + i, N - 1)]; \
  barrier(CLK_LOCAL_MEM_FENCE);
#define AT_K(begin) \
  const int own = (begin) + item % BK, image = own / (P * Q), place = own % (P * Q); \
  const int p_ = place / Q, q_ = place % Q; \
  const int h = p_ * step_h + add_h, w = q_ * step_w + add_w; \
  const int grad_first = image * grad_n + p_ * grad_p + q_ * grad_q; \
  const int in_first = image * in_n + h * in_h + w * in_w; \
  const bool is_there = own < end;
#define A_AT(row, unused) ((row) < M && is_there ? grad[grad_first + (row) * grad_m] : (T)0)
#define B_AT(unused, column) \
  ((column) < N && is_there \
       ? read_in(in, window[(column) - first_column], in_first, h, w, H, W) : (T)0)
#define AT_COLUMN(column)
#define WRITE(row, column, value) out[(row) * N + (column)] = (value);
