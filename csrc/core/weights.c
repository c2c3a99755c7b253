/*
 * weights.c -- see weights.h.
 *
 * P of a tile is 2^(S - top), top the largest score of its row up to there. So a weight is
 *
 *     2^(S - max) / sum  =  P * (2^(top - max) / sum),
 *
 * and costs no exponential of its own: one for each row and tile, which is 1 wherever max
 * was found by then. Compared with raw scores and a second
 * exponential, (8, 8, 512, 512, 64) with weights is 6 % faster on a Zen 3, and 13 % on two
 * threads; the errors are the same.
 */
#include "weights.h"

#include <math.h>
#include <string.h>

/* So many keys may wait as P: 2 MiB for 32 queries. Of more, the weights are written as
 * they come, and multiplied where they lie. Zen 3, 512 queries of 8192 keys, before either
 * was so: 6 % if they wait, on two threads 10 %, if they do not, 3 %. */
enum { MOST_WAITING = 16384 };

/* Dropout changes P; one query's P are in the order of its row already. */
static bool
waits(const attn_call *c)
{
    const attn_problem *p = c->p;
    bool dropout = p->dropout.keep.data != NULL || p->dropout.p != 0.0f;
    return c->lanes > 1 && p->N <= MOST_WAITING && !dropout;
}

void
attn_take_pending(attn_block *block, attn_arena *a)
{
    const attn_call *c = block->call;
    block->pending = (attn_pending){NULL, NULL};
    if (!c->returns_weights) {
        return;
    }
    if (waits(c)) {
        block->pending.P = attn_take_floats(a, c->p->N, c->lanes);
    }
    block->pending.tops = attn_take_floats(a, attn_tiles(c->p->N), c->lanes);
}

void
attn_weights_clear(const attn_call *c)
{
    for (int w = 0; attn_may_be_empty(c->p) && w < c->workers; w++) {
        const attn_pending *pending = &c->block[w].pending;
        attn_set_zero(pending->P, c->p->N, c->lanes, 1);
        attn_set_zero(pending->tops, attn_tiles(c->p->N), c->lanes, 1);
    }
}

static float *
weights_of(const attn_block *block)
{
    const attn_call *c = block->call;
    return c->weights + attn_row_offset(block, c->p->N);
}

static float *
tops_of(const attn_block *block, int64_t k0)
{
    return block->pending.tops + k0 / ATTN_KEYS * block->lanes;
}

void
attn_weights_place(attn_block *block)
{
    if (block->pending.P != NULL) {
        block->S = block->pending.P + block->tile.k0 * block->lanes;
    }
}

void
attn_weights_keep(attn_block *block)
{
    const attn_tile *t = &block->tile;
    const int64_t N = block->call->p->N;
    if (block->pending.tops == NULL) {
        return;
    }
    memcpy(tops_of(block, t->k0), block->max, (size_t)block->lanes * sizeof(float));
    if (block->pending.P == NULL) {
        attn_simd->unpack(weights_of(block) + t->k0, N, block->S, block->lanes,
                          block->rows.count, t->keys, NULL);
    }
}

static int
keys_of_tile(const attn_block *block, int64_t k0)
{
    const int64_t left = block->rows.high - k0;
    return (int)(left < ATTN_KEYS ? left : ATTN_KEYS);
}

/* Weights of the tiles from key `low` on: P that waited, times their rows' factors. */
static void
write_tiles(const attn_block *block, int64_t low)
{
    const int64_t N = block->call->p->N;
    const int lanes = block->lanes, count = block->rows.count;
    for (int64_t k0 = low; k0 < block->rows.high; k0 += ATTN_KEYS) {
        attn_simd->unpack(weights_of(block) + k0, N, block->pending.P + k0 * lanes,
                          lanes, count, keys_of_tile(block, k0), tops_of(block, k0));
    }
}

/* The same of one row, whose P are where its weights go. */
static void
multiply_row(const attn_block *block, float *row, int l, int64_t low)
{
    for (int64_t k0 = low; k0 < block->rows.high; k0 += ATTN_KEYS) {
        attn_simd->scale_tile(row + k0, 1, keys_of_tile(block, k0),
                              tops_of(block, k0) + l);
    }
}

/* What takes no part, in one row. */
static void
settle_row(const attn_block *block, float *row, int l)
{
    const int64_t N = block->call->p->N;
    const attn_rows *rows = &block->rows;
    if (rows->nan >> l & 1) {
        for (int64_t j = 0; j < N; j++) {
            row[j] = NAN;
        }
        return;
    }
    memset(row, 0, (size_t)rows->start[l] * sizeof(float));
    attn_zero_holes(row, rows, l);
    memset(row + rows->limit[l], 0, (size_t)(N - rows->limit[l]) * sizeof(float));
}

void
attn_weights_end(attn_block *block)
{
    const int64_t N = block->call->p->N, high = block->rows.high;
    const int64_t low = block->rows.low / ATTN_KEYS * ATTN_KEYS;
    if (low < high) {
        attn_simd->prob_tile(tops_of(block, low), block->lanes,
                             (int)attn_tiles(high - low), block->max, block->sum, NULL);
    }
    if (block->pending.P != NULL) {
        write_tiles(block, low);
    }
    for (int l = 0; l < block->rows.count; l++) {
        float *row = weights_of(block) + l * N;
        if (block->pending.P == NULL) {
            multiply_row(block, row, l, low);
        }
        settle_row(block, row, l);
    }
}
