/*
 * keys.c -- see keys.h.
 */
#include "keys.h"

#include <string.h>

#include "plan.h"
#include "work.h"

attn_prepared *
attn_take_prepared(attn_arena *a, const attn_problem *p, const attn_sharing *shared,
                   int64_t capacity)
{
    if (p->score->take_keys == NULL) {
        return NULL;
    }
    attn_prepared local, *to = attn_take(a, sizeof *to, 1, 1);
    int64_t rows = 0;
    if (__builtin_mul_overflow(attn_distinct(shared, p->B / p->group), capacity,
                               &rows)) {
        a->used = SIZE_MAX;
        return NULL;
    }
    *(to == NULL ? &local : to) = (attn_prepared){
        .capacity = capacity,
        .shared = shared,
        .rows = p->score->take_keys(p, rows, a),
    };
    return to;
}

const attn_prepared *
attn_prepared_at(const void *memory)
{
    return memory == NULL ? NULL : (const void *)attn_arena_over((void *)memory).base;
}

void
attn_start_keys(attn_prepared *to, const attn_problem *p)
{
    if (p->score->start_keys != NULL) {
        const int64_t entries = attn_distinct(to->shared, p->B / p->group);
        p->score->start_keys(to->rows, p, entries * to->capacity);
    }
}

/* ---- making them, and back ------------------------------------------------------- */

enum { TASK_KEYS = 64 };

/* A task is TASK_KEYS of the keys first <= j < end of one entry. */
typedef struct {
    const attn_problem *p;
    int64_t first, end;
    const uint8_t *use; /* NULL: those that last */
    attn_prepared *to;  /* made from keys; or back, in the call */
    const attn_operand *keys;
    attn_call *call;
} key_job;

/* True if a query needs a key from key j on. */
static bool
needs_later(const key_job *job, int64_t e, int64_t j)
{
    const attn_problem *p = job->p;
    const int64_t left = job->end - j;
    if (job->use != NULL && left > 0) {
        const uint8_t *use = job->use + (e + 1) * (job->end - job->first) - left;
        return use[0] != ATTN_UNUSED || memcmp(use, use + 1, (size_t)left - 1) != 0;
    }
    for (; j < job->end; j += TASK_KEYS) {
        uint8_t lasting[TASK_KEYS];
        int64_t n = job->end - j < TASK_KEYS ? job->end - j : TASK_KEYS;
        bool used;
        attn_lasting_keys(lasting, p, e * p->group, j, n);
        if (attn_use_run(lasting, 0, n, &used) < n || used) {
            return true;
        }
    }
    return false;
}

/* Set the rows of n masked keys from key j to 0 if a query needs a later key: tiles from the
 * first to the last needed key are scored as a whole, and an uninitialised row may raise
 * FE_INVALID. */
static void
clear_gap(const key_job *job, int64_t e, int64_t j, int64_t n)
{
    const attn_score *score = job->p->score;
    if (score->clear_keys != NULL && needs_later(job, e, j + n)) {
        score->clear_keys(job->to->rows, e * job->to->capacity + j, n, job->p);
    }
}

/* Keys that no query needs are not read, and nothing is made of them; their gradient
 * is 0. */
static void
key_task(void *ctx, int64_t task, int worker)
{
    const key_job *job = ctx;
    const attn_problem *p = job->p;
    const attn_score *score = p->score;
    int64_t keys = job->end - job->first, chunks = attn_ceil_div(keys, TASK_KEYS);
    int64_t e = task / chunks, j = job->first + task % chunks * TASK_KEYS;
    int64_t end = job->end - j < TASK_KEYS ? job->end : j + TASK_KEYS;
    int64_t row = e * keys - job->first; /* of key 0, in use */
    const uint8_t *use = job->use;
    uint8_t lasting[TASK_KEYS];
    (void)worker;
    if (use == NULL) {
        attn_lasting_keys(lasting, p, e * p->group, j, end - j);
        use = lasting;
        row = -j;
    }
    for (int64_t n; j < end; j += n) {
        bool used;
        n = attn_use_run(use, row + j, row + end, &used);
        if (used && job->to != NULL) {
            score->make_keys(job->to->rows, e * job->to->capacity + j,
                             attn_read(job->keys, e, j), n, p);
        } else if (job->to != NULL) {
            clear_gap(job, e, j, n);
        } else if (used) {
            score->make_keys_backward(job->call, e, j, n);
        } else if (job->call != NULL && job->call->d->keys != NULL) {
            attn_zero_rows(
                attn_write(job->call->d->keys, attn_key_heads(p), p->N, p->Dk, e, j), n,
                p->Dk);
        }
    }
}

static bool
run_job(key_job *job, int64_t entries, double key_work, attn_run *run)
{
    int64_t keys = job->end - job->first;
    return attn_parallel_for(run, entries * attn_ceil_div(keys, TASK_KEYS),
                             attn_us(attn_work(entries, keys, 1) * key_work), key_task,
                             job);
}

bool
attn_make_keys(attn_prepared *to, const attn_operand *keys, const uint8_t *use,
               int64_t first, int64_t end, const attn_problem *p, attn_run *run)
{
    const attn_operand rows = to->shared == NULL ? *keys : attn_distinct_rows(keys);
    key_job job = {p, first, end, use, .to = to, .keys = &rows};
    return run_job(&job, attn_distinct(to->shared, p->B / p->group),
                   p->score->key_work(p), run);
}

bool
attn_make_keys_backward(attn_call *c)
{
    const attn_problem *p = c->p;
    key_job job = {p, 0, p->N, c->key_use, .call = c};
    return run_job(&job, p->B / p->group, ATTN_WORK_NUMBER * (double)attn_key_width(p),
                   c->run);
}

/* ---- in memory of the caller ----------------------------------------------------- */

static size_t
size_of(const attn_problem *p, int64_t capacity)
{
    attn_arena a = attn_arena_over(NULL);
    attn_take_prepared(&a, p, NULL, capacity);
    return a.used == 0 ? 0 : attn_arena_size(&a);
}

static void
start(void *memory, const attn_problem *p, int64_t capacity)
{
    attn_arena a = attn_arena_over(memory);
    attn_prepared *to = attn_take_prepared(&a, p, NULL, capacity);
    if (to != NULL) {
        attn_start_keys(to, p);
    }
}

static int
make(void *memory, const attn_inputs *in, int64_t first, int64_t end,
     const attn_problem *p, attn_run *run)
{
    attn_prepared *to = (attn_prepared *)attn_arena_over(memory).base;
    return p->score->take_keys == NULL ||
                   attn_make_keys(to, &in->keys, NULL, first, end, p, run)
               ? 0
               : ATTN_INTERRUPTED;
}

static bool
has(const attn_score *score, int parameter)
{
    const char *shape = score->about.parameters[parameter].shape;
    return score->projected_backward != NULL && shape != NULL && strchr(shape, 'K');
}

int64_t
attn_key_width(const attn_problem *p)
{
    return p->score->key_width == NULL ? p->Dk : p->score->key_width(p);
}

static int64_t
value_width(const attn_problem *p)
{
    return p->Dv;
}

static size_t
backward_workspace(const attn_problem *p)
{
    attn_arena a = attn_arena_over(NULL);
    attn_take_panels_backward(&a, p->Dk, p->H, p->B / p->group, p->N);
    return attn_arena_size(&a);
}

/* The values are not projected: dV is their gradient. */
static int
backward(const attn_gradients *d, const float *dV, const attn_inputs *in,
         const attn_problem *p, void *memory, attn_run *run)
{
    attn_arena a = attn_arena_within(memory, run->room);
    const int64_t entries = p->B / p->group;
    const attn_panels panels = attn_take_panels_backward(&a, p->Dk, p->H, entries,
                                                         p->N);
    if (!attn_arena_fits(&a, &run->room)) {
        return ATTN_NO_ROOM;
    }
    (void)dV;
    attn_set_zero(d->keys, entries, p->N, p->Dk);
    bool done = p->score->projected_backward(d, &in->keys, p, panels, run);
    return done ? 0 : ATTN_INTERRUPTED;
}

const attn_key_maker attn_keys_of_score = {
    size_of,  start, make, has, attn_key_width, value_width, backward_workspace,
    backward,
};
