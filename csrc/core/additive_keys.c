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
    s->W_kT = attn_take_panels(a, p->Dk, H).W;
    s->raw = attn_take_floats(a, rows, H);
    s->stored = attn_take_floats(a, rows, H);
    s->form = attn_take(a, 1, rows, 1);
    return made;
}

void
attn_additive_start_keys(void *rows, const attn_problem *p, int64_t count)
{
    additive_keys *s = rows;
    attn_transpose_in_panels(s->W_kT, p->parameters[W_K], p->Dk, p->H);
    memset(s->form, NO_FORM, (size_t)count);
}

/* Rows that lie side by side and are stored alike are transformed in one call: of short
 * rows a call costs more than its numbers. */
static void
transform(const additive_keys *s, int64_t row, int64_t n, int64_t H)
{
    for (int64_t i = row, end; i < row + n; i = end) {
        bool small = s->form[i] == ADDITIVE_SMALL;
        for (end = i + 1; end < row + n; end++) {
            if ((s->form[end] == ADDITIVE_SMALL) != small) {
                break;
            }
        }
        (small ? attn_simd->tanh_form
               : attn_simd->exp_form)(s->stored + i * H, s->raw + i * H, (end - i) * H);
    }
}

/* raw (n, H) = keys (n, Dk) W_k^T (Dk, H) */
void
attn_additive_make_keys(void *rows, int64_t row, attn_span keys, int64_t n,
                        const attn_problem *p)
{
    const additive_keys *s = rows;
    const int64_t H = attn_additive_width(p);
    attn_project(s->raw + row * H, H, keys, n, s->W_kT, p->Dk, H, NULL);
    for (int64_t i = row; i < row + n; i++) {
        float *raw_i = s->raw + i * H;
        for (int64_t h = p->H; h < H; h++) {
            raw_i[h] = 0.0f; /* an added unit: 0 times an infinite key is not 0 */
        }
        s->form[i] = (uint8_t)attn_additive_form(attn_simd->absmax_row(raw_i, H));
    }
    transform(s, row, n, H);
}

void
attn_additive_clear_keys(void *rows, int64_t row, int64_t n, const attn_problem *p)
{
    const additive_keys *s = rows;
    const int64_t H = attn_additive_width(p);
    attn_set_zero(s->raw + row * H, n, H, 1);
    attn_set_zero(s->stored + row * H, n, H, 1);
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

/* ---- prepare: w, and few queries projected together ---------------------------- */

static attn_projection
of_queries(const attn_call *c)
{
    const attn_problem *p = c->p;
    const additive_shared *s = c->shared;
    return (attn_projection){
        .rows = p->B * p->M,
        .D = p->Dq,
        .H = p->H,
        .X = c->in->queries,
        .X_rows = p->M,
        .W = p->parameters[W_Q],
        .panels = s->panels,
    };
}

static bool
project_few(attn_call *c)
{
    const additive_shared *s = c->shared;
    const attn_projection queries = of_queries(c);
    return !attn_additive_few(c->p) ||
           attn_projection_forward(&queries, s->few, s->H, NULL, c->run);
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
    attn_projection queries = of_queries(c);
    queries.use = s->query_use;
    return attn_projection_backward(&queries, c->d->queries, d[W_Q], s->da, p->H,
                                    c->run) &&
           attn_sum_rows(d[W_V], s->dw_blocks, p->B * c->blocks, p->H, c->run) &&
           (d[B_H] == NULL || attn_sum_rows(d[B_H], s->da, p->B * p->M, p->H, c->run));
}

/* forward was: b = W_k k. */
bool
attn_additive_projected_backward(const attn_gradients *d, const attn_operand *keys,
                                 const attn_problem *p, attn_panels panels,
                                 attn_run *run)
{
    const attn_projection of_keys = {
        .rows = p->B / p->group * p->N,
        .D = p->Dk,
        .H = p->H,
        .use = d->key_use,
        .X = *keys,
        .X_rows = p->N,
        .W = p->parameters[W_K],
        .panels = panels,
    };
    return attn_projection_backward(&of_keys, d->keys, d->parameters[W_K], d->projected,
                                    attn_additive_width(p), run);
}
