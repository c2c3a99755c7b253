/*
 * sums.h -- what the forward knows of a block after some of its keys: the maximum,
 * the sum and the pooled values O of each lane. Sums over disjoint parts of the keys
 * merge into those over all.
 */
#ifndef ATTN_SUMS_H
#define ATTN_SUMS_H

#include "walk.h"

/* Floats of one block's sums: max, sum and O. */
int64_t attn_sums_size(int64_t Dv, int lanes);

/* to = the sums of the block. */
void attn_sums_save(const attn_block *block, float *to);

/* The sums of the block, of a later part, become those of both. */
void attn_sums_merge(attn_block *block, const float *before);

/* The sums of the block = these. */
void attn_sums_load(attn_block *block, const float *from);

#endif
