// C = alpha A B + beta D, for each of a batch of matrices, whatever their strides.
//
// A group of 16 x 16 items makes a tile of 64 x 64; each item makes 4 x 4 of it, 16 apart, so that
// neighbours read and write neighbours. A and B come through local memory, 16 of K at a time. Where
// A_BY_K is 1, elements of A that lie behind one another are those of a row; B_BY_N is of B's rows.

#define TILE 64
#define DEPTH 16
#define SIDE 16
#define EACH 4

__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1)))
void gemm(const long M, const long N, const long K,
          __global const T* A, long a_at, const long a_m, const long a_k, const long a_batch,
          __global const T* B, long b_at, const long b_k, const long b_n, const long b_batch,
          __global const T* D, long d_at, const long d_m, const long d_n, const long d_batch,
          __global T* C, long c_at, const T alpha, const T beta)
{
  __local T a_tile[DEPTH][TILE + 1];
  __local T b_tile[DEPTH][TILE + 1];
  const int x = get_local_id(0), y = get_local_id(1), item = y * SIDE + x;
  const long row = (long)get_group_id(1) * TILE, column = (long)get_group_id(0) * TILE;
  const long batch = get_group_id(2);
  a_at += batch * a_batch;
  b_at += batch * b_batch;
  d_at += batch * d_batch;
  c_at += batch * M * N;
  T sum[EACH][EACH];
  for (int i = 0; i < EACH; i++)
    for (int j = 0; j < EACH; j++)
      sum[i][j] = 0;
  for (long begin = 0; begin < K; begin += DEPTH) {
    for (int load = item; load < TILE * DEPTH; load += SIDE * SIDE) {
      const int a_deep = A_BY_K ? load % DEPTH : load / TILE;
      const int a_row = A_BY_K ? load / DEPTH : load % TILE;
      const int b_deep = B_BY_N ? load / TILE : load % DEPTH;
      const int b_column = B_BY_N ? load % TILE : load / DEPTH;
      const bool a_in = row + a_row < M && begin + a_deep < K;
      const bool b_in = column + b_column < N && begin + b_deep < K;
      a_tile[a_deep][a_row] =
          a_in ? A[a_at + (row + a_row) * a_m + (begin + a_deep) * a_k] : (T)0;
      b_tile[b_deep][b_column] =
          b_in ? B[b_at + (begin + b_deep) * b_k + (column + b_column) * b_n] : (T)0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int deep = 0; deep < DEPTH; deep++) {
      T a[EACH], b[EACH];
      for (int i = 0; i < EACH; i++) {
        a[i] = a_tile[deep][y + i * SIDE];
        b[i] = b_tile[deep][x + i * SIDE];
      }
      for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++)
          sum[i][j] = fma(a[i], b[j], sum[i][j]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int i = 0; i < EACH; i++) {
    const long m = row + y + i * SIDE;
    for (int j = 0; j < EACH; j++) {
      const long n = column + x + j * SIDE;
      if (m < M && n < N) {
        T value = alpha * sum[i][j];
        if (HAS_D) value += beta * D[d_at + m * d_m + n * d_n];
        C[c_at + m * N + n] = value;
      }
    }
  }
}
