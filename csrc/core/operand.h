/*
 * operand.h -- the one way to queries, keys and values, and to where the output and
 * their gradients go: nothing else in the core knows how their rows lie. (Numbers of
 * another type would be turned into floats here.)
 */
#ifndef ATTN_OPERAND_H
#define ATTN_OPERAND_H

#include "attn.h"

/* Rows as the kernels take them: `ld` floats from each to the next. */
typedef struct {
    const float *data;
    int64_t ld;
} attn_span;

/* Where row j of entry e begins. */
static inline int64_t
attn_at(const attn_operand *x, int64_t e, int64_t j)
{
    return e / x->heads * x->entry + e % x->heads * x->head + j * x->row;
}

/* Rows j, j + 1, ... of it. */
static inline attn_span
attn_read(const attn_operand *x, int64_t e, int64_t j)
{
    return (attn_span){x->data + attn_at(x, e, j), x->row};
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

/* Rows that are written. */
typedef struct {
    float *data;
    int64_t ld;
} attn_target;

/* Rows j, j + 1, ... of entry e of an array (entries / heads, rows, heads, width). */
static inline attn_target
attn_write(float *to, int64_t heads, int64_t rows, int64_t width, int64_t e, int64_t j)
{
    const attn_operand lies = attn_beside(to, heads, rows, width);
    return (attn_target){to + attn_at(&lies, e, j), lies.row};
}

static inline attn_target
attn_row_of(attn_target to, int64_t row)
{
    return (attn_target){to.data + row * to.ld, to.ld};
}

/* How many heads there are in a row of what has the queries' entries; the keys'. */
static inline int64_t
attn_heads(const attn_problem *p)
{
    return p->heads > 1 ? p->heads : 1;
}

static inline int64_t
attn_key_heads(const attn_problem *p)
{
    return p->heads > 1 ? p->heads / p->group : 1;
}

#endif
