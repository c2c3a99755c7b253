/*
 * operand.h -- the one way to queries, keys and values, and to where the output and
 * their gradients go: nothing else in the core knows how their rows lie. (Numbers of
 * another type would be turned into floats here.)
 */
#ifndef ATTN_OPERAND_H
#define ATTN_OPERAND_H

#include <string.h>

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
    int64_t b = e / x->heads;
    b = x->shared == NULL ? b : x->shared->of[b];
    return b * x->entry + e % x->heads * x->head + j * x->row;
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
    return x->heads == 1 && x->shared == NULL && x->entry == rows * x->row;
}

/* Return the number of distinct elements among `entries`. */
static inline int64_t
attn_distinct(const attn_sharing *shared, int64_t entries)
{
    return shared == NULL ? entries : shared->distinct;
}

/* Return the operand of the distinct elements alone. */
static inline attn_operand
attn_distinct_rows(const attn_operand *x)
{
    attn_operand rows = *x;
    rows.shared = NULL;
    return rows;
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

/* n1 * n2 * n3 numbers, any of which may be 0; `to` may be NULL. */
static inline void
attn_set_zero(float *to, int64_t n1, int64_t n2, int64_t n3)
{
    if (to != NULL && n1 != 0 && n2 != 0 &&
        n3 != 0) { /* else the product may overflow */
        memset(to, 0, (size_t)(n1 * n2 * n3) * sizeof(float));
    }
}

/* So many rows of numbers. */
static inline void
attn_zero_rows(attn_target to, int64_t rows, int64_t width)
{
    if (to.ld == width) {
        attn_set_zero(to.data, 1, rows, width);
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        attn_set_zero(to.data + i * to.ld, 1, 1, width);
    }
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
