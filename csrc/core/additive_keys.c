/*
 * additive_keys.c -- the additive score before and after the walk: keys are projected
 * once, and gradients go back through the projections of queries and keys.
 */
#include "additive.h"

#include <string.h>

#include "projection.h"

/* ---- prepare: project the keys that any query may attend to ---------------------- */

enum { PROJECT_KEYS = 64 }; /* keys of one task */

static int64_t
key_chunks(const attn_problem *p)
{
    return (p->N + PROJECT_KEYS - 1) / PROJECT_KEYS;
}

/* The keys of a task: row <= i < end in (B / group, N, ...). */
static void
chunk_of(const attn_problem *p, int64_t task, int64_t *row, int64_t *end)
{
    int64_t j = task % key_chunks(p) * PROJECT_KEYS;
    *row = task / key_chunks(p) * p->N + j;
    *end = *row + (p->N - j < PROJECT_KEYS ? p->N - j : PROJECT_KEYS);
}

/* Keys `row`, `row` + 1, ..., n of them. */
static void
project_keys(const attn_call *c, int64_t row, int64_t n)
{
    const attn_problem *p = c->p;
    const additive_shared *s = c->shared;
    attn_simd->matmul(s->raw + row * s->H, s->H, c->keys + row * p->Dk, p->Dk, 1,
                      s->W_kT, attn_additive_lanes(s->H), n, s->H, p->Dk, false);
    for (int64_t i = row; i < row + n; i++) {
        float *raw_i = s->raw + i * s->H;
        for (int64_t h = p->H; h < s->H; h++) {
            raw_i[h] = 0.0f; /* an added unit: 0 times an infinite key is not 0 */
        }
        s->form[i] = (uint8_t)attn_additive_form(s, attn_simd->absmax_row(raw_i, s->H));
        if (s->form[i] == ADDITIVE_SMALL) {
            attn_simd->tanh_form(s->stored + i * s->H, raw_i, s->H);
        } else {
            attn_simd->exp_form(s->stored + i * s->H, raw_i, s->H);
        }
    }
}

/* Keys that no query needs are not read; their rows are 0, so that tiles which they lie
 * in need not care. */
static void
project_task(void *ctx, int64_t task, int worker)
{
    const attn_call *c = ctx;
    const attn_problem *p = c->p;
    const additive_shared *s = c->shared;
    int64_t row, end;
    (void)worker;
    chunk_of(p, task, &row, &end);
    for (int64_t n; row < end; row += n) {
        int64_t used = attn_used_run(s->form + row, end - row);
        n = used > 0 ? used : -used;
        if (used > 0) {
            project_keys(c, row, n);
        } else {
            memset(s->raw + row * s->H, 0, (size_t)(n * s->H) * sizeof(float));
            memset(s->stored + row * s->H, 0, (size_t)(n * s->H) * sizeof(float));
        }
    }
}

enum { PROJECT_QUERIES = 64 }; /* of one task */

static void
project_few_task(void *ctx, int64_t task, int worker)
{
    const attn_call *c = ctx;
    const attn_problem *p = c->p;
    const additive_shared *s = c->shared;
    const int64_t row = task * PROJECT_QUERIES, left = p->B * p->M - row;
    (void)worker;
    attn_simd->matmul(s->few + row * s->H, s->H, c->queries + row * p->Dq, p->Dq, 1,
                      s->W_qT, attn_additive_lanes(s->H),
                      left < PROJECT_QUERIES ? left : PROJECT_QUERIES, p->H, p->Dq,
                      false);
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
    attn_simd->pack(s->W_qT, (int)attn_additive_lanes(s->H), p->W_q, p->Dq, (int)p->H,
                    p->Dq, 1.0f);
    return attn_parallel_for(c->run, (rows + PROJECT_QUERIES - 1) / PROJECT_QUERIES,
                             (double)rows * (double)p->Dq * (double)p->H / 30e3,
                             project_few_task, c);
}

/* Above this the numerators of four units could overflow (kernels_additive.h). */
static const float LARGEST_W = 0x1p30f;

bool
attn_additive_prepare(attn_call *c)
{
    const attn_problem *p = c->p;
    additive_shared *s = c->shared;
    double sum = 0.0;
    s->direct = attn_simd->absmax_row(p->w_v, p->H) > LARGEST_W;
    for (int64_t h = 0; h < s->H; h++) {
        float w_h = h < p->H ? p->w_v[h] : 0.0f;
        sum += (double)w_h;
        s->w[h] = c->unit * w_h;
        s->w_exp[h] = -2.0f * s->w[h];
    }
    s->bias_exp = (float)((double)c->unit * sum);
    attn_simd->pack(s->W_kT, (int)attn_additive_lanes(s->H), p->W_k, p->Dk, (int)p->H,
                    p->Dk, 1.0f);
    int64_t entries = p->B / p->group;
    double us = (double)entries * (double)p->N * (double)p->Dk * (double)p->H / 30e3;
    return project_few(c) && attn_used_keys(s->form, p, c->run) &&
           attn_parallel_for(c->run, entries * key_chunks(p), us, project_task, c);
}

/* ---- finish: through the projections --------------------------------------------- */

/* db still lacks the factor w_h. */
static void
scale_db_task(void *ctx, int64_t task, int worker)
{
    const attn_call *c = ctx;
    const attn_problem *p = c->p;
    const additive_shared *s = c->shared;
    int64_t row, end;
    (void)worker;
    chunk_of(p, task, &row, &end);
    for (int64_t i = row; i < end; i++) {
        float *db_i = c->dkeys + i * s->H;
        for (int64_t h = 0; h < p->H; h++) {
            db_i[h] *= p->w_v[h];
        }
    }
}

/* forward was: a = W_q q + b_h, b = W_k k. */
bool
attn_additive_finish(attn_call *c)
{
    const attn_problem *p = c->p;
    const additive_shared *s = c->shared;
    const attn_projection of_queries = {
        /* of all entries together: M may be 1 */
        .use = s->query_use, .B = 1,          .rows = p->B * p->M, .D = p->Dq,
        .H = p->H,           .ldy = p->H,     .dX = c->d->queries, .dW = c->d->W_q,
        .dY = s->da,         .X = c->queries, .W = p->W_q,
    };
    const attn_projection of_keys = {
        .use = s->form,
        .B = p->B / p->group,
        .rows = p->N,
        .D = p->Dk,
        .H = p->H,
        .ldy = s->H,
        .dX = c->d->keys,
        .dW = c->d->W_k,
        .dY = c->dkeys,
        .X = c->keys,
        .W = p->W_k,
    };
    int64_t entries = p->B / p->group;
    double us = (double)entries * (double)p->N * (double)p->H / 4e3;
    return attn_parallel_for(c->run, entries * key_chunks(p), us, scale_db_task, c) &&
           attn_projection_backward(&of_queries, c->run) &&
           attn_projection_backward(&of_keys, c->run) &&
           attn_sum_rows(c->d->w_v, s->dw_blocks, p->B * c->blocks, p->H, c->run) &&
           (c->d->b_h == NULL ||
            attn_sum_rows(c->d->b_h, s->da, p->B * p->M, p->H, c->run));
}
