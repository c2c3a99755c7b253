/*
 * score_gaussian.c -- score(q, k) = -(w |q - k|)^2 / 2, w = 1 / bandwidth  (Nadaraya
 * 1964, Watson 1964: softmax of these scores is kernel regression with a Gaussian
 * kernel).
 *
 * Squared distances are summed from differences. Expanding them to |q|^2 - 2 q.k +
 * |k|^2 would be faster, and wrong wherever the coordinates are large and the distances
 * small.
 */
#include "pairs.h"
#include "projection.h"
#include "walk.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct {
    float *dw_rows; /* (B, M)  backward: sum_j dS_j |q - k_j|^2 of each query */
} gaussian_shared;

typedef struct {
    float *Q;    /* [D][lanes] */
    float *part; /* [keys][lanes]  sums over some of the features */
    float *dQ;   /* [D][lanes]  backward: sum_j dS_j (k_j - q) */
    float *dist; /* [keys][lanes]  backward: |q - k|^2 */
    float *dw;   /* [lanes] */
    float *gain; /* [lanes]  w^2 in every lane */
} gaussian_scratch;

/* Longest chains of a sum, over features, keys or queries: so short, they keep the digits
 * that PyTorch's sums keep. */
enum { SUM = 32 };

/* True if w is so large, or so small and not 0, that float32 cannot hold w^2, or the squares
 * of differences of about sigma = 1 / w. Differences are then multiplied by w before they are
 * squared, in double, by the plain loops of the next section. */
static bool
is_extreme(const attn_problem *p)
{
    const float w = fabsf(p->scale);
    return w != 0.0f && !(w >= 0x1p-56f && w <= 0x1p56f);
}

/* The factor of what the loops over differences leave: w^2, or 1 if they had it. */
static float
w_squared(const attn_problem *p)
{
    return is_extreme(p) ? 1.0f : p->scale * p->scale;
}

static double
pair_work(const attn_problem *p)
{
    return 2.0 * (double)p->Dq;
}

static void
take_shared(attn_call *c, attn_arena *a)
{
    gaussian_shared local, *s = attn_take(a, sizeof *s, 1, 1);
    c->shared = s;
    s = s == NULL ? &local : s;
    s->dw_rows = c->backward ? attn_take_floats(a, c->p->B, c->p->M) : NULL;
}

static void
take_block(attn_block *block, attn_arena *a)
{
    const attn_call *c = block->call;
    gaussian_scratch local, *s = attn_take(a, sizeof *s, 1, 1);
    block->scratch = s;
    s = s == NULL ? &local : s;
    s->Q = attn_take_floats(a, c->p->Dq, block->lanes);
    s->part = c->p->Dq > SUM ? attn_take_floats(a, ATTN_KEYS, block->lanes) : NULL;
    if (c->backward) {
        s->dQ = attn_take_floats(a, c->p->Dq, block->lanes);
        s->dist = attn_take_floats(a, ATTN_KEYS, block->lanes);
        s->dw = attn_take_floats(a, 1, block->lanes);
        s->gain = attn_take_floats(a, 1, block->lanes);
    }
}

static void
load(attn_block *block)
{
    const gaussian_scratch *s = block->scratch;
    const attn_span queries = attn_queries_of(block);
    attn_simd->pack(s->Q, block->lanes, queries.data, queries.ld, block->rows.count,
                    block->call->p->Dq, 1.0f);
}

/* ---- the same with an extreme w -------------------------------------------------- */

/* Return -x as a score for x >= 0, in units of log2(e). Above 2^127 scores only keep their
 * order, up to FLT_MAX: scores of -inf would leave a row without a largest one. */
static float
ordered_score(double x)
{
    int exponent;
    if (x < 0x1p127) {
        return (float)-x;
    }
    double mantissa = frexp(x,
                            &exponent); /* log2 x is near exponent - 2 + 2 mantissa */
    double above = exponent - 128 + (2.0 * mantissa - 1.0);
    return (float)(-0x1p127 * (1.0 + above / 512.0));
}

/* w (q - k) of one feature. */
static double
weighted_difference(const attn_problem *p, float q, float k)
{
    return (double)p->scale * ((double)q - (double)k);
}

/* S[i][l] = factor * |w (q_l - k_i)|^2; factor is 1, backward, or that of scores. */
static void
extreme_distances(const attn_block *block, float *S, attn_span keys_t, int keys,
                  float factor)
{
    const attn_problem *p = block->call->p;
    const gaussian_scratch *s = block->scratch;
    for (int i = 0; i < keys; i++) {
        for (int l = 0; l < block->lanes; l++) {
            const float *key = attn_span_row(keys_t, i);
            double sum = 0.0;
            for (int64_t d = 0; d < p->Dk; d++) {
                double x = weighted_difference(p, s->Q[d * block->lanes + l], key[d]);
                sum += x * x;
            }
            S[i * block->lanes + l] = factor > 0.0f ? (float)fmin(sum, (double)FLT_MAX)
                                      : block->call->unit == 1.0f
                                          ? (float)(sum * (double)factor)
                                          : ordered_score(-sum * (double)factor);
        }
    }
}

/* dQ += w^2 sum_j dS_j (k_j - q),  dK += w^2 sum_i dS_i (q_i - k) */
static void
extreme_backward(attn_block *block, const float *dS, attn_span keys_t)
{
    const attn_problem *p = block->call->p;
    const attn_tile *t = &block->tile;
    const gaussian_scratch *s = block->scratch;
    const int lanes = block->lanes;
    attn_begin_sums(&block->dkeys, t->k0 + t->keys);
    for (int i = 0; i < t->keys; i++) {
        const float *key = attn_span_row(keys_t, i);
        float *dkey = block->dkeys.to.data + (t->k0 + i) * p->Dk;
        for (int64_t d = 0; d < p->Dk; d++) {
            double sum = 0.0;
            for (int l = 0; l < block->rows.count; l++) {
                if (t->scored == NULL || (t->scored[i] >> l & 1) != 0) {
                    double x = (double)p->scale * (double)dS[i * lanes + l] *
                               weighted_difference(p, s->Q[d * lanes + l], key[d]);
                    s->dQ[d * lanes + l] -= (float)x;
                    sum += x;
                }
            }
            dkey[d] += (float)sum;
        }
    }
}

/* ---- tiles ------------------------------------------------------------------------ */

/* S[i][l] = factor * |q_l - k_i|^2 */
static void
distances(const attn_block *block, float *S, attn_span keys_t, int keys, float factor)
{
    if (is_extreme(block->call->p)) {
        extreme_distances(block, S, keys_t, keys, factor);
        return;
    }
    const gaussian_scratch *s = block->scratch;
    const int64_t D = block->call->p->Dk, pairs = (int64_t)keys * block->lanes;
    int64_t d = 0;
    do {
        attn_simd->distance(d == 0 ? S : s->part, keys_t.data + d, keys_t.ld,
                            s->Q + d * block->lanes, block->lanes, keys,
                            D - d < SUM ? D - d : SUM, factor);
        for (int64_t i = 0; i < pairs && d > 0; i++) {
            S[i] += s->part[i];
        }
        d += SUM;
    } while (d < D);
}

static void
tile(attn_block *block, float *S, int64_t k0, int keys)
{
    float half = -0.5f * w_squared(block->call->p) * block->call->unit;
    distances(block, S, attn_keys_of(block, k0), keys, half);
}

static void
load_backward(attn_block *block)
{
    const gaussian_scratch *s = block->scratch;
    memset(s->dQ, 0, (size_t)(block->call->p->Dq * block->lanes) * sizeof(float));
    for (int l = 0; l < block->lanes; l++) {
        s->dw[l] = 0.0f;
        s->gain[l] = w_squared(block->call->p);
    }
}

/* |q - k|^2 of the row's best score: block->max is that score, in units, or the saved lse,
 * which is at least that score and may be above 0. 0 where w is 0, and where block->max is
 * not a distance (it was modified, or is a sink) or not known (the weights were handed
 * back). */
static float
nearest(const attn_block *block, int l)
{
    const attn_problem *p = block->call->p;
    if (block->call->modifiers > 0 || block->call->saved->weights != NULL ||
        attn_sink_of(p, block->b, block->m0 + l) != -INFINITY) {
        return 0.0f;
    }
    float factor = -0.5f * w_squared(p) * block->call->unit;
    return factor < -FLT_MIN ? fmaxf(0.0f, block->max[l] / factor) : 0.0f;
}

/* dist = |q - k|^2 - nearest. A constant of the row changes sum_j dS_j |q - k_j|^2
 * only by itself times sum_j dS_j, which is exactly the gradient of the row's lse; but
 * sums of dS hold to rounding only, and their errors would be multiplied with the
 * whole distance. */
static void
distances_beyond_nearest(const attn_block *block, attn_span keys_t)
{
    const gaussian_scratch *s = block->scratch;
    distances(block, s->dist, keys_t, block->tile.keys, 1.0f);
    for (int l = 0; l < block->rows.count; l++) {
        float base = nearest(block, l);
        for (int i = 0; i < block->tile.keys; i++) {
            s->dist[i * block->lanes + l] -= base;
        }
    }
}

/* dQ += sum_j dS_j (k_j - q) */
static void
queries_backward(const attn_block *block, const float *dS, attn_span keys_t)
{
    const gaussian_scratch *s = block->scratch;
    const attn_tile *t = &block->tile;
    for (int i = 0; i < t->keys; i += SUM) {
        attn_simd->difference_lanes(
            s->dQ, dS + i * block->lanes, keys_t.data + i * keys_t.ld, keys_t.ld, s->Q,
            block->lanes, t->keys - i < SUM ? t->keys - i : SUM, block->call->p->Dk,
            t->scored == NULL ? NULL : t->scored + i);
    }
}

/* dK += w^2 sum_i dS_i (q_i - k) */
static void
keys_backward(attn_block *block, const float *dS, attn_span keys_t)
{
    const attn_problem *p = block->call->p;
    const attn_tile *t = &block->tile;
    const attn_span queries = attn_queries_of(block); /* (count, D) */
    attn_begin_sums(&block->dkeys, t->k0 + t->keys);
    for (int l = 0; l < block->rows.count; l += SUM) {
        int n = block->rows.count - l < SUM ? block->rows.count - l : SUM;
        uint64_t live[ATTN_KEYS];
        for (int i = 0; i < t->keys && t->scored != NULL; i++) {
            live[i] = t->scored[i] >> l;
        }
        attn_simd->difference_rows(
            block->dkeys.to.data + t->k0 * p->Dk, dS + l, block->lanes,
            queries.data + l * queries.ld, queries.ld, keys_t.data, keys_t.ld, t->keys,
            n, p->Dk, w_squared(p), t->scored == NULL ? NULL : live);
    }
}

/* forward was: S = -w^2 |q - k|^2 / 2.  So now:
 *     dq = w^2 sum_j dS_j (k_j - q),  dk = w^2 sum_i dS_i (q_i - k),
 *     dw = -w sum dS |q - k|^2. */
static void
tile_backward(attn_block *block, const float *dS)
{
    const attn_tile *t = &block->tile;
    const gaussian_scratch *s = block->scratch;
    const attn_span keys_t = attn_keys_of(block, t->k0); /* (keys, D) */

    if (is_extreme(block->call->p)) {
        extreme_backward(block, dS, keys_t);
    } else {
        queries_backward(block, dS, keys_t);
        keys_backward(block, dS, keys_t);
    }
    distances_beyond_nearest(block, keys_t);
    attn_simd->dot_tile(s->dw, dS, s->dist, block->lanes, t->keys, t->scored);
}

static void
store_backward(attn_block *block)
{
    const attn_call *c = block->call;
    const gaussian_scratch *s = block->scratch;
    const gaussian_shared *shared = c->shared;
    const int64_t D = c->p->Dq;
    float *dw_rows = shared->dw_rows + attn_row_offset(block, 1);
    attn_simd->unpack(c->d->queries + attn_row_offset(block, D), D, s->dQ, block->lanes,
                      block->rows.count, D, s->gain);
    for (int l = 0; l < block->rows.count; l++) {
        bool empty = block->rows.empty >> l & 1;
        dw_rows[l] = empty ? 0.0f : s->dw[l] + nearest(block, l) * block->dlse[l];
    }
}

static bool
finish(attn_call *c)
{
    const gaussian_shared *s = c->shared;
    bool done = attn_sum_rows(c->d->scale, s->dw_rows, c->p->B * c->p->M, 1, c->run);
    const double w = c->p->scale; /* of an extreme one the distances have w^2 */
    *c->d->scale = is_extreme(c->p) ? (float)(-*c->d->scale / w)
                                    : *c->d->scale * -c->p->scale;
    return done;
}

const attn_score attn_score_gaussian = {
    .about = {.name = "gaussian", .scale = ATTN_SCALE_BANDWIDTH},
    .pair_work = pair_work,
    .most_lanes = 64,
    .few_queries = {2, 2},
    .take_shared = take_shared,
    .take_block = take_block,
    .load = load,
    .tile = tile,
    .load_backward = load_backward,
    .tile_backward = tile_backward,
    .store_backward = store_backward,
    .finish = finish,
};
