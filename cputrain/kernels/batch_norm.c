/* Batch norm in training, forward and backward, and the gradient of an activation that follows it.

   Tensors are float32, in planes (contiguous) or in rows (channels last). The threads are those of
   the caller's OpenMP runtime, whose functions are passed in: always all of them, as libgomp ends
   threads that a parallel region leaves out. Where a tensor fits the caches of the cores, each
   thread computes the same part of it in every region, the part that it has in torch's operators
   too. A larger tensor is computed channel by channel, each of which fits one cache. */

#include "vectors.h"

typedef struct {
    float low, high, slope;
    int32_t is_there;
} Activation;

typedef struct {
    int64_t num_samples, num_channels, plane;   /* elements of a channel in a sample */
    const float *input, *weight, *bias;
    const float *grad_output;
    float *output;                              /* or the gradient of the input, or null */
    float *mean, *rstd, *variance;              /* saved by forward, read by backward */
    float *grad_weight, *grad_bias;
    double *partial;                            /* sums of planes or of parts of the rows */
    Parallel *parallel;                         /* GOMP_parallel */
    int (*thread)(void), (*threads)(void);      /* omp_get_thread_num, omp_get_num_threads */
    double eps;
    Activation activation;
    uint32_t num_threads, is_finite;            /* is_finite: whether all moments are */
    int64_t by_channel, num_parts, next;        /* num_parts: of rows */
} BatchNorm;

/* The gradient of what is before an activation, which is linear between `low` and `high`, and
   outside has `slope`, or is constant. */
ALWAYS Floats kept(Floats grad, Floats before, Activation a)
{
    Masks outside = (before <= a.low) | (before >= a.high);
    if (a.slope == 0)  /* not a product, which would keep infinity and NaN */
        return (Floats)((Masks)grad & ~outside);
    return (Floats)(((Masks)grad & ~outside) | ((Masks)(grad * a.slope) & outside));
}

ALWAYS float kept_one(float grad, float before, Activation a)
{
    return !(before <= a.low || before >= a.high) ? grad : a.slope == 0 ? 0 : grad * a.slope;
}

/* The mean and sum of squared differences of `n` numbers, merged with those of earlier ones. */
ALWAYS void merge(double *count, double *mean, double *squares, double n, double m, double s)
{
    double all = *count + n, delta = m - *mean;
    *mean += delta * n / all;
    *squares += s + delta * delta * *count * n / all;
    *count = all;
}

/* The moments of planes of `length` numbers, or a block of one, merged with earlier ones. */
static void plane_moments(const float *x, int64_t planes, int64_t stride, int64_t length,
                          double *count, double *mean, double *squares)
{
    Floats a = {0}, b = {0};
    for (int64_t p = 0; p < planes; p++) {
        const float *row = x + p * stride;
        int64_t i = 0;
        for (; i + 2 * WIDTH <= length; i += 2 * WIDTH) {
            a += LOAD(row + i);
            b += LOAD(row + i + WIDTH);
        }
        for (; i + WIDTH <= length; i += WIDTH)
            a += LOAD(row + i);
        if (i < length)
            b += tail(LOAD(row + length - WIDTH), length - i);
    }
    double number = (double)planes * length;
    float middle = total(a + b) / number;
    Floats q = {0}, r = {0}, d = {0}, e = {0};
    for (int64_t p = 0; p < planes; p++) {
        const float *row = x + p * stride;
        int64_t i = 0;
        for (; i + 2 * WIDTH <= length; i += 2 * WIDTH) {
            Floats u = LOAD(row + i) - middle, v = LOAD(row + i + WIDTH) - middle;
            d += u;
            e += v;
            q += u * u;
            r += v * v;
        }
        for (; i + WIDTH <= length; i += WIDTH) {
            Floats u = LOAD(row + i) - middle;
            d += u;
            q += u * u;
        }
        if (i < length) {
            Floats u = tail(LOAD(row + length - WIDTH) - middle, length - i);
            e += u;
            r += u * u;
        }
    }
    double off = (double)total(d + e) / number;  /* what rounding left in `middle` */
    merge(count, mean, squares, number, middle + off,
          (double)total(q + r) - number * off * off);
}

/* Runs `body` for blocks of at most BLOCK numbers, or one plane, of samples of a channel. */
#define FOR_BLOCKS(n, first, last, body)                                                          \
    do {                                                                                          \
        int64_t together = BLOCK / (n)->plane > 1 ? BLOCK / (n)->plane : 1;                       \
        for (int64_t s = (first); s < (last); s += together) {                                    \
            int64_t planes = smaller(together, (last) - s);                                       \
            for (int64_t begin = 0; begin < (n)->plane; begin += BLOCK) {                         \
                int64_t length = smaller(BLOCK, (n)->plane - begin);                              \
                int64_t at = (s * (n)->num_channels + channel) * (n)->plane + begin;              \
                body                                                                              \
            }                                                                                     \
        }                                                                                         \
    } while (0)

ALWAYS void save_moments(BatchNorm *n, int64_t channel, double count, double mean, double squares)
{
    n->mean[channel] = mean;
    n->rstd[channel] = 1 / sqrt(squares / count + n->eps);
    n->variance[channel] = squares / (count - 1);
    if (!isfinite(n->variance[channel]) || !isfinite(n->mean[channel]))
        __atomic_store_n(&n->is_finite, 0, __ATOMIC_RELAXED);
}

ALWAYS void normalize_planes(BatchNorm *n, int64_t channel, int64_t first, int64_t last)
{
    float scale = n->weight[channel] * n->rstd[channel];
    float shift = n->bias[channel] - n->mean[channel] * scale;
    for (int64_t s = first; s < last; s++) {
        int64_t at = (s * n->num_channels + channel) * n->plane;
        const float *x = n->input + at;
        float *y = n->output + at;
        for (int64_t step = 0; step < n->plane; step += WIDTH) {
            int64_t i = smaller(step, n->plane - WIDTH);  /* the last two may overlap */
            STORE(y + i) = LOAD(x + i) * scale + shift;
        }
    }
}

ALWAYS void sum_grads(const BatchNorm *n, int64_t channel, int64_t first, int64_t last,
                      double *sum, double *product, int has_activation)
{
    float mean = n->mean[channel], scale = n->weight[channel] * n->rstd[channel];
    float shift = n->bias[channel] - mean * scale;
    const Activation act = n->activation;
    FOR_BLOCKS(n, first, last, {
        Floats a = {0}; Floats b = {0}; Floats c = {0}; Floats d = {0};
        for (int64_t p = 0; p < planes; p++) {
            const float *x = n->input + at + p * n->num_channels * n->plane;
            const float *g = n->grad_output + at + p * n->num_channels * n->plane;
            int64_t i = 0;
            for (; i + 2 * WIDTH <= length; i += 2 * WIDTH) {
                Floats u = LOAD(x + i); Floats v = LOAD(x + i + WIDTH);
                Floats gu = LOAD(g + i); Floats gv = LOAD(g + i + WIDTH);
                if (has_activation) {
                    gu = kept(gu, u * scale + shift, act);
                    gv = kept(gv, v * scale + shift, act);
                }
                a += gu;
                b += gv;
                c += gu * (u - mean);
                d += gv * (v - mean);
            }
            for (; i + WIDTH <= length; i += WIDTH) {
                Floats u = LOAD(x + i); Floats grad = LOAD(g + i);
                if (has_activation)
                    grad = kept(grad, u * scale + shift, act);
                a += grad;
                c += grad * (u - mean);
            }
            if (i < length) {
                Floats u = LOAD(x + length - WIDTH);
                Floats grad = tail(LOAD(g + length - WIDTH), length - i);
                if (has_activation)
                    grad = kept(grad, u * scale + shift, act);
                b += grad;
                d += grad * (u - mean);
            }
        }
        *sum += total(a + b);
        *product += total(c + d);
    });
}

ALWAYS void write_grads(const BatchNorm *n, int64_t channel, int64_t first, int64_t last,
                        double sum, double product, int has_activation)
{
    double number = (double)n->num_samples * n->plane;
    float mean = n->mean[channel], rstd = n->rstd[channel], scale = n->weight[channel] * rstd;
    float shift = n->bias[channel] - mean * scale;
    const Activation act = n->activation;
    float mean_grad = sum / number, slope = product / number * rstd * rstd;
    for (int64_t s = first; s < last; s++) {
        int64_t at = (s * n->num_channels + channel) * n->plane;
        const float *x = n->input + at, *g = n->grad_output + at;
        float *y = n->output + at;
        for (int64_t step = 0; step < n->plane; step += WIDTH) {
            int64_t i = smaller(step, n->plane - WIDTH);  /* the last two may overlap */
            Floats u = LOAD(x + i), grad = LOAD(g + i);
            if (has_activation)
                grad = kept(grad, u * scale + shift, act);
            STORE(y + i) = (grad - mean_grad - (u - mean) * slope) * scale;
        }
    }
}

ALWAYS void save_grads(BatchNorm *n, int64_t channel, double sum, double product)
{
    n->grad_bias[channel] = sum;
    n->grad_weight[channel] = product * n->rstd[channel];
}

static void run(BatchNorm *n, void (*job)(void *))
{
    n->next = 0;
    n->parallel(job, n, n->num_threads, 0);
}

/* A job that is compiled twice: with an activation behind the batch norm, and without. */
#define JOB(name, body)                                                                           \
    static void name(void *argument)                                                              \
    {                                                                                             \
        BatchNorm *n = argument;                                                                  \
        if (n->activation.is_there)                                                               \
            body(n, 1);                                                                           \
        else                                                                                      \
            body(n, 0);                                                                           \
    }

/* This thread's part of some units. */
ALWAYS Range share(const BatchNorm *n, int64_t units)
{
    return part(units, n->thread(), n->threads());
}

/* A channel that no thread has taken yet. */
ALWAYS int64_t next_channel(BatchNorm *n)
{
    return __atomic_fetch_add(&n->next, 1, __ATOMIC_RELAXED);
}

/* Planes, channel by channel. */

static void forward_channels(void *argument)
{
    BatchNorm *n = argument;
    for (int64_t channel; (channel = next_channel(n)) < n->num_channels;) {
        double count = 0, mean = 0, squares = 0;
        FOR_BLOCKS(n, 0, n->num_samples, {
            plane_moments(n->input + at, planes, n->num_channels * n->plane, length,
                          &count, &mean, &squares);
        });
        save_moments(n, channel, count, mean, squares);
        normalize_planes(n, channel, 0, n->num_samples);
    }
}

ALWAYS void backward_each(BatchNorm *n, int has_activation)
{
    for (int64_t channel; (channel = next_channel(n)) < n->num_channels;) {
        double sum = 0, product = 0;
        sum_grads(n, channel, 0, n->num_samples, &sum, &product, has_activation);
        save_grads(n, channel, sum, product);
        if (n->output)
            write_grads(n, channel, 0, n->num_samples, sum, product, has_activation);
    }
}

JOB(backward_channels, backward_each)

/* Planes, plane by plane: `partial` has two sums of each, and of each channel behind them. */

static void sum_planes(void *argument)
{
    BatchNorm *n = argument;
    for (Range unit = share(n, n->num_samples * n->num_channels); unit.at < unit.end; unit.at++) {
        int64_t channel = unit.at % n->num_channels, sample = unit.at / n->num_channels;
        double count = 0, mean = 0, squares = 0;
        FOR_BLOCKS(n, sample, sample + 1, {
            plane_moments(n->input + at, planes, 0, length, &count, &mean, &squares);
        });
        n->partial[2 * unit.at] = mean;
        n->partial[2 * unit.at + 1] = squares;
    }
}

static void merge_planes(void *argument)
{
    BatchNorm *n = argument;
    for (Range range = share(n, n->num_channels); range.at < range.end; range.at++) {
        int64_t channel = range.at;
        double count = 0, mean = 0, squares = 0;
        for (int64_t sample = 0; sample < n->num_samples; sample++) {
            const double *partial = n->partial + 2 * (sample * n->num_channels + channel);
            merge(&count, &mean, &squares, n->plane, partial[0], partial[1]);
        }
        save_moments(n, channel, count, mean, squares);
    }
}

static void normalize_each(void *argument)
{
    BatchNorm *n = argument;
    for (Range unit = share(n, n->num_samples * n->num_channels); unit.at < unit.end; unit.at++) {
        int64_t sample = unit.at / n->num_channels;
        normalize_planes(n, unit.at % n->num_channels, sample, sample + 1);
    }
}

ALWAYS void sum_plane_grads(BatchNorm *n, int has_activation)
{
    for (Range unit = share(n, n->num_samples * n->num_channels); unit.at < unit.end; unit.at++) {
        int64_t sample = unit.at / n->num_channels;
        double sum = 0, product = 0;
        sum_grads(n, unit.at % n->num_channels, sample, sample + 1, &sum, &product, has_activation);
        n->partial[2 * unit.at] = sum;
        n->partial[2 * unit.at + 1] = product;
    }
}

JOB(sum_each_grad, sum_plane_grads)

static void merge_plane_grads(void *argument)
{
    BatchNorm *n = argument;
    for (Range range = share(n, n->num_channels); range.at < range.end; range.at++) {
        int64_t channel = range.at;
        double sum = 0, product = 0;
        for (int64_t sample = 0; sample < n->num_samples; sample++) {
            const double *partial = n->partial + 2 * (sample * n->num_channels + channel);
            sum += partial[0];
            product += partial[1];
        }
        double *sums = n->partial + 2 * (n->num_samples * n->num_channels + channel);
        sums[0] = sum;
        sums[1] = product;
        save_grads(n, channel, sum, product);
    }
}

ALWAYS void write_plane_grads(BatchNorm *n, int has_activation)
{
    for (Range unit = share(n, n->num_samples * n->num_channels); unit.at < unit.end; unit.at++) {
        int64_t channel = unit.at % n->num_channels, sample = unit.at / n->num_channels;
        const double *sums = n->partial + 2 * (n->num_samples * n->num_channels + channel);
        write_grads(n, channel, sample, sample + 1, sums[0], sums[1], has_activation);
    }
}

JOB(write_each_grad, write_plane_grads)

void batch_norm_forward_planes(BatchNorm *n)
{
    n->is_finite = 1;
    if (n->by_channel) {
        run(n, forward_channels);
    } else {
        run(n, sum_planes);
        run(n, merge_planes);
        run(n, normalize_each);
    }
}

void batch_norm_backward_planes(BatchNorm *n)
{
    if (n->by_channel) {
        run(n, backward_channels);
    } else {
        run(n, sum_each_grad);
        run(n, merge_plane_grads);
        if (n->output)
            run(n, write_each_grad);
    }
}

/* Rows: a part is some rows of all channels. Of each part `partial` has two rows of floats, and
   behind those of the last part are four rows of constants, one number for each channel. */

ALWAYS float *part_row(const BatchNorm *n, int64_t part, int64_t row)
{
    return (float *)n->partial + (2 * part + row) * n->num_channels;
}

#define CONSTANTS(n, row) part_row(n, (n)->num_parts, row)

/* Runs `many` for vectors of channels, and `one` for those that are left. */
#define FOR_CHANNELS(many, one)                                                                    \
    do {                                                                                          \
        int64_t c = 0;                                                                            \
        for (; c + WIDTH <= channels; c += WIDTH)                                                 \
            many                                                                                  \
        for (; c < channels; c++)                                                                 \
            one                                                                                   \
    } while (0)

ALWAYS int64_t row_begin(const BatchNorm *n, int64_t part)
{
    return n->num_samples * n->plane * part / n->num_parts;
}

static void row_moments(void *argument)
{
    BatchNorm *n = argument;
    int64_t channels = n->num_channels;
    for (Range range = share(n, n->num_parts); range.at < range.end; range.at++) {
        int64_t part = range.at;
        int64_t first = row_begin(n, part), last = row_begin(n, part + 1);
        float *restrict mean = part_row(n, part, 0);
        float *restrict squares = part_row(n, part, 1);
        float share = 1.0f / (last - first);
        for (int64_t c = 0; c < channels; c++)
            mean[c] = squares[c] = 0;
        for (int64_t r = first; r < last; r++) {
            const float *restrict x = n->input + r * channels;
            FOR_CHANNELS({ STORE(mean + c) += LOAD(x + c); }, { mean[c] += x[c]; });
        }
        for (int64_t c = 0; c < channels; c++)
            mean[c] *= share;
        for (int64_t r = first; r < last; r++) {
            const float *restrict x = n->input + r * channels;
            FOR_CHANNELS({
                Floats d = LOAD(x + c) - LOAD(mean + c);
                STORE(squares + c) += d * d;
            }, {
                float d = x[c] - mean[c];
                squares[c] += d * d;
            });
        }
    }
}

enum { TOGETHER = 64 };           /* channels whose sums one thread adds up */

static void merge_rows(void *argument)
{
    BatchNorm *n = argument;
    double count = (double)n->num_samples * n->plane, mean[TOGETHER], squares[TOGETHER];
    float *scale = CONSTANTS(n, 0), *shift = CONSTANTS(n, 1);
    Range range = share(n, n->num_channels);
    for (int64_t begin = range.at; begin < range.end; begin += TOGETHER) {
        int64_t length = smaller(TOGETHER, range.end - begin);
        for (int64_t c = 0; c < length; c++)
            mean[c] = squares[c] = 0;
        for (int64_t part = 0; part < n->num_parts; part++) {
            double number = row_begin(n, part + 1) - row_begin(n, part);
            const float *middle = part_row(n, part, 0) + begin;
            for (int64_t c = 0; c < length; c++)
                mean[c] += number * middle[c];
        }
        for (int64_t c = 0; c < length; c++)
            mean[c] /= count;
        for (int64_t part = 0; part < n->num_parts; part++) {
            double number = row_begin(n, part + 1) - row_begin(n, part);
            const float *middle = part_row(n, part, 0) + begin;
            const float *square = part_row(n, part, 1) + begin;
            for (int64_t c = 0; c < length; c++) {  /* of differences from `middle`, from `mean` */
                double delta = middle[c] - mean[c];
                squares[c] += square[c] + number * delta * delta;
            }
        }
        for (int64_t c = 0; c < length; c++) {
            int64_t channel = begin + c;
            save_moments(n, channel, count, mean[c], squares[c]);
            scale[channel] = n->weight[channel] * n->rstd[channel];
            shift[channel] = n->bias[channel] - n->mean[channel] * scale[channel];
        }
    }
}

static void normalize_rows(void *argument)
{
    BatchNorm *n = argument;
    int64_t channels = n->num_channels;
    const float *restrict scale = CONSTANTS(n, 0), *restrict shift = CONSTANTS(n, 1);
    for (Range part = share(n, n->num_parts); part.at < part.end; part.at++)
        for (int64_t r = row_begin(n, part.at); r < row_begin(n, part.at + 1); r++) {
            const float *restrict x = n->input + r * channels;
            float *restrict y = n->output + r * channels;
            FOR_CHANNELS({ STORE(y + c) = LOAD(x + c) * LOAD(scale + c) + LOAD(shift + c); },
                         { y[c] = x[c] * scale[c] + shift[c]; });
        }
}

void batch_norm_forward_rows(BatchNorm *n)
{
    n->is_finite = 1;
    run(n, row_moments);
    run(n, merge_rows);
    run(n, normalize_rows);
}

ALWAYS void sum_row_parts(BatchNorm *n, int has_activation)
{
    int64_t channels = n->num_channels;
    const Activation act = n->activation;
    const float *restrict scale = CONSTANTS(n, 0), *restrict shift = CONSTANTS(n, 1);
    const float *restrict mean = n->mean;
    for (Range range = share(n, n->num_parts); range.at < range.end; range.at++) {
        int64_t part = range.at;
        float *restrict sum = part_row(n, part, 0), *restrict product = part_row(n, part, 1);
        for (int64_t c = 0; c < channels; c++)
            sum[c] = product[c] = 0;
        for (int64_t r = row_begin(n, part); r < row_begin(n, part + 1); r++) {
            const float *restrict x = n->input + r * channels;
            const float *restrict g = n->grad_output + r * channels;
            FOR_CHANNELS({
                Floats u = LOAD(x + c); Floats grad = LOAD(g + c);
                if (has_activation)
                    grad = kept(grad, u * LOAD(scale + c) + LOAD(shift + c), act);
                STORE(sum + c) += grad;
                STORE(product + c) += grad * (u - LOAD(mean + c));
            }, {
                float before = x[c] * scale[c] + shift[c];
                float grad = has_activation ? kept_one(g[c], before, act) : g[c];
                sum[c] += grad;
                product[c] += grad * (x[c] - mean[c]);
            });
        }
    }
}

JOB(sum_rows, sum_row_parts)

ALWAYS void write_row_parts(BatchNorm *n, int has_activation)
{
    int64_t channels = n->num_channels;
    const Activation act = n->activation;
    const float *restrict scale = CONSTANTS(n, 0), *restrict shift = CONSTANTS(n, 1);
    const float *restrict mean_grad = CONSTANTS(n, 2), *restrict slope = CONSTANTS(n, 3);
    const float *restrict mean = n->mean;
    for (Range part = share(n, n->num_parts); part.at < part.end; part.at++)
        for (int64_t r = row_begin(n, part.at); r < row_begin(n, part.at + 1); r++) {
            const float *restrict x = n->input + r * channels;
            const float *restrict g = n->grad_output + r * channels;
            float *restrict y = n->output + r * channels;
            FOR_CHANNELS({
                Floats u = LOAD(x + c); Floats grad = LOAD(g + c); Floats by = LOAD(scale + c);
                if (has_activation)
                    grad = kept(grad, u * by + LOAD(shift + c), act);
                STORE(y + c) = (grad - LOAD(mean_grad + c)
                                - (u - LOAD(mean + c)) * LOAD(slope + c)) * by;
            }, {
                float before = x[c] * scale[c] + shift[c];
                float grad = has_activation ? kept_one(g[c], before, act) : g[c];
                y[c] = (grad - mean_grad[c] - (x[c] - mean[c]) * slope[c]) * scale[c];
            });
        }
}

JOB(write_rows, write_row_parts)

static void merge_row_grads(void *argument)
{
    BatchNorm *n = argument;
    double count = (double)n->num_samples * n->plane, sum[TOGETHER], product[TOGETHER];
    float *mean_grad = CONSTANTS(n, 2), *slope = CONSTANTS(n, 3);
    Range range = share(n, n->num_channels);
    for (int64_t begin = range.at; begin < range.end; begin += TOGETHER) {
        int64_t length = smaller(TOGETHER, range.end - begin);
        for (int64_t c = 0; c < length; c++)
            sum[c] = product[c] = 0;
        for (int64_t part = 0; part < n->num_parts; part++) {
            const float *sums = part_row(n, part, 0) + begin;
            const float *products = part_row(n, part, 1) + begin;
            for (int64_t c = 0; c < length; c++)
                sum[c] += sums[c], product[c] += products[c];
        }
        for (int64_t c = 0; c < length; c++) {
            int64_t channel = begin + c;
            save_grads(n, channel, sum[c], product[c]);
            mean_grad[channel] = sum[c] / count;
            slope[channel] = product[c] / count * n->rstd[channel] * n->rstd[channel];
        }
    }
}

void batch_norm_backward_rows(BatchNorm *n)
{
    float *scale = CONSTANTS(n, 0), *shift = CONSTANTS(n, 1);
    for (int64_t c = 0; c < n->num_channels; c++) {
        scale[c] = n->weight[c] * n->rstd[c];
        shift[c] = n->bias[c] - n->mean[c] * scale[c];
    }
    run(n, sum_rows);
    run(n, merge_row_grads);
    if (n->output)
        run(n, write_rows);
}

void batch_norm_update(float *running_mean, float *running_variance, const float *mean,
                       const float *variance, int64_t channels, double momentum)
{
    for (int64_t c = 0; c < channels; c++) {
        running_mean[c] = momentum * mean[c] + (1 - momentum) * running_mean[c];
        running_variance[c] = momentum * variance[c] + (1 - momentum) * running_variance[c];
    }
}
