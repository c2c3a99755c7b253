/*
 * test_view.c -- arrays with any strides that broadcast to pairs, rows or entries: an attn_view
 * finds the elements that NumPy's rule does, inside attn_extent; and lengths that are shared out.
 */
#include "../../csrc/core/view.h"

#include <stdio.h>
#include <stdlib.h>

enum { LEAD = 3, AXES = LEAD + 2, MOST = 4 };

static uint32_t state = 1;

static int
any(int n)
{
    state = state * 1664525u + 1013904223u;
    return (int)(state >> 8) % n;
}

static void
check(bool holds, const char *what)
{
    if (!holds) {
        printf("%s\n", what);
        exit(1);
    }
}

/* ---- views ----------------------------------------------------------------------- */

static const char memory[1] = {0};

/* Some array whose shape broadcasts to dims: its axes in any order, gaps between them, walked in
 * either direction, repeated, or on top of each other. */
static attn_array
any_array(int ndim, const ptrdiff_t *dims, ptrdiff_t *own, ptrdiff_t *strides)
{
    attn_array a = {memory, any(ndim + 1), own, strides, any(2) == 0 ? 1 : 4};
    ptrdiff_t next = a.item;
    bool placed[AXES] = {false};
    for (int left = a.ndim; left > 0; left--) {
        int i = any(4) > 0 ? a.ndim - 1 : any(a.ndim);
        while (placed[i]) {
            i = (i + a.ndim - 1) % a.ndim;
        }
        placed[i] = true;
        own[i] = any(3) == 0 ? 1 : dims[ndim - a.ndim + i];
        strides[i] = any(6) == 0 ? 0 : any(4) == 0 ? -next : next;
        const bool apart = own[i] > 1 && strides[i] != 0 && any(8) > 0;
        next *= apart ? own[i] + (any(3) == 0) : 1;
    }
    return a;
}

/* Where the element is that broadcasting puts at index[]. */
static ptrdiff_t
place_of(const attn_array *a, int ndim, const ptrdiff_t *index)
{
    ptrdiff_t at = 0;
    for (int i = 0; i < a->ndim; i++) {
        at += a->dims[i] == 1 ? 0 : index[ndim - a->ndim + i] * a->strides[i];
    }
    return at;
}

/* `ndim` of the axes (lead, M, N) are dims; all of them are walked. */
static void
check_array(const attn_array *a, int lead, int ndim, const ptrdiff_t *dims)
{
    attn_axis axes[LEAD];
    attn_view view;
    const char *low, *high;
    ptrdiff_t index[AXES], lowest = 0, highest = 0, entries = 1;
    attn_extent(a, &low, &high);
    attn_view_array(&view, axes, a, lead, ndim, dims);
    for (int i = 0; i < lead; i++) {
        entries *= dims[i];
    }
    for (ptrdiff_t pair = 0; pair < entries * dims[lead] * dims[lead + 1]; pair++) {
        ptrdiff_t rest = pair;
        for (int i = lead + 1; i >= 0; i--) {
            index[i] = rest % dims[i];
            rest /= dims[i];
        }
        const ptrdiff_t at = place_of(a, ndim, index);
        const int64_t b = pair / dims[lead + 1] / dims[lead];
        const int64_t found = attn_view_row(&view, b, index[lead]) +
                              index[lead + 1] * view.stride_j;
        check(found * a->item == at, "an element is not where NumPy has it");
        lowest = at < lowest ? at : lowest;
        highest = at > highest ? at : highest;
    }
    const bool all = entries * dims[lead] * dims[lead + 1] > 0;
    check(!all || (low <= a->data + lowest && a->data + highest + a->item <= high),
          "an element is outside");
}

/* Every element of the array, which is not broadcast: no more than they reach. */
static void
check_extent(const attn_array *a)
{
    const char *low, *high;
    ptrdiff_t count = 1, lowest = 0, highest = 0;
    attn_extent(a, &low, &high);
    for (int i = 0; i < a->ndim; i++) {
        count *= a->dims[i];
    }
    for (ptrdiff_t k = 0; k < count; k++) {
        ptrdiff_t rest = k, at = 0;
        for (int i = a->ndim - 1; i >= 0; i--) {
            at += rest % a->dims[i] * a->strides[i];
            rest /= a->dims[i];
        }
        lowest = at < lowest ? at : lowest;
        highest = at > highest ? at : highest;
    }
    check(count > 0 ? low == a->data + lowest && high == a->data + highest + a->item
                    : low == high,
          "an array reaches further, or less far");
}

static void
check_views(void)
{
    for (int turn = 0; turn < 100000; turn++) {
        ptrdiff_t dims[AXES], own[AXES], strides[AXES];
        const int lead = any(LEAD + 1), ndim = lead + any(3);
        for (int i = 0; i < lead + 2; i++) {
            dims[i] = any(20) == 0 ? 0 : 1 + any(MOST);
        }
        const attn_array a = any_array(ndim, dims, own, strides);
        check_extent(&a);
        check_array(&a, lead, ndim, dims);
    }
}

/* ---- lengths --------------------------------------------------------------------- */

/* Those of shape rows[:1], (rows[0], M) and rows; () for all. */
static void
check_lens(void)
{
    for (int turn = 0; turn < 100000; turn++) {
        ptrdiff_t rows[AXES], dims[AXES], entries = 1;
        const int ndim = any(AXES + 1), own = any(AXES + 1);
        for (int i = 0; i < ndim; i++) {
            rows[i] = 1 + any(2 + 2 * (i == 0));
            entries *= i < ndim - 1 ? rows[i] : 1;
        }
        for (int i = 0; i < own; i++) {
            dims[i] = i < ndim && any(4) > 0 ? rows[i] : 1 + any(3);
        }
        if (own == 2 && ndim > 1 && any(2) == 0) {
            dims[1] = rows[ndim - 1];
        }
        bool all = own == ndim;
        for (int i = 0; i < own && all; i++) {
            all = dims[i] == rows[i];
        }
        const ptrdiff_t M = ndim > 0 ? rows[ndim - 1] : 1;
        const bool first = ndim > 1 && own > 0 && dims[0] == rows[0];
        const bool fits = own == 0 || all || (first && own == 1) ||
                          (first && own == 2 && dims[1] == M);
        attn_valid_lens v = {.heads = 1};
        check(attn_share_lens(&v, own, dims, ndim, rows) == fits, "lengths of a shape");
        for (ptrdiff_t row = 0; fits && row < entries * M; row++) {
            const ptrdiff_t b = row / M, m = row % M;
            const ptrdiff_t of_first = ndim > 1 ? b / (entries / rows[0]) : 0;
            const ptrdiff_t at = own == 0   ? 0
                                 : all      ? row
                                 : own == 1 ? of_first
                                            : of_first * M + m;
            check(b / v.heads * v.stride_b + m * v.stride_m == at, "a row's length");
        }
    }
}

int
main(void)
{
    check_views();
    check_lens();
    return 0;
}
