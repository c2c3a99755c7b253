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
attn_sums_save(const attn_block *k, float *to)
{
    memcpy(to, k->m, bytes(1, k->lanes));
    memcpy(to + k->lanes, k->l, bytes(1, k->lanes));
    memcpy(to + 2 * k->lanes, k->O, bytes(k->call->p->Dv, k->lanes));
}

void
attn_sums_load(attn_block *k, const float *from)
{
    memcpy(k->m, from, bytes(1, k->lanes));
    memcpy(k->l, from + k->lanes, bytes(1, k->lanes));
    memcpy(k->O, from + 2 * k->lanes, bytes(k->call->p->Dv, k->lanes));
}

/* Two keys whose scores are the two maxima: their softmax says how much each part
 * counts,
 *     m' = max(m_0, m_1),  f_i = 2^(m_i - m'),  l' = f_0 l_0 + f_1 l_1,  O' alike. */
void
attn_sums_merge(attn_block *k, const float *before)
{
    const int lanes = k->lanes;
    float S[2 * ATTN_LANES], m[ATTN_LANES], unused[2][ATTN_LANES];
    const float *O_0 = before + 2 * lanes, *f_0 = S, *f_1 = S + lanes;
    memcpy(S, before, bytes(1, lanes));
    memcpy(S + lanes, k->m, bytes(1, lanes));
    memcpy(m, before, bytes(1, lanes));
    memset(unused, 0, sizeof unused);
    attn_simd->softmax_tile(S, lanes, 2, m, unused[0], unused[1], NULL);
    for (int l = 0; l < lanes; l++) {
        k->m[l] = m[l];
        k->l[l] = f_0[l] * before[lanes + l] + f_1[l] * k->l[l];
    }
    for (int64_t d = 0; d < k->call->p->Dv; d++) {
        float *O_d = k->O + d * lanes;
        for (int l = 0; l < lanes; l++) {
            O_d[l] = f_0[l] * O_0[d * lanes + l] + f_1[l] * O_d[l];
        }
    }
}
