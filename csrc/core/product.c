/*
 * product.c -- see product.h.
 */
#include "product.h"

#include <string.h>

void
attn_product_take(attn_product *s, const attn_block *block, int64_t D, attn_arena *a)
{
    s->D = D;
    s->Q = attn_take_floats(a, D, block->lanes);
    s->dQ = block->call->backward ? attn_take_floats(a, D, block->lanes) : NULL;
}

void
attn_product_tile(const attn_product *s, const attn_block *block, float *S,
                  attn_span keys_t, int keys)
{
    attn_simd->matmul(S, block->lanes, keys_t.data, keys_t.ld, 1, s->Q, block->lanes,
                      keys, block->lanes, s->D, false);
}

void
attn_product_load_backward(attn_product *s, const attn_block *block)
{
    s->finite = attn_rows_finite(block, s->rows, s->D);
    memset(s->dQ, 0, (size_t)(s->D * block->lanes) * sizeof(float));
}

/* forward was: S = K' Q.  So now: dQ = dS^T K',  dK' = dS Q'. */
void
attn_product_tile_backward(const attn_product *s, attn_block *block, const float *dS,
                           attn_span keys_t)
{
    const attn_tile *t = &block->tile;
    const int64_t D = s->D;

    attn_simd->pool(s->dQ, keys_t.data, 1, keys_t.ld, dS, block->lanes, D, t->keys,
                    NULL, t->scored);
    attn_add_pairs(block, block->dkeys + t->k0 * D, dS, s->rows, D, t->scored,
                   s->finite);
}
