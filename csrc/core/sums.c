/*
 * sums.c -- see sums.h.
 */
#include "sums.h"

#include <string.h>

int64_t
attn_sums_size(int64_t Dv, int lanes)
{
    return (Dv + 2) * lanes;
}

static size_t
bytes(int64_t rows, int lanes)
{
    return (size_t)(rows * lanes) * sizeof(float);
}

void
attn_sums_save(const attn_block *block, float *to)
{
    memcpy(to, block->max, bytes(1, block->lanes));
    memcpy(to + block->lanes, block->sum, bytes(1, block->lanes));
    memcpy(to + 2 * block->lanes, block->O, bytes(block->call->p->Dv, block->lanes));
}

void
attn_sums_load(attn_block *block, const float *from)
{
    memcpy(block->max, from, bytes(1, block->lanes));
    memcpy(block->sum, from + block->lanes, bytes(1, block->lanes));
    memcpy(block->O, from + 2 * block->lanes, bytes(block->call->p->Dv, block->lanes));
}

/* Two keys whose scores are the two maxima: their softmax says how much each part
 * counts,
 *     max' = max(max_0, max_1),  f_i = 2^(max_i - max'),
 *     sum' = f_0 sum_0 + f_1 sum_1,  O' alike. */
void
attn_sums_merge(attn_block *block, const float *before)
{
    const int lanes = block->lanes;
    float S[2 * ATTN_LANES], max[ATTN_LANES], unused[2][ATTN_LANES];
    const float *O_0 = before + 2 * lanes, *f_0 = S, *f_1 = S + lanes;
    memcpy(S, before, bytes(1, lanes));
    memcpy(S + lanes, block->max, bytes(1, lanes));
    memcpy(max, before, bytes(1, lanes));
    memset(unused, 0, sizeof unused);
    attn_simd->softmax_tile(S, lanes, 2, max, unused[0], unused[1], NULL);
    for (int l = 0; l < lanes; l++) {
        block->max[l] = max[l];
        block->sum[l] = f_0[l] * before[lanes + l] + f_1[l] * block->sum[l];
    }
    for (int64_t d = 0; d < block->call->p->Dv; d++) {
        float *O_d = block->O + d * lanes;
        for (int l = 0; l < lanes; l++) {
            O_d[l] = f_0[l] * O_0[d * lanes + l] + f_1[l] * O_d[l];
        }
    }
}
