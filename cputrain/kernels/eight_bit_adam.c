/* Adam and AdamW with moments of 8 bits: decode, update and encode, block by block.

   A block of 256 elements has one scale, its largest magnitude. The code book is 127 times the
   square root of a first moment, and 255 times the fourth root of a second. Threads take whole
   blocks, so that their number changes no bit. */

#include "vectors.h"
#include <string.h>

enum { SIZE = 256, INFINITE = 0x7f800000 };

typedef struct {
    int64_t length;                             /* elements */
    void *param;
    const void *grad;
    int8_t *averages;                           /* codes of first moments */
    float *average_scales;
    uint8_t *squares;                           /* codes of second moments */
    float *square_scales;
    float step_size, correction;                /* lr / (1 - beta1^t), sqrt(1 - beta2^t) */
    int32_t is_param_bf16, is_grad_bf16;
} Parameter;

typedef struct {
    int64_t num_params;
    const Parameter *params;
    Parallel *parallel;                         /* GOMP_parallel */
    int (*thread)(void), (*threads)(void);      /* omp_get_thread_num, omp_get_num_threads */
    float keep1, new1, keep2, new2, eps;        /* beta1, 1 - beta1, beta2, 1 - beta2 */
    float shrink, decay, sign;                  /* 1 - lr * weight_decay, L2 penalty, maximize: -1 */
    uint32_t num_threads;
} EightBitAdam;

typedef union { float number; uint32_t bits; } Word;

ALWAYS void read_numbers(float *out, const void *in, int is_bf16, int64_t at, int64_t count)
{
    if (is_bf16) {
        const uint16_t *halves = (const uint16_t *)in + at;
        for (int64_t i = 0; i < count; i++)
            out[i] = (Word){.bits = (uint32_t)halves[i] << 16}.number;
    } else
        memcpy(out, (const float *)in + at, count * sizeof *out);
    memset(out + count, 0, (SIZE - count) * sizeof *out);
}

ALWAYS void write_numbers(void *out, const float *in, int is_bf16, int64_t at, int64_t count)
{
    if (is_bf16) {
        uint16_t *halves = (uint16_t *)out + at;
        for (int64_t i = 0; i < count; i++) {
            uint32_t bits = (Word){.number = in[i]}.bits;
            uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            halves[i] = (uint16_t)((bits & 0x7fffffff) > INFINITE ? 0x7fc0 : rounded);
        }
    } else
        memcpy((float *)out + at, in, count * sizeof *in);
}

ALWAYS float average_of(int32_t code)           /* of a code that is not negative */
{
    float root = (float)code * (1.0f / 127);
    return root * root;
}

ALWAYS float square_of(int32_t code)
{
    float root = (float)code * (1.0f / 255);
    root *= root;
    return root * root;
}

/* The scale of a block: NaN if one of its numbers is, or is infinite. */
ALWAYS float scale_of(const float *numbers)
{
    uint32_t most = 0x00800000;                 /* the smallest normal number has a reciprocal */
    for (int i = 0; i < SIZE; i++) {            /* (bits of magnitudes are in their order) */
        uint32_t bits = (Word){.number = numbers[i]}.bits & 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return (Word){.bits = most < INFINITE ? most : 0x7fc00000}.number;
}

static void encode_averages(const float *numbers, int8_t *codes, float *scale)
{
    float factor = 1 / (*scale = scale_of(numbers));
    if (factor != factor) {
        memset(codes, 0, SIZE);
        return;
    }
    for (int i = 0; i < SIZE; i++) {
        float magnitude = fabsf(numbers[i]) * factor * (127 * 127);
        float code = floorf(sqrtf(magnitude));  /* the nearest is this or the next */
        code = code < 126 ? code : 126;
        code += magnitude > code * code + code + 0.5f;      /* the mean of both squares */
        codes[i] = (int8_t)(int32_t)(numbers[i] < 0 ? -code : code);
    }
}

static void encode_squares(const float *numbers, uint8_t *codes, float *scale)
{
    float factor = 1 / (*scale = scale_of(numbers));
    if (factor != factor) {
        memset(codes, 0, SIZE);
        return;
    }
    for (int i = 0; i < SIZE; i++) {
        float magnitude = numbers[i] * factor * (255.0f * 255 * 255 * 255);
        float code = floorf(sqrtf(sqrtf(magnitude)));
        code = code < 254 ? code : 254;
        float middle = (code + 0.5f) * (code + 0.5f);
        code += magnitude > (middle + 1.5f) * middle + 0.0625f;     /* of both fourth powers */
        float least = numbers[i] > 0;           /* what is not 0 stays so: its root is a divisor */
        codes[i] = (uint8_t)(int32_t)(code > least ? code : least);
    }
}

static void update_block(const EightBitAdam *n, const Parameter *p, int64_t block)
{
    float params[SIZE], grads[SIZE], averages[SIZE], squares[SIZE];
    int64_t at = block * SIZE, count = smaller(SIZE, p->length - at);
    int8_t *average_codes = p->averages + at;
    uint8_t *square_codes = p->squares + at;
    float average_scale = p->average_scales[block], square_scale = p->square_scales[block];
    float keep1 = n->keep1, new1 = n->new1, keep2 = n->keep2, new2 = n->new2, eps = n->eps;
    float shrink = n->shrink, decay = n->decay, sign = n->sign;
    float step_size = p->step_size, factor = 1 / p->correction;
    read_numbers(params, p->param, p->is_param_bf16, at, count);
    read_numbers(grads, p->grad, p->is_grad_bf16, at, count);
    for (int i = 0; i < SIZE; i++) {
        int32_t code = average_codes[i];
        float magnitude = average_of(code < 0 ? -code : code);
        float average = (code < 0 ? -magnitude : magnitude) * average_scale;
        float square = square_of(square_codes[i]) * square_scale;
        float grad = sign * grads[i] + decay * params[i];
        average = keep1 * average + new1 * grad;
        square = keep2 * square + new2 * grad * grad;
        params[i] = params[i] * shrink - step_size * average / (sqrtf(square) * factor + eps);
        averages[i] = average;
        squares[i] = square;
    }
    for (int64_t i = count; i < SIZE; i++)      /* (codes behind the last element stay 0) */
        averages[i] = squares[i] = 0;
    write_numbers(p->param, params, p->is_param_bf16, at, count);
    encode_averages(averages, average_codes, p->average_scales + block);
    encode_squares(squares, square_codes, p->square_scales + block);
}

static void update_part(void *argument)
{
    const EightBitAdam *n = argument;
    int64_t thread = n->thread(), threads = n->threads();
    for (int64_t i = 0; i < n->num_params; i++) {
        const Parameter *p = n->params + i;
        Range blocks = part((p->length + SIZE - 1) / SIZE, thread, threads);
        for (int64_t block = blocks.at; block < blocks.end; block++)
            update_block(n, p, block);
    }
}

void eight_bit_adam(EightBitAdam *n)
{
    n->parallel(update_part, n, n->num_threads, 0);
}
