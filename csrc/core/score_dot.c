/*
 * score_dot.c -- score(q, k) = scale * q.k  (Vaswani et al. 2017, with scale =
 * 1/sqrt(D)).
 */
#include "walk.h"

#include <string.h>

typedef struct {
    float *Q;  /* [D][lanes]  queries times scale and unit */
    float *dQ; /* [D][lanes]  backward */
} dot_scratch;

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

static void
take_shared(attn_call *c, attn_arena *a)
{
    (void)a;
    c->dkeys = c->backward ? c->d->keys
                           : NULL; /* the keys' operand is the keys themselves */
}

static void
take_block(attn_block *k, attn_arena *a)
{
    const attn_call *c = k->call;
    dot_scratch local, *s = attn_take(a, sizeof *s, 1, 1);
    k->scratch = s;
    s = s == NULL ? &local : s;
    s->Q = attn_take_floats(a, c->p->Dq, k->lanes);
    s->dQ = c->backward ? attn_take_floats(a, c->p->Dq, k->lanes) : NULL;
}

static void
load(attn_block *k)
{
    const attn_call *c = k->call;
    const dot_scratch *s = k->scratch;
    const int64_t D = c->p->Dq;
    attn_simd->pack(s->Q, k->lanes, c->queries + attn_row_offset(k, D), D,
                    k->rows.count, D, c->p->scale * c->unit);
}

/* S (keys, lanes) = K (keys, D) Q (D, lanes) */
static void
tile(attn_block *k, float *S, int64_t k0, int keys)
{
    const attn_call *c = k->call;
    const dot_scratch *s = k->scratch;
    const int64_t D = c->p->Dk;
    const float *keys_t = c->keys + (k->b * c->p->N + k0) * D;
    attn_simd->matmul(S, k->lanes, keys_t, D, 1, s->Q, k->lanes, keys, k->lanes, D,
                      false);
}

static float
dscore_gain(const attn_problem *p)
{
    return p->scale;
}

static void
load_backward(attn_block *k)
{
    const dot_scratch *s = k->scratch;
    memset(s->dQ, 0, (size_t)(k->call->p->Dq * k->lanes) * sizeof(float));
}

/* forward was: S = scale K Q^T.  So now, scale being in dS already:
 *     dQ = dS^T K,  dK = dS Q. */
static void
tile_backward(attn_block *k, const float *dS)
{
    const attn_call *c = k->call;
    const attn_tile *t = &k->tile;
    const dot_scratch *s = k->scratch;
    const int64_t D = c->p->Dk;
    const float *keys_t = c->keys + (k->b * c->p->N + t->k0) * D; /* (keys, D) */
    const float *queries_b = c->queries + attn_row_offset(k, D);  /* (count, D) */
    float *dkeys_t = k->dkeys + t->k0 * D;

    attn_simd->pool(s->dQ, keys_t, 1, D, dS, k->lanes, D, t->keys, NULL, t->scored);
    if (t->scored == NULL) {
        attn_simd->matmul(dkeys_t, D, dS, k->lanes, 1, queries_b, D, t->keys, D,
                          k->rows.count, true);
    } else {
        attn_simd->matmul_live(dkeys_t, D, dS, k->lanes, queries_b, D, t->keys, D,
                               k->rows.count, t->scored);
    }
}

static void
store_backward(attn_block *k)
{
    const attn_call *c = k->call;
    const dot_scratch *s = k->scratch;
    const int64_t D = c->p->Dq;
    attn_simd->unpack(c->d->queries + attn_row_offset(k, D), D, s->dQ, k->lanes,
                      k->rows.count, D, NULL);
}

const attn_score attn_score_dot = {
    .pair_work = pair_work,
    .key_width = key_width,
    .backward_lanes = 64,
    .take_shared = take_shared,
    .take_block = take_block,
    .load = load,
    .tile = tile,
    .dscore_gain = dscore_gain,
    .load_backward = load_backward,
    .tile_backward = tile_backward,
    .store_backward = store_backward,
};
