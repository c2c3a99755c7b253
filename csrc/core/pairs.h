/*
 * pairs.h -- the products of a tile whose result or whose sum runs over its pairs of key
 * and lane. Where a tile is cut, only patches of it are multiplied: each 16 keys, by those
 * groups of 16 lanes among which any pair takes part. Along the diagonal of a causal mask
 * that leaves out a twelfth of the pairs of 64 lanes (512 queries, backward).
 */
#ifndef ATTN_PAIRS_H
#define ATTN_PAIRS_H

#include "walk.h"

/* C [keys][lanes] = X (keys, D) Y [D][lanes] from key `first` of the tile on, C and X being
 * those of that key: the pairs in `live` and perhaps others; the rest is 0. live is that of the
 * tile, NULL: all pairs. */
void attn_set_pairs(const attn_block *block, float *C, attn_span X, const float *Y,
                    int64_t D, int first, int keys, const uint64_t *live);

/* With the room of its panels, if they pay; loaded with the rows of a block. */
attn_pair_rows attn_take_pair_rows(int64_t D, int lanes, attn_arena *a);
void attn_load_pair_rows(attn_pair_rows *to, attn_span rows, int count);

/* Those of keys before `end` are begun, with 0: tile by tile, so that they are near when
 * the tile adds to them. */
void attn_begin_sums(attn_key_sums *sums, int64_t end);

/* The sums of the tile's keys += X^T Y over the live pairs, X [keys][lanes]. zeros:
 * X is 0 in dead pairs and Y is finite, so that it makes no difference if they are added
 * too. A dense product costs half as much per pair. */
void attn_add_pairs(const attn_block *block, attn_key_sums *sums, const float *X,
                    const attn_pair_rows *Y, const uint64_t *live, bool zeros);

bool attn_is_finite(const float *x, int64_t n);

/* Are these rows of D numbers, one for each query of the block, known to be finite?
 * They are only looked at if a tile of the block has a dead pair. */
bool attn_rows_finite(const attn_block *block, attn_span rows, int64_t D);

#endif
