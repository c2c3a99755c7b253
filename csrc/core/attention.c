/*
 * attention.c -- every attention here, forward and backward: score -> softmax -> pool.
 *
 * One block of queries (lanes) walks over its keys, a tile at a time:
 *
 *     S     [keys][lanes]   score tile: the scoring function's only job
 *     P = softmax(S)        online: running maximum m and sum l per lane: no row
 *                           of scores is ever stored (Milakov & Gimelshein 2018)
 *     O     [Dv][lanes]     += V^T P, rescaled whenever m grows
 *
 * and backward over the same tiles, with P computed again from m and l (Dao et al.
 * 2022):
 *
 *     dV += P dO,   dP = V dO,   dS = P * (dP - D),   D = sum_j P_j dP_j,
 *     and the scoring function turns dS into the gradients of its queries and keys.
 *
 * Scores are in units of log2(e), so that exp is 2^; tile.live says which pairs take
 * part, and what the others hold is never used. Tiles that nobody takes part in are
 * never visited.
 */
#include <math.h>
#include <string.h>

#include "dropout.h"
#include "row.h"
#include "walk.h"

/* S of the tile at hand. Rows that are empty under "uniform" score 0 everywhere; keys
 * that only they reach are not scored (nor read, nor projected). */
static void
score_tile(attn_block *k)
{
    const attn_rows *rows = &k->rows;
    int64_t scored = rows->scored_high - k->tile.k0;
    int keys = scored < 0 ? 0 : scored < k->tile.keys ? (int)scored : k->tile.keys;
    if (keys > 0) {
        k->call->score->tile(k, k->S, k->tile.k0, keys);
    }
    for (uint64_t w = rows->uniform; w != 0; w &= w - 1) {
        float *S_l = k->S + __builtin_ctzll(w);
        for (int i = 0; i < k->tile.keys; i++) {
            S_l[i * k->lanes] = 0.0f;
        }
    }
}

static bool
stopped(const attn_block *k)
{
    return attn_stopped(k->call->run, k->worker);
}

/* The tile's dropout decision into k->keep; false if nothing is dropped at all. */
static bool
decide_dropout(attn_block *k)
{
    const attn_problem *p = k->call->p;
    if (p->dropout_p == 0.0f) {
        return false;
    }
    attn_keep_words(k->keep, p, k->b, k->m0, k->rows.count, k->tile.k0, k->tile.keys);
    return true;
}

static void
drop(const attn_block *k, float *P)
{
    attn_simd->keep_tile(P, k->lanes, k->tile.keys, attn_keep_scale(k->call->p),
                         k->keep);
}

/* ---- forward --------------------------------------------------------------------- */

void
attn_forward_block(attn_block *k)
{
    const attn_call *c = k->call;
    const int64_t N = c->p->N, Dv = c->p->Dv;
    const float *values_b = c->values + k->b * N * Dv; /* (N, Dv) */
    float *weights_b = c->weights == NULL ? NULL : c->weights + attn_row_offset(k, N);
    attn_tile *t = &k->tile;

    c->score->load(k);
    attn_row_start(k);
    memset(k->O, 0, (size_t)(Dv * k->lanes) * sizeof(float));
    for (attn_first_tile(t); attn_next_tile(t, &k->rows) && !stopped(k);) {
        score_tile(k);
        if (weights_b !=
            NULL) { /* raw for now: their final m and l are not known yet */
            attn_simd->unpack(weights_b + t->k0, N, k->S, k->lanes, k->rows.count,
                              t->keys, NULL);
        }
        attn_simd->softmax_tile(k->S, k->lanes, t->keys, k->m, k->l, k->alpha, t->live);
        if (decide_dropout(k)) {
            drop(k, k->S);
        }
        attn_simd->pool(k->O, values_b + t->k0 * Dv, 1, Dv, k->S, k->lanes, Dv, t->keys,
                        k->alpha, t->live);
    }
    attn_row_end(k, c->lse == NULL ? NULL : c->lse + attn_row_offset(k, 1));
    attn_simd->unpack(c->output + attn_row_offset(k, Dv), Dv, k->O, k->lanes,
                      k->rows.count, Dv, k->l);
    if (weights_b != NULL) {
        attn_row_weights(k, weights_b);
    }
}

/* ---- backward -------------------------------------------------------------------- */

/* forward was: O = V^T (P * keep), and P itself may have been returned. So now:
 *     dP = (V dO) * keep + dW. */
static void
dprob_tile(attn_block *k, bool dropped)
{
    const attn_call *c = k->call;
    const int64_t N = c->p->N, Dv = c->p->Dv;
    const attn_tile *t = &k->tile;
    const float *values_t = c->values + (k->b * N + t->k0) * Dv; /* (keys, Dv) */

    attn_simd->matmul(k->dP, k->lanes, values_t, Dv, 1, k->dO, k->lanes, t->keys,
                      k->lanes, Dv, false);
    if (dropped) {
        drop(k, k->dP);
    }
    if (c->grad->weights != NULL) {
        attn_simd->pack(k->dW, k->lanes,
                        c->grad->weights + attn_row_offset(k, N) + t->k0, N,
                        k->rows.count, t->keys, 1.0f);
        for (int i = 0; i < t->keys * k->lanes; i++) {
            k->dP[i] += k->dW[i];
        }
    }
}

/* P of the tile at hand, from the final m and l of its rows. */
static void
prob_tile(attn_block *k)
{
    const attn_tile *t = &k->tile;
    score_tile(k);
    attn_simd->prob_tile(k->S, k->lanes, t->keys, k->m, k->l, t->live);
}

/* m and l of every row, as the forward found them; leaves 2^(S - m) of the last tile in
 * S. */
static void
softmax_rows(attn_block *k)
{
    attn_tile *t = &k->tile;
    attn_row_start(k);
    for (attn_first_tile(t); attn_next_tile(t, &k->rows) && !stopped(k);) {
        score_tile(k);
        attn_simd->softmax_tile(k->S, k->lanes, t->keys, k->m, k->l, k->alpha, t->live);
    }
    attn_row_end(k, NULL);
}

/* D = sum_j P_j dP_j of every row. */
static void
row_dots(attn_block *k)
{
    attn_tile *t = &k->tile;
    for (attn_first_tile(t); attn_next_tile(t, &k->rows) && !stopped(k);) {
        prob_tile(k);
        dprob_tile(k, decide_dropout(k));
        attn_simd->dot_tile(k->D, k->S, k->dP, k->lanes, t->keys, t->live);
    }
}

/* The block's last pass: dV, dS, and through the scoring function dQ and dK. A block
 * of one tile still has its P in S, short of the factor l, and gets its D on the
 * way. */
static void
gradient_tiles(attn_block *k, bool one_tile)
{
    const attn_call *c = k->call;
    const int64_t Dv = c->p->Dv;
    const float gain = c->score->dscore_gain(c->p);
    const float *dout_b = c->grad->output + attn_row_offset(k, Dv); /* (count, Dv) */
    attn_tile *t = &k->tile;

    for (attn_first_tile(t); attn_next_tile(t, &k->rows) && !stopped(k);) {
        bool dropped = decide_dropout(k);
        float *dvalues_t = k->dvalues + t->k0 * Dv; /* (keys, Dv) */
        if (one_tile) {
            attn_simd->scale_tile(k->S, k->lanes, t->keys, k->l);
        } else {
            prob_tile(k);
        }
        dprob_tile(k, dropped);
        if (one_tile) {
            attn_simd->dot_tile(k->D, k->S, k->dP, k->lanes, t->keys, t->live);
        }
        /* forward was: P = softmax(S), lse = log sum exp S.  So now, E being dlse:
         *     dS = P * (dP - D) + P * E. */
        attn_simd->dscore_tile(k->dP, k->S, k->D, k->E, gain, k->lanes, t->keys,
                               t->scored);
        c->score->tile_backward(k, k->dP);
        /* forward was: O = V^T (P * keep).  So now: dV = (P * keep) dO. */
        if (dropped) {
            drop(k, k->S);
        }
        if (t->live == NULL) {
            attn_simd->matmul(dvalues_t, Dv, k->S, k->lanes, 1, dout_b, Dv, t->keys, Dv,
                              k->rows.count, true);
        } else {
            attn_simd->matmul_live(dvalues_t, Dv, k->S, k->lanes, dout_b, Dv, t->keys,
                                   Dv, k->rows.count, t->live);
        }
    }
}

void
attn_backward_block(attn_block *k)
{
    const attn_call *c = k->call;
    const int64_t Dv = c->p->Dv;
    const attn_saved *saved = c->saved;
    bool one_tile = k->rows.high <= ATTN_KEYS;

    c->score->load(k);
    c->score->load_backward(k);
    attn_simd->pack(k->dO, k->lanes, c->grad->output + attn_row_offset(k, Dv), Dv,
                    k->rows.count, Dv, 1.0f);
    if (one_tile) {
        softmax_rows(k);
    } else if (saved->lse != NULL && saved->output != NULL &&
               c->grad->weights == NULL) {
        attn_row_restore(k);
    } else {
        softmax_rows(k);
        row_dots(k);
    }
    attn_row_load_grad_lse(k);
    gradient_tiles(k, one_tile);
    c->score->store_backward(k);
}

/* ---- the scores alone ------------------------------------------------------------ */

void
attn_scores_block(attn_block *k)
{
    const attn_call *c = k->call;
    const int64_t N = c->p->N;
    float *scores_b = c->weights + attn_row_offset(k, N); /* (count, N) */
    attn_tile *t = &k->tile;

    c->score->load(k);
    for (attn_first_tile(t); attn_next_tile(t, &k->rows) && !stopped(k);) {
        score_tile(k);
        attn_simd->unpack(scores_b + t->k0, N, k->S, k->lanes, k->rows.count, t->keys,
                          NULL);
    }
}
