/*
 * multi_head_backward.c -- multi-head attention, backward: through the output's layer,
 * the heads and the layers of queries, keys and values. See multi_head.h.
 */
#include "multi_head.h"

#include <math.h>
#include <string.h>

#include "walk.h"
#include "work.h"

/* In a byte for each key that is handed out: its value is pooled, but by empty rows
 * only, so no query was scored against it. That of a scored key is 0. */
enum { VALUE_ONLY = 1 };

/* ---- which queries count --------------------------------------------------------- */

static void
take_query_use(attn_multi_head_call *m, attn_arena *a)
{
    const attn_problem *p = m->p;
    m->query_use = attn_take(a, 1, m->entries, p->M);
    m->nan = NULL;
    if (p->empty_rows == ATTN_EMPTY_NAN && attn_may_be_empty(p)) {
        m->nan = attn_take(a, 1, m->entries, p->M);
    }
}

/* The queries of one entry: in use if any head finds it a key. */
static void
query_task(void *ctx, int64_t entry, int worker)
{
    const attn_multi_head_call *m = ctx;
    const attn_problem *p = m->p;
    uint8_t *use = m->query_use + entry * p->M;
    (void)worker;
    for (int64_t i = 0; i < p->heads * p->M;) {
        int64_t m0 = i % p->M, left = p->M - m0;
        int count = left < ATTN_LANES ? (int)left : ATTN_LANES;
        attn_rows rows;
        attn_rows_of(&rows, p, entry * p->heads + i / p->M, m0, count);
        for (int l = 0; l < count; l++) {
            if (!(rows.empty >> l & 1)) {
                use[m0 + l] = 0;
            }
            if (rows.nan >> l & 1) {
                m->nan[entry * p->M + m0 + l] = 1;
            }
        }
        i += count;
    }
}

static bool
find_queries(const attn_multi_head_call *m, attn_run *run)
{
    const attn_problem *p = m->p;
    const bool some = p->N > 0 && attn_may_be_empty(p);
    const size_t queries = (size_t)(m->entries * p->M);
    double work = ATTN_WORK_NUMBER * attn_work(p->B, p->M, 1);
    memset(m->query_use, some || p->N == 0 ? ATTN_UNUSED : 0, queries);
    if (m->nan != NULL) {
        memset(m->nan, 0, queries);
    }
    return !some ||
           attn_parallel_for(run, m->entries, attn_us(work), query_task, (void *)m);
}

static void
settle_queries(const attn_multi_head_call *m, float *dqueries)
{
    const int64_t D = m->p->Dq;
    for (int64_t i = 0; m->nan != NULL && i < m->entries * m->p->M; i++) {
        for (int64_t d = 0; m->nan[i] != 0 && d < D; d++) {
            dqueries[i * D + d] = NAN;
        }
    }
}

/* ---- through the layers and the heads -------------------------------------------- */

/* forward was: Y = X W^T + b.  So now:
 *     dX = dY W,  dW = dY^T X,  db = sum of the rows of dY,
 * over the rows that are used; dX is 0 in the others. Without queries no key is. */
static bool
layer_backward(const attn_multi_head_call *m, const attn_gradients *d,
               const attn_inputs *in, int weight, float *dX, const float *dY,
               attn_run *run)
{
    attn_projection y = attn_multi_head_layer(m, in, weight);
    float *dW = d->parameters[weight], *db = d->parameters[weight + B_Q - W_Q];
    y.use = weight == W_Q ? m->query_use : y.use;
    if (y.use != NULL || m->p->M == 0) {
        attn_set_zero(dX, y.rows, 1, y.D);
    }
    y.rows = m->p->M == 0 ? 0 : y.rows;
    return attn_projection_backward(&y, dX, dW, dY, y.H, run) &&
           (db == NULL || attn_sum_rows(db, dY, y.rows, y.H, run));
}

static bool
keys_backward(const attn_multi_head_call *m, const attn_gradients *d,
              const attn_inputs *in, attn_run *run)
{
    return layer_backward(m, d, in, W_K, d->keys, m->d.K, run) &&
           layer_backward(m, d, in, W_V, d->values, m->d.V, run);
}

/* From the gradient of O to those of Q, K and V, and of what is the heads' own. Rows
 * without any key give nothing to W_q either, under "nan" too: so that is "zero" here. */
static bool
heads_backward(const attn_multi_head_call *m, const attn_gradients *d,
               const attn_grad_outputs *grad, const attn_saved *saved, attn_run *run)
{
    const int threads = run->threads;
    const attn_inputs heads = attn_multi_head_operands(m);
    const attn_gradients to = {
        .queries = m->d.Q,
        .keys = m->d.K,
        .values = m->d.V,
        .scale = d->scale,
        .bias = d->bias,
        .sink = d->sink,
    };
    const attn_grad_outputs from = {m->d.O, grad->weights, grad->lse};
    const attn_saved made = {m->made.O, saved->weights, saved->lse};
    attn_problem inner = m->inner;
    if (inner.empty_rows == ATTN_EMPTY_NAN) {
        inner.empty_rows = ATTN_EMPTY_ZERO;
    }
    int result = attn_backward(&to, &from, &made, &heads, &inner, m->workspace, run);
    run->threads = threads;
    return result == 0;
}

/* ---- keys and values that are left for later ------------------------------------- */

static void
note_keys(const attn_multi_head_call *m, uint8_t *use)
{
    for (int64_t i = 0; i < m->entries * m->p->N; i++) {
        bool scored = m->key_use == NULL || m->key_use[i] != ATTN_UNUSED;
        bool pooled = m->value_use == NULL || m->value_use[i] != ATTN_UNUSED;
        use[i] = scored ? 0 : pooled ? VALUE_ONLY : ATTN_UNUSED;
    }
}

static void
take_late(attn_multi_head_call *m, attn_arena *a)
{
    const attn_problem *p = m->p;
    int64_t D = p->Dk > p->Dv ? p->Dk : p->Dv;
    m->key_use = attn_take(a, 1, m->entries, p->N);
    m->panels = attn_take_panels_backward(a, D, m->G, m->entries, p->N);
}

static size_t
late_workspace(const attn_problem *p)
{
    attn_multi_head_call m = attn_multi_head_begin(p);
    attn_arena a = attn_arena_over(NULL);
    take_late(&m, &a);
    return attn_arena_size(&a);
}

static int
late_backward(const attn_gradients *d, const float *dV, const attn_inputs *in,
              const attn_problem *p, void *memory, attn_run *run)
{
    attn_problem all = *p;
    all.M = 1; /* any number of queries but none */
    attn_multi_head_call m = attn_multi_head_begin(&all);
    attn_arena a = attn_arena_within(memory, run->room);
    take_late(&m, &a);
    if (!attn_arena_fits(&a, &run->room)) {
        return ATTN_NO_ROOM;
    }
    for (int64_t i = 0; i < m.entries * p->N; i++) {
        m.key_use[i] = d->key_use[i] == 0 ? 0 : ATTN_UNUSED;
    }
    m.value_use = d->key_use;
    m.d.K = d->projected;
    m.d.V = (float *)dV;
    return keys_backward(&m, d, in, run) ? 0 : ATTN_INTERRUPTED;
}

static bool
projects(const attn_score *score, int parameter)
{
    const char *shape = attn_multi_head.parameters[parameter].shape;
    (void)score;
    return shape != NULL && strchr(shape, 'G') != NULL;
}

static int64_t
width_of(const attn_problem *p)
{
    return p->H / p->group;
}

const attn_key_maker attn_keys_of_heads = {
    attn_heads_size, attn_heads_start, attn_heads_make, projects,
    width_of,        width_of,         late_workspace,  late_backward,
};

/* ---- the whole of it ------------------------------------------------------------- */

/* What the attention needs, forward again or backward: one after the other. */
static size_t
workspace_of(const attn_multi_head_call *m, const attn_gradients *d,
             const attn_grad_outputs *grad, bool kept, int threads)
{
    size_t forward = kept ? 0 : attn_forward_workspace(&m->inner, false, threads);
    size_t backward = attn_backward_workspace(&m->inner, d, grad, threads);
    return forward > backward ? forward : backward;
}

static void
lay_out(attn_multi_head_call *m, const attn_gradients *d, const attn_grad_outputs *grad,
        const void *kept, bool is_kept, int threads, attn_arena *a)
{
    size_t workspace = workspace_of(m, d, grad, is_kept, threads);
    attn_multi_head_lay_out(m, kept, is_kept, true, a);
    attn_take_between(&m->d, m, a);
    if (d->projected != NULL) {
        m->d.K = d->projected;
        m->d.V = d->values;
    }
    take_query_use(m, a);
    m->lse = is_kept ? NULL : attn_take_floats(a, m->p->B, m->p->M);
    m->workspace = attn_take(a, 1, (int64_t)workspace, 1);
}

size_t
attn_multi_head_backward_workspace(const attn_problem *p, const attn_gradients *d,
                                   const attn_grad_outputs *grad, bool kept,
                                   int threads)
{
    attn_multi_head_call m = attn_multi_head_begin(p);
    attn_arena a = attn_arena_over(NULL);
    lay_out(&m, d, grad, NULL, kept, threads, &a);
    return attn_arena_size(&a);
}

static bool
run_backward(const attn_multi_head_call *m, const attn_gradients *d,
             const attn_grad_outputs *grad, const attn_saved *saved,
             const attn_inputs *in, attn_run *run)
{
    if (!attn_multi_head_find_keys(m, run) || !find_queries(m, run) ||
        !layer_backward(m, d, in, W_O, m->d.O, grad->output, run) ||
        !heads_backward(m, d, grad, saved, run) ||
        !layer_backward(m, d, in, W_Q, d->queries, m->d.Q, run)) {
        return false;
    }
    settle_queries(m, d->queries);
    if (d->projected != NULL) {
        note_keys(m, d->key_use);
        return true;
    }
    return keys_backward(m, d, in, run);
}

int
attn_multi_head_backward(const attn_gradients *d, const attn_grad_outputs *grad,
                         const attn_saved *saved, const void *kept,
                         const attn_inputs *in, const attn_problem *p, void *memory,
                         attn_run *run)
{
    attn_multi_head_call m = attn_multi_head_begin(p);
    attn_arena a = attn_arena_within(memory, run->room);
    attn_saved of_heads = *saved;
    lay_out(&m, d, grad, kept == NULL ? NULL : attn_multi_head_find_kept(kept),
            kept != NULL, run->threads, &a);
    if (!attn_arena_fits(&a, &run->room)) {
        return ATTN_NO_ROOM;
    }
    if (kept == NULL) {
        if (!attn_multi_head_make(&m, NULL, m.lse, in, run)) {
            return ATTN_INTERRUPTED;
        }
        of_heads.lse = m.lse;
    }
    return run_backward(&m, d, grad, &of_heads, in, run) ? 0 : ATTN_INTERRUPTED;
}
