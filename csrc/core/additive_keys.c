/*
 * additive_keys.c -- the additive score before and after the walk: keys are projected
 * once, and gradients go back through the projections of queries and keys.
 */
#include "additive.h"

#include <limits.h>
#include <string.h>

#include "projection.h"

/* ---- prepared keys --------------------------------------------------------------- */

void *
attn_additive_take_keys(const attn_problem *p, int64_t rows, attn_arena *a)
{
    const int64_t H = attn_additive_width(p);
    additive_keys local, *made = attn_take(a, sizeof *made, 1, 1);
    additive_keys *s = made == NULL ? &local : made;
    if (p->H > INT_MAX / 2) { /* the kernels count units in int */
        a->used = SIZE_MAX;
    }
    s->W_kT = attn_take_floats(a, p->Dk, attn_additive_lanes(H));
    s->raw = attn_take_floats(a, rows, H);
    s->stored = attn_take_floats(a, rows, H);
    s->form = attn_take(a, 1, rows, 1);
    return made;
}

void
attn_additive_start_keys(void *rows, const attn_problem *p, int64_t count)
{
    additive_keys *s = rows;
    const int lanes = (int)attn_additive_lanes(attn_additive_width(p));
    attn_simd->pack(s->W_kT, lanes, p->parameters[W_K], p->Dk, (int)p->H, p->Dk, 1.0f);
    memset(s->form, NO_FORM, (size_t)count);
}

/* raw (n, H) = keys (n, Dk) W_k^T (Dk, H) */
void
attn_additive_make_keys(void *rows, int64_t row, attn_span keys, int64_t n,
                        const attn_problem *p)
{
    const additive_keys *s = rows;
    const int64_t H = attn_additive_width(p);
    attn_simd->matmul(s->raw + row * H, H, keys.data, keys.ld, 1, s->W_kT,
                      attn_additive_lanes(H), n, H, p->Dk, false);
    for (int64_t i = row; i < row + n; i++) {
        float *raw_i = s->raw + i * H;
        for (int64_t h = p->H; h < H; h++) {
            raw_i[h] = 0.0f; /* an added unit: 0 times an infinite key is not 0 */
        }
        int form = attn_additive_form(attn_simd->absmax_row(raw_i, H));
        s->form[i] = (uint8_t)form;
        (form == ADDITIVE_SMALL ? attn_simd->tanh_form
                                : attn_simd->exp_form)(s->stored + i * H, raw_i, H);
    }
}

/* The gradient of b = W_k k still lacks the factor w_h. */
void
attn_additive_make_keys_backward(attn_call *c, int64_t e, int64_t j, int64_t n)
{
    const attn_problem *p = c->p;
    const int64_t H = attn_additive_width(p);
    float *db = c->dkeys + (e * p->N + j) * H;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t h = 0; h < p->H; h++) {
            db[i * H + h] *= p->parameters[W_V][h];
        }
    }
}

/* ---- prepare: w, and the projections of a few queries ---------------------------- */

enum { PROJECT_QUERIES = 64 }; /* of one task */

static void
project_few_task(void *ctx, int64_t task, int worker)
{
    const attn_call *c = ctx;
    const attn_problem *p = c->p;
    const additive_shared *s = c->shared;
    const int64_t rows = p->B * p->M;
    const int64_t together = attn_is_even(&c->in->queries, p->M) ? rows : p->M;
    int64_t row = task * PROJECT_QUERIES;
    int64_t end = rows - row < PROJECT_QUERIES ? rows : row + PROJECT_QUERIES;
    (void)worker;
    for (int64_t n; row < end; row += n) { /* as many as are one span */
        int64_t m = row % together;
        attn_span queries = attn_read(&c->in->queries, row / together, m);
        n = together - m < end - row ? together - m : end - row;
        attn_simd->matmul(s->few + row * s->H, s->H, queries.data, queries.ld, 1,
                          s->W_qT, attn_additive_lanes(s->H), n, p->H, p->Dq, false);
    }
}

static bool
project_few(attn_call *c)
{
    const attn_problem *p = c->p;
    const additive_shared *s = c->shared;
    const int64_t rows = p->B * p->M;
    if (!attn_additive_few(p)) {
        return true;
    }
    attn_simd->pack(s->W_qT, (int)attn_additive_lanes(s->H), p->parameters[W_Q], p->Dq,
                    (int)p->H, p->Dq, 1.0f);
    return attn_parallel_for(c->run, attn_ceil_div(rows, PROJECT_QUERIES),
                             attn_us(attn_work(rows, p->Dq, p->H)), project_few_task,
                             c);
}

/* Above this the numerators of four units could overflow (kernels_additive.h). */
static const float LARGEST_W = 0x1p12f;

bool
attn_additive_prepare(attn_call *c)
{
    const attn_problem *p = c->p;
    additive_shared *s = c->shared;
    s->direct = attn_simd->absmax_row(p->parameters[W_V], p->H) > LARGEST_W;
    for (int64_t h = 0; h < s->H; h++) {
        s->w[h] = h < p->H ? c->unit * p->parameters[W_V][h] : 0.0f;
    }
    return project_few(c);
}

/* ---- finish: through the projections --------------------------------------------- */

/* forward was: a = W_q q + b_h. */
bool
attn_additive_finish(attn_call *c)
{
    const attn_problem *p = c->p;
    const additive_shared *s = c->shared;
    float *const *d = c->d->parameters;
    const attn_projection of_queries = {
        .use = s->query_use, /* of all entries together: M may be 1 */
        .B = 1,
        .rows = p->B * p->M,
        .D = p->Dq,
        .H = p->H,
        .ldy = p->H,
        .dX = c->d->queries,
        .dW = d[W_Q],
        .dY = s->da,
        .X = c->in->queries,
        .X_rows = p->M,
        .W = p->parameters[W_Q],
    };
    return attn_projection_backward(&of_queries, c->run) &&
           attn_sum_rows(d[W_V], s->dw_blocks, p->B * c->blocks, p->H, c->run) &&
           (d[B_H] == NULL || attn_sum_rows(d[B_H], s->da, p->B * p->M, p->H, c->run));
}

/* forward was: b = W_k k. */
bool
attn_additive_projected_backward(const attn_gradients *d, const attn_operand *keys,
                                 const attn_problem *p, attn_run *run)
{
    const attn_projection of_keys = {
        .use = d->key_use,
        .B = p->B / p->group,
        .rows = p->N,
        .D = p->Dk,
        .H = p->H,
        .ldy = attn_additive_width(p),
        .dX = d->keys,
        .dW = d->parameters[W_K],
        .dY = d->projected,
        .X = *keys,
        .X_rows = p->N,
        .W = p->parameters[W_K],
    };
    return attn_projection_backward(&of_keys, run);
}
