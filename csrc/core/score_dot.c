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

/* clang-format off */
static const attn_score_text text = {
    .pooling = "the softmax of scaled dot products of queries and keys",
    .scores = "Scaled dot product of every query with every key",
    .formula = "scale * queries @ keys^T",
    .notes =
"``output = softmax(scale * queries @ keys^T) @ values``, the softmax over the keys\n"
"that take part (Vaswani et al. 2017, \"Attention is all you need\", equation 1).",
    .example =
"The toy example of Dive into Deep Learning (1.0 (en) 11.3, 2nd ed. (zh) 10.3): all\n"
"keys are equal, so the output is the mean of the valid values.\n"
"\n"
">>> import numpy as np\n"
">>> from attnext import dot_product_attention\n"
">>> queries = np.random.default_rng(0).normal(size=(2, 1, 2))\n"
">>> keys = np.ones((2, 10, 2))\n"
">>> values = np.arange(40).reshape(1, 10, 4).repeat(2, axis=0)\n"
">>> output = dot_product_attention(queries, keys, values, [2, 6])\n"
">>> output[:, 0].round(3)\n"
"array([[ 2.,  3.,  4.,  5.],\n"
"       [10., 11., 12., 13.]], dtype=float32)",
    .backward_notes =
"With weights P and g = `grad_output`: ``dv = P^T g``; ``dS = P * (g v^T - rowsum(g *\n"
"output))`` is the gradient of the scores; ``dq = scale * dS k``, ``dk = scale * dS^T\n"
"q``; dS itself, summed over the axes it was broadcast along, is the gradient of\n"
"`bias`. No array of shape (M, N) is formed (Dao et al. 2022, \"FlashAttention\",\n"
"appendix B.2).",
    .backward_example =
">>> import numpy as np\n"
">>> from attnext import dot_product_attention_backward\n"
">>> q, k, v = np.ones((1, 2)), np.ones((2, 2)), np.array([[1, 2], [3, 4]])\n"
">>> dq, dk, dv = dot_product_attention_backward([[1, 0]], q, k, v, scale=1.0)\n"
">>> dk\n"
"array([[-0.5, -0.5],\n"
"       [ 0.5,  0.5]], dtype=float32)\n"
">>> dv\n"
"array([[0.5, 0. ],\n"
"       [0.5, 0. ]], dtype=float32)",
    .scores_notes =
"For independent features of mean 0 and variance 1 the dot product has variance D,\n"
"and the default scale brings it back to 1 (Vaswani et al. 2017, section 3.2.1).",
    .scores_example =
">>> from attnext import dot_product_scores\n"
">>> dot_product_scores([[1, 2, 3, 4]], [[1, 1, 1, 1], [2, 0, 2, 0]])\n"
"array([[5., 4.]], dtype=float32)",
    .scores_backward_example =
">>> from attnext import dot_product_scores_backward\n"
">>> dq, dk = dot_product_scores_backward([[1, -1]], [[1, 2]], [[3, 4], [5, 7]], scale=2)\n"
">>> dq\n"
"array([[-4., -6.]], dtype=float32)\n"
">>> dk\n"
"array([[ 2.,  4.],\n"
"       [-2., -4.]], dtype=float32)",
};
/* clang-format on */

const attn_score attn_score_dot = {
    .about = {.name = "dot_product", .text = &text, .scale = ATTN_SCALE_ROOT},
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
