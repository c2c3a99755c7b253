/*
 * rowwise.h -- the gradients of numbers that whole rows share: of a sink, of a scale.
 *
 * The block that owns a row writes the row's part; when all are there they are added
 * up, row after row and in double: of so many numbers the rounding of a float sum would
 * show, and a scale's parts cancel.
 */
#ifndef ATTN_ROWWISE_H
#define ATTN_ROWWISE_H

#include "arena.h"
#include "mask.h"

typedef struct {
    float *rows;  /* (B, M)  the parts; NULL: nobody wants the gradient */
    double *sums; /* one for each number of the view */
} attn_rowwise;

/* Of the numbers of this view, which has no axis of keys. */
void attn_take_rowwise(attn_rowwise *r, const attn_view *v, const attn_problem *p,
                       attn_arena *a);

/* to = the gradient, C-contiguous. */
void attn_add_rowwise(float *to, const attn_rowwise *r, const attn_view *v,
                      const attn_problem *p);

/* How many numbers the view has. */
int64_t attn_rowwise_size(const attn_view *v, const attn_problem *p);

#endif
