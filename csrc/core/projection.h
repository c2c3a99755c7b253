/*
 * projection.h -- a linear layer over many rows, forward and backward, and sums of rows.
 *
 *     forward     Y (rows, H) = X (rows, D) W^T + b      W (H, D), b (H)
 *     backward    dX = dY W,  dW = dY^T X
 *
 * An operand that many rows pass over is first copied into panels: attn_simd->panel of
 * its columns each, one panel behind the other. A panel is read in the order of memory
 * and stays in L1; columns of rows of 1 KiB, say, would share a few sets of it. Measured
 * with 256 features and units, AVX2: 95 GF/s of the 107 that there are, against 84.
 */
#ifndef ATTN_PROJECTION_H
#define ATTN_PROJECTION_H

#include <stdbool.h>

#include "arena.h"
#include "mask.h"
#include "operand.h"

/* Room for panels. */
typedef struct {
    float *W;
    float *dY, *X; /* of the rows that dW takes in at a time; NULL forward */
    int64_t rows;  /* so many at most */
} attn_panels;

/* Of a backward of so many entries of so many rows; of a forward. */
attn_panels attn_take_panels_backward(attn_arena *a, int64_t D, int64_t H,
                                      int64_t entries, int64_t rows);
attn_panels attn_take_panels(attn_arena *a, int64_t D, int64_t H);

/* ---- some rows at a time --------------------------------------------------------- */

/* How many columns there are in whole panels: the last may be narrower than the others, a
 * multiple of 16. */
int64_t attn_in_panels(int64_t columns);

/* So many rows of D numbers in panels. */
void attn_rows_in_panels(float *panels, attn_span rows, int64_t n, int64_t D);

/* W^T in panels. */
void attn_transpose_in_panels(float *panels, const float *W, int64_t D, int64_t H);

/* Y (n, H) = X W^T + b; W^T in panels, which may have columns of 0 more: H a number up to
 * the next multiple of 16; n at most 64. b may be NULL. */
void attn_project(float *Y, int64_t ldy, attn_span X, int64_t n, const float *panels,
                  int64_t D, int64_t H, const float *b);

/* ---- all of them ----------------------------------------------------------------- */

typedef struct {
    int64_t rows, D, H;
    const uint8_t *use; /* (rows): ATTN_UNUSED for those that take no part; NULL: all */
    attn_operand X;
    int64_t X_rows; /* of an entry of X */
    const float *W;
    attn_panels panels; /* backward, if there are */
} attn_projection;

/* Rows that take no part are left alone. b may be NULL. false: interrupted. */
bool attn_projection_forward(const attn_projection *layer, float *Y, int64_t ldy,
                             const float *b, attn_run *run);

/* Rows that take no part keep the dX they have and do not count in dW, whatever they
 * hold. false: interrupted. */
bool attn_projection_backward(const attn_projection *layer, float *dX, float *dW,
                              const float *dY, int64_t ldy, attn_run *run);

/* to[h] = sum of rows[i][h], i < count, h < width: the gradient of a bias, or of
 * anything that all rows share. Added up in double: of so many numbers the rounding of
 * a float sum would show. false: interrupted. */
bool attn_sum_rows(float *to, const float *rows, int64_t count, int64_t width,
                   attn_run *run);

#endif
