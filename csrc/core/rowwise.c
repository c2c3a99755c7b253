/*
 * rowwise.c -- see rowwise.h.
 */
#include "rowwise.h"

int64_t
attn_rowwise_size(const attn_view *v, const attn_problem *p)
{
    return attn_view_entries(v) * (v->stride_m != 0 ? p->M : 1);
}

void
attn_take_rowwise(attn_rowwise *r, const attn_view *v, const attn_problem *p,
                  attn_arena *a)
{
    r->rows = attn_take_floats(a, p->B, p->M);
    r->sums = attn_take(a, sizeof *r->sums, attn_rowwise_size(v, p), 1);
}

void
attn_add_rowwise(float *to, const attn_rowwise *r, const attn_view *v,
                 const attn_problem *p)
{
    const int64_t size = attn_rowwise_size(v, p);
    for (int64_t i = 0; i < size; i++) {
        r->sums[i] = 0.0;
    }
    for (int64_t b = 0; b < p->B; b++) {
        double *sums_b = r->sums + attn_view_row(v, b, 0);
        for (int64_t m = 0; m < p->M; m++) {
            sums_b[m * v->stride_m] += r->rows[b * p->M + m];
        }
    }
    for (int64_t i = 0; i < size; i++) {
        to[i] = (float)r->sums[i];
    }
}
