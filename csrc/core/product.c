/*
 * product.c -- see product.h.
 */
#include "product.h"

#include <string.h>

void
attn_product_take(attn_product *s, const attn_block *k, int64_t D, attn_arena *a)
{
    s->D = D;
    s->Q = attn_take_floats(a, D, k->lanes);
    s->dQ = k->call->backward ? attn_take_floats(a, D, k->lanes) : NULL;
}

void
attn_product_tile(const attn_product *s, const attn_block *k, float *S,
                  attn_span keys_t, int keys)
{
    attn_simd->matmul(S, k->lanes, keys_t.data, keys_t.ld, 1, s->Q, k->lanes, keys,
                      k->lanes, s->D, false);
}

void
attn_product_load_backward(attn_product *s, const attn_block *k)
{
    s->finite = attn_rows_finite(k, s->rows, s->D);
    memset(s->dQ, 0, (size_t)(s->D * k->lanes) * sizeof(float));
}

/* forward was: S = K' Q.  So now: dQ = dS^T K',  dK' = dS Q'. */
void
attn_product_tile_backward(const attn_product *s, attn_block *k, const float *dS,
                           attn_span keys_t)
{
    const attn_tile *t = &k->tile;
    const int64_t D = s->D;

    attn_simd->pool(s->dQ, keys_t.data, 1, keys_t.ld, dS, k->lanes, D, t->keys, NULL,
                    t->scored);
    attn_add_pairs(k, k->dkeys + t->k0 * D, dS, s->rows, D, t->scored, s->finite);
}
