/* STREAM: copy, scale, add and triad over three arrays with all OpenMP threads. Prints the highest
   bandwidth of several runs in bytes/s as one JSON line. A store counts as one transfer.

       stream ELEMENTS ROUNDS */
#include <stdio.h>
#include <stdlib.h>
#include <omp.h>

int main(int count, char **words)
{
    long n = count > 1 ? atol(words[1]) : 1 << 25;
    int rounds = count > 2 ? atoi(words[2]) : 10;
    double *a = aligned_alloc(64, n * sizeof *a), *b = aligned_alloc(64, n * sizeof *b);
    double *c = aligned_alloc(64, n * sizeof *c);
    double best[4] = {1e30, 1e30, 1e30, 1e30};
    static const int moved[4] = {2, 2, 3, 3};
    static const char *const names[4] = {"copy", "scale", "add", "triad"};
    if (!a || !b || !c)
        return 1;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++)
        a[i] = 1, b[i] = 2, c[i] = 0;
    for (int round = 0; round < rounds; round++)
        for (int which = 0; which < 4; which++) {
            double begin = omp_get_wtime(), took;
            if (which == 0) {
#pragma omp parallel for schedule(static)
                for (long i = 0; i < n; i++)
                    c[i] = a[i];
            } else if (which == 1) {
#pragma omp parallel for schedule(static)
                for (long i = 0; i < n; i++)
                    b[i] = 3 * c[i];
            } else if (which == 2) {
#pragma omp parallel for schedule(static)
                for (long i = 0; i < n; i++)
                    c[i] = a[i] + b[i];
            } else {
#pragma omp parallel for schedule(static)
                for (long i = 0; i < n; i++)
                    a[i] = b[i] + 3 * c[i];
            }
            took = omp_get_wtime() - begin;
            if (took < best[which])
                best[which] = took;
        }
    printf("{");
    for (int which = 0; which < 4; which++)
        printf("%s\"%s\": %.0f", which ? ", " : "", names[which],
               moved[which] * n * sizeof *a / best[which]);
    printf("}\n");
    return a[n / 2] > 0 ? 0 : 1;
}
