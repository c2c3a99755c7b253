/*
 * score_cosine.c -- score(q, k) = scale * q.k / (max(|q|, eps) max(|k|, eps))  (Graves
 * et al. 2014; eps as in torch.nn.functional.cosine_similarity).
 *
 * A product of two operands that are unit vectors, or shorter where a norm is below
 * eps: a vector of zeros scores 0. The keys are normalised once, the queries with their
 * block.
 */
#include "product.h"

#include <float.h>
#include <math.h>

typedef struct {
    uint8_t *use;  /* (B / group, N)  ATTN_UNUSED where no query needs the key */
    float *keys;   /* (B / group, N, D)  k / max(|k|, eps) */
    double *norms; /* (B / group, N)  |k| */
} cosine_shared;

typedef struct {
    attn_product product;
    float *rows;   /* [lanes][D]  q / max(|q|, eps) */
    double *norms; /* [lanes]  |q| */
} cosine_scratch;

static double
pair_work(const attn_problem *p)
{
    return (double)p->Dq;
}

static int64_t
key_width(const attn_problem *p)
{
    return p->Dk;
}

/* ---- arrays ---------------------------------------------------------------------- */

static void
take_shared(attn_call *c, attn_arena *a)
{
    cosine_shared local, *s = attn_take(a, sizeof *s, 1, 1);
    int64_t keys = c->p->B / c->p->group;
    c->shared = s;
    s = s == NULL ? &local : s;
    if (__builtin_mul_overflow(keys, c->p->N, &keys)) {
        a->used = SIZE_MAX;
        return;
    }
    s->use = attn_take(a, 1, keys, 1);
    s->keys = attn_take_floats(a, keys, c->p->Dk);
    s->norms = attn_take(a, sizeof *s->norms, keys, 1);
    c->dkeys = c->backward ? c->d->keys : NULL;
}

static void
take_block(attn_block *k, attn_arena *a)
{
    const int64_t D = k->call->p->Dq;
    cosine_scratch local, *s = attn_take(a, sizeof *s, 1, 1);
    k->scratch = s;
    s = s == NULL ? &local : s;
    attn_product_take(&s->product, k, D, a);
    s->rows = attn_take_floats(a, k->lanes, D);
    s->norms = attn_take(a, sizeof *s->norms, k->lanes, 1);
}

/* ---- one vector, forward and backward -------------------------------------------- */

/* |x|, D numbers. Squares that leave the range of float32 are added up in double, and
 * so may be their root. */
static double
norm_of(const float *x, int64_t D)
{
    float squares = attn_simd->dot_row(x, x, D);
    if (squares >= 1e-30f && squares <= FLT_MAX) {
        return sqrtf(squares);
    }
    double sum = 0.0;
    for (int64_t d = 0; d < D; d++) {
        sum += (double)x[d] * (double)x[d];
    }
    return sqrt(sum);
}

/* to = x / max(norm, eps) */
static void
divide_by_norm(float *to, const float *x, double norm, float eps, int64_t D)
{
    double divisor = norm < eps ? eps : norm;
    for (int64_t d = 0; d < D; d++) {
        to[d] = divisor == 0.0 ? 0.0f : (float)(x[d] / divisor);
    }
}

/* forward was: u = x / max(|x|, eps).  So now, in place:
 *     dx = (du - u (u . du)) / |x|,  or du / eps where |x| is less than eps. */
static void
divide_by_norm_backward(float *dx, const float *u, double norm, float eps, int64_t D)
{
    float along = norm < eps ? 0.0f : attn_simd->dot_row(u, dx, D);
    for (int64_t d = 0; d < D; d++) {
        dx[d] -= u[d] * along;
    }
    divide_by_norm(dx, dx, norm, eps, D);
}

/* ---- keys: before and after the walk --------------------------------------------- */

enum { TASK_KEYS = 64 };

typedef void one_key(const attn_call *c, int64_t row);

static void
normalise_key(const attn_call *c, int64_t row)
{
    const cosine_shared *s = c->shared;
    const int64_t D = c->p->Dk;
    s->norms[row] = norm_of(c->keys + row * D, D);
    divide_by_norm(s->keys + row * D, c->keys + row * D, s->norms[row], c->p->eps, D);
}

static void
normalise_key_backward(const attn_call *c, int64_t row)
{
    const cosine_shared *s = c->shared;
    const int64_t D = c->p->Dk;
    divide_by_norm_backward(c->dkeys + row * D, s->keys + row * D, s->norms[row],
                            c->p->eps, D);
}

/* Calls `each` for the used keys of a task; the others are neither read nor changed. */
static void
for_used_keys(const attn_call *c, int64_t task, one_key *each)
{
    const cosine_shared *s = c->shared;
    int64_t all = c->p->B / c->p->group * c->p->N;
    int64_t row = task * TASK_KEYS, end = row + TASK_KEYS < all ? row + TASK_KEYS : all;
    for (; row < end; row++) {
        if (s->use[row] != ATTN_UNUSED) {
            each(c, row);
        }
    }
}

static void
normalise_task(void *ctx, int64_t task, int worker)
{
    (void)worker;
    for_used_keys(ctx, task, normalise_key);
}

static void
normalise_backward_task(void *ctx, int64_t task, int worker)
{
    (void)worker;
    for_used_keys(ctx, task, normalise_key_backward);
}

static bool
run_keys(attn_call *c, attn_task *task)
{
    int64_t keys = c->p->B / c->p->group * c->p->N;
    int64_t tasks = (keys + TASK_KEYS - 1) / TASK_KEYS;
    return attn_parallel_for(c->run, tasks, (double)keys * (double)c->p->Dk / 2e3, task,
                             c);
}

static bool
prepare(attn_call *c)
{
    const cosine_shared *s = c->shared;
    return attn_used_keys(s->use, c->p, c->run) && run_keys(c, normalise_task);
}

static bool
finish(attn_call *c)
{
    return run_keys(c, normalise_backward_task);
}

/* ---- the block ------------------------------------------------------------------- */

static void
load(attn_block *k)
{
    const attn_call *c = k->call;
    const cosine_shared *shared = c->shared;
    cosine_scratch *s = k->scratch;
    const int64_t D = c->p->Dq;
    const float *queries_b = c->queries + attn_row_offset(k, D); /* (count, D) */
    for (int l = 0; l < k->rows.count; l++) {
        s->norms[l] = norm_of(queries_b + l * D, D);
        divide_by_norm(s->rows + l * D, queries_b + l * D, s->norms[l], c->p->eps, D);
    }
    s->product.rows = s->rows;
    s->product.keys = shared->keys;
    attn_simd->pack(s->product.Q, k->lanes, s->rows, D, k->rows.count, D,
                    c->p->scale * c->unit);
}

static void
tile(attn_block *k, float *S, int64_t k0, int keys)
{
    const cosine_scratch *s = k->scratch;
    attn_product_tile(&s->product, k, S, k0, keys);
}

static float
dscore_gain(const attn_problem *p)
{
    return p->scale;
}

static void
load_backward(attn_block *k)
{
    cosine_scratch *s = k->scratch;
    attn_product_load_backward(&s->product, k);
}

static void
tile_backward(attn_block *k, const float *dS)
{
    const cosine_scratch *s = k->scratch;
    attn_product_tile_backward(&s->product, k, dS);
}

static void
store_backward(attn_block *k)
{
    const attn_call *c = k->call;
    const cosine_scratch *s = k->scratch;
    const int64_t D = c->p->Dq;
    float *dqueries_b = c->d->queries + attn_row_offset(k, D); /* (count, D) */
    attn_simd->unpack(dqueries_b, D, s->product.dQ, k->lanes, k->rows.count, D, NULL);
    for (int l = 0; l < k->rows.count; l++) {
        divide_by_norm_backward(dqueries_b + l * D, s->rows + l * D, s->norms[l],
                                c->p->eps, D);
    }
}

const attn_score attn_score_cosine = {
    .pair_work = pair_work,
    .key_width = key_width,
    .backward_lanes = 64,
    .few_queries = {2, 2},
    .take_shared = take_shared,
    .take_block = take_block,
    .prepare = prepare,
    .load = load,
    .tile = tile,
    .dscore_gain = dscore_gain,
    .load_backward = load_backward,
    .tile_backward = tile_backward,
    .store_backward = store_backward,
    .finish = finish,
};
