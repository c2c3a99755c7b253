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

static void
take_block(attn_block *block, attn_arena *a)
{
    attn_product local, *s = attn_take(a, sizeof *s, 1, 1);
    block->scratch = s;
    attn_product_take(s == NULL ? &local : s, block, block->call->p->Dq, attn_keys_of,
                      a);
}

static void
load(attn_block *block)
{
    attn_product *s = block->scratch;
    s->rows = attn_queries_of(block);
    attn_product_load(block);
}

static void
store_backward(attn_block *block)
{
    const attn_product *s = block->scratch;
    const attn_target to = attn_results_to(block, block->call->d->queries, s->D);
    attn_simd->unpack(to.data, to.ld, s->dQ, block->lanes, block->rows.count, s->D,
                      NULL);
}

const attn_score attn_score_dot = {
    .about = {.name = "dot_product", .scale = ATTN_SCALE_ROOT},
    .pair_work = pair_work,
    .most_lanes = 64,
    .few_queries = {2, 2},
    .take_block = take_block,
    .load = load,
    .tile = attn_product_tile,
    .unscaled_tile = attn_product_unscaled_tile,
    .dscore_gain = attn_scale_of,
    .load_backward = attn_product_load_backward,
    .tile_backward = attn_product_tile_backward,
    .store_backward = store_backward,
};
