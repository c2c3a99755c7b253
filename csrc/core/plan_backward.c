/*
 * plan_backward.c -- how a backward call becomes tasks.
 *
 * A task is one group of blocks of one batch entry, which owns their dq. The gradients
 * of keys and values are sums over all queries (of all heads that share them): the
 * first group sums where they belong, each other one in a (N, key_width + Dv) partial
 * of its own, and the partials are added in order. So is the gradient of a bias that
 * queries or entries share.
 */
#include <math.h>
#include <string.h>

#include "plan.h"

enum {
    GROUP_QUERIES = 256, /* fewest queries of a group: its partial is worth its sum */
    MOST_GROUPS = 8,     /* of one batch entry: bounds the memory of the partials */
};

typedef struct {
    attn_call call;
    int64_t groups, group_blocks; /* of one batch entry */
    int64_t wave;    /* key entries in flight: as many as there are partials for */
    int64_t first;   /* key entry of this wave */
    int64_t parts;   /* groups that add to one key entry */
    int64_t width;   /* key_width */
    float *partials; /* (wave, parts - 1, N, width + Dv) */
    int64_t bias_rows, bias_columns; /* of the bias that one group of queries meets */
    float *bias_partials; /* (wave, parts, bias_rows, bias_columns), NULL: not needed */
} backward_plan;

/* How many of the B entries have a slice of the view of their own. */
static int64_t
axes_size(const attn_view *v)
{
    int64_t size = 1;
    for (int i = 0; i < v->axis_count; i++) {
        size *= v->axes[i].stride != 0 ? v->axes[i].size : 1;
    }
    return size;
}

static void
lay_out_groups(backward_plan *plan)
{
    const attn_call *c = &plan->call;
    const attn_problem *p = c->p;
    int64_t group = attn_ceil_div(attn_ceil_div(p->M, MOST_GROUPS), c->lanes) *
                    c->lanes;
    group = group > GROUP_QUERIES ? group : GROUP_QUERIES;
    plan->group_blocks = group / c->lanes;
    plan->groups = attn_ceil_div(p->M, group);
    plan->parts = plan->groups * p->group;
    plan->width = p->score->key_width(p);
    plan->bias_rows = p->masks.bias.stride_m != 0 ? (group < p->M ? group : p->M) : 1;
    plan->bias_columns = p->masks.bias.stride_j != 0 ? p->N : 1;
}

static void
lay_out_backward(backward_plan *plan, attn_arena *a, int threads)
{
    attn_call *c = &plan->call;
    const attn_problem *p = c->p;
    attn_lay_out(c, a, threads);
    lay_out_groups(plan);
    bool split = plan->parts > 1;
    /* where every row of the bias belongs to one query of one entry, groups write to
     * its gradient directly */
    bool owned = p->masks.bias.stride_m != 0 && axes_size(&p->masks.bias) == p->B;
    bool shared_bias = attn_wants_dbias(c) && !owned;
    int64_t entries = p->B / p->group;
    plan->wave = split || shared_bias
                     ? attn_ceil_div(4 * (int64_t)c->workers, plan->parts)
                     : entries;
    plan->wave = plan->wave < entries ? plan->wave : entries;
    int64_t numbers, bias_numbers;
    if (plan->width > INT64_MAX - p->Dv ||
        __builtin_mul_overflow(p->N, plan->width + p->Dv, &numbers) ||
        __builtin_mul_overflow(plan->bias_rows, plan->bias_columns, &bias_numbers)) {
        a->used = SIZE_MAX;
        return;
    }
    plan->partials = attn_take_floats(a, split ? plan->wave * (plan->parts - 1) : 0,
                                      numbers);
    plan->bias_partials = attn_take_floats(
        a, shared_bias ? plan->wave * plan->parts : 0, bias_numbers);
    plan->bias_partials = shared_bias ? plan->bias_partials : NULL;
}

/* Where group g of entry b adds up its gradient of the bias; zeroed. */
static float *
begin_bias(const backward_plan *plan, int64_t task, int64_t b, int64_t g)
{
    const attn_view *bias = &plan->call.p->masks.bias;
    int64_t m0 = g * plan->group_blocks * plan->call.lanes, left = plan->call.p->M - m0;
    int64_t rows = left < plan->bias_rows ? left : plan->bias_rows;
    float *to = plan->bias_partials != NULL
                    ? plan->bias_partials + task * plan->bias_rows * plan->bias_columns
                    : plan->call.d->bias + attn_view_row(bias, b, m0);
    memset(to, 0, (size_t)(rows * plan->bias_columns) * sizeof(float));
    return to;
}

/* task: of this wave; query entry by query entry, group by group. */
static void
group_task(void *ctx, int64_t task, int worker)
{
    backward_plan *plan = ctx;
    attn_call *c = &plan->call;
    const int64_t N = c->p->N, Dv = c->p->Dv;
    int64_t entry = plan->first + task / plan->parts, g = task % plan->groups;
    int64_t b = plan->first * c->p->group + task / plan->groups;
    int64_t part = task % plan->parts;
    float *dkeys = c->dkeys + entry * N * plan->width;
    float *dvalues = c->d->values + entry * N * Dv;
    if (part > 0) {
        int64_t slot = task / plan->parts * (plan->parts - 1) + part - 1;
        dkeys = plan->partials + slot * N * (plan->width + Dv);
        dvalues = dkeys + N * plan->width;
    }
    float *dbias = attn_wants_dbias(c) ? begin_bias(plan, task, b, g) : NULL;
    int64_t dbias_stride = c->p->masks.bias.stride_m != 0 ? plan->bias_columns : 0;

    memset(dkeys, 0, (size_t)(N * plan->width) * sizeof(float));
    memset(dvalues, 0, (size_t)(N * Dv) * sizeof(float));
    int64_t begin = g * plan->group_blocks, end = begin + plan->group_blocks;
    end = end < c->blocks ? end : c->blocks;
    for (int64_t i = begin; i < end; i++) {
        if (attn_stopped(c->run, worker)) {
            return;
        }
        attn_block *block = attn_begin_block(c, worker, b, i);
        block->dkeys = dkeys;
        block->dvalues = dvalues;
        if (dbias != NULL) {
            block->dbias = dbias + (i - begin) * c->lanes * dbias_stride;
            block->dbias_stride = dbias_stride;
            memset(block->dbias_sum, 0, (size_t)c->lanes * sizeof(float));
        }
        attn_backward_block(block);
    }
}

/* ---- sums over groups and entries, in order -------------------------------------- */

/* to[i] += parts[0][i] + parts[1][i] + ..., n numbers, parts `stride` apart. */
static void
add_parts(float *to, const float *parts, int64_t stride, int64_t count, int64_t n)
{
    for (int64_t g = 0; g < count; g++) {
        const float *part = parts + g * stride;
        for (int64_t i = 0; i < n; i++) {
            to[i] += part[i];
        }
    }
}

enum { REDUCE_KEYS = 64 };

/* A task is REDUCE_KEYS keys of one entry. */
static void
reduce_task(void *ctx, int64_t task, int worker)
{
    backward_plan *plan = ctx;
    attn_call *c = &plan->call;
    const int64_t N = c->p->N, Dv = c->p->Dv, W = plan->width, stride = N * (W + Dv);
    int64_t chunks = attn_ceil_div(N, REDUCE_KEYS), e = task / chunks,
            entry = plan->first + e;
    int64_t j = task % chunks * REDUCE_KEYS,
            keys = N - j < REDUCE_KEYS ? N - j : REDUCE_KEYS;
    const int64_t count = plan->parts - 1;
    const float *parts = plan->partials + e * count * stride;
    (void)worker;
    add_parts(c->dkeys + (entry * N + j) * W, parts + j * W, stride, count, keys * W);
    add_parts(c->d->values + (entry * N + j) * Dv, parts + N * W + j * Dv, stride,
              count, keys * Dv);
}

/* A task is one row of the groups' partials, in all groups of the wave that have it. */
static void
reduce_bias_task(void *ctx, int64_t row, int worker)
{
    const backward_plan *plan = ctx;
    const attn_call *c = &plan->call;
    const attn_view *bias = &c->p->masks.bias;
    const int64_t columns = plan->bias_columns;
    int64_t entries = c->p->B / c->p->group - plan->first;
    entries = entries < plan->wave ? entries : plan->wave;
    (void)worker;
    for (int64_t t = 0; t < entries * plan->parts; t++) {
        int64_t b = plan->first * c->p->group + t / plan->groups;
        int64_t m = t % plan->groups * plan->group_blocks * c->lanes + row;
        if (m >= c->p->M) {
            continue;
        }
        float *to = c->d->bias + attn_view_row(bias, b, m);
        const float *from = plan->bias_partials + (t * plan->bias_rows + row) * columns;
        for (int64_t j = 0; j < columns; j++) {
            to[j] += from[j];
        }
    }
}

/* Partials of `entries` key entries, from q->first on, into the gradients. */
static bool
reduce(backward_plan *plan, int64_t entries)
{
    const attn_call *c = &plan->call;
    const double task = ATTN_WORK_NUMBER * (double)entries * (double)plan->parts;
    double work = task * attn_work(c->p->N, plan->width + c->p->Dv, 1);
    double bias_work = task * attn_work(plan->bias_rows, plan->bias_columns, 1);
    return (plan->parts == 1 ||
            attn_parallel_for(c->run, entries * attn_ceil_div(c->p->N, REDUCE_KEYS),
                              attn_us(work), reduce_task, plan)) &&
           (plan->bias_partials == NULL ||
            attn_parallel_for(c->run, plan->bias_rows, attn_us(bias_work),
                              reduce_bias_task, plan));
}

/* ---- the whole of it ------------------------------------------------------------- */

/* An empty row's query gets no gradient, or NaN where its output was NaN. */
static void
settle_empty_queries(const attn_call *c)
{
    const attn_problem *p = c->p;
    const float fill = p->empty_rows == ATTN_EMPTY_NAN && p->N > 0 ? NAN : 0.0f;
    if (!attn_may_be_empty(p) || p->M == 0 || p->Dq == 0) {
        return;
    }
    for (int64_t b = 0; b < p->B; b++) {
        for (int64_t m0 = 0; m0 < p->M; m0 += ATTN_LANES) {
            int64_t left = p->M - m0;
            attn_rows rows;
            attn_rows_of(&rows, p, b, m0, left < ATTN_LANES ? (int)left : ATTN_LANES);
            for (uint64_t w = rows.empty; w != 0; w &= w - 1) {
                int64_t row = b * p->M + m0 + __builtin_ctzll(w);
                for (int64_t d = 0; d < p->Dq; d++) {
                    c->d->queries[row * p->Dq + d] = fill;
                }
            }
        }
    }
}

static void
set_zero(float *to, int64_t n1, int64_t n2, int64_t n3)
{
    if (to != NULL && n1 != 0 && n2 != 0 &&
        n3 != 0) { /* else the product may overflow */
        memset(to, 0, (size_t)(n1 * n2 * n3) * sizeof(float));
    }
}

static void
zero_bias_gradient(const attn_gradients *d, const attn_problem *p)
{
    const attn_view *bias = &p->masks.bias;
    set_zero(d->bias, bias->data == NULL ? 0 : axes_size(bias),
             bias->stride_m != 0 ? p->M : 1, bias->stride_j != 0 ? p->N : 1);
}

static bool
run_backward(backward_plan *plan)
{
    attn_call *c = &plan->call;
    const attn_problem *p = c->p;
    int64_t key_entries = p->B / p->group;
    if (!attn_prepare(c)) {
        return false;
    }
    if (plan->bias_partials != NULL) {
        zero_bias_gradient(c->d, p);
    }
    for (plan->first = 0; plan->first < key_entries; plan->first += plan->wave) {
        int64_t left = key_entries - plan->first;
        int64_t entries = left < plan->wave ? left : plan->wave;
        double work = attn_walk_work(c) * (double)entries / (double)key_entries;
        if (!attn_parallel_for(c->run, entries * plan->parts, attn_us(work), group_task,
                               plan) ||
            !reduce(plan, entries)) {
            return false;
        }
    }
    if (!attn_finish(c)) {
        return false;
    }
    settle_empty_queries(c);
    return true;
}

/* No pair takes part, or nothing flows in and out: all gradients are 0, however large
 * the sizes are that are not 0. */
static bool
nothing_flows(const attn_problem *p, const attn_gradients *d,
              const attn_grad_outputs *grad)
{
    bool no_features = p->Dv == 0 && (p->Dq == 0 || p->Dk == 0);
    return p->B == 0 || p->M == 0 || p->N == 0 ||
           (no_features && d->bias == NULL && grad->weights == NULL &&
            grad->lse == NULL);
}

static void
no_gradients(const attn_gradients *d, const attn_problem *p)
{
    int64_t entries = p->B / p->group;
    set_zero(d->queries, p->B, p->M, p->Dq);
    set_zero(d->keys, entries, p->N, p->Dk);
    set_zero(d->values, entries, p->N, p->Dv);
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        const char *shape = p->score->about.parameters[i].shape;
        if (shape != NULL) {
            set_zero(d->parameters[i], 1, attn_letter_size(p, shape[0]),
                     shape[1] == 0 ? 1 : attn_letter_size(p, shape[1]));
        }
    }
    set_zero(d->scale, 1, 1, 1);
    zero_bias_gradient(d, p);
}

size_t
attn_backward_workspace(const attn_problem *p, const attn_gradients *d,
                        const attn_grad_outputs *grad, int threads)
{
    backward_plan plan = {.call = {.p = p, .backward = true, .d = d}};
    attn_arena a = attn_arena_over(NULL);
    if (!nothing_flows(p, d, grad)) {
        lay_out_backward(&plan, &a, threads);
    }
    return attn_arena_size(&a);
}

int
attn_backward(const attn_gradients *d, const attn_grad_outputs *grad,
              const attn_saved *saved, const attn_inputs *in, const attn_problem *p,
              void *memory, attn_run *run)
{
    backward_plan plan = {.call = {.p = p,
                                   .run = run,
                                   .unit = ATTN_LOG2E,
                                   .backward = true,
                                   .d = d,
                                   .grad = grad,
                                   .saved = saved,
                                   .in = in}};
    if (nothing_flows(p, d, grad)) {
        no_gradients(d, p);
        settle_empty_queries(&plan.call);
        return 0;
    }
    attn_arena a = attn_arena_over(memory);
    lay_out_backward(&plan, &a, run->threads);
    run->threads = plan.call.workers;
    return run_backward(&plan) ? 0 : ATTN_INTERRUPTED;
}
