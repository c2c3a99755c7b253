/*
 * product.c -- see product.h.
 */
#include "product.h"

#include <string.h>

#include "pairs.h"

void
attn_product_take(attn_product *s, const attn_block *block, int64_t D,
                  attn_span (*keys)(const attn_block *block, int64_t j), attn_arena *a)
{
    s->D = D;
    bool unscaled = attn_wants_dscale(block->call);
    s->Q = attn_take_floats(a, D, block->lanes);
    s->Q_unscaled = unscaled ? attn_take_floats(a, D, block->lanes) : NULL;
    s->dQ = block->call->backward ? attn_take_floats(a, D, block->lanes) : NULL;
    s->pair_rows = attn_take_pair_rows(D, block->call->backward ? block->lanes : 0, a);
    s->keys = keys;
}

void
attn_product_load(attn_block *block)
{
    const attn_product *s = block->scratch;
    attn_simd->pack(s->Q, block->lanes, s->rows.data, s->rows.ld, block->rows.count,
                    s->D, attn_scale_of(block) * block->call->unit);
    if (s->Q_unscaled != NULL) {
        attn_simd->pack(s->Q_unscaled, block->lanes, s->rows.data, s->rows.ld,
                        block->rows.count, s->D, 1.0f);
    }
}

/* S (keys, lanes) = K' (keys, D) Q (D, lanes) */
static void
multiply(attn_block *block, float *S, const float *Q, int64_t k0, int keys)
{
    const attn_product *s = block->scratch;
    const attn_tile *t = &block->tile;
    attn_set_pairs(block, S, s->keys(block, k0), Q, s->D, (int)(k0 - t->k0), keys,
                   t->scored);
}

void
attn_product_tile(attn_block *block, float *S, int64_t k0, int keys)
{
    multiply(block, S, ((const attn_product *)block->scratch)->Q, k0, keys);
}

void
attn_product_unscaled_tile(attn_block *block, float *S, int64_t k0, int keys)
{
    multiply(block, S, ((const attn_product *)block->scratch)->Q_unscaled, k0, keys);
}

void
attn_product_load_backward(attn_block *block)
{
    attn_product *s = block->scratch;
    attn_load_pair_rows(&s->pair_rows, s->rows, block->rows.count);
    s->finite = attn_rows_finite(block, s->rows, s->D);
    memset(s->dQ, 0, (size_t)(s->D * block->lanes) * sizeof(float));
}

/* forward was: S = K' Q.  So now, for the pairs of the tile that are scored:
 *     dQ += dS^T K',  dK' += dS Q'. */
void
attn_product_tile_backward(attn_block *block, const float *dS)
{
    const attn_product *s = block->scratch;
    const attn_tile *t = &block->tile;
    const attn_span keys_t = s->keys(block, t->k0);
    attn_simd->pool(s->dQ, keys_t.data, keys_t.ld, dS, block->lanes, s->D, t->keys,
                    NULL, t->scored);
    attn_add_pairs(block, &block->dkeys, dS, &s->pair_rows, t->scored, s->finite);
}
