/*
 * plan.c -- how one call becomes tasks: its workspace, its partition, its order of
 * sums.
 *
 * The partition is a function of the shape alone, and every element of a result has one
 * task that writes it, so that the bits do not depend on the threads:
 *     forward    a task is one block of queries;
 *     backward   a task is one group of blocks of one batch entry, which owns their dq.
 *                The gradients of keys and values are sums over all queries: each group
 *                sums its own (N, key_width + Dv) partial; they are added in order.
 */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "attn.h"
#include "walk.h"

enum {
    FORWARD_LANES = 32, /* S tile, queries and pooled values of a block stay in L1 */
    GROUP_QUERIES =
        256,         /* fewest queries of a group: a group's partial is worth its sum */
    MOST_GROUPS = 8, /* of one batch entry: bounds the memory of the partials */
};

static const float LOG2E = 1.44269504088896340736f;

static int64_t
ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Estimated microseconds of the walk on one thread: 30 multiply-adds a nanosecond. */
static double
walk_us(const attn_call *c)
{
    const attn_problem *p = c->p;
    double pairs = (double)p->B * (double)p->M * (double)p->N;
    double work = c->score->pair_work(p) + (double)p->Dv + 8.0;
    return pairs * work * (c->backward ? 4.0 : 1.0) / 30e3;
}

/* Sizes, threads and blocks of a call; with an arena that only counts, just the
 * counting. */
static void
lay_out(attn_call *c, attn_arena *a, int threads)
{
    const attn_problem *p = c->p;
    c->score = attn_score_of(p->score);
    int most = c->backward ? c->score->backward_lanes : FORWARD_LANES;
    c->lanes = p->M >= most ? most : (int)ceil_div(p->M > 0 ? p->M : 1, 16) * 16;
    c->blocks = ceil_div(p->M, c->lanes);
    double tasks = (double)p->B * (double)(c->blocks + ceil_div(p->N, 64));
    c->workers = tasks < threads ? (tasks < 1 ? 1 : (int)tasks) : threads;
    if (p->H > INT_MAX / 2) {
        a->used = SIZE_MAX;
    }
    c->score->take_shared(c, a);
    c->block = attn_take(a, sizeof *c->block, c->workers, 1);
    int64_t keys = p->N < ATTN_KEYS ? p->N : ATTN_KEYS;
    for (int w = 0; w < c->workers; w++) {
        attn_block local, *k = c->block == NULL ? &local : &c->block[w];
        k->call = c;
        k->worker = w;
        k->lanes = c->lanes;
        k->S = attn_take_floats(a, keys, c->lanes);
        k->m = attn_take_floats(a, 1, c->lanes);
        k->l = attn_take_floats(a, 1, c->lanes);
        k->alpha = attn_take_floats(a, 1, c->lanes);
        k->O = c->backward ? NULL : attn_take_floats(a, p->Dv, c->lanes);
        k->dO = c->backward ? attn_take_floats(a, p->Dv, c->lanes) : NULL;
        k->dP = c->backward ? attn_take_floats(a, keys, c->lanes) : NULL;
        k->dW = c->backward ? attn_take_floats(a, keys, c->lanes) : NULL;
        k->D = c->backward ? attn_take_floats(a, 1, c->lanes) : NULL;
        k->E = c->backward ? attn_take_floats(a, 1, c->lanes) : NULL;
        c->score->take_block(k, a);
    }
}

/* Block `index` of entry b, made ready on this worker. */
static attn_block *
begin_block(attn_call *c, int worker, int64_t b, int64_t index)
{
    attn_block *k = &c->block[worker];
    int64_t left = c->p->M - index * c->lanes;
    k->b = b;
    k->m0 = index * c->lanes;
    attn_rows_of(&k->rows, c->p, b, k->m0, left < c->lanes ? (int)left : c->lanes);
    return k;
}

/* ---- forward and scores ---------------------------------------------------------- */

static void
forward_task(void *ctx, int64_t task, int worker)
{
    attn_call *c = ctx;
    attn_forward_block(begin_block(c, worker, task / c->blocks, task % c->blocks));
}

static void
scores_task(void *ctx, int64_t task, int worker)
{
    attn_call *c = ctx;
    attn_scores_block(begin_block(c, worker, task / c->blocks, task % c->blocks));
}

static size_t
workspace(const attn_problem *p, int threads)
{
    attn_call c = {.p = p};
    attn_arena a = attn_arena_over(NULL);
    lay_out(&c, &a, threads);
    return attn_arena_size(&a);
}

static int
run_blocks(attn_call *c, void *memory, attn_task *task)
{
    attn_arena a = attn_arena_over(memory);
    lay_out(c, &a, c->run->threads);
    c->run->threads = c->workers;
    if (c->score->prepare != NULL && !c->score->prepare(c)) {
        return ATTN_INTERRUPTED;
    }
    bool done = attn_parallel_for(c->run, c->p->B * c->blocks, walk_us(c), task, c);
    return done ? 0 : ATTN_INTERRUPTED;
}

size_t
attn_forward_workspace(const attn_problem *p, int threads)
{
    return workspace(p, threads);
}

int
attn_forward(float *output, float *weights, float *lse, const float *queries,
             const float *keys, const float *values, const attn_problem *p,
             void *memory, attn_run *run)
{
    attn_call c = {.p = p,
                   .run = run,
                   .unit = LOG2E,
                   .queries = queries,
                   .keys = keys,
                   .values = values,
                   .output = output,
                   .weights = weights,
                   .lse = lse};
    bool nothing = p->Dv == 0 && lse == NULL && (weights == NULL || p->N == 0);
    if (p->B == 0 || p->M == 0 || nothing) { /* however large the other sizes are */
        return 0;
    }
    return run_blocks(&c, memory, forward_task);
}

size_t
attn_scores_workspace(const attn_problem *p, int threads)
{
    return workspace(p, threads);
}

int
attn_scores(float *scores, const float *queries, const float *keys,
            const attn_problem *p, void *memory, attn_run *run)
{
    attn_call c = {.p = p,
                   .run = run,
                   .unit = 1.0f,
                   .queries = queries,
                   .keys = keys,
                   .weights = scores};
    if (p->B == 0 || p->M == 0 || p->N == 0) {
        return 0;
    }
    return run_blocks(&c, memory, scores_task);
}

/* ---- backward -------------------------------------------------------------------- */

typedef struct {
    attn_call call;
    int64_t groups, group_blocks; /* of one batch entry */
    int64_t wave;    /* entries in flight: as many as there are partials for */
    int64_t first;   /* entry of this wave */
    int64_t width;   /* key_width */
    float *partials; /* (wave * groups, N, width + Dv), or NULL with one group */
} backward_plan;

static void
lay_out_backward(backward_plan *q, attn_arena *a, int threads)
{
    attn_call *c = &q->call;
    const attn_problem *p = c->p;
    lay_out(c, a, threads);
    int64_t group = ceil_div(ceil_div(p->M, MOST_GROUPS), c->lanes) * c->lanes;
    group = group > GROUP_QUERIES ? group : GROUP_QUERIES;
    q->group_blocks = group / c->lanes;
    q->groups = ceil_div(p->M, group);
    q->width = c->score->key_width(p);
    q->wave = q->groups > 1 ? ceil_div(4 * (int64_t)c->workers, q->groups) : p->B;
    q->wave = q->wave < p->B ? q->wave : p->B;
    int64_t slots = q->groups > 1 ? q->wave * q->groups : 0;
    bool fits = q->width <= INT64_MAX - p->Dv &&
                p->N <= INT64_MAX / (q->width + p->Dv + 1);
    if (!fits) {
        a->used = SIZE_MAX;
        return;
    }
    q->partials = attn_take_floats(a, slots, p->N * (q->width + p->Dv));
}

static void
group_task(void *ctx, int64_t task, int worker)
{
    backward_plan *q = ctx;
    attn_call *c = &q->call;
    const int64_t N = c->p->N, Dv = c->p->Dv;
    int64_t b = q->first + task / q->groups, g = task % q->groups;
    float *partial = q->partials + task * N * (q->width + Dv);
    float *dkeys = q->groups > 1 ? partial : c->dkeys + b * N * q->width;
    float *dvalues = q->groups > 1 ? partial + N * q->width : c->d->values + b * N * Dv;

    memset(dkeys, 0, (size_t)(N * q->width) * sizeof(float));
    memset(dvalues, 0, (size_t)(N * Dv) * sizeof(float));
    int64_t end = (g + 1) * q->group_blocks;
    end = end < c->blocks ? end : c->blocks;
    for (int64_t i = g * q->group_blocks; i < end; i++) {
        if (attn_stopped(c->run, worker)) {
            return;
        }
        attn_block *k = begin_block(c, worker, b, i);
        k->dkeys = dkeys;
        k->dvalues = dvalues;
        attn_backward_block(k);
    }
}

/* to[i] = parts[0][i] + parts[1][i] + ..., n numbers, parts `stride` apart. */
static void
add_parts(float *to, const float *parts, int64_t stride, int64_t count, int64_t n)
{
    memcpy(to, parts, (size_t)n * sizeof(float));
    for (int64_t g = 1; g < count; g++) {
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
    backward_plan *q = ctx;
    attn_call *c = &q->call;
    const int64_t N = c->p->N, Dv = c->p->Dv, W = q->width, stride = N * (W + Dv);
    int64_t chunks = ceil_div(N, REDUCE_KEYS), e = task / chunks, b = q->first + e;
    int64_t j = task % chunks * REDUCE_KEYS,
            keys = N - j < REDUCE_KEYS ? N - j : REDUCE_KEYS;
    const float *parts = q->partials + e * q->groups * stride;
    (void)worker;
    add_parts(c->dkeys + (b * N + j) * W, parts + j * W, stride, q->groups, keys * W);
    add_parts(c->d->values + (b * N + j) * Dv, parts + N * W + j * Dv, stride,
              q->groups, keys * Dv);
}

/* An empty row's query gets no gradient, or NaN where its output was NaN. */
static void
settle_empty_queries(const attn_call *c)
{
    const attn_problem *p = c->p;
    const float fill = p->empty_rows == ATTN_EMPTY_NAN && p->N > 0 ? NAN : 0.0f;
    if (p->valid.lens == NULL || p->Dq == 0) {
        return;
    }
    for (int64_t row = 0; row < p->B * p->M; row++) {
        if (attn_limit(&p->valid, row / p->M, row % p->M, p->N) == 0) {
            for (int64_t d = 0; d < p->Dq; d++) {
                c->d->queries[row * p->Dq + d] = fill;
            }
        }
    }
}

static bool
run_backward(backward_plan *q)
{
    attn_call *c = &q->call;
    const attn_problem *p = c->p;
    if (c->score->prepare != NULL && !c->score->prepare(c)) {
        return false;
    }
    for (q->first = 0; q->first < p->B; q->first += q->wave) {
        int64_t entries = p->B - q->first < q->wave ? p->B - q->first : q->wave;
        double us = walk_us(c) * (double)entries / (double)p->B;
        if (!attn_parallel_for(c->run, entries * q->groups, us, group_task, q)) {
            return false;
        }
        double numbers = (double)entries * (double)q->groups * (double)p->N *
                         (double)(q->width + p->Dv);
        int64_t chunks = ceil_div(p->N, REDUCE_KEYS);
        if (q->groups > 1 && !attn_parallel_for(c->run, entries * chunks, numbers / 2e3,
                                                reduce_task, q)) {
            return false;
        }
    }
    if (c->score->finish != NULL && !c->score->finish(c)) {
        return false;
    }
    settle_empty_queries(c);
    return true;
}

/* No pair takes part, or nothing flows in and out: all gradients are 0, however large the
 * sizes are that are not 0. */
static bool
nothing_flows(const attn_problem *p, const attn_grad_outputs *grad)
{
    bool no_features = p->Dv == 0 && (p->Dq == 0 || p->Dk == 0);
    return p->B == 0 || p->M == 0 || p->N == 0 ||
           (no_features && grad->weights == NULL && grad->lse == NULL);
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
no_gradients(const attn_gradients *d, const attn_problem *p)
{
    set_zero(d->queries, p->B, p->M, p->Dq);
    set_zero(d->keys, p->B, p->N, p->Dk);
    set_zero(d->values, p->B, p->N, p->Dv);
    set_zero(d->W_q, 1, p->H, p->Dq);
    set_zero(d->W_k, 1, p->H, p->Dk);
    set_zero(d->w_v, 1, 1, p->H);
    set_zero(d->b_h, 1, 1, p->H);
    set_zero(d->w, 1, 1, 1);
}

size_t
attn_backward_workspace(const attn_problem *p, const attn_grad_outputs *grad,
                        int threads)
{
    const attn_gradients none = {0};
    backward_plan q = {.call = {.p = p, .backward = true, .d = &none}};
    attn_arena a = attn_arena_over(NULL);
    if (!nothing_flows(p, grad)) {
        lay_out_backward(&q, &a, threads);
    }
    return attn_arena_size(&a);
}

int
attn_backward(const attn_gradients *d, const attn_grad_outputs *grad,
              const attn_saved *saved, const float *queries, const float *keys,
              const float *values, const attn_problem *p, void *memory, attn_run *run)
{
    backward_plan q = {.call = {.p = p,
                                .run = run,
                                .unit = LOG2E,
                                .backward = true,
                                .d = d,
                                .grad = grad,
                                .saved = saved,
                                .queries = queries,
                                .keys = keys,
                                .values = values}};
    if (nothing_flows(p, grad)) {
        no_gradients(d, p);
        settle_empty_queries(&q.call);
        return 0;
    }
    attn_arena a = attn_arena_over(memory);
    lay_out_backward(&q, &a, run->threads);
    run->threads = q.call.workers;
    return run_backward(&q) ? 0 : ATTN_INTERRUPTED;
}
