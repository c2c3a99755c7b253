/*
 * test_dropout.c -- what Python cannot reach of dropout: the generator by itself, and pairs
 * with an index over 2^34, whose counters need their second word.
 *
 *     cc -std=c11 tests/c/test_dropout.c csrc/core/dropout.c csrc/simd/(all).c -lm
 *
 *     ./a.out philox c0 c1 c2 c3 k0 k1     prints four words; arguments and words in hex
 *     ./a.out keep b m j N seed            prints 0 or 1: is pair (b, m, j) kept at p = 1/2?
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/core/dropout.h"

int
main(int argc, char **argv)
{
    if (argc == 8 && strcmp(argv[1], "philox") == 0) {
        uint32_t in[6], out[4];
        for (int i = 0; i < 6; i++) {
            in[i] = (uint32_t)strtoul(argv[2 + i], NULL, 16);
        }
        attn_simd->philox(out, 1, (uint64_t)in[1] << 32 | in[0],
                          (uint64_t)in[3] << 32 | in[2], (uint64_t)in[5] << 32 | in[4]);
        printf("%08x %08x %08x %08x\n", out[0], out[1], out[2], out[3]);
        return 0;
    }
    if (argc == 7 && strcmp(argv[1], "keep") == 0) {
        const int64_t b = atoll(argv[2]), m = atoll(argv[3]), j = atoll(argv[4]);
        attn_problem p = {.B = b + 1,
                          .M = m + 1,
                          .N = atoll(argv[5]),
                          .dropout = {.p = 0.5f, .seed = strtoull(argv[6], NULL, 10)}};
        uint64_t keep[ATTN_KEYS];
        attn_keep_words(keep, &p, b, m, 1, j, 1);
        printf("%d\n", (int)(keep[0] & 1));
        return 0;
    }
    return 2;
}
