/* Vectors of float32, and the threads of the caller's OpenMP runtime, whose functions are passed in. */

#include <math.h>
#include <stdint.h>

typedef float Floats __attribute__((vector_size(64), aligned(4)));
typedef int32_t Masks __attribute__((vector_size(64), aligned(4)));

#define WIDTH 16
#define LOAD(pointer) (*(const Floats *)(pointer))
#define STORE(pointer) (*(Floats *)(pointer))
#define ALWAYS static inline __attribute__((always_inline))

enum { BLOCK = 4096 };            /* numbers that are summed in float32 */

typedef void Parallel(void (*job)(void *), void *argument, unsigned threads, unsigned flags);

static const int32_t LAST[2 * WIDTH] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
};

/* The last `count` numbers of a vector, and zeros. */
ALWAYS Floats tail(Floats v, int64_t count)
{
    return (Floats)((Masks)v & *(const Masks *)(LAST + count));
}

ALWAYS float total(Floats v)
{
    typedef float Half __attribute__((vector_size(32)));
    typedef float Quarter __attribute__((vector_size(16)));
    union { Floats whole; Half half[2]; } a = {v};
    union { Half whole; Quarter half[2]; } b = {a.half[0] + a.half[1]};
    Quarter c = b.half[0] + b.half[1];
    return (c[0] + c[2]) + (c[1] + c[3]);
}

ALWAYS int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

typedef struct { int64_t at, end; } Range;

/* A thread's part of some units, such as rows. */
ALWAYS Range part(int64_t units, int64_t thread, int64_t threads)
{
    return (Range){units * thread / threads, units * (thread + 1) / threads};
}
