// C = A B, tiled, for factors of any layout. The source before this file defines how elements are
// read and written: PARAMETERS, PREPARE, BEGIN, END, AT_K, A_AT(row, k), B_AT(k, column), AT_COLUMN
// and WRITE(row, column, sum).
//
// A work-group of ITEMS computes a tile of BM x BN, each item TM x TN of it: vectors of up to four
// neighbours, interleaved with those of the other items, so that neighbouring items read
// neighbouring elements. A and B pass through local memory, BK of the summed elements at a time;
// the next block is fetched while the current block is computed (double buffering).

#define PAD 4
#define TILE_COLUMNS (BN / TN)
#define A_LOCAL(buffer, k, row) a_tile[buffer][k][row]
#define B_LOCAL(buffer, k, column) b_tile[buffer][k][column]
#define A_ROW(i) ((i) / A_STEP * (BM / (TM / A_STEP)) + item_row * A_STEP + (i) % A_STEP)
#define B_COLUMN(j) ((j) / B_STEP * (BN / (TN / B_STEP)) + item_column * B_STEP + (j) % B_STEP)

#define READ(step, to, i, from) READ_(step, to, i, from)
#define READ_(step, to, i, from) READ_##step(to, i, from)
#define READ_1(to, i, from) { to[i] = *(from); }
#define READ_2(to, i, from) { const V(2) v = *(__local const V(2)*)(from); \
    to[i] = v.x; to[i + 1] = v.y; }
#define READ_4(to, i, from) { const V(4) v = *(__local const V(4)*)(from); \
    to[i] = v.x; to[i + 1] = v.y; to[i + 2] = v.z; to[i + 3] = v.w; }
#define V(n) V_(T, n)
#define V_(type, n) V__(type, n)
#define V__(type, n) type##n

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void product(PARAMETERS)
{
  __local FACTOR a_tile[2][BK][BM + PAD] __attribute__((aligned(32)));
  __local FACTOR b_tile[2][BK][BN + PAD] __attribute__((aligned(32)));
  const int item = get_local_id(0);
  const int item_column = item % TILE_COLUMNS, item_row = item / TILE_COLUMNS;
  const int first_row = get_group_id(1) * BM, first_column = get_group_id(0) * BN;
  PREPARE
  T sum[TM][TN];
  FACTOR a_next[A_LOADS], b_next[B_LOADS];
  #pragma unroll
  for (int i = 0; i < TM; i++)
    #pragma unroll
    for (int j = 0; j < TN; j++)
      sum[i][j] = 0;

  int buffer = 0;
  LOAD_REGISTERS(BEGIN)
  STORE_LOCAL(0)
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k = BEGIN; k < END; k += BK) {
    const bool has_next = k + BK < END;
    if (has_next) LOAD_REGISTERS(k + BK)
    #pragma unroll
    for (int kk = 0; kk < BK; kk++) {
      T a[TM], b[TN];
      #pragma unroll
      for (int i = 0; i < TM; i += A_STEP) READ(A_STEP, a, i, &a_tile[buffer][kk][A_ROW(i)])
      #pragma unroll
      for (int j = 0; j < TN; j += B_STEP) READ(B_STEP, b, j, &b_tile[buffer][kk][B_COLUMN(j)])
      #pragma unroll
      for (int i = 0; i < TM; i++)
        #pragma unroll
        for (int j = 0; j < TN; j++)
          sum[i][j] += a[i] * b[j];
    }
    if (has_next) STORE_LOCAL(1 - buffer)
    barrier(CLK_LOCAL_MEM_FENCE);
    buffer = 1 - buffer;
  }
  #pragma unroll
  for (int j = 0; j < TN; j++) {
    const int column = first_column + B_COLUMN(j);
    if (column >= COLUMNS) continue;
    AT_COLUMN(column)
    #pragma unroll
    for (int i = 0; i < TM; i++) {
      const int row = first_row + A_ROW(i);
      if (row < ROWS) WRITE(row, column, sum[i][j])
    }
  }
}
