/*
 * multi_head.c -- multi-head attention, forward; and keys and values that are projected
 * once, for any calls. See multi_head.h.
 */
#include "multi_head.h"

#include <limits.h>
#include <string.h>

#include "walk.h"
#include "work.h"

/* ---- sizes and memory ------------------------------------------------------------ */

attn_multi_head_call
attn_multi_head_begin(const attn_problem *p)
{
    attn_multi_head_call m = {
        .p = p, .inner = *p, .entries = p->B / p->heads, .H = p->H};
    m.G = p->H / p->group;
    m.inner.Dq = m.inner.Dk = m.inner.Dv = p->H / p->heads;
    m.inner.prepared = NULL;
    return m;
}

void
attn_take_between(attn_between *x, const attn_multi_head_call *m, attn_arena *a)
{
    const attn_problem *p = m->p;
    const size_t query = (size_t)m->H * sizeof(float);
    const size_t key = (size_t)m->G * sizeof(float);
    const bool prepared = p->prepared != NULL;
    x->Q = attn_take(a, query, m->entries, p->M);
    const int64_t of_keys = attn_distinct(m->shared, m->entries);
    x->K = prepared ? NULL : attn_take(a, key, of_keys, p->N);
    x->V = prepared ? NULL : attn_take(a, key, of_keys, p->N);
    x->O = attn_take(a, query, m->entries, p->M);
}

size_t
attn_multi_head_kept(const attn_problem *p)
{
    attn_multi_head_call m = attn_multi_head_begin(p);
    attn_arena a = attn_arena_over(NULL);
    attn_take_between(&m.made, &m, &a);
    return attn_arena_size(&a);
}

/* What is kept begins at a multiple of ATTN_ALIGN in the memory that a forward is given (of rows
 * that do not it takes 4 to 8 % longer), and how far that is stands before it: a copy may lie
 * elsewhere. */
static char *
kept_in(void *memory)
{
    const uint32_t skip = ATTN_ALIGN - (uint32_t)((uintptr_t)memory % ATTN_ALIGN);
    memcpy(memory, &skip, sizeof skip);
    return (char *)memory + skip;
}

const void *
attn_multi_head_find_kept(const void *memory)
{
    uint32_t skip;
    memcpy(&skip, memory, sizeof skip);
    const bool written = skip <= ATTN_ALIGN && skip % sizeof(float) == 0;
    return (const char *)memory + (written ? skip : ATTN_ALIGN);
}

static void
take_use(attn_multi_head_call *m, attn_arena *a)
{
    const attn_problem *p = m->p;
    m->key_use = m->value_use = NULL;
    if (attn_may_be_empty(p)) {
        const int64_t entries = attn_distinct(m->shared, m->entries);
        m->key_use = m->value_use = attn_take(a, 1, entries, p->N);
        if (p->empty_rows == ATTN_EMPTY_UNIFORM) {
            m->value_use = attn_take(a, 1, entries, p->N);
        }
    }
}

static int64_t
largest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void
attn_multi_head_lay_out(attn_multi_head_call *m, const void *kept, bool is_kept,
                        bool backward, attn_arena *a)
{
    const attn_problem *p = m->p;
    attn_arena own = {(void *)kept, 0,
                      SIZE_MAX}; /* the same, wherever that is moved to */
    attn_take_between(&m->made, m, is_kept ? &own : a);
    take_use(m, a);
    if (m->H > INT_MAX / 2) { /* the kernels count lanes in int */
        a->used = SIZE_MAX;
    }
    int64_t D = largest(largest(p->Dq, p->Dk), largest(p->Dv, m->H));
    m->panels = backward ? attn_take_panels_backward(a, D, m->H, m->entries,
                                                     largest(p->M, p->N))
                         : attn_take_panels(a, D, m->H);
}

/* ---- keys and values projected once ---------------------------------------------- */

typedef struct {
    int64_t capacity; /* rows of an entry of K and V */
    float *W_k_panels, *W_v_panels;
    float *K, *V; /* (entries, capacity, G) */
} prepared_heads;

static prepared_heads *
take_prepared(attn_arena *a, const attn_problem *p, int64_t capacity)
{
    const attn_multi_head_call m = attn_multi_head_begin(p);
    const size_t row = (size_t)m.G * sizeof(float);
    prepared_heads local, *made = attn_take(a, sizeof *made, 1, 1);
    prepared_heads *to = made == NULL ? &local : made;
    if (m.H > INT_MAX / 2) {
        a->used = SIZE_MAX;
    }
    to->capacity = capacity;
    to->W_k_panels = attn_take_panels(a, p->Dk, m.G).W;
    to->W_v_panels = attn_take_panels(a, p->Dv, m.G).W;
    to->K = attn_take(a, row, m.entries, capacity);
    to->V = attn_take(a, row, m.entries, capacity);
    return made;
}

static prepared_heads *
prepared_at(const void *memory)
{
    return (prepared_heads *)attn_arena_over((void *)memory).base;
}

size_t
attn_heads_size(const attn_problem *p, int64_t capacity)
{
    attn_arena a = attn_arena_over(NULL);
    take_prepared(&a, p, capacity);
    return attn_arena_size(&a);
}

void
attn_heads_start(void *memory, const attn_problem *p, int64_t capacity)
{
    attn_arena a = attn_arena_over(memory);
    const prepared_heads *to = take_prepared(&a, p, capacity);
    const int64_t G = p->H / p->group;
    attn_transpose_in_panels(to->W_k_panels, p->parameters[W_K], p->Dk, G);
    attn_transpose_in_panels(to->W_v_panels, p->parameters[W_V], p->Dv, G);
}

enum { TASK_KEYS = 64 };

/* A task is TASK_KEYS of the keys first <= j < end of one entry. */
typedef struct {
    const attn_problem *p;
    const prepared_heads *to;
    const attn_inputs *in;
    int64_t first, end;
} key_job;

static void
key_task(void *ctx, int64_t task, int worker)
{
    const key_job *job = ctx;
    const attn_problem *p = job->p;
    const prepared_heads *to = job->to;
    int64_t chunks = attn_ceil_div(job->end - job->first, TASK_KEYS);
    int64_t e = task / chunks, j = job->first + task % chunks * TASK_KEYS;
    int64_t n = job->end - j < TASK_KEYS ? job->end - j : TASK_KEYS;
    int64_t G = p->H / p->group, at = (e * to->capacity + j) * G;
    (void)worker;
    attn_project(to->K + at, G, attn_read(&job->in->keys, e, j), n, to->W_k_panels,
                 p->Dk, G, p->parameters[B_K]);
    attn_project(to->V + at, G, attn_read(&job->in->values, e, j), n, to->W_v_panels,
                 p->Dv, G, p->parameters[B_V]);
}

/* All of them: an empty row may pool the value of a key that is scored by none. */
int
attn_heads_make(void *memory, const attn_inputs *in, int64_t first, int64_t end,
                const attn_problem *p, attn_run *run)
{
    key_job job = {p, prepared_at(memory), in, first, end};
    int64_t entries = p->B / p->heads;
    double work = attn_work(entries, end - first, p->H / p->group) *
                  (double)(p->Dk + p->Dv);
    return attn_parallel_for(run, entries * attn_ceil_div(end - first, TASK_KEYS),
                             attn_us(work), key_task, &job)
               ? 0
               : ATTN_INTERRUPTED;
}

/* ---- the layers ------------------------------------------------------------------ */

attn_projection
attn_multi_head_layer(const attn_multi_head_call *m, const attn_inputs *in, int weight)
{
    const attn_problem *p = m->p;
    const bool of_keys = weight == W_K || weight == W_V;
    const int64_t rows = of_keys ? p->N : p->M;
    attn_projection y = {
        .rows = (of_keys ? attn_distinct(m->shared, m->entries) : m->entries) * rows,
        .H = of_keys ? m->G : m->H,
        .X_rows = rows,
        .W = p->parameters[weight],
        .panels = m->panels,
    };
    switch (weight) {
    case W_Q:
        y.D = p->Dq;
        y.X = in->queries;
        break;
    case W_K:
        y.D = p->Dk;
        y.X = m->shared == NULL ? in->keys : attn_distinct_rows(&in->keys);
        y.use = m->key_use;
        break;
    case W_V:
        y.D = p->Dv;
        y.X = m->shared == NULL ? in->values : attn_distinct_rows(&in->values);
        y.use = m->value_use;
        break;
    default:
        y.D = m->H;
        y.X = attn_dense(m->made.O, p->M, m->H);
    }
    return y;
}

/* Y = X W^T + b */
static bool
project(const attn_multi_head_call *m, const attn_inputs *in, int weight, float *Y,
        attn_run *run)
{
    const attn_projection layer = attn_multi_head_layer(m, in, weight);
    const float *b = m->p->parameters[weight + B_Q - W_Q];
    return attn_projection_forward(&layer, Y, layer.H, b, run);
}

bool
attn_multi_head_find_keys(const attn_multi_head_call *m, attn_run *run)
{
    attn_problem p = *m->p;
    p.group = p.heads;
    return m->key_use == NULL ||
           (attn_used_keys(m->key_use, &p, m->shared, false, run) &&
            (m->value_use == m->key_use ||
             attn_used_keys(m->value_use, &p, m->shared, true, run)));
}

static bool
project_keys(const attn_multi_head_call *m, const attn_inputs *in, attn_run *run)
{
    return m->p->prepared != NULL ||
           (attn_multi_head_find_keys(m, run) && project(m, in, W_K, m->made.K, run) &&
            project(m, in, W_V, m->made.V, run));
}

/* ---- forward --------------------------------------------------------------------- */

attn_inputs
attn_multi_head_operands(const attn_multi_head_call *m)
{
    const attn_problem *p = m->p;
    const prepared_heads *ready = p->prepared == NULL ? NULL : prepared_at(p->prepared);
    const int64_t key_heads = p->heads / p->group, d = m->inner.Dq;
    const int64_t rows = ready != NULL ? ready->capacity : p->N;
    attn_inputs in = {
        .queries = attn_beside(m->made.Q, p->heads, p->M, d),
        .keys = attn_beside(ready != NULL ? ready->K : m->made.K, key_heads, rows, d),
        .values = attn_beside(ready != NULL ? ready->V : m->made.V, key_heads, rows, d),
    };
    in.keys.shared = in.values.shared = m->shared;
    return in;
}

/* The attention may well want fewer threads than a layer. */
bool
attn_multi_head_make(const attn_multi_head_call *m, float *weights, float *lse,
                     const attn_inputs *in, attn_run *run)
{
    const int threads = run->threads;
    if (!project_keys(m, in, run) || !project(m, in, W_Q, m->made.Q, run)) {
        return false;
    }
    const attn_inputs heads = attn_multi_head_operands(m);
    int result = attn_forward(m->made.O, weights, lse, &heads, &m->inner, m->workspace,
                              run);
    run->threads = threads;
    return result == 0;
}

static void
lay_out(attn_multi_head_call *m, const void *kept, bool is_kept, bool weights,
        int threads, attn_arena *a)
{
    size_t workspace = attn_forward_workspace(&m->inner, weights, threads);
    attn_multi_head_lay_out(m, kept, is_kept, false, a);
    m->workspace = attn_take(a, 1, (int64_t)workspace, 1);
}

size_t
attn_multi_head_workspace(const attn_problem *p, bool kept, bool weights, int threads)
{
    attn_multi_head_call m = attn_multi_head_begin(p);
    attn_arena a = attn_arena_over(NULL);
    lay_out(&m, NULL, kept, weights, threads, &a);
    return attn_arena_size(&a);
}

int
attn_multi_head_forward(float *output, float *weights, float *lse, void *kept,
                        const attn_inputs *in, const attn_problem *p, void *memory,
                        attn_run *run)
{
    attn_multi_head_call m = attn_multi_head_begin(p);
    attn_arena a = attn_arena_within(memory, run->room);
    const char *base = kept == NULL ? NULL : kept_in(kept);
    /* What is kept has K and V of every entry, for a backward. */
    const bool alike = kept == NULL && in->keys.shared == in->values.shared;
    m.shared = alike && p->prepared == NULL ? in->keys.shared : NULL;
    if (p->B == 0 || p->M == 0) { /* however large the other sizes are */
        return 0;
    }
    lay_out(&m, base, kept != NULL, weights != NULL, run->threads, &a);
    if (!attn_arena_fits(&a, &run->room)) {
        return ATTN_NO_ROOM;
    }
    bool done = attn_multi_head_make(&m, weights, lse, in, run) &&
                project(&m, in, W_O, output, run);
    return done ? 0 : ATTN_INTERRUPTED;
}

double
attn_multi_head_work(const attn_problem *p, bool backward)
{
    const attn_multi_head_call m = attn_multi_head_begin(p);
    double keys = p->prepared != NULL ? 0.0 : (double)(p->Dk + p->Dv);
    double layers = attn_work(m.entries, p->M, m.H) * (double)(p->Dq + m.H) +
                    attn_work(m.entries, p->N, m.G) * keys;
    return backward ? 3.0 * layers + attn_backward_work(&m.inner)
                    : layers + attn_forward_work(&m.inner);
}

/* ---- what it says of itself ------------------------------------------------------ */

const attn_score_info attn_multi_head = {
    .name = "multi_head",
    .parameters =
        {
            [W_Q] = {"W_q", "HQ", false, 'Q'},
            [W_K] = {"W_k", "GK", false, 'K'},
            [W_V] = {"W_v", "GV", false, 'V'},
            [W_O] = {"W_o", "HH", false, 'H'},
            [B_Q] = {"b_q", "H", true, 'Q'},
            [B_K] = {"b_k", "G", true, 'K'},
            [B_V] = {"b_v", "G", true, 'V'},
            [B_O] = {"b_o", "H", true, 'H'},
        },
    .scale = ATTN_SCALE_ROOT,
    .has_heads = true,
};
