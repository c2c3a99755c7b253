/*
 * attention.c -- every attention here, forward and backward: score -> softmax -> pool.
 *
 * One block of queries (lanes) walks over its keys, a tile at a time:
 *
 *     S     [keys][lanes]   score tile: the scoring function's only job
 *     P = softmax(S)        online: running maximum and sum per lane: no row
 *                           of scores is ever stored (Milakov & Gimelshein 2018)
 *     O     [Dv][lanes]     += V^T P, rescaled whenever max grows
 *
 * and backward over the same tiles, with P computed again from max and sum (Dao et al.
 * 2022):
 *
 *     dV += P dO,   dP = V dO,   dS = P * (dP - dots),   dots = sum_j P_j dP_j,
 *     and the scoring function turns dS into the gradients of its queries and keys.
 *
 * Scores are in units of log2(e), so that exp is 2^; tile.live says which pairs take
 * part, and what the others hold is never used. Tiles that nobody takes part in are
 * never visited (mask.c).
 */
#include <math.h>
#include <string.h>

#include "dropout.h"
#include "modifier.h"
#include "pairs.h"
#include "row.h"
#include "sums.h"
#include "walk.h"
#include "weights.h"

/* Set the keys of a tile (keys, lanes) that are not scored to 0. The kernels compute on every
 * key and select afterwards: on what the workspace held before they may raise FE_INVALID. */
static void
clear_unscored(const attn_block *block, float *S)
{
    const attn_tile *t = &block->tile;
    attn_set_zero(S, t->first, block->lanes, 1);
    attn_set_zero(S + t->end * block->lanes, t->keys - t->end, block->lanes, 1);
}

/* S of the tile at hand. Rows that are empty under "uniform" score 0 everywhere; keys
 * that only they reach are not scored (nor read, nor projected). */
static void
score_tile(attn_block *block)
{
    const attn_tile *t = &block->tile;
    clear_unscored(block, block->S);
    if (t->first < t->end) {
        block->call->p->score->tile(block, block->S + t->first * block->lanes,
                                    t->k0 + t->first, t->end - t->first);
        attn_modify_tile(block);
    }
    for (uint64_t w = block->rows.uniform; w != 0; w &= w - 1) {
        float *S_l = block->S + __builtin_ctzll(w);
        for (int i = 0; i < t->keys; i++) {
            S_l[i * block->lanes] = 0.0f;
        }
    }
}

static bool
stopped(const attn_block *block)
{
    return attn_stopped(block->call->run, block->worker);
}

/* The tile's dropout decision into block->keep; false if nothing is dropped at all. */
static bool
decide_dropout(attn_block *block)
{
    const attn_problem *p = block->call->p;
    const attn_tile *t = &block->tile;
    if (p->dropout.keep.data != NULL) {
        memset(block->keep, 0xff, (size_t)t->keys * sizeof *block->keep);
        attn_view_words(block->keep, &p->dropout.keep, false, &block->rows, t->k0,
                        t->keys);
        return true;
    }
    if (p->dropout.p == 0.0f) {
        return false;
    }
    attn_keep_words(block->keep, p, block->b, block->m0, block->rows.count, t->k0,
                    t->keys);
    return true;
}

static void
drop(const attn_block *block, float *P)
{
    attn_simd->keep_tile(P, block->lanes, block->tile.keys,
                         attn_keep_scale(&block->call->p->dropout), block->keep);
}

/* ---- forward --------------------------------------------------------------------- */

/* Nothing seen yet. */
static void
start_sums(attn_block *block, bool sinks)
{
    attn_row_start(block, sinks);
    memset(block->O, 0, (size_t)(block->call->p->Dv * block->lanes) * sizeof(float));
}

static void
forward_tiles(attn_block *block)
{
    const int64_t Dv = block->call->p->Dv;
    attn_tile *t = &block->tile;

    for (attn_first_tile(t, &block->rows);
         attn_next_tile(t, &block->rows) && !stopped(block);) {
        attn_weights_place(block);
        score_tile(block);
        attn_simd->softmax_tile(block->S, block->lanes, t->keys, block->max, block->sum,
                                block->alpha, t->live);
        attn_weights_keep(block);
        if (decide_dropout(block)) {
            drop(block, block->S);
        }
        attn_span values_t = attn_values_of(block, t->k0); /* (keys, Dv) */
        attn_simd->pool(block->O, values_t.data, values_t.ld, block->S, block->lanes,
                        Dv, t->keys, block->alpha, t->live);
    }
}

void
attn_forward_part(attn_block *block, int64_t part)
{
    const int64_t first = part * ATTN_PART, end = first + ATTN_PART;
    const int64_t low = block->rows.low, high = block->rows.high;
    start_sums(block, part == 0);
    block->rows.low = low > first ? low : first;
    block->rows.high = high < end ? high : end;
    forward_tiles(block);
    block->rows.low = low;
    block->rows.high = high;
}

void
attn_forward_end(attn_block *block)
{
    const attn_call *c = block->call;
    const int64_t Dv = c->p->Dv;
    attn_row_end(block, c->lse == NULL ? NULL : c->lse + attn_row_offset(block, 1));
    const attn_target to = attn_results_to(block, c->output, Dv);
    attn_simd->unpack(to.data, to.ld, block->O, block->lanes, block->rows.count, Dv,
                      block->sum);
    if (c->weights != NULL) {
        attn_weights_end(block);
    }
}

void
attn_forward_block(attn_block *block)
{
    const attn_call *c = block->call;
    c->p->score->load(block);
    attn_forward_part(block, 0);
    for (int64_t part = 1; part < c->parts; part++) {
        attn_sums_save(block, block->part);
        attn_forward_part(block, part);
        attn_sums_merge(block, block->part);
    }
    attn_forward_end(block);
}

/* ---- backward -------------------------------------------------------------------- */

/* forward was: O = V^T (P * keep), and P itself may have been returned. So now:
 *     dP = (V dO) * keep + dW. */
static void
dprob_tile(attn_block *block, bool dropped)
{
    const attn_call *c = block->call;
    const int64_t N = c->p->N, Dv = c->p->Dv;
    const attn_tile *t = &block->tile;
    const attn_span values_t = attn_values_of(block, t->k0); /* (keys, Dv) */

    attn_set_pairs(block, block->dP, values_t, block->dO, Dv, 0, t->keys, t->live);
    if (dropped) {
        drop(block, block->dP);
    }
    if (c->grad->weights != NULL) {
        attn_simd->pack(block->dweights, block->lanes,
                        c->grad->weights + attn_row_offset(block, N) + t->k0, N,
                        block->rows.count, t->keys, 1.0f);
        for (int i = 0; i < t->keys * block->lanes; i++) {
            block->dP[i] += block->dweights[i];
        }
    }
}

/* P of the tile at hand: handed back, or from the final max and sum of its rows. */
static void
prob_tile(attn_block *block)
{
    const attn_call *c = block->call;
    const attn_tile *t = &block->tile;
    if (c->saved->weights != NULL) {
        const int64_t N = c->p->N;
        if (attn_modifiers_keep(c)) {
            score_tile(block);
        }
        const float *weights_t = c->saved->weights + attn_row_offset(block, N) + t->k0;
        attn_simd->pack(block->S, block->lanes, weights_t, N, block->rows.count,
                        t->keys, 1.0f);
        return;
    }
    score_tile(block);
    attn_simd->prob_tile(block->S, block->lanes, t->keys, block->max, block->sum,
                         t->live);
}

/* max and sum of every row, as the forward found them; leaves 2^(S - max) of the last
 * tile in S. */
static void
softmax_rows(attn_block *block)
{
    attn_tile *t = &block->tile;
    for (attn_first_tile(t, &block->rows);
         attn_next_tile(t, &block->rows) && !stopped(block);) {
        score_tile(block);
        attn_simd->softmax_tile(block->S, block->lanes, t->keys, block->max, block->sum,
                                block->alpha, t->live);
    }
    attn_row_end(block, NULL);
}

/* dots = sum_j P_j dP_j of every row. */
static void
row_dots(attn_block *block)
{
    attn_tile *t = &block->tile;
    for (attn_first_tile(t, &block->rows);
         attn_next_tile(t, &block->rows) && !stopped(block);) {
        prob_tile(block);
        dprob_tile(block, decide_dropout(block));
        attn_simd->dot_tile(block->dots, block->S, block->dP, block->lanes, t->keys,
                            t->live);
    }
}

/* forward was: S = scale * U, U the scores at scale 1.  So now: dscale = sum dS U. */
static void
dscale_tile(attn_block *block)
{
    const attn_tile *t = &block->tile;
    clear_unscored(block, block->unscaled);
    block->call->p->score->unscaled_tile(block,
                                         block->unscaled + t->first * block->lanes,
                                         t->k0 + t->first, t->end - t->first);
    attn_simd->dot_tile(block->dscale, block->dP, block->unscaled, block->lanes,
                        t->keys, t->scored);
}

/* What the scoring function wants its dS times. */
static float
gain_of(const attn_block *block)
{
    const attn_score *score = block->call->p->score;
    return score->dscore_gain == NULL ? 1.0f : score->dscore_gain(block);
}

/* Is nothing between dS and that of the scoring function but the gain? */
static bool
is_plain(const attn_call *c)
{
    return !attn_modifiers_flow(c) && c->dscale.rows == NULL;
}

/* dS in block->dP: through what lies between, times the gain. */
static void
modified_tile(attn_block *block)
{
    const float gain = gain_of(block);
    attn_modify_tile_backward(block, block->dP);
    if (block->call->dscale.rows != NULL) {
        dscale_tile(block);
    }
    for (int i = 0; i < block->tile.keys * block->lanes; i++) {
        block->dP[i] *= gain;
    }
}

/* forward was: P = softmax(S), lse = log sum exp S.  So now:
 *     dS = P * (dP - dots) + P * dlse,
 * into block->dP, times the gain that the scoring function asked for. */
static void
dscore_tile(attn_block *block)
{
    const attn_tile *t = &block->tile;
    const bool plain = is_plain(block->call);
    attn_simd->dscore_tile(block->dP, block->S, block->dots, block->dlse,
                           plain ? gain_of(block) : 1.0f, block->lanes, t->keys,
                           t->scored);
    if (!plain) {
        modified_tile(block);
    }
}

/* The gradients of the block's outputs: (count, Dv). */
static attn_span
dout_of(const attn_block *block)
{
    return attn_results_of(block, block->call->grad->output, block->call->p->Dv);
}

/* forward was: O = V^T (P * keep).  So now: dV = (P * keep) dO. */
static void
dvalues_tile(attn_block *block, bool dropped)
{
    const attn_tile *t = &block->tile;
    if (dropped) {
        drop(block, block->S);
    }
    attn_add_pairs(block, &block->dvalues, block->S, &block->dout, t->live,
                   block->P_is_0);
}

/* The block's last pass: dV, dS, and through the scoring function dQ and dK. A block
 * of one tile gets its dots on the way and, where softmax_rows went before, still has its
 * P in S, short of the factor sum. */
static void
gradient_tiles(attn_block *block, bool one_tile, bool P_in_S)
{
    attn_tile *t = &block->tile;
    for (attn_first_tile(t, &block->rows);
         attn_next_tile(t, &block->rows) && !stopped(block);) {
        bool dropped = decide_dropout(block);
        if (P_in_S) {
            attn_simd->scale_tile(block->S, block->lanes, t->keys, block->sum);
        } else {
            prob_tile(block);
        }
        dprob_tile(block, dropped);
        if (one_tile) {
            attn_simd->dot_tile(block->dots, block->S, block->dP, block->lanes, t->keys,
                                t->live);
        }
        dscore_tile(block);
        block->call->p->score->tile_backward(block, block->dP);
        dvalues_tile(block, dropped);
    }
}

void
attn_backward_block(attn_block *block)
{
    const attn_call *c = block->call;
    const attn_saved *saved = c->saved;
    const int64_t Dv = c->p->Dv;
    const attn_span dout = dout_of(block);
    bool one_tile = block->rows.high <=
                    block->rows.low / ATTN_KEYS * ATTN_KEYS + ATTN_KEYS;
    bool P_in_S = one_tile && saved->weights == NULL;

    c->p->score->load(block);
    c->p->score->load_backward(block);
    attn_simd->pack(block->dO, block->lanes, dout.data, dout.ld, block->rows.count, Dv,
                    1.0f);
    attn_load_pair_rows(&block->dout, dout, block->rows.count);
    attn_row_start(block, true);
    if (saved->weights == NULL || c->dsink.rows != NULL) {
        if (saved->lse == NULL || one_tile || !attn_row_restore(block)) {
            softmax_rows(block);
        }
    }
    if (!one_tile) {
        if (saved->output != NULL && c->grad->weights == NULL) {
            attn_row_restore_dots(block);
        } else {
            row_dots(block);
        }
    }
    attn_row_load_grad_lse(block);
    block->P_is_0 = saved->weights == NULL &&
                    attn_is_finite(block->sum, block->rows.count) &&
                    attn_rows_finite(block, dout, Dv);
    gradient_tiles(block, one_tile, P_in_S);
    attn_modify_store_backward(block);
    attn_row_store_sinks(block);
    attn_row_store_scales(block);
    c->p->score->store_backward(block);
    attn_settle_queries(c, &block->rows);
}

void
attn_settle_queries(const attn_call *c, const attn_rows *rows)
{
    const attn_problem *p = c->p;
    const int64_t Dq = p->Dq;
    const attn_target to = attn_write(c->d->queries, attn_heads(p), p->M, Dq, rows->b,
                                      rows->m0);
    for (uint64_t w = rows->empty; w != 0; w &= w - 1) {
        int l = __builtin_ctzll(w);
        float *dquery = to.data + l * to.ld;
        for (int64_t d = 0; d < Dq; d++) {
            dquery[d] = rows->nan >> l & 1 ? NAN : 0.0f;
        }
    }
}

void
attn_note_queries(const attn_block *block, uint8_t *use)
{
    for (int l = 0; l < block->rows.count; l++) {
        bool empty = block->rows.empty >> l & 1;
        use[attn_row_offset(block, 1) + l] = empty ? ATTN_UNUSED : 0;
    }
}

/* ---- the scores alone ------------------------------------------------------------ */

void
attn_scores_block(attn_block *block)
{
    const attn_call *c = block->call;
    const int64_t N = c->p->N;
    float *scores_b = c->weights + attn_row_offset(block, N); /* (count, N) */
    attn_tile *t = &block->tile;

    c->p->score->load(block);
    for (attn_first_tile(t, &block->rows);
         attn_next_tile(t, &block->rows) && !stopped(block);) {
        score_tile(block);
        attn_simd->unpack(scores_b + t->k0, N, block->S, block->lanes,
                          block->rows.count, t->keys, NULL);
    }
}

/* dS is what flows in: no softmax, so its rows have no best score and no lse. */
void
attn_scores_backward_block(attn_block *block)
{
    const attn_call *c = block->call;
    const int64_t N = c->p->N;
    const float *dscores_b = c->grad->weights + attn_row_offset(block, N);
    const bool plain = is_plain(c);
    attn_tile *t = &block->tile;

    c->p->score->load(block);
    c->p->score->load_backward(block);
    attn_row_start(block, false);
    memset(block->max, 0, (size_t)block->lanes * sizeof(float));
    memset(block->dlse, 0, (size_t)block->lanes * sizeof(float));
    for (attn_first_tile(t, &block->rows);
         attn_next_tile(t, &block->rows) && !stopped(block);) {
        if (attn_modifiers_keep(c)) {
            score_tile(block);
        }
        attn_simd->pack(block->dP, block->lanes, dscores_b + t->k0, N,
                        block->rows.count, t->keys, plain ? gain_of(block) : 1.0f);
        if (!plain) {
            modified_tile(block);
        }
        c->p->score->tile_backward(block, block->dP);
    }
    attn_row_store_scales(block);
    c->p->score->store_backward(block);
}
