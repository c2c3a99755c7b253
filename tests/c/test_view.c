/*
 * test_view.c -- arrays with any strides that broadcast to pairs, rows or entries: an attn_view
 * finds the elements that NumPy's rule does, inside attn_extent; and lengths that are shared out.
 */
#include "../../csrc/core/view.h"

#include <math.h>
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

/* NumPy's rule: from the last axis on each is 1 or as large, and there are no more. */
static void
check_broadcasts(void)
{
    for (int turn = 0; turn < 100000; turn++) {
        ptrdiff_t dims[AXES], own[AXES], strides[AXES];
        const int ndim = any(AXES + 1);
        for (int i = 0; i < AXES; i++) {
            dims[i] = any(MOST);
        }
        attn_array a = any_array(ndim, dims, own, strides);
        check(attn_broadcasts(&a, ndim, dims), "a shape does not broadcast");
        if (a.ndim > 0) {
            const int other = any(a.ndim);
            const ptrdiff_t now = dims[ndim - a.ndim + other], then = own[other];
            own[other] = any(MOST + 1);
            const bool fits = own[other] == 1 || own[other] == now;
            check(attn_broadcasts(&a, ndim, dims) == fits, "another shape");
            own[other] = then;
            check(!attn_broadcasts(&a, a.ndim - 1, dims), "one axis more");
        }
    }
}

/* Two arrays somewhere in one memory, beside all places that are within reach of both. */
static void
check_overlap(void)
{
    static const char both[4096];
    for (int turn = 0; turn < 20000; turn++) {
        ptrdiff_t dims[2] = {any(MOST), any(MOST)}, own[2][2], strides[2][2];
        attn_array a[2];
        const char *low[2], *high[2];
        for (int i = 0; i < 2; i++) {
            a[i] = any_array(2, dims, own[i], strides[i]);
            a[i].data = both + sizeof both / 2 + any(200);
            attn_extent(&a[i], &low[i], &high[i]);
        }
        bool shared = false;
        for (const char *at = low[0]; !shared && at < high[0]; at++) {
            shared = low[1] <= at && at < high[1];
        }
        check(attn_may_overlap(&a[0], &a[1]) == shared, "two arrays and their bytes");
    }
}

/* ---- numbers --------------------------------------------------------------------- */

static void
check_numbers(void)
{
    const float x[] = {0.0f, -1e38f, -INFINITY, 1e-45f, INFINITY, NAN};
    check(attn_not_finite(x, 2, false) == NULL && attn_not_finite(x, 0, false) == NULL,
          "finite numbers");
    check(attn_not_finite(x, 6, false) == x + 2, "the first that is not finite");
    check(attn_not_finite(x, 4, true) == NULL && attn_not_finite(x, 6, true) == x + 4,
          "-inf where it is allowed");
    check(attn_not_finite(x + 5, 1, true) == x + 5, "NaN");
}

/* Entry b of the problem is head b % heads of an entry of the queries. */
static void
check_heads(void)
{
    for (int heads = 0; heads < 4; heads++) {
        attn_problem p = {.heads = heads, .group = 2};
        p.masks.valid.heads = 3;
        p.masks.band.heads = 5;
        attn_share_among_heads(&p);
        const int64_t each = heads > 0 ? heads : 1;
        check(p.masks.valid.heads == 3 * each && p.masks.band.heads == 5 * each,
              "heads share lengths and bands");
        check(p.masks.keys.heads == (heads > 0 ? heads : 2), "heads share keys");
        p.masks.band.heads = INT64_MAX; /* one offset for all */
        attn_share_among_heads(&p);
        check(p.masks.band.heads == INT64_MAX, "all share a band");
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
    check_broadcasts();
    check_overlap();
    check_numbers();
    check_heads();
    check_lens();
    return 0;
}
