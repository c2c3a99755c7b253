/*
 * score_dot.c -- score(q, k) = scale * q.k  (Vaswani et al. 2017, with scale =
 * 1/sqrt(D)).
 */
#include "product.h"

static double
pair_work(const attn_problem *p)
{
    return (double)p->Dq;
}

static int64_t
key_width(const attn_problem *p)
{
    return p->Dk;
}

/* The keys' operand is the keys themselves. */
static void
take_shared(attn_call *c, attn_arena *a)
{
    (void)a;
    c->dkeys = c->backward ? c->d->keys : NULL;
}

static void
take_block(attn_block *block, attn_arena *a)
{
    attn_product local, *s = attn_take(a, sizeof *s, 1, 1);
    block->scratch = s;
    attn_product_take(s == NULL ? &local : s, block, block->call->p->Dq, a);
}

static void
load(attn_block *block)
{
    const attn_call *c = block->call;
    attn_product *s = block->scratch;
    s->rows = attn_queries_of(block);
    attn_simd->pack(s->Q, block->lanes, s->rows.data, s->rows.ld, block->rows.count,
                    s->D, c->p->scale * c->unit);
}

static void
tile(attn_block *block, float *S, int64_t k0, int keys)
{
    attn_product_tile(block->scratch, block, S, attn_keys_of(block, k0), keys);
}

static float
dscore_gain(const attn_problem *p)
{
    return p->scale;
}

static void
load_backward(attn_block *block)
{
    attn_product_load_backward(block->scratch, block);
}

/* forward was: S = scale K Q^T.  So now, scale being in dS already:
 *     dQ = dS^T K,  dK = dS Q. */
static void
tile_backward(attn_block *block, const float *dS)
{
    attn_product_tile_backward(block->scratch, block, dS,
                               attn_keys_of(block, block->tile.k0));
}

static void
store_backward(attn_block *block)
{
    const attn_product *s = block->scratch;
    attn_simd->unpack(block->call->d->queries + attn_row_offset(block, s->D), s->D,
                      s->dQ, block->lanes, block->rows.count, s->D, NULL);
}

const attn_score attn_score_dot = {
    .about = {.name = "dot_product", .scale = ATTN_SCALE_ROOT},
    .pair_work = pair_work,
    .key_width = key_width,
    .backward_lanes = 64,
    .few_queries = {2, 2},
    .take_shared = take_shared,
    .take_block = take_block,
    .load = load,
    .tile = tile,
    .dscore_gain = dscore_gain,
    .load_backward = load_backward,
    .tile_backward = tile_backward,
    .store_backward = store_backward,
};
