/*
 * view.c -- shapes and strides: which axes of an array there are steps along, and which are
 * shared.
 */
#include "view.h"

#include <math.h>

void
attn_extent(const attn_array *a, const char **low, const char **high)
{
    ptrdiff_t before = 0, behind = a->item;
    for (int i = 0; i < a->ndim; i++) {
        const ptrdiff_t reach = (a->dims[i] - 1) * a->strides[i];
        if (a->dims[i] == 0) {
            *low = *high = a->data;
            return;
        }
        *(reach < 0 ? &before : &behind) += reach;
    }
    *low = a->data + before;
    *high = a->data + behind;
}

bool
attn_may_overlap(const attn_array *a, const attn_array *b)
{
    const char *low[2], *high[2];
    attn_extent(a, &low[0], &high[0]);
    attn_extent(b, &low[1], &high[1]);
    return low[0] < high[1] && low[1] < high[0] && low[0] != high[0] &&
           low[1] != high[1];
}

bool
attn_broadcasts(const attn_array *a, int ndim, const ptrdiff_t *dims)
{
    const int missing = ndim - a->ndim;
    bool fits = missing >= 0;
    for (int i = 0; fits && i < a->ndim; i++) {
        fits = a->dims[i] == 1 || a->dims[i] == dims[missing + i];
    }
    return fits;
}

/* ---- pairs ----------------------------------------------------------------------- */

/* The stride along axis i of dims, in elements: 0 if the array has no such axis, or one of
 * size 1, which stands for every size, or if dims has none. */
static int64_t
stride_of(const attn_array *a, int ndim, int i)
{
    const int own = i - (ndim - a->ndim);
    return i >= ndim || own < 0 || a->dims[own] == 1 ? 0 : a->strides[own] / a->item;
}

/* Appends an axis outside of the others, or makes the outermost longer where the two
 * are laid out as one: shared by all (both strides 0), or without a gap. */
static void
add_axis(attn_view *view, attn_axis *axes, int64_t size, int64_t stride)
{
    if (size == 1) {
        return;
    }
    if (view->axis_count > 0) {
        attn_axis *outermost = &axes[view->axis_count - 1];
        if (stride == outermost->size * outermost->stride) {
            outermost->size *= size;
            return;
        }
    }
    axes[view->axis_count++] = (attn_axis){size, stride};
}

/* An empty array keeps the strides 0, for nothing is read from it. */
void
attn_view_array(attn_view *view, attn_axis *axes, const attn_array *a, int lead,
                int ndim, const ptrdiff_t *dims)
{
    *view = (attn_view){.data = a->data, .axes = axes};
    for (int i = 0; i < a->ndim; i++) {
        if (a->dims[i] == 0) {
            return;
        }
    }
    view->stride_j = stride_of(a, ndim, lead + 1);
    view->stride_m = stride_of(a, ndim, lead);
    for (int i = lead - 1; i >= 0; i--) {
        add_axis(view, axes, dims[i], stride_of(a, ndim, i));
    }
    while (view->axis_count > 0 && axes[view->axis_count - 1].stride == 0) {
        view->axis_count--; /* nothing varies along the outermost */
    }
}

int64_t
attn_view_row(const attn_view *v, int64_t b, int64_t m)
{
    int64_t offset = m * v->stride_m;
    for (int i = 0; i < v->axis_count; i++) {
        offset += b % v->axes[i].size * v->axes[i].stride;
        b /= v->axes[i].size;
    }
    return offset;
}

int64_t
attn_view_entries(const attn_view *v)
{
    int64_t entries = 1;
    for (int i = 0; i < v->axis_count; i++) {
        entries *= v->axes[i].stride != 0 ? v->axes[i].size : 1;
    }
    return entries;
}

/* ---- lengths --------------------------------------------------------------------- */

/* Without entries any number but 0 does, and the others may overflow. */
int64_t
attn_sharers(int ndim, const ptrdiff_t *rows)
{
    uint64_t sharers = 1;
    for (int i = 1; i < ndim - 1; i++) {
        sharers *= (uint64_t)rows[i];
    }
    return (int64_t)sharers > 0 ? (int64_t)sharers : 1;
}

bool
attn_share_lens(attn_valid_lens *valid, int own, const ptrdiff_t *dims, int ndim,
                const ptrdiff_t *rows)
{
    const bool first = own > 0 && ndim > 1 && dims[0] == rows[0];
    const bool last = own > 0 && ndim > 0 && dims[own - 1] == rows[ndim - 1];
    bool all = own == ndim;
    for (int i = 0; all && i < own; i++) {
        all = dims[i] == rows[i];
    }
    if (own == 0) {
        return true; /* both strides stay 0 */
    }
    if (!all && !(own == 1 && first) && !(own == 2 && first && last)) {
        return false;
    }
    const bool each = all || own == 2; /* ... row */
    valid->heads = all ? 1 : attn_sharers(ndim, rows);
    valid->stride_b = each ? rows[ndim - 1] : 1;
    valid->stride_m = each;
    return true;
}

/* ---- numbers, heads -------------------------------------------------------------- */

const float *
attn_not_finite(const float *x, int64_t n, bool minus_inf)
{
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i]) && !(minus_inf && x[i] == -INFINITY)) {
            return &x[i];
        }
    }
    return NULL;
}

void
attn_share_among_heads(attn_problem *p)
{
    p->masks.keys.heads = p->heads > 0 ? p->heads : p->group;
    if (p->heads > 0) {
        int64_t *lens = &p->masks.valid.heads, *offsets = &p->masks.band.heads;
        *lens *= p->heads;
        *offsets = *offsets > INT64_MAX / p->heads ? INT64_MAX : *offsets * p->heads;
    }
}
