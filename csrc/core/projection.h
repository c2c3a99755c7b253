/*
 * projection.h -- the backward pass of a linear layer over the rows that take part, and
 * sums of rows.
 *
 *     forward was: Y (B, rows, H) = X (B, rows, D) W^T,  W (H, D)
 *     so now:      dX = dY W,  dW = dY^T X
 */
#ifndef ATTN_PROJECTION_H
#define ATTN_PROJECTION_H

#include <stdbool.h>

#include "mask.h"
#include "operand.h"

typedef struct {
    const uint8_t *use; /* (B, rows): ATTN_UNUSED for rows that take no part */
    int64_t B, rows, D, H;
    int64_t ldy; /* floats from one row of dY to the next, >= H */
    float *dX, *dW;
    const float *dY, *W;
    attn_operand X;
    int64_t X_rows; /* of an entry of X: where these are not the B entries, all rows
                     * together are the same */
} attn_projection;

/* Rows that take no part keep the dX they have and do not count in dW, whatever they
 * hold. false: interrupted. */
bool attn_projection_backward(const attn_projection *layer, attn_run *run);

/* to[h] = sum of rows[i][h], i < count, h < width: the gradient of a bias, or of
 * anything that all rows share. Added up in double: of so many numbers the rounding of
 * a float sum would show. false: interrupted. */
bool attn_sum_rows(float *to, const float *rows, int64_t count, int64_t width,
                   attn_run *run);

#endif
