/* The gradient of the weight of depthwise convolutions, of float32.

   An image of one channel, or of as many channels as a vector has numbers, is copied with its
   padding, and so is the output's gradient, with zeros where the stride leaves a place out. Then
   each element of a filter is a sum of products of both, at a distance of its own. */

#include "vectors.h"
#include <string.h>

enum { TAPS = 8 };                  /* elements of a row of a filter whose sums are in registers */

typedef struct {
    int64_t images, channels;
    int64_t parts;                  /* of the images, each with sums of its own */
    int64_t height, width;          /* of the input */
    int64_t out_height, out_width;
    int64_t rows, columns;          /* of a filter */
    int64_t row_stride, column_stride, row_padding, column_padding, row_dilation, column_dilation;
    const float *input, *grad;
    float *weight_grad;             /* parts × channels × rows × columns */
    float *copies;                  /* of all threads */
    Parallel *parallel;             /* GOMP_parallel */
    int (*thread)(void), (*threads)(void);  /* omp_get_thread_num, omp_get_num_threads */
    uint32_t num_threads;
    int32_t is_channels_last;
} Depthwise;

/* Places of a copy: lines of the padded input, and of the gradient, which has the same length. */
typedef struct { int64_t line, places, input_floats, grad_floats; } Copies;

static Copies copies_of(const Depthwise *n, int64_t group)
{
    int64_t reach = (n->columns - 1) * n->column_dilation;
    int64_t used = (n->out_width - 1) * n->column_stride + 1 + reach, padded = n->width + n->column_padding;
    Copies c;
    c.line = used > padded ? used : padded;
    int64_t lines = (n->out_height - 1) * n->row_stride + 1 + (n->rows - 1) * n->row_dilation;
    int64_t padded_lines = n->height + n->row_padding;
    c.places = ((n->out_height - 1) * n->row_stride + 1) * c.line;
    /* (vectors, and filters at the last places, reach beyond the end) */
    c.input_floats = ((lines > padded_lines ? lines : padded_lines) * c.line + reach + WIDTH) * group;
    c.grad_floats = (c.places + WIDTH) * group;
    return c;
}

/* The floats that each thread copies. */
int64_t depthwise_copies(const Depthwise *n)
{
    Copies c = copies_of(n, n->is_channels_last ? WIDTH : 1);
    return c.input_floats + c.grad_floats;
}

/* Add the sums of one row of a filter, for up to TAPS of its elements, to `sums`. */
ALWAYS void add_taps(const float *x, const float *g, int64_t places, int64_t step, int taps,
                     int64_t distance, Floats *sums)
{
    Floats s[TAPS] = {{0}};
    for (int64_t i = 0; i < places; i += step) {
        Floats v = LOAD(g + i);
        for (int tap = 0; tap < taps; tap++)
            s[tap] += v * LOAD(x + i + tap * distance);
    }
    for (int tap = 0; tap < taps; tap++)
        sums[tap] += s[tap];
}

static void add_row(const float *x, const float *g, int64_t places, int64_t taps, int64_t distance,
                    Floats *sums)
{
    for (; taps > 0; taps -= TAPS, x += TAPS * distance, sums += TAPS) {
        switch (taps) {
        case 1: add_taps(x, g, places, WIDTH, 1, distance, sums); break;
        case 2: add_taps(x, g, places, WIDTH, 2, distance, sums); break;
        case 3: add_taps(x, g, places, WIDTH, 3, distance, sums); break;
        case 4: add_taps(x, g, places, WIDTH, 4, distance, sums); break;
        case 5: add_taps(x, g, places, WIDTH, 5, distance, sums); break;
        case 6: add_taps(x, g, places, WIDTH, 6, distance, sums); break;
        case 7: add_taps(x, g, places, WIDTH, 7, distance, sums); break;
        default: add_taps(x, g, places, WIDTH, TAPS, distance, sums);
        }
    }
}

/* Copy an image to every `step`th place of lines, from a place on; `group` channels of `stride`. */
ALWAYS void copy(float *to, int64_t line, int64_t row_step, int64_t step, const float *from,
                 int64_t height, int64_t width, int64_t group, int64_t count, int64_t stride)
{
    for (int64_t row = 0; row < height; row++) {
        float *out = to + row * row_step * line * group;
        const float *in = from + row * width * stride;
        if (group == 1 && step == 1)
            memcpy(out, in, width * sizeof *out);
        else
            for (int64_t column = 0; column < width; column++)
                memcpy(out + column * step * group, in + column * stride, count * sizeof *out);
    }
}

static void sum_channels(void *argument)
{
    Depthwise *n = argument;
    int64_t group = n->is_channels_last ? WIDTH : 1, pixels = n->height * n->width;
    int64_t out_pixels = n->out_height * n->out_width, filter = n->rows * n->columns;
    int64_t groups = (n->channels + group - 1) / group;
    Range units = part(groups * n->parts, n->thread(), n->threads());
    if (units.at == units.end)
        return;
    Copies c = copies_of(n, group);
    float *x = n->copies + n->thread() * (c.input_floats + c.grad_floats), *g = x + c.input_floats;
    memset(x, 0, (c.input_floats + c.grad_floats) * sizeof *x);
    float *first = x + (n->row_padding * c.line + n->column_padding) * group;
    Floats sums[filter + TAPS];
    for (int64_t unit = units.at; unit < units.end; unit++) {
        Range images = part(n->images, unit / groups, n->parts);
        float *result = n->weight_grad + unit / groups * n->channels * filter;
        int64_t channel = unit % groups * group, count = smaller(group, n->channels - channel);
        int64_t stride = n->is_channels_last ? n->channels : 1;
        memset(sums, 0, sizeof sums);
        if (count < group)          /* other channels have been there */
            memset(x, 0, (c.input_floats + c.grad_floats) * sizeof *x);
        for (int64_t image = images.at; image < images.end; image++) {
            const float *in = n->input + image * n->channels * pixels;
            const float *grad = n->grad + image * n->channels * out_pixels;
            if (n->is_channels_last && count == WIDTH) {
                copy(first, c.line, 1, 1, in + channel, n->height, n->width, WIDTH, WIDTH, stride);
                copy(g, c.line, n->row_stride, n->column_stride, grad + channel, n->out_height,
                     n->out_width, WIDTH, WIDTH, stride);
            } else if (n->is_channels_last) {
                copy(first, c.line, 1, 1, in + channel, n->height, n->width, WIDTH, count, stride);
                copy(g, c.line, n->row_stride, n->column_stride, grad + channel, n->out_height,
                     n->out_width, WIDTH, count, stride);
            } else {
                copy(first, c.line, 1, 1, in + channel * pixels, n->height, n->width, 1, 1, 1);
                copy(g, c.line, n->row_stride, n->column_stride, grad + channel * out_pixels,
                     n->out_height, n->out_width, 1, 1, 1);
            }
            for (int64_t row = 0; row < n->rows; row++)
                add_row(x + row * n->row_dilation * c.line * group, g, c.places * group, n->columns,
                        n->column_dilation * group, sums + row * n->columns);
        }
        for (int64_t tap = 0; tap < filter; tap++) {
            if (group == 1)
                result[channel * filter + tap] = total(sums[tap]);
            else
                for (int64_t lane = 0; lane < count; lane++)
                    result[(channel + lane) * filter + tap] = sums[tap][lane];
        }
    }
}

void depthwise_weight_grad(Depthwise *n)
{
    n->parallel(sum_channels, n, n->num_threads, 0);
}
