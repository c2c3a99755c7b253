/*
 * fuzz_definition.h -- from the scores to the output, and from its gradient back to that
 * of the scores, as the definition has it: row by row, in double precision.
 *
 * What it is compared with may be off by 1/1000 of the largest number. This is no test of
 * accuracy, but any mask, bias or dropout in the wrong place is off by more.
 */
#ifndef FUZZ_DEFINITION_H
#define FUZZ_DEFINITION_H

#include <string.h>

#include "fuzz_results.h"

/* Word at & 3 of Philox4x32-10 at counter at >> 2 (Salmon et al. 2011). */
static uint32_t
philox_word(uint64_t at, uint64_t seed)
{
    uint32_t c[4] = {(uint32_t)(at >> 2), (uint32_t)(at >> 34), 0, 0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t even = (uint64_t)0xD2511F53u * c[0],
                 odd = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(odd >> 32) ^ c[1] ^ k0, (uint32_t)odd,
                            (uint32_t)(even >> 32) ^ c[3] ^ k1, (uint32_t)even};
        memcpy(c, next, sizeof c);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c[at & 3];
}

/* What a kept weight counts for in the pooling: 0 or 1 / (1 - p). */
static double
kept(const attn_problem *p, int64_t b, int64_t m, int64_t j)
{
    const attn_dropout *dropout = &p->dropout;
    bool keep = true;
    if (dropout->keep.data != NULL) {
        keep = byte_at(&dropout->keep, b, m, j);
    } else if (dropout->p > 0.0f) {
        uint64_t at = (uint64_t)((b * p->M + m) * p->N + j);
        keep = (double)philox_word(at, dropout->seed) >= (double)dropout->p * 0x1p32;
    }
    return keep ? 1.0 / (1.0 - (double)dropout->p) : 0.0;
}

/* One row: its pairs, weights and gradients, [N] each. */
typedef struct {
    int64_t row, b, m;
    const uint8_t *pairs;
    bool empty;          /* it attends to all keys alike */
    const float *values; /* (N, Dv) */
    double lse, dsink;
    double *w, *keep, *dw, *ds;
} defined_row;

/* w: softmax of scores and bias over the pairs that take part, and the sink. */
static void
softmax_of_row(defined_row *x, const problem *c, const results *r)
{
    const int64_t N = c->p.N;
    const attn_view *bias = &c->p.masks.bias;
    const double sink = (double)sink_of(&c->p, x->row);
    double top = sink, sum = 0.0;
    for (int64_t j = 0; j < N; j++) {
        if (x->pairs[j]) {
            x->w[j] = (double)r->of[SCORES][x->row * N + j];
            x->w[j] += bias->data ? (double)float_at(bias, x->b, x->m, j) : 0.0;
            top = fmax(top, x->w[j]);
        }
    }
    for (int64_t j = 0; j < N; j++) {
        x->w[j] = x->pairs[j] ? exp(x->w[j] - top) : x->empty ? 1.0 : 0.0;
        sum += x->w[j];
    }
    sum += x->empty ? 0.0 : exp(sink - top);
    for (int64_t j = 0; j < N; j++) {
        x->w[j] /= sum;
    }
    x->lse = x->empty ? -INFINITY : top + log(sum);
}

/* output (Dv) of the row, and its part of dvalues (N, Dv). */
static void
pool_row(const defined_row *x, const problem *c, float *output, double *dvalues)
{
    const int64_t N = c->p.N, Dv = c->p.Dv;
    for (int64_t d = 0; d < Dv; d++) {
        double sum = 0.0;
        for (int64_t j = 0; j < N; j++) {
            double w = x->w[j] * x->keep[j];
            if (x->empty || x->pairs[j]) {
                sum += w * (double)x->values[j * Dv + d];
                dvalues[j * Dv + d] += w * (double)c->dout[x->row * Dv + d];
            }
        }
        output[d] = (float)sum;
    }
}

/* The gradient of the scores: ds_j = w_j (dw_j - sum_i w_i dw_i + dlse); the sink's is
 * that of a score whose dw is 0. */
static void
dscores_of_row(defined_row *x, const problem *c)
{
    const int64_t N = c->p.N, Dv = c->p.Dv;
    double mean = 0.0, dlse = c->dlse != NULL ? (double)c->dlse[x->row] : 0.0;
    for (int64_t j = 0; j < N; j++) {
        x->dw[j] = 0.0;
        for (int64_t d = 0; x->pairs[j] && d < Dv; d++) {
            x->dw[j] += x->keep[j] * (double)x->values[j * Dv + d] *
                        (double)c->dout[x->row * Dv + d];
        }
        if (x->pairs[j] && c->dweights != NULL) {
            x->dw[j] += (double)c->dweights[x->row * N + j];
        }
        mean += x->w[j] * x->dw[j];
    }
    for (int64_t j = 0; j < N; j++) {
        x->ds[j] = x->pairs[j] ? x->w[j] * (x->dw[j] - mean + dlse) : 0.0;
    }
    const double sink = (double)sink_of(&c->p, x->row);
    x->dsink = sink == -INFINITY ? 0.0 : exp(sink - x->lse) * (dlse - mean);
}

/* q.k of query m of entry b and key j; of cosines, of the two brought to length 1. */
static double
unscaled_score(const problem *c, int64_t b, int64_t m, int64_t j)
{
    const attn_problem *p = &c->p;
    const float *q = c->queries + (b * p->M + m) * p->Dq;
    const float *k = c->keys + (b / p->group * p->N + j) * p->Dk;
    double qk = 0.0, qq = 0.0, kk = 0.0, eps = (double)p->eps;
    for (int64_t d = 0; d < p->Dq; d++) {
        qk += (double)q[d] * (double)k[d];
        qq += (double)q[d] * (double)q[d];
        kk += (double)k[d] * (double)k[d];
    }
    double norms = fmax(sqrt(qq), eps) * fmax(sqrt(kk), eps);
    return p->score == &attn_score_dot ? qk : norms == 0.0 ? 0.0 : qk / norms;
}

/* The row's part of the gradient of the scale, through the slope of the cap. */
static double
dscale_of_row(const defined_row *x, const problem *c)
{
    const attn_problem *p = &c->p;
    const double cap = (double)p->softcap;
    const float *scales = p->scales.data;
    const double scale = (double)(scales == NULL
                                      ? p->scale
                                      : scales[view_at(&p->scales, x->b, 0, 0)]);
    double sum = 0.0;
    for (int64_t j = 0; j < p->N; j++) {
        if (x->pairs[j]) {
            double unscaled = unscaled_score(c, x->b, x->m, j);
            double slope = cap == 0.0 ? 1.0 : pow(cosh(scale * unscaled / cap), -2.0);
            sum += x->ds[j] * slope * unscaled;
        }
    }
    return sum;
}

/* ---- all of it ------------------------------------------------------------------- */

static double *
zeros(int64_t n)
{
    double *x = allocate((size_t)n * sizeof *x);
    return memset(x, 0, (size_t)n * sizeof *x);
}

/* What the definition makes of a problem, in the shapes of its results. */
typedef struct {
    float *of[RESULTS]; /* weights, lse, output */
    double *dvalues, *dbias, *dsink, *dscale;
} definition;

static void
define_row(definition *def, defined_row *x, const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    const int64_t N = p->N, Dv = p->Dv, e = x->b / p->group;
    x->pairs = c->pairs + x->row * N;
    x->empty = is_averaged(p, c->pairs, x->row);
    x->values = c->values + e * N * Dv;
    if (is_empty(p, c->pairs, x->row) && !x->empty && sink_of(p, x->row) == -INFINITY) {
        return; /* see check_finite, check_weights */
    }
    for (int64_t j = 0; j < N; j++) {
        x->keep[j] = kept(p, x->b, x->m, j);
    }
    softmax_of_row(x, c, r);
    pool_row(x, c, def->of[OUTPUT] + x->row * Dv, def->dvalues + e * N * Dv);
    dscores_of_row(x, c);
    def->of[LSE][x->row] = (float)x->lse;
    for (int64_t j = 0; j < N; j++) {
        def->of[WEIGHTS][x->row * N + j] = (float)x->w[j];
        if (c->wants_dbias) {
            def->dbias[view_at(&p->masks.bias, x->b, x->m, j)] += x->ds[j];
        }
    }
    if (c->wants_dsink) {
        def->dsink[view_at(&p->sink, x->b, x->m, 0)] += x->dsink;
    }
    if (c->wants_dscale) {
        def->dscale[view_at(&p->scales, x->b, 0, 0)] += dscale_of_row(x, c);
    }
}

static void
check_defined(const problem *c, const results *r, int which, const float *defined)
{
    check_near(c, r->set, which, r->of[which], defined, r->n[which],
               1.0 + largest_of(defined, r->n[which]), "not as defined");
}

static float *
rounded(const double *x, int64_t n)
{
    float *y = nan_floats(n);
    for (int64_t i = 0; i < n; i++) {
        y[i] = (float)x[i];
    }
    return y;
}

static void
check_definition(const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    definition def = {.dvalues = zeros(r->n[D_VALUES]),
                      .dbias = zeros(r->n[D_BIAS]),
                      .dsink = zeros(r->n[D_SINK]),
                      .dscale = zeros(r->n[D_SCALE])};
    defined_row x = {.w = zeros(p->N), .keep = zeros(p->N), .dw = zeros(p->N)};
    x.ds = zeros(p->N);
    for (int i = OUTPUT; i <= LSE; i++) {
        def.of[i] = copy_floats(r->of[i], r->n[i]); /* of rows that are not defined */
    }
    for (x.row = 0; x.row < p->B * p->M; x.row++) {
        x.b = x.row / p->M;
        x.m = x.row % p->M;
        define_row(&def, &x, c, r);
    }
    for (int i = OUTPUT; i <= LSE; i++) {
        check_defined(c, r, i, def.of[i]);
    }
    check_defined(c, r, D_VALUES, rounded(def.dvalues, r->n[D_VALUES]));
    check_defined(c, r, D_BIAS, rounded(def.dbias, r->n[D_BIAS]));
    check_defined(c, r, D_SINK, rounded(def.dsink, r->n[D_SINK]));
    check_defined(c, r, D_SCALE, rounded(def.dscale, r->n[D_SCALE]));
}

#endif
