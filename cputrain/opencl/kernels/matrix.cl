// C = alpha A B + beta D for a batch of matrices of any strides. The sum may be split into parts
// (split-k), each summed by a work-group of its own into a part of C.

#define PARAMETERS \
  const int M, const int N, const int K, \
  __global const ELEMENT* A, const long a_at, const long a_m, const long a_k, const long a_batch, \
  __global const ELEMENT* B, const long b_at, const long b_k, const long b_n, const long b_batch, \
  __global const ELEMENT* D, const long d_at, const long d_m, const long d_n, const long d_batch, \
  __global RESULT* C, const long c_at, const T alpha, const T beta, const int num_parts, \
  const int part_length
#define ROWS M
#define COLUMNS N
#if DIVIDED
#define BEGIN (part * part_length)
#define END end
#else
#define BEGIN 0
#define END K
#endif
#define PREPARE \
  const long batch = get_group_id(2) / num_parts; \
  const int part = get_group_id(2) % num_parts, end = min(K, (part + 1) * part_length); \
  A += a_at + batch * a_batch; \
  B += b_at + batch * b_batch; \
  D += d_at + batch * d_batch; \
  C += c_at + (part * (get_num_groups(2) / num_parts) + batch) * M * N; \
  const I am = a_m, ak = A_BY_K ? 1 : a_k, bk = B_BY_K ? 1 : b_k, bn = B_STRIDE;
#define AT_K(begin)
#define A_AT(row, k) ((row) < M && (k) < END ? LOAD_FACTOR(A, (row) * am + (k) * ak) : 0)
#define B_AT(k, column) ((k) < END && (column) < N ? LOAD_FACTOR(B, (k) * bk + (column) * bn) : 0)
#define AT_COLUMN(column)
#define WRITE(row, column, value) { \
    T result = alpha * (value); \
    if (HAS_D) result += beta * LOAD(D, (row) * d_m + (column) * d_n); \
    STORE_RESULT(C, (long)(row) * N + (column), result); }
