/*
 * bias.c -- a bias on the scores, forward and backward. Masking by -inf: mask.c.
 *
 * A bias may lack any axis: then its numbers are shared, and its gradient is a sum over
 * that axis: over the lanes and keys of a block, and then, in order, over groups.
 */
#include <string.h>

#include "modifier.h"

typedef struct {
    float *tile; /* [keys][lanes]  the tile's bias; one row, if all keys share it */
    float *sum;  /* [lanes]  backward: of a bias that is the same for all keys */
    float *to;   /* backward: the first row of the group's share */
} bias_own;

static const float one = 1.0f; /* what sums are products with */

static bool
applies(const attn_problem *p)
{
    return p->masks.bias.data != NULL;
}

static void *
take_block(const attn_block *block, attn_arena *a)
{
    const int64_t N = block->call->p->N;
    bias_own local, *own = attn_take(a, sizeof *own, 1, 1);
    bias_own *s = own == NULL ? &local : own;
    s->tile = attn_take_floats(a, N < ATTN_KEYS ? N : ATTN_KEYS, block->lanes);
    s->sum = block->call->backward ? attn_take_floats(a, 1, block->lanes) : NULL;
    s->to = NULL;
    return own;
}

/* The bias is brought into lanes first; one column of it, if all keys share it. */
static void
tile(attn_block *block, void *own)
{
    const bias_own *s = own;
    const attn_call *c = block->call;
    const attn_view *v = &c->p->masks.bias;
    const attn_tile *t = &block->tile;
    const float *bias_t = (const float *)v->data +
                          attn_view_row(v, block->b, block->m0) +
                          (t->k0 + t->first) * v->stride_j;
    int keys = t->end - t->first;
    attn_simd->pack(s->tile, block->lanes, bias_t, v->stride_m, block->rows.count,
                    v->stride_j == 0 ? 1 : keys, 1.0f);
    attn_simd->add_tile(block->S + t->first * block->lanes, block->lanes, keys, s->tile,
                        v->stride_j == 0 ? 0 : block->lanes, c->unit);
}

/* ---- backward, a block ----------------------------------------------------------- */

static bool
flows(const attn_call *c)
{
    return c->d->bias != NULL;
}

/* Columns of the bias; the rows of it that a group of queries meets. */
static int64_t
columns_of(const attn_problem *p)
{
    return p->masks.bias.stride_j != 0 ? p->N : 1;
}

static int64_t
group_rows(const attn_call *c)
{
    int64_t queries = c->group_queries < c->p->M ? c->group_queries : c->p->M;
    return c->p->masks.bias.stride_m != 0 ? queries : 1;
}

/* The row of the block's first query; from one query's row to the next, 0 if all share
 * one. */
static int64_t
row_stride(const attn_block *block)
{
    const attn_problem *p = block->call->p;
    return p->masks.bias.stride_m != 0 ? columns_of(p) : 0;
}

static float *
row_of(const attn_block *block, const bias_own *s)
{
    return s->to + block->m0 % block->call->group_queries * row_stride(block);
}

/* to[i] += sum of row i of X (rows, lanes) over the lanes that are queries. */
static void
add_lanes(const attn_block *block, float *to, const float *X, int rows)
{
    attn_simd->matmul(to, 1, X, block->lanes, 1, &one, 0, rows, 1, block->rows.count,
                      ATTN_ADD);
}

/* forward was: s'_mj = s_mj + bias_mj.  So now: ds = ds', dbias_mj = ds_mj, summed over
 * what the bias is shared by. */
static void
tile_backward(attn_block *block, void *own, float *dS)
{
    const bias_own *s = own;
    const attn_tile *t = &block->tile;
    const int64_t stride = row_stride(block);
    if (block->call->p->masks.bias.stride_j == 0) {
        attn_simd->matmul(s->sum, block->lanes, &one, 0, 0, dS, block->lanes, 1,
                          block->lanes, t->keys, ATTN_ADD);
    } else if (stride == 0) {
        add_lanes(block, s->to + t->k0, dS, t->keys);
    } else {
        attn_simd->unpack(row_of(block, s) + t->k0, stride, dS, block->lanes,
                          block->rows.count, t->keys, NULL);
    }
}

static void
store_backward(attn_block *block, void *own)
{
    const bias_own *s = own;
    const int64_t stride = row_stride(block);
    if (block->call->p->masks.bias.stride_j != 0) {
        return;
    }
    if (stride == 0) {
        add_lanes(block, s->to, s->sum, 1);
    } else {
        attn_simd->unpack(row_of(block, s), stride, s->sum, block->lanes,
                          block->rows.count, 1, NULL);
    }
    memset(s->sum, 0, (size_t)block->lanes * sizeof(float));
}

/* ---- backward, over groups and entries ------------------------------------------- */

static int64_t
share_size(const attn_call *c)
{
    const attn_view *v = &c->p->masks.bias;
    int64_t size;
    if (v->stride_m != 0 && attn_view_entries(v) == c->p->B) {
        return 0; /* every row of the bias belongs to one query of one entry */
    }
    return __builtin_mul_overflow(group_rows(c), columns_of(c->p), &size) ? INT64_MAX
                                                                          : size;
}

static void
begin_group(attn_block *block, void *own, int64_t group, float *share)
{
    bias_own *s = own;
    const attn_call *c = block->call;
    int64_t b = group / c->groups, m0 = group % c->groups * c->group_queries;
    int64_t left = c->p->M - m0, rows = group_rows(c) < left ? group_rows(c) : left;
    s->to = share != NULL ? share
                          : c->d->bias + attn_view_row(&c->p->masks.bias, b, m0);
    memset(s->to, 0, (size_t)(rows * columns_of(c->p)) * sizeof(float));
    memset(s->sum, 0, (size_t)block->lanes * sizeof(float));
}

typedef struct {
    const attn_call *call;
    const float *shares;
    int64_t first, count;
} share_job;

/* One row of the share of a group, if it has that. */
static void
add_row(const share_job *job, int64_t i, int64_t row)
{
    const attn_call *c = job->call;
    const int64_t columns = columns_of(c->p), group = job->first + i;
    const int64_t m = group % c->groups * c->group_queries + row;
    if (m < c->p->M) {
        float *to = c->d->bias + attn_view_row(&c->p->masks.bias, group / c->groups, m);
        const float *from = job->shares + (i * group_rows(c) + row) * columns;
        attn_simd->matmul(to, columns, &one, 0, 0, from, columns, 1, columns, 1,
                          ATTN_ADD);
    }
}

/* A task is one row of the shares, in all groups that have it. */
static void
add_task(void *ctx, int64_t row, int worker)
{
    const share_job *job = ctx;
    (void)worker;
    for (int64_t i = 0; i < job->count; i++) {
        add_row(job, i, row);
    }
}

static bool
add_shares(const attn_call *c, const float *shares, int64_t first, int64_t count)
{
    share_job job = {c, shares, first, count};
    double work = ATTN_WORK_NUMBER * attn_work(count, group_rows(c), columns_of(c->p));
    return attn_parallel_for(c->run, group_rows(c), attn_us(work), add_task, &job);
}

static void
no_gradient(const attn_call *c)
{
    const attn_view *v = &c->p->masks.bias;
    attn_set_zero(c->d->bias, attn_view_entries(v), v->stride_m != 0 ? c->p->M : 1,
                  columns_of(c->p));
}

const attn_modifier attn_modifier_bias = {
    .applies = applies,
    .take_block = take_block,
    .tile = tile,
    .flows = flows,
    .tile_backward = tile_backward,
    .store_backward = store_backward,
    .share_size = share_size,
    .begin_group = begin_group,
    .add_shares = add_shares,
    .no_gradient = no_gradient,
};
