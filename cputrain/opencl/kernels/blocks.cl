// Blocks of the factors of a product, BM rows of A and BN columns of B for BK of the summed
// elements, on their way through registers to local memory. The kernel after this file defines
// where elements are in local memory: A_LOCAL(buffer, k, row) and B_LOCAL(buffer, k, column).

#define A_LOADS (BM * BK / ITEMS)
#define B_LOADS (BN * BK / ITEMS)

// row and column of the p-th element that an item loads; with A_BY_K, neighbouring items load
// neighbours along k. ITEMS is a multiple of BK and of BN.
#define A_K(p) (A_BY_K ? item % BK : (item + (p) * ITEMS) / BM)
#define A_M(p) (A_BY_K ? (item + (p) * ITEMS) / BK : (item + (p) * ITEMS) % BM)
#define B_K(p) (B_BY_K ? item % BK : (item + (p) * ITEMS) / BN)
#define B_N(p) (B_BY_K ? (item + (p) * ITEMS) / BK : (item + (p) * ITEMS) % BN)

#define LOAD_REGISTERS(begin) { \
  AT_K(begin) \
  _Pragma("unroll") \
  for (int p = 0; p < A_LOADS; p++) a_next[p] = A_AT(first_row + A_M(p), (begin) + A_K(p)); \
  _Pragma("unroll") \
  for (int p = 0; p < B_LOADS; p++) b_next[p] = B_AT((begin) + B_K(p), first_column + B_N(p)); }
#define STORE_LOCAL(buffer) { \
  _Pragma("unroll") \
  for (int p = 0; p < A_LOADS; p++) A_LOCAL(buffer, A_K(p), A_M(p)) = a_next[p]; \
  _Pragma("unroll") \
  for (int p = 0; p < B_LOADS; p++) B_LOCAL(buffer, B_K(p), B_N(p)) = b_next[p]; }
