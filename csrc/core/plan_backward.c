/*
 * plan_backward.c -- how a backward call becomes tasks.
 *
 * A task is one group of blocks of one batch entry, which owns their dq. The gradients
 * of keys and values are sums over all queries (of all heads that share them): the
 * first group sums where they belong, each other one in a share of its own, (N,
 * key_width + Dv), and the shares are added in the order of the groups. So are those of
 * a modifier's own gradient (modifier.h).
 *
 * Tasks go in waves: as many at a time as there is memory for shares. How many that
 * are has no influence on the order of any sum.
 */
#include <math.h>
#include <string.h>

#include "pairs.h"
#include "plan.h"

enum {
    GROUP_QUERIES = 256, /* fewest queries of a group: its share is worth adding up */
    MOST_GROUPS = 8,     /* of one batch entry */
    WAVE_TASKS = 4,      /* of a wave, for each worker */
};

/* All shares together have at most so many numbers (64 MiB), and twice those of the
 * gradients. */
static const double MOST_NUMBERS = 16 << 20;

typedef struct {
    attn_call call;
    void (*walk)(attn_block *block);
    int64_t width; /* key_width */
    int64_t parts; /* groups that add to one key entry: the heads' that share it */
    int64_t tasks;
    int64_t wave, first, count; /* most tasks of a wave; those of this one */
    float *shares;              /* (slots, N, width + Dv) */
    float *modifier_shares[ATTN_MODIFIERS_MAX]; /* (wave, share_size) */
} backward_plan;

/* ---- groups, waves and shares ---------------------------------------------------- */

static void
lay_out_groups(backward_plan *plan, attn_arena *a)
{
    attn_call *c = &plan->call;
    const attn_problem *p = c->p;
    int64_t queries = attn_ceil_div(attn_ceil_div(p->M, MOST_GROUPS), c->lanes) *
                      c->lanes;
    c->group_queries = queries > GROUP_QUERIES ? queries : GROUP_QUERIES;
    c->groups = attn_ceil_div(p->M, c->group_queries);
    plan->width = attn_key_width(p);
    plan->parts = plan->tasks = 1;
    if (__builtin_mul_overflow(p->group, c->groups, &plan->parts) ||
        __builtin_mul_overflow(p->B, c->groups, &plan->tasks) ||
        plan->tasks > INT64_MAX / 2) { /* a wave goes on to the end of a key entry */
        a->used = SIZE_MAX;
        plan->parts = plan->tasks = 1;
    }
}

/* How many of the tasks before this one need a share: all but those that are the first
 * of their key entry. */
static int64_t
shares_before(const backward_plan *plan, int64_t task)
{
    return task - attn_ceil_div(task, plan->parts);
}

/* Numbers that a task leaves to be added up; 0: none. Overflow: INT64_MAX. */
static int64_t
share_size(const backward_plan *plan)
{
    const attn_problem *p = plan->call.p;
    int64_t size;
    bool overflow = plan->width > INT64_MAX - p->Dv ||
                    __builtin_mul_overflow(p->N, plan->width + p->Dv, &size);
    return overflow ? INT64_MAX : size;
}

static int64_t
modifier_share_size(const attn_call *c, int i)
{
    bool sums = c->flows[i] && c->modifier[i]->share_size != NULL;
    return sums ? c->modifier[i]->share_size(c) : 0;
}

/* So many tasks that no worker waits for long at a wave's end, but not more than the
 * memory for their shares allows: it always does for two. */
static int64_t
tasks_of_wave(const backward_plan *plan)
{
    const attn_call *c = &plan->call;
    double entry = (double)share_size(plan), share = plan->parts > 1 ? entry : 0.0;
    double gradients = entry * (double)(c->p->B / c->p->group);
    for (int i = 0; i < c->modifiers; i++) {
        gradients += (double)modifier_share_size(c, i);
        share += (double)modifier_share_size(c, i);
    }
    if (share == 0.0) {
        return plan->tasks;
    }
    double room = (MOST_NUMBERS + 2.0 * gradients) / share;
    int64_t wave = attn_ceil_div(WAVE_TASKS * (int64_t)c->workers, plan->parts) *
                   plan->parts;
    wave = (double)wave < room ? wave : (int64_t)room;
    return wave < plan->tasks ? wave : plan->tasks;
}

static void
lay_out_backward(backward_plan *plan, attn_arena *a, int threads)
{
    attn_call *c = &plan->call;
    attn_lay_out(c, a, threads);
    lay_out_groups(plan, a);
    plan->wave = tasks_of_wave(plan);
    int64_t slots = plan->wave - plan->wave / plan->parts;
    plan->shares = attn_take_floats(a, slots, slots > 0 ? share_size(plan) : 0);
    for (int i = 0; i < c->modifiers; i++) {
        int64_t size = modifier_share_size(c, i);
        float *shares = attn_take_floats(a, plan->wave, size);
        plan->modifier_shares[i] = size == 0 ? NULL : shares;
    }
    if (c->d->sink != NULL) {
        attn_take_rowwise(&c->dsink, &c->p->sink, c->p, a);
    }
    if (attn_wants_dscale(c)) {
        attn_take_rowwise(&c->dscale, &c->p->scales, c->p, a);
    }
}

/* The share of a task of this wave. */
static float *
share_of(const backward_plan *plan, int64_t task)
{
    int64_t slot = shares_before(plan, task) - shares_before(plan, plan->first);
    return plan->shares + slot * share_size(plan);
}

/* ---- a group --------------------------------------------------------------------- */

static void
begin_modifiers(const backward_plan *plan, attn_block *block, int64_t task)
{
    const attn_call *c = &plan->call;
    for (int i = 0; i < c->modifiers; i++) {
        if (c->flows[i] && c->modifier[i]->begin_group != NULL) {
            float *shares = plan->modifier_shares[i];
            int64_t at = (task - plan->first) * modifier_share_size(c, i);
            c->modifier[i]->begin_group(block, block->modifier[i], task,
                                        shares == NULL ? NULL : shares + at);
        }
    }
}

/* The gradients of keys and values from key j of entry e on. */
static attn_target
dkeys_at(const backward_plan *plan, int64_t e, int64_t j)
{
    const attn_call *c = &plan->call;
    return attn_write(c->dkeys, c->dkey_heads, c->p->N, plan->width, e, j);
}

static attn_target
dvalues_at(const backward_plan *plan, int64_t e, int64_t j)
{
    const attn_problem *p = plan->call.p;
    return attn_write(plan->call.d->values, attn_key_heads(p), p->N, p->Dv, e, j);
}

static attn_key_sums
sums_in(const backward_plan *plan, attn_target to, int64_t width)
{
    const attn_call *c = &plan->call;
    bool once = c->lanes == 1 && c->blocks == 1 && plan->parts == 1;
    return (attn_key_sums){to, width, .once = once};
}

/* The last group first, as forward the last block: (8, 8, 512, 512, 64) causal on two threads
 * 26.4 -> 22.5 ms. */
static void
group_task(void *ctx, int64_t index, int worker)
{
    backward_plan *plan = ctx;
    attn_call *c = &plan->call;
    const int64_t N = c->p->N, Dv = c->p->Dv;
    const int64_t task = plan->first + plan->count - 1 - index;
    int64_t b = task / c->groups, e = task / plan->parts;
    attn_target dkeys = dkeys_at(plan, e, 0), dvalues = dvalues_at(plan, e, 0);
    if (task % plan->parts > 0) {
        dkeys = (attn_target){share_of(plan, task), plan->width};
        dvalues = (attn_target){dkeys.data + N * plan->width, Dv};
    }
    attn_block *block = &c->block[worker];
    block->dkeys = sums_in(plan, dkeys, plan->width);
    block->dvalues = sums_in(plan, dvalues, Dv);
    begin_modifiers(plan, block, task);

    int64_t blocks = c->group_queries / c->lanes, i = task % c->groups * blocks;
    int64_t end = c->blocks - i < blocks ? c->blocks : i + blocks;
    for (; i < end && !attn_stopped(c->run, worker); i++) {
        plan->walk(attn_begin_block(c, worker, b, i));
    }
    attn_begin_sums(&block->dkeys, N);
    attn_begin_sums(&block->dvalues, N);
}

/* ---- sums over groups, in order -------------------------------------------------- */

/* Rows of `to` += those of shares[0], shares[1], ..., `stride` apart. */
static void
add_shares(attn_target to, const float *shares, int64_t stride, int64_t count,
           int64_t rows, int64_t width)
{
    int64_t run = to.ld == width ? rows * width : width; /* numbers without a gap */
    for (int64_t share = 0; share < count; share++) {
        const float *from = shares + share * stride;
        for (int64_t done = 0; done < rows * width; done += run) {
            float *to_row = to.data + done / width * to.ld;
            for (int64_t i = 0; i < run; i++) {
                to_row[i] += from[done + i];
            }
        }
    }
}

enum { ADD_KEYS = 64 };

/* A task is ADD_KEYS keys of one of the wave's entries, in all shares of the wave. */
static void
add_task(void *ctx, int64_t index, int worker)
{
    backward_plan *plan = ctx;
    attn_call *c = &plan->call;
    const int64_t N = c->p->N, Dv = c->p->Dv, W = plan->width, stride = N * (W + Dv);
    int64_t chunks = attn_ceil_div(N, ADD_KEYS);
    int64_t e = plan->first / plan->parts + index / chunks;
    int64_t j = index % chunks * ADD_KEYS, keys = N - j < ADD_KEYS ? N - j : ADD_KEYS;
    int64_t task = e * plan->parts + 1, end = (e + 1) * plan->parts;
    task = task > plan->first ? task : plan->first;
    end = end < plan->first + plan->count ? end : plan->first + plan->count;
    const float *shares = share_of(plan, task);
    (void)worker;
    add_shares(dkeys_at(plan, e, j), shares + j * W, stride, end - task, keys, W);
    add_shares(dvalues_at(plan, e, j), shares + N * W + j * Dv, stride, end - task,
               keys, Dv);
}

static bool
add_wave(backward_plan *plan)
{
    const attn_call *c = &plan->call;
    int64_t last = plan->first + plan->count - 1;
    int64_t entries = last / plan->parts - plan->first / plan->parts + 1;
    double work = ATTN_WORK_NUMBER * (double)plan->count * (double)share_size(plan);
    if (plan->parts > 1 &&
        !attn_parallel_for(c->run, entries * attn_ceil_div(c->p->N, ADD_KEYS),
                           attn_us(work), add_task, plan)) {
        return false;
    }
    for (int i = 0; i < c->modifiers; i++) {
        const float *shares = plan->modifier_shares[i];
        if (shares != NULL &&
            !c->modifier[i]->add_shares(c, shares, plan->first, plan->count)) {
            return false;
        }
    }
    return true;
}

/* ---- the whole of it ------------------------------------------------------------- */

static bool
run_backward(backward_plan *plan)
{
    attn_call *c = &plan->call;
    if (!attn_prepare(c)) {
        return false;
    }
    for (int i = 0; i < c->modifiers; i++) {
        if (plan->modifier_shares[i] != NULL) {
            c->modifier[i]->no_gradient(c);
        }
    }
    for (plan->first = 0; plan->first < plan->tasks; plan->first += plan->count) {
        int64_t left = plan->tasks - plan->first;
        plan->count = left < plan->wave ? left : plan->wave;
        double work = attn_walk_work(c) * (double)plan->count / (double)plan->tasks;
        if (!attn_parallel_for(c->run, plan->count, attn_us(work), group_task, plan) ||
            !add_wave(plan)) {
            return false;
        }
    }
    if (c->dsink.rows != NULL) {
        attn_add_rowwise(c->d->sink, &c->dsink, &c->p->sink, c->p);
    }
    if (c->dscale.rows != NULL) {
        attn_add_rowwise(c->d->scale, &c->dscale, &c->p->scales, c->p);
    }
    return attn_finish(c);
}

/* No pair takes part, or nothing flows in and out: all gradients are 0, however large
 * the sizes are that are not 0. (Without keys a sink still has all the lse.) */
static bool
nothing_flows(const attn_call *c)
{
    const attn_problem *p = c->p;
    bool no_features = p->Dv == 0 && (p->Dq == 0 || p->Dk == 0);
    bool no_sink = c->d->sink == NULL;
    return p->B == 0 || p->M == 0 || (p->N == 0 && no_sink) ||
           (no_features && !attn_modifiers_flow(c) && no_sink &&
            c->grad->weights == NULL && c->grad->lse == NULL);
}

static void
zero_parameters(const attn_gradients *d, const attn_problem *p)
{
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        const char *shape = p->score->about.parameters[i].shape;
        if (shape != NULL) {
            attn_set_zero(d->parameters[i], 1, attn_letter_size(p, shape[0]),
                          shape[1] == 0 ? 1 : attn_letter_size(p, shape[1]));
        }
    }
    attn_set_zero(d->scale, attn_rowwise_size(&p->scales, p), 1, 1);
}

static void
no_gradients(attn_call *c)
{
    const attn_problem *p = c->p;
    int64_t entries = p->B / p->group;
    attn_set_zero(c->d->queries, p->B, p->M, p->Dq);
    attn_set_zero(c->d->keys, entries, p->N, p->Dk);
    attn_set_zero(c->d->values, entries, p->N, p->Dv);
    attn_set_zero(c->d->projected, entries, p->N, attn_key_width(p));
    if (c->d->key_use != NULL && entries > 0) {
        memset(c->d->key_use, ATTN_UNUSED, (size_t)(entries * p->N));
    }
    zero_parameters(c->d, p);
    attn_set_zero(c->d->sink, attn_rowwise_size(&p->sink, p), 1, 1);
    for (int i = 0; i < c->modifiers; i++) {
        if (c->flows[i] && c->modifier[i]->no_gradient != NULL) {
            c->modifier[i]->no_gradient(c);
        }
    }
    bool nan_rows = p->empty_rows == ATTN_EMPTY_NAN && attn_may_be_empty(p);
    for (int64_t b = 0; nan_rows && p->N > 0 && p->Dq > 0 && b < p->B; b++) {
        for (int64_t m0 = 0; m0 < p->M; m0 += ATTN_LANES) {
            int64_t left = p->M - m0;
            attn_rows rows;
            attn_rows_of(&rows, p, b, m0, left < ATTN_LANES ? (int)left : ATTN_LANES);
            attn_settle_queries(c, &rows);
        }
    }
}

static size_t
workspace(backward_plan *plan, int threads)
{
    attn_arena a = attn_arena_over(NULL);
    attn_find_modifiers(&plan->call);
    if (!nothing_flows(&plan->call)) {
        lay_out_backward(plan, &a, threads);
    }
    return attn_arena_size(&a);
}

static int
run_plan(backward_plan *plan, void *memory)
{
    attn_call *c = &plan->call;
    attn_find_modifiers(c);
    if (nothing_flows(c)) {
        no_gradients(c);
        return 0;
    }
    attn_arena a = attn_arena_within(memory, c->run->room);
    lay_out_backward(plan, &a, c->run->threads);
    if (!attn_arena_fits(&a, &c->run->room)) {
        return ATTN_NO_ROOM;
    }
    c->run->threads = c->workers;
    return run_backward(plan) ? 0 : ATTN_INTERRUPTED;
}

size_t
attn_backward_workspace(const attn_problem *p, const attn_gradients *d,
                        const attn_grad_outputs *grad, int threads)
{
    backward_plan plan = {
        .call = {.p = p, .unit = 1.0f, .backward = true, .d = d, .grad = grad}};
    return workspace(&plan, threads);
}

int
attn_backward(const attn_gradients *d, const attn_grad_outputs *grad,
              const attn_saved *saved, const attn_inputs *in, const attn_problem *p,
              void *memory, attn_run *run)
{
    backward_plan plan = {.walk = attn_backward_block,
                          .call = {.p = p,
                                   .run = run,
                                   .unit = ATTN_LOG2E,
                                   .backward = true,
                                   .d = d,
                                   .grad = grad,
                                   .saved = saved,
                                   .in = in}};
    return run_plan(&plan, memory);
}

/* The gradient of the scores is where that of the weights would be. */
size_t
attn_scores_backward_workspace(const attn_problem *p, const attn_gradients *d,
                               int threads)
{
    static const float any = 0.0f;
    const attn_grad_outputs grad = {.weights = &any};
    return attn_backward_workspace(p, d, &grad, threads);
}

int
attn_scores_backward(const attn_gradients *d, const float *dscores,
                     const attn_inputs *in, const attn_problem *p, void *memory,
                     attn_run *run)
{
    static const attn_saved nothing = {0};
    const attn_grad_outputs grad = {.weights = dscores};
    attn_gradients to = *d;
    to.values = to.keys; /* of no columns */
    backward_plan plan = {.walk = attn_scores_backward_block,
                          .call = {.p = p,
                                   .run = run,
                                   .unit = 1.0f,
                                   .backward = true,
                                   .d = &to,
                                   .grad = &grad,
                                   .saved = &nothing,
                                   .in = in}};
    return run_plan(&plan, memory);
}
