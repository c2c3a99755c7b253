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
    float *keys;   /* (rows, D)  k / max(|k|, eps) */
    double *norms; /* (rows)  |k| */
} cosine_keys;

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

static double
key_work(const attn_problem *p)
{
    return ATTN_WORK_NUMBER * (double)p->Dk;
}

/* ---- arrays ---------------------------------------------------------------------- */

static void *
take_keys(const attn_problem *p, int64_t rows, attn_arena *a)
{
    cosine_keys local, *made = attn_take(a, sizeof *made, 1, 1);
    cosine_keys *s = made == NULL ? &local : made;
    s->keys = attn_take_floats(a, rows, p->Dk);
    s->norms = attn_take(a, sizeof *s->norms, rows, 1);
    return made;
}

/* Row j and those after it of the entry that the block attends to. */
static attn_span
operand_of(const attn_block *block, int64_t j)
{
    const cosine_keys *s = block->call->prepared->rows;
    const int64_t D = block->call->p->Dk;
    return (attn_span){s->keys + attn_prepared_row(block, j) * D, D};
}

static void
take_block(attn_block *block, attn_arena *a)
{
    const int64_t D = block->call->p->Dq;
    cosine_scratch local, *s = attn_take(a, sizeof *s, 1, 1);
    block->scratch = s;
    s = s == NULL ? &local : s;
    attn_product_take(&s->product, block, D, operand_of, a);
    s->rows = attn_take_floats(a, block->lanes, D);
    s->norms = attn_take(a, sizeof *s->norms, block->lanes, 1);
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

static void
make_keys(void *rows, int64_t row, attn_span keys, int64_t n, const attn_problem *p)
{
    const cosine_keys *s = rows;
    const int64_t D = p->Dk;
    for (int64_t i = 0; i < n; i++) {
        const float *key = attn_span_row(keys, i);
        s->norms[row + i] = norm_of(key, D);
        divide_by_norm(s->keys + (row + i) * D, key, s->norms[row + i], p->eps, D);
    }
}

static void
clear_keys(void *rows, int64_t row, int64_t n, const attn_problem *p)
{
    const cosine_keys *s = rows;
    attn_set_zero(s->keys + row * p->Dk, n, p->Dk, 1);
}

static void
make_keys_backward(attn_call *c, int64_t e, int64_t j, int64_t n)
{
    const cosine_keys *s = c->prepared->rows;
    const int64_t D = c->p->Dk, row = e * c->prepared->capacity + j;
    const attn_target to = attn_write(c->dkeys, c->dkey_heads, c->p->N, D, e, j);
    for (int64_t i = 0; i < n; i++) {
        divide_by_norm_backward(to.data + i * to.ld, s->keys + (row + i) * D,
                                s->norms[row + i], c->p->eps, D);
    }
}

/* ---- the block ------------------------------------------------------------------- */

static void
load(attn_block *block)
{
    const attn_call *c = block->call;
    cosine_scratch *s = block->scratch;
    const int64_t D = c->p->Dq;
    const attn_span queries = attn_queries_of(block); /* (count, D) */
    for (int l = 0; l < block->rows.count; l++) {
        const float *query = attn_span_row(queries, l);
        s->norms[l] = norm_of(query, D);
        divide_by_norm(s->rows + l * D, query, s->norms[l], c->p->eps, D);
    }
    s->product.rows = (attn_span){s->rows, D};
    attn_product_load(block);
}

static void
store_backward(attn_block *block)
{
    const attn_call *c = block->call;
    const cosine_scratch *s = block->scratch;
    const int64_t D = c->p->Dq;
    const attn_target to = attn_results_to(block, c->d->queries, D); /* (count, D) */
    attn_simd->unpack(to.data, to.ld, s->product.dQ, block->lanes, block->rows.count, D,
                      NULL);
    for (int l = 0; l < block->rows.count; l++) {
        divide_by_norm_backward(to.data + l * to.ld, s->rows + l * D, s->norms[l],
                                c->p->eps, D);
    }
}

const attn_score attn_score_cosine = {
    .about = {.name = "cosine", .scale = ATTN_SCALE_ONE, .has_eps = true},
    .pair_work = pair_work,
    .query_work = key_work, /* the same, as Dq = Dk */
    .key_work = key_work,
    .most_lanes = 64,
    .few_queries = {2, 2},
    .take_keys = take_keys,
    .make_keys = make_keys,
    .clear_keys = clear_keys,
    .make_keys_backward = make_keys_backward,
    .take_block = take_block,
    .load = load,
    .tile = attn_product_tile,
    .unscaled_tile = attn_product_unscaled_tile,
    .dscore_gain = attn_scale_of,
    .load_backward = attn_product_load_backward,
    .tile_backward = attn_product_tile_backward,
    .store_backward = store_backward,
};
