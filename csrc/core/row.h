/*
 * row.h -- the softmax of a row from its first tile to its last: start, end, and what
 * a sink, an empty row, an infinite score or a saved lse make of it. Per row work only;
 * tiles are in attention.c.
 */
#ifndef ATTN_ROW_H
#define ATTN_ROW_H

#include "walk.h"

/* No key seen yet: max = -inf, sum = 0, dots = 0. A sink is as if a key had been seen
 * with it as its score and 0 as its value. Once a row: not in later parts of the keys. */
void attn_row_start(attn_block *block, bool sinks);

/* Turns the running max and sum into the origin of the exponents and the factor that make
 * P = 2^(S - max) * sum the weights; writes lse (count) if it is not NULL. */
void attn_row_end(attn_block *block, float *lse);

/* max and sum as attn_row_end would leave them, from the saved lse; false: that is too
 * large to be accurate, and nothing was done. dots from the saved output. */
bool attn_row_restore(attn_block *block);
void attn_row_restore_dots(attn_block *block);

/* The block's rows of the gradients of sink and scale, if they are wanted, at the end of
 * its backward. */
void attn_row_store_sinks(const attn_block *block);
void attn_row_store_scales(const attn_block *block);

/* dlse = the gradient of lse. forward was: lse = log sum_j exp s_j, so d lse / d s_j =
 * P_j. */
void attn_row_load_grad_lse(attn_block *block);

/* top + log(sum), finite sum >= 2^-126, the same on every machine. */
float attn_log_add(float top, float sum);

#endif
