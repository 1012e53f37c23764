// C = A B, whatever A and B are read from. What stands before this file says how elements are read
// and written: PARAMETERS, PREPARE, A_AT(row, k), B_AT(k, column), END, and WRITE(row, column, sum).
//
// A group of ITEMS makes a tile of BM x BN, each item TM x TN of it: vectors of up to four
// neighbours, side by side with those of the other items, so that neighbours read neighbours. A and
// B come through local memory, BK of what is added up at a time; the next part is on its way while
// one is computed.

#define PAD 4
#define ACROSS (BN / TN)
#define A_EACH (BM * BK / ITEMS)
#define B_EACH (BN * BK / ITEMS)
#define A_ROW(i) ((i) / A_STEP * (BM / (TM / A_STEP)) + down * A_STEP + (i) % A_STEP)
#define B_COLUMN(j) ((j) / B_STEP * (BN / (TN / B_STEP)) + across * B_STEP + (j) % B_STEP)

// which element of a tile an item reads: by A_BY_K, neighbours are those of a row of A. ITEMS is a
// multiple of BK and of BN.
#define A_K(p) (A_BY_K ? item % BK : (item + (p) * ITEMS) / BM)
#define A_M(p) (A_BY_K ? (item + (p) * ITEMS) / BK : (item + (p) * ITEMS) % BM)
#define B_K(p) (B_BY_K ? item % BK : (item + (p) * ITEMS) / BN)
#define B_N(p) (B_BY_K ? (item + (p) * ITEMS) / BK : (item + (p) * ITEMS) % BN)

#define READ(step, to, i, from) READ_(step, to, i, from)
#define READ_(step, to, i, from) READ_##step(to, i, from)
#define READ_1(to, i, from) { to[i] = *(from); }
#define READ_2(to, i, from) { const V(2) v = *(__local const V(2)*)(from); to[i] = v.x; to[i + 1] = v.y; }
#define READ_4(to, i, from) { const V(4) v = *(__local const V(4)*)(from); \
    to[i] = v.x; to[i + 1] = v.y; to[i + 2] = v.z; to[i + 3] = v.w; }
#define V(n) V_(T, n)
#define V_(type, n) V__(type, n)
#define V__(type, n) type##n

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void product(PARAMETERS)
{
  __local T a_tile[2][BK][BM + PAD] __attribute__((aligned(32)));
  __local T b_tile[2][BK][BN + PAD] __attribute__((aligned(32)));
  const int item = get_local_id(0);
  const int across = item % ACROSS, down = item / ACROSS;
  const int first_row = get_group_id(1) * BM, first_column = get_group_id(0) * BN;
  PREPARE
  T sum[TM][TN], a_next[A_EACH], b_next[B_EACH];
  #pragma unroll
  for (int i = 0; i < TM; i++)
    #pragma unroll
    for (int j = 0; j < TN; j++)
      sum[i][j] = 0;

#define FETCH(begin) { \
    AT_K(begin) \
    _Pragma("unroll") \
    for (int p = 0; p < A_EACH; p++) a_next[p] = A_AT(first_row + A_M(p), (begin) + A_K(p)); \
    _Pragma("unroll") \
    for (int p = 0; p < B_EACH; p++) b_next[p] = B_AT((begin) + B_K(p), first_column + B_N(p)); }
#define PUT(at) { \
    _Pragma("unroll") \
    for (int p = 0; p < A_EACH; p++) a_tile[at][A_K(p)][A_M(p)] = a_next[p]; \
    _Pragma("unroll") \
    for (int p = 0; p < B_EACH; p++) b_tile[at][B_K(p)][B_N(p)] = b_next[p]; }

  int at = 0;
  FETCH(BEGIN)
  PUT(0)
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k = BEGIN; k < END; k += BK) {
    const bool more = k + BK < END;
    if (more) FETCH(k + BK)
    #pragma unroll
    for (int deep = 0; deep < BK; deep++) {
      T a[TM], b[TN];
      #pragma unroll
      for (int i = 0; i < TM; i += A_STEP) READ(A_STEP, a, i, &a_tile[at][deep][A_ROW(i)])
      #pragma unroll
      for (int j = 0; j < TN; j += B_STEP) READ(B_STEP, b, j, &b_tile[at][deep][B_COLUMN(j)])
      #pragma unroll
      for (int i = 0; i < TM; i++)
        #pragma unroll
        for (int j = 0; j < TN; j++)
          sum[i][j] += a[i] * b[j];
    }
    if (more) PUT(1 - at)
    barrier(CLK_LOCAL_MEM_FENCE);
    at = 1 - at;
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
