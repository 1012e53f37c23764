// C = A B by the tensor cores of an NVIDIA GPU, for factors of 16 bits, whose sums are floats. The
// source before this file defines how elements are read and written, as for tiles.cl.
//
// A work-group of ITEMS computes a tile of BM x BN, each warp of 32 items 8 TM x 4 TN of it. A and
// B pass through local memory, BK of the summed elements at a time. Each row of A and column of B
// is a line there, longer by 8 elements, so that lanes of a warp read words of different banks. The
// next block is fetched while the current block is computed (double buffering).

#define LINE (BK + 8)
#define WARP_ROWS (8 * TM)
#define WARP_COLUMNS (4 * TN)
#define WARPS_ACROSS (BN / WARP_COLUMNS)
#define A_LOCAL(buffer, k, row) a_tile[buffer][row][k]
#define B_LOCAL(buffer, k, column) b_tile[buffer][column][k]

// two neighbours along k as a word
#define PAIR(tile, line, k) (*(__local const uint*)&tile[buffer][line][k])

// sum += a b for 16 rows, 8 columns and 16 summed elements, whose places in the registers of a
// warp's lanes the instruction defines
#define MULTIPLY(sum, a, b) \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND ".f32 " \
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void product(PARAMETERS)
{
  __local FACTOR a_tile[2][BM][LINE] __attribute__((aligned(16)));
  __local FACTOR b_tile[2][BN][LINE] __attribute__((aligned(16)));
  const int item = get_local_id(0), lane = item % 32, warp = item / 32;
  const int warp_row = warp / WARPS_ACROSS * WARP_ROWS + lane / 4;
  const int warp_column = warp % WARPS_ACROSS * WARP_COLUMNS;
  const int first_row = get_group_id(1) * BM, first_column = get_group_id(0) * BN;
  PREPARE
  float sum[TM / 2][TN / 2][4];
  FACTOR a_next[A_LOADS], b_next[B_LOADS];
  #pragma unroll
  for (int i = 0; i < TM / 2; i++)
    #pragma unroll
    for (int j = 0; j < TN / 2; j++)
      #pragma unroll
      for (int n = 0; n < 4; n++) sum[i][j][n] = 0;

  int buffer = 0;
  LOAD_REGISTERS(BEGIN)
  STORE_LOCAL(0)
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k = BEGIN; k < END; k += BK) {
    const bool has_next = k + BK < END;
    if (has_next) LOAD_REGISTERS(k + BK)
    #pragma unroll
    for (int step = 0; step < BK; step += 16) {
      const int at = step + lane % 4 * 2;
      uint a[TM / 2][4], b[TN / 2][2];
      #pragma unroll
      for (int i = 0; i < TM / 2; i++) {
        const int line = warp_row + i * 16;
        a[i][0] = PAIR(a_tile, line, at);
        a[i][1] = PAIR(a_tile, line + 8, at);
        a[i][2] = PAIR(a_tile, line, at + 8);
        a[i][3] = PAIR(a_tile, line + 8, at + 8);
      }
      #pragma unroll
      for (int j = 0; j < TN / 2; j++) {
        const int line = warp_column + j * 8 + lane / 4;
        b[j][0] = PAIR(b_tile, line, at);
        b[j][1] = PAIR(b_tile, line, at + 8);
      }
      #pragma unroll
      for (int i = 0; i < TM / 2; i++)
        #pragma unroll
        for (int j = 0; j < TN / 2; j++) MULTIPLY(sum[i][j], a[i], b[j]);
    }
    if (has_next) STORE_LOCAL(1 - buffer)
    barrier(CLK_LOCAL_MEM_FENCE);
    buffer = 1 - buffer;
  }
  #pragma unroll
  for (int n = 0; n < TN; n++) {
    const int column = first_column + warp_column + n / 2 * 8 + lane % 4 * 2 + n % 2;
    if (column >= COLUMNS) continue;
    AT_COLUMN(column)
    #pragma unroll
    for (int m = 0; m < TM; m++) {
      const int row = first_row + warp_row + m * 8;
      if (row < ROWS) WRITE(row, column, sum[m / 2][n / 2][m % 2 * 2 + n % 2])
    }
  }
}
