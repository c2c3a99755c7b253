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
 * never visited (mask.c).
 */
#include <math.h>
#include <string.h>

#include "bias.h"
#include "dropout.h"
#include "row.h"
#include "sums.h"
#include "walk.h"

/* S of the tile at hand. Rows that are empty under "uniform" score 0 everywhere; keys
 * that only they reach are not scored (nor read, nor projected). */
static void
score_tile(attn_block *k)
{
    const attn_tile *t = &k->tile;
    if (t->first < t->end) {
        k->call->p->score->tile(k, k->S + t->first * k->lanes, t->k0 + t->first,
                                t->end - t->first);
        if (k->bias != NULL) {
            attn_bias_add(k);
        }
    }
    for (uint64_t w = k->rows.uniform; w != 0; w &= w - 1) {
        float *S_l = k->S + __builtin_ctzll(w);
        for (int i = 0; i < t->keys; i++) {
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
    const attn_tile *t = &k->tile;
    if (p->dropout.keep.data != NULL) {
        memset(k->keep, 0xff, (size_t)t->keys * sizeof *k->keep);
        attn_view_words(k->keep, &p->dropout.keep, &k->rows, t->k0, t->keys);
        return true;
    }
    if (p->dropout.p == 0.0f) {
        return false;
    }
    attn_keep_words(k->keep, p, k->b, k->m0, k->rows.count, t->k0, t->keys);
    return true;
}

static void
drop(const attn_block *k, float *P)
{
    attn_simd->keep_tile(P, k->lanes, k->tile.keys,
                         attn_keep_scale(&k->call->p->dropout), k->keep);
}

/* ---- forward --------------------------------------------------------------------- */

/* Nothing seen yet. */
static void
start_sums(attn_block *k)
{
    attn_row_start(k);
    memset(k->O, 0, (size_t)(k->call->p->Dv * k->lanes) * sizeof(float));
}

static void
forward_tiles(attn_block *k)
{
    const attn_call *c = k->call;
    const int64_t N = c->p->N, Dv = c->p->Dv;
    float *weights_b = c->weights == NULL ? NULL : c->weights + attn_row_offset(k, N);
    attn_tile *t = &k->tile;

    for (attn_first_tile(t, &k->rows); attn_next_tile(t, &k->rows) && !stopped(k);) {
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
        attn_span values_t = attn_values_of(k, t->k0); /* (keys, Dv) */
        attn_simd->pool(k->O, values_t.data, 1, values_t.ld, k->S, k->lanes, Dv,
                        t->keys, k->alpha, t->live);
    }
}

void
attn_forward_part(attn_block *k, int64_t part)
{
    const int64_t first = part * ATTN_PART, end = first + ATTN_PART;
    const int64_t low = k->rows.low, high = k->rows.high;
    start_sums(k);
    k->rows.low = low > first ? low : first;
    k->rows.high = high < end ? high : end;
    forward_tiles(k);
    k->rows.low = low;
    k->rows.high = high;
}

void
attn_forward_end(attn_block *k)
{
    const attn_call *c = k->call;
    const int64_t Dv = c->p->Dv;
    attn_row_end(k, c->lse == NULL ? NULL : c->lse + attn_row_offset(k, 1));
    attn_simd->unpack(c->output + attn_row_offset(k, Dv), Dv, k->O, k->lanes,
                      k->rows.count, Dv, k->l);
    if (c->weights != NULL) {
        attn_row_weights(k, c->weights + attn_row_offset(k, c->p->N));
    }
}

void
attn_forward_block(attn_block *k)
{
    const attn_call *c = k->call;
    c->p->score->load(k);
    attn_forward_part(k, 0);
    for (int64_t part = 1; part < c->parts; part++) {
        attn_sums_save(k, k->part);
        attn_forward_part(k, part);
        attn_sums_merge(k, k->part);
    }
    attn_forward_end(k);
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
    const attn_span values_t = attn_values_of(k, t->k0); /* (keys, Dv) */

    attn_simd->matmul(k->dP, k->lanes, values_t.data, values_t.ld, 1, k->dO, k->lanes,
                      t->keys, k->lanes, Dv, false);
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

/* P of the tile at hand: handed back, or from the final m and l of its rows. */
static void
prob_tile(attn_block *k)
{
    const attn_call *c = k->call;
    const attn_tile *t = &k->tile;
    if (c->saved->weights != NULL) {
        const int64_t N = c->p->N;
        const float *weights_t = c->saved->weights + attn_row_offset(k, N) + t->k0;
        attn_simd->pack(k->S, k->lanes, weights_t, N, k->rows.count, t->keys, 1.0f);
        return;
    }
    score_tile(k);
    attn_simd->prob_tile(k->S, k->lanes, t->keys, k->m, k->l, t->live);
}

/* m and l of every row, as the forward found them; leaves 2^(S - m) of the last tile in
 * S. */
static void
softmax_rows(attn_block *k)
{
    attn_tile *t = &k->tile;
    for (attn_first_tile(t, &k->rows); attn_next_tile(t, &k->rows) && !stopped(k);) {
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
    for (attn_first_tile(t, &k->rows); attn_next_tile(t, &k->rows) && !stopped(k);) {
        prob_tile(k);
        dprob_tile(k, decide_dropout(k));
        attn_simd->dot_tile(k->D, k->S, k->dP, k->lanes, t->keys, t->live);
    }
}

/* forward was: P = softmax(S), lse = log sum exp S.  So now, E being dlse:
 *     dS = P * (dP - D) + P * E,
 * into k->dP, times the gain that the scoring function asked for. */
static void
dscore_tile(attn_block *k)
{
    const attn_problem *p = k->call->p;
    const attn_tile *t = &k->tile;
    const float gain = p->score->dscore_gain(p);
    attn_simd->dscore_tile(k->dP, k->S, k->D, k->E, k->dbias == NULL ? gain : 1.0f,
                           k->lanes, t->keys, t->scored);
    if (k->dbias != NULL) {
        attn_bias_gradient(k, k->dP);
        for (int i = 0; i < t->keys * k->lanes; i++) {
            k->dP[i] *= gain;
        }
    }
}

void
attn_add_pairs(const attn_block *k, float *C, const float *X, attn_span Y, int64_t D,
               const uint64_t *live, bool zeros)
{
    const int keys = k->tile.keys, count = k->rows.count;
    if (live == NULL || zeros) {
        attn_simd->matmul(C, D, X, k->lanes, 1, Y.data, Y.ld, keys, D, count, true);
    } else {
        attn_simd->matmul_live(C, D, X, k->lanes, Y.data, Y.ld, keys, D, count, live);
    }
}

bool
attn_rows_finite(const attn_block *k, attn_span rows, int64_t D)
{
    bool finite = !attn_rows_whole(&k->rows);
    for (int l = 0; finite && l < k->rows.count; l++) {
        finite = attn_is_finite(attn_span_row(rows, l), D);
    }
    return finite;
}

bool
attn_is_finite(const float *x, int64_t n)
{
    const uint32_t exponent = 0x7f800000; /* all ones in infinities and NaN */
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        finite &= (bits & exponent) != exponent;
    }
    return finite;
}

/* The gradients of the block's outputs: (count, Dv). */
static attn_span
dout_of(const attn_block *k)
{
    const int64_t Dv = k->call->p->Dv;
    return (attn_span){k->call->grad->output + attn_row_offset(k, Dv), Dv};
}

/* forward was: O = V^T (P * keep).  So now: dV = (P * keep) dO. */
static void
dvalues_tile(attn_block *k, bool dropped)
{
    const attn_call *c = k->call;
    const attn_tile *t = &k->tile;
    const int64_t Dv = c->p->Dv;
    if (dropped) {
        drop(k, k->S);
    }
    attn_add_pairs(k, k->dvalues + t->k0 * Dv, k->S, dout_of(k), Dv, t->live,
                   k->P_is_0);
}

/* The block's last pass: dV, dS, and through the scoring function dQ and dK. A block
 * of one tile gets its D on the way and, where softmax_rows went before, still has its
 * P in S, short of the factor l. */
static void
gradient_tiles(attn_block *k, bool one_tile, bool P_in_S)
{
    attn_tile *t = &k->tile;
    for (attn_first_tile(t, &k->rows); attn_next_tile(t, &k->rows) && !stopped(k);) {
        bool dropped = decide_dropout(k);
        if (P_in_S) {
            attn_simd->scale_tile(k->S, k->lanes, t->keys, k->l);
        } else {
            prob_tile(k);
        }
        dprob_tile(k, dropped);
        if (one_tile) {
            attn_simd->dot_tile(k->D, k->S, k->dP, k->lanes, t->keys, t->live);
        }
        dscore_tile(k);
        k->call->p->score->tile_backward(k, k->dP);
        dvalues_tile(k, dropped);
    }
}

void
attn_backward_block(attn_block *k)
{
    const attn_call *c = k->call;
    const attn_saved *saved = c->saved;
    const int64_t Dv = c->p->Dv;
    const attn_span dout = dout_of(k);
    bool one_tile = k->rows.high <= k->rows.low / ATTN_KEYS * ATTN_KEYS + ATTN_KEYS;
    bool P_in_S = one_tile && saved->weights == NULL;

    c->p->score->load(k);
    c->p->score->load_backward(k);
    attn_simd->pack(k->dO, k->lanes, dout.data, Dv, k->rows.count, Dv, 1.0f);
    attn_row_start(k);
    if (saved->weights == NULL) {
        if (saved->lse == NULL || one_tile || !attn_row_restore(k)) {
            softmax_rows(k);
        }
    }
    if (!one_tile) {
        if (saved->output != NULL && c->grad->weights == NULL) {
            attn_row_restore_dots(k);
        } else {
            row_dots(k);
        }
    }
    attn_row_load_grad_lse(k);
    k->P_is_0 = saved->weights == NULL && attn_is_finite(k->l, k->rows.count) &&
                attn_rows_finite(k, dout, Dv);
    gradient_tiles(k, one_tile, P_in_S);
    if (k->dbias != NULL) {
        attn_bias_store_gradient(k);
    }
    c->p->score->store_backward(k);
}

/* ---- the scores alone ------------------------------------------------------------ */

void
attn_scores_block(attn_block *k)
{
    const attn_call *c = k->call;
    const int64_t N = c->p->N;
    float *scores_b = c->weights + attn_row_offset(k, N); /* (count, N) */
    attn_tile *t = &k->tile;

    c->p->score->load(k);
    for (attn_first_tile(t, &k->rows); attn_next_tile(t, &k->rows) && !stopped(k);) {
        score_tile(k);
        attn_simd->unpack(scores_b + t->k0, N, k->S, k->lanes, k->rows.count, t->keys,
                          NULL);
    }
}
