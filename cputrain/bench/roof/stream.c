/* STREAM: copy, scale, add and triad over three arrays with all OpenMP threads. Prints the highest
   bandwidth of several runs in bytes/s as one JSON line. A store counts as one transfer.

       stream ELEMENTS ROUNDS */
#include <stdio.h>
#include <stdlib.h>
#include <omp.h>

int main(int argc, char **argv)
{
    long n = argc > 1 ? atol(argv[1]) : 1 << 25;
    int rounds = argc > 2 ? atoi(argv[2]) : 10;
    double *a = aligned_alloc(64, n * sizeof *a), *b = aligned_alloc(64, n * sizeof *b);
    double *c = aligned_alloc(64, n * sizeof *c);
    double best[4] = {1e30, 1e30, 1e30, 1e30};
    static const int num_arrays[4] = {2, 2, 3, 3};
    static const char *const names[4] = {"copy", "scale", "add", "triad"};
    if (!a || !b || !c)
        return 1;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++)
        a[i] = 1, b[i] = 2, c[i] = 0;
    for (int round = 0; round < rounds; round++)
        for (int kernel = 0; kernel < 4; kernel++) {
            double begin = omp_get_wtime(), elapsed;
            if (kernel == 0) {
#pragma omp parallel for schedule(static)
                for (long i = 0; i < n; i++)
                    c[i] = a[i];
            } else if (kernel == 1) {
#pragma omp parallel for schedule(static)
                for (long i = 0; i < n; i++)
                    b[i] = 3 * c[i];
            } else if (kernel == 2) {
#pragma omp parallel for schedule(static)
                for (long i = 0; i < n; i++)
                    c[i] = a[i] + b[i];
            } else {
#pragma omp parallel for schedule(static)
                for (long i = 0; i < n; i++)
                    a[i] = b[i] + 3 * c[i];
            }
            elapsed = omp_get_wtime() - begin;
            if (elapsed < best[kernel])
                best[kernel] = elapsed;
        }
    printf("{");
    for (int kernel = 0; kernel < 4; kernel++)
        printf("%s\"%s\": %.0f", kernel ? ", " : "", names[kernel],
               num_arrays[kernel] * n * sizeof *a / best[kernel]);
    printf("}\n");
    return a[n / 2] > 0 ? 0 : 1;
}
