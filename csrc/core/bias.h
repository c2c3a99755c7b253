/*
 * bias.h -- a bias on the scores, forward and backward. Masking by -inf: mask.c.
 */
#ifndef ATTN_BIAS_H
#define ATTN_BIAS_H

#include "walk.h"

/* S += bias, for the keys of the tile that are scored. */
void attn_bias_add(attn_block *block);

/* dS (keys, lanes) of the tile, 0 where no pair takes part, goes into the block's part
 * of the gradient. */
void attn_bias_gradient(attn_block *block, const float *dS);

/* After the block's last tile. */
void attn_bias_store_gradient(attn_block *block);

#endif
