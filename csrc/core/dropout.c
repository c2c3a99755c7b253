/*
 * dropout.c -- the keep words of a tile. See dropout.h.
 */
#include "dropout.h"

#include <math.h>
#include <string.h>

enum { WORDS = ATTN_KEYS + 4 }; /* of a row, which begins at any word of four */

/* bytes[i]: is the pair with index first + i kept? */
static void
keep_row(uint8_t bytes[ATTN_KEYS], uint64_t first, int keys, uint64_t seed,
         uint32_t threshold)
{
    uint32_t words[WORDS];
    int offset = (int)(first & 3);
    attn_simd->philox(words, (offset + keys + 3) / 4, first >> 2, 0, seed);
    for (int i = 0; i < keys; i++) {
        bytes[i] = words[offset + i] >= threshold;
    }
}

void
attn_keep_words(uint64_t keep[ATTN_KEYS], const attn_problem *p, int64_t b, int64_t m0,
                int count, int64_t k0, int keys)
{
    /* p < 1 is at most 1 - 2^-24 */
    const uint32_t threshold = (uint32_t)ceil((double)p->dropout.p * 4294967296.0);
    uint8_t bytes[ATTN_LANES][ATTN_KEYS];
    for (int l = 0; l < count; l++) {
        uint64_t row = (uint64_t)b * (uint64_t)p->M + (uint64_t)(m0 + l);
        keep_row(bytes[l], row * (uint64_t)p->N + (uint64_t)k0, keys, p->dropout.seed,
                 threshold);
    }
    memset(keep, 0xff, (size_t)keys * sizeof *keep);
    attn_simd->live_bytes(keep, bytes[0], ATTN_KEYS, count, keys);
}

float
attn_keep_scale(const attn_dropout *dropout)
{
    return 1.0f / (1.0f - dropout->p);
}
