/*
 * weights.h -- the weights that a forward returns: of every pair the P of its tile, kept
 * until the final max and sum of its row are known.
 */
#ifndef ATTN_WEIGHTS_H
#define ATTN_WEIGHTS_H

#include "walk.h"

static inline int64_t
attn_tiles(int64_t keys)
{
    return attn_ceil_div(keys, ATTN_KEYS);
}

/* block->pending, of a call that returns weights. */
void attn_take_pending(attn_block *block, attn_arena *a);

/* Set it to 0 if masks may leave tiles unvisited: their pairs, too, are multiplied at the end. */
void attn_weights_clear(const attn_call *c);

/* Where S of the tile at hand has to be; then, S being its P, what must not be lost. */
void attn_weights_place(attn_block *block);
void attn_weights_keep(attn_block *block);

/* The block's rows of the weights, after attn_row_end; 0 where no pair takes part. */
void attn_weights_end(attn_block *block);

#endif
