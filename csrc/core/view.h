/*
 * view.h -- what is given for pairs, rows or entries is read where it lies: from an array's shape
 * and strides to an attn_view, of lengths to an attn_valid_lens, and from there to elements. And
 * what is to be known of it before: how far it reaches, whether it fits, whether it is finite.
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

/* Do bytes of both lie between those of one and of the other? They need not be elements of both:
 * the even rows of an array, and its third row. */
bool attn_may_overlap(const attn_array *a, const attn_array *b);

/* Does the shape of an array broadcast to dims? */
bool attn_broadcasts(const attn_array *a, int ndim, const ptrdiff_t *dims);

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

/* The first of n numbers that is not finite, nor, where that is allowed, -inf; or NULL. */
const float *attn_not_finite(const float *x, int64_t n, bool minus_inf);

/* Of a problem with heads: lengths and bands belong to queries, which heads share, and a byte of
 * the mask of a memory to a key, which those heads share that share keys. */
void attn_share_among_heads(attn_problem *p);

#endif
