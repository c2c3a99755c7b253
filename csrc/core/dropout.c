/*
 * dropout.c -- Philox4x32-10 and the keep words of a tile.
 *
 * Known answers (Random123's kat_vectors), checked in tests/test_dropout.py:
 *     counter 0 0 0 0, key 0 0                 -> 6627e8d5 e169c58d bc57ac4c 9b00dbd8
 *     counter, key all ffffffff                -> 408f276d 41c83b0e a20bc7c6 6d5451fd
 *     counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0
 *                                              -> d16cfe09 94fdcceb 5001e420 24126ea1
 */
#include "dropout.h"

#include <math.h>

void
attn_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t even = (uint64_t)0xD2511F53u * c0, odd = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(odd >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)odd;
        c2 = (uint32_t)(even >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)even;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void
attn_keep_words(uint64_t keep[ATTN_KEYS], const attn_problem *p, int64_t b, int64_t m0,
                int count, int64_t k0, int keys)
{
    const uint32_t key[2] = {(uint32_t)p->dropout.seed,
                             (uint32_t)(p->dropout.seed >> 32)};
    const uint64_t threshold = (uint64_t)ceil((double)p->dropout.p * 4294967296.0);
    for (int i = 0; i < keys; i++) {
        keep[i] = 0;
    }
    for (int l = 0; l < count; l++) {
        uint64_t first = ((uint64_t)b * (uint64_t)p->M + (uint64_t)(m0 + l)) *
                             (uint64_t)p->N +
                         (uint64_t)k0;
        uint32_t words[4];
        for (int i = 0; i < keys; i++) {
            uint64_t index = first + (uint64_t)i;
            if (i == 0 || (index & 3) == 0) {
                uint64_t at = index >> 2;
                const uint32_t counter[4] = {(uint32_t)at, (uint32_t)(at >> 32), 0, 0};
                attn_philox(words, counter, key);
            }
            keep[i] |= (uint64_t)(words[index & 3] >= threshold) << l;
        }
    }
}

float
attn_keep_scale(const attn_dropout *dropout)
{
    return 1.0f / (1.0f - dropout->p);
}
