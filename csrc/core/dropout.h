/*
 * dropout.h -- which pairs are dropped: a counter-based generator, so that forward and
 * backward, every thread and every instruction set agree without storing anything.
 */
#ifndef ATTN_DROPOUT_H
#define ATTN_DROPOUT_H

#include <stdint.h>

#include "../simd/kernels.h"
#include "attn.h"

/* Bit l of keep[i] is set iff pair (b, m0 + l, k0 + i) is kept: the word i & 3 of
 * Philox4x32-10 at counter i >> 2, i = (b M + m) N + j, is at least p 2^32. */
void attn_keep_words(uint64_t keep[ATTN_KEYS], const attn_problem *p, int64_t b,
                     int64_t m0, int count, int64_t k0, int keys);

/* What a kept weight is multiplied by: 1 / (1 - p). */
float attn_keep_scale(const attn_dropout *dropout);

#endif
