/*
 * row.h -- the softmax of a row from its first tile to its last: start, end, and what
 * an empty row, an infinite score or a saved lse make of it. Per row work only; tiles
 * are in attention.c.
 */
#ifndef ATTN_ROW_H
#define ATTN_ROW_H

#include "walk.h"

/* m = -inf, l = 0, D = 0: no key seen yet. */
void attn_row_start(attn_block *k);

/* Turns the running m and l into the origin of the exponents and the factor that make
 * P = 2^(S - m) * l the weights; writes lse (count) if it is not NULL. */
void attn_row_end(attn_block *k, float *lse);

/* weights (count, N): from raw scores to weights; 0 where no pair takes part. */
void attn_row_weights(const attn_block *k, float *weights);

/* m and l as attn_row_end would leave them, from the saved lse; false: that is too
 * large to be accurate, and nothing was done. D from the saved output. */
bool attn_row_restore(attn_block *k);
void attn_row_restore_dots(attn_block *k);

/* E = the gradient of lse. forward was: lse = log sum_j exp s_j, so d lse / d s_j =
 * P_j. */
void attn_row_load_grad_lse(attn_block *k);

/* top + log(sum), finite sum >= 2^-126, the same on every machine. */
float attn_log_add(float top, float sum);

#endif
