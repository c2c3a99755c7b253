/*
 * operand.h -- the one way to queries, keys and values: nothing else in the core knows
 * how their rows lie. (Numbers of another type would be turned into floats here.)
 */
#ifndef ATTN_OPERAND_H
#define ATTN_OPERAND_H

#include "attn.h"

/* Rows as the kernels take them: `ld` floats from each to the next. */
typedef struct {
    const float *data;
    int64_t ld;
} attn_span;

/* Rows j, j + 1, ... of entry e. */
static inline attn_span
attn_read(const attn_operand *x, int64_t e, int64_t j)
{
    int64_t at = e / x->heads * x->entry + e % x->heads * x->head + j * x->row;
    return (attn_span){x->data + at, x->row};
}

/* Do the rows of an entry, so many, lead on to those of the next? Then all are a span. */
static inline bool
attn_is_even(const attn_operand *x, int64_t rows)
{
    return x->heads == 1 && x->entry == rows * x->row;
}

/* Row i of a span. */
static inline const float *
attn_span_row(attn_span span, int64_t i)
{
    return span.data + i * span.ld;
}

#endif
