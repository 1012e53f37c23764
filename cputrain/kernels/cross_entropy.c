/* Softmax cross entropy of rows of float32, and its gradient, in one pass over memory.

   A row is read from memory once: its largest number, the exponentials and their sum, and the
   gradient are computed while it is in a core's cache. */

#include "vectors.h"
#include <string.h>

typedef struct {
    int64_t num_rows, num_classes, ignored;     /* ignored: the target of rows that do not count */
    const float *input;
    const int64_t *targets;
    float *grad;                                /* or null */
    double *losses;                             /* of each row */
    Parallel *parallel;                         /* GOMP_parallel */
    int (*thread)(void), (*threads)(void);      /* omp_get_thread_num, omp_get_num_threads */
    double scale;                               /* what the gradient is multiplied by */
    uint32_t num_threads;
} CrossEntropy;

ALWAYS Floats larger(Floats a, Floats b)
{
    Masks is_larger = a > b;
    return (Floats)(((Masks)a & is_larger) | ((Masks)b & ~is_larger));
}

/* exp(x) of numbers up to 0. What is below the smallest normal number is 0; NaN stays NaN. */
ALWAYS Floats exponential(Floats x)
{
    const float round = 12582912.0f;  /* adding it leaves no bits behind the point */
    Floats n = (x * 1.44269504088896341f + round) - round;
    Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Floats y = 1.9875691500e-4f * r + 1.3981999507e-3f;  /* of Cephes */
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    Masks is_small = x < -87.0f;
    /* (a conversion of what is no integer has no defined result) */
    Masks power = __builtin_convertvector((Floats)((Masks)n & ~(is_small | (n != n))), Masks);
    Masks scale = (power + 127) << 23;
    return (Floats)((Masks)(y * (Floats)scale) & ~is_small);
}

/* The last numbers of a row in a vector, filled with what has an exponential of 0. */
ALWAYS Floats last(const float *x, int64_t count)
{
    Floats v = {0};
    v -= INFINITY;
    memcpy(&v, x, count * sizeof *x);
    return v;
}

ALWAYS float largest(const float *x, int64_t length)
{
    Floats a = {0}, b;
    a -= INFINITY;
    b = a;
    int64_t i = 0;
    for (; i + 2 * WIDTH <= length; i += 2 * WIDTH) {
        a = larger(a, LOAD(x + i));
        b = larger(b, LOAD(x + i + WIDTH));
    }
    for (; i < length; i += WIDTH)
        a = larger(a, i + WIDTH <= length ? LOAD(x + i) : last(x + i, length - i));
    a = larger(a, b);
    float most = a[0];
    for (int lane = 1; lane < WIDTH; lane++)
        most = a[lane] > most ? a[lane] : most;
    return most;
}

/* The loss of a row, which may be more than there are numbers for. */
ALWAYS float row_loss(const float *x, float *grad, int64_t length, int64_t target, float scale,
                       int has_grad)
{
    float most = largest(x, length);
    double sum = 0;
    for (int64_t begin = 0; begin < length; begin += BLOCK) {
        int64_t end = smaller(begin + BLOCK, length), i = begin;
        Floats a = {0}, b = {0};
        for (; i + 2 * WIDTH <= end; i += 2 * WIDTH) {
            Floats first = exponential(LOAD(x + i) - most);
            Floats second = exponential(LOAD(x + i + WIDTH) - most);
            a += first;
            b += second;
            if (has_grad) {
                STORE(grad + i) = first;
                STORE(grad + i + WIDTH) = second;
            }
        }
        for (; i < end; i += WIDTH) {
            int64_t count = smaller(end - i, WIDTH);
            Floats e = exponential(last(x + i, count) - most);
            a += e;
            if (has_grad)
                memcpy(grad + i, &e, count * sizeof *grad);
        }
        sum += total(a + b);
    }
    if (has_grad) {
        float factor = (float)(scale / sum);
        int64_t i = 0;
        for (; i + WIDTH <= length; i += WIDTH)
            STORE(grad + i) = LOAD(grad + i) * factor;
        for (; i < length; i++)
            grad[i] *= factor;
        grad[target] -= scale;
    }
    return (float)(log(sum) + ((double)most - x[target]));
}

static void compute_rows(void *argument)
{
    CrossEntropy *n = argument;
    int64_t length = n->num_classes;
    Range rows = part(n->num_rows, n->thread(), n->threads());
    for (int64_t row = rows.at; row < rows.end; row++) {
        const float *x = n->input + row * length;
        float *grad = n->grad + row * length;
        int64_t target = n->targets[row];
        n->losses[row] = 0;
        if (target == n->ignored) {
            if (n->grad)
                memset(grad, 0, length * sizeof *grad);
        } else if (n->grad)
            n->losses[row] = row_loss(x, grad, length, target, (float)n->scale, 1);
        else
            n->losses[row] = row_loss(x, 0, length, target, 0, 0);
    }
}

/* The sum of the losses: by rows, so that it does not depend on the threads. */
double cross_entropy(CrossEntropy *n)
{
    double sum = 0;
    n->parallel(compute_rows, n, n->num_threads, 0);
    for (int64_t row = 0; row < n->num_rows; row++)
        sum += n->losses[row];
    return sum;
}

/* The number of rows that count; -1 if a target is no class. */
int64_t cross_entropy_count(const int64_t *targets, int64_t num_rows, int64_t num_classes,
                            int64_t ignored)
{
    int64_t count = 0;
    for (int64_t row = 0; row < num_rows; row++) {
        if (targets[row] == ignored)
            continue;
        if (targets[row] < 0 || targets[row] >= num_classes)
            return -1;
        count++;
    }
    return count;
}
