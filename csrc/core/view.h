/*
 * view.h -- what is given for pairs, rows or entries is read where it lies: from an array's shape
 * and strides to an attn_view, of lengths to an attn_valid_lens, and from there to elements.
 */
#ifndef ATTN_VIEW_H
#define ATTN_VIEW_H

#include "attn.h"

/* An array as NumPy has it, strides in bytes. */
typedef struct {
    const char *data;
    int ndim;
    const ptrdiff_t *dims, *strides;
    ptrdiff_t item; /* bytes of an element */
} attn_array;

/* Every byte of it lies between *low and *high; none if it is empty. */
void attn_extent(const attn_array *a, const char **low, const char **high);

/* *view of an array whose shape broadcasts to dims: `lead` leading axes, for which there is
 * room in axes, then M and N or M or neither. */
void attn_view_array(attn_view *view, attn_axis *axes, const attn_array *a, int lead,
                     int ndim, const ptrdiff_t *dims);

/* Where row (b, m) of a view begins, in elements from its data. */
int64_t attn_view_row(const attn_view *v, int64_t b, int64_t m);

/* How many of the B entries have numbers of their own in a view. */
int64_t attn_view_entries(const attn_view *v);

/* How many entries of rows (..., M) share one of the first axis. */
int64_t attn_sharers(int ndim, const ptrdiff_t *rows);

/* Lengths of shape dims, in `own` axes, shared out over rows (..., M): one for all, one for each
 * entry of the first axis, one for each of those and M, or one for each row. false: they
 * are of no such shape. */
bool attn_share_lens(attn_valid_lens *valid, int own, const ptrdiff_t *dims, int ndim,
                     const ptrdiff_t *rows);

#endif
