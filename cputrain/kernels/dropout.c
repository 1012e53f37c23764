/* The noise of dropout, drawn from the Mersenne Twister as torch draws it, on several threads.

   Torch draws two words for each number, and compares the 53 lowest bits of both with a threshold.
   Each thread computes all words before its own part, which takes far less time than its part:
   only the words of its part are tempered and compared. */

#include "vectors.h"
#include <string.h>

enum { WORDS = 624, MIDDLE = 397, CHUNK = 1024 /* numbers */ };

typedef struct {                    /* at::CPUGeneratorImplStateLegacy, up to the words */
    uint64_t seed;
    int32_t left, seeded;           /* left: words of the block that are not drawn, and one */
    uint64_t next;                  /* the next of them */
    uint64_t words[WORDS];
} State;

typedef struct {
    int64_t length;                 /* numbers */
    uint64_t threshold;             /* a number is kept if its 53 bits are below */
    uint64_t kept;                  /* the bits of a number that is kept; others are 0 */
    State *state;
    void *noise;
    Parallel *parallel;             /* GOMP_parallel */
    int (*thread)(void), (*threads)(void);  /* omp_get_thread_num, omp_get_num_threads */
    int32_t size;                   /* bytes of a number: 2, 4 or 8 */
    uint32_t num_threads;
    State *after;                   /* the state after the last number */
} Dropout;

typedef struct {
    uint32_t words[WORDS + 1];      /* one more, as the last is mixed with the first */
    int64_t at;                     /* the next word; WORDS: none is left */
} Block;

ALWAYS uint32_t mixed(uint32_t this, uint32_t next)
{
    uint32_t bits = (this & 0x80000000u) | (next & 0x7fffffffu);
    return (bits >> 1) ^ (-(next & 1u) & 0x9908b0dfu);
}

static void next_block(Block *block)
{
    uint32_t *w = block->words;
    for (int i = 0; i < WORDS - MIDDLE; i++)
        w[i] = w[i + MIDDLE] ^ mixed(w[i], w[i + 1]);
    w[WORDS] = w[0];
#pragma GCC ivdep                   /* (the distance is more than a vector) */
    for (int i = WORDS - MIDDLE; i < WORDS; i++)
        w[i] = w[i + MIDDLE - WORDS] ^ mixed(w[i], w[i + 1]);
    block->at = 0;
}

static void skip(Block *block, int64_t count)
{
    while (count > WORDS - block->at) {
        count -= WORDS - block->at;
        next_block(block);
    }
    block->at += count;
}

static void draw(Block *block, uint32_t *out, int64_t count)
{
    while (count) {
        if (block->at == WORDS)
            next_block(block);
        int64_t some = smaller(count, WORDS - block->at);
        const uint32_t *w = block->words + block->at;
        for (int64_t i = 0; i < some; i++) {
            uint32_t y = w[i];
            y ^= y >> 11;
            y ^= y << 7 & 0x9d2c5680u;
            y ^= y << 15 & 0xefc60000u;
            out[i] = y ^ y >> 18;
        }
        block->at += some;
        out += some;
        count -= some;
    }
}

/* The first word of a number has its upper bits. */
ALWAYS int64_t is_kept(const uint32_t *words, int64_t number, uint64_t threshold)
{
    uint64_t upper = words[2 * number] & 0x1fffffu, bits = upper << 32 | words[2 * number + 1];
    return -(int64_t)(bits < threshold);
}

#define WRITE(type)                                                                              \
    for (int64_t i = 0; i < count; i++)                                                          \
        ((type *)n->noise)[at + i] = (type)(is_kept(words, i, threshold) & kept)

static void draw_part(void *argument)
{
    Dropout *n = argument;
    int64_t thread = n->thread(), threads = n->threads();
    Range numbers = part(n->length, thread, threads);
    uint64_t threshold = n->threshold, kept = n->kept;
    uint32_t words[2 * CHUNK];
    Block block;
    for (int i = 0; i < WORDS; i++)
        block.words[i] = (uint32_t)n->state->words[i];
    block.at = n->state->left == 1 ? WORDS : (int64_t)n->state->next;
    skip(&block, 2 * numbers.at);
    for (int64_t at = numbers.at; at < numbers.end; at += CHUNK) {
        int64_t count = smaller(CHUNK, numbers.end - at);
        draw(&block, words, 2 * count);
        if (n->size == 4)
            WRITE(uint32_t);
        else if (n->size == 2)
            WRITE(uint16_t);
        else
            WRITE(uint64_t);
    }
    if (thread == threads - 1) {
        for (int i = 0; i < WORDS; i++)
            n->after->words[i] = block.words[i];
        n->after->next = (uint64_t)block.at;
        n->after->left = (int32_t)(WORDS - block.at + 1);
    }
}

void dropout(Dropout *n)
{
    n->parallel(draw_part, n, n->num_threads, 0);
}
