/*
 * row.c -- per-row work of the softmax. See row.h.
 */
#include "row.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const double LN2 = 0.693147180559945309417;

static bool
has(uint64_t lanes, int l)
{
    return lanes >> l & 1;
}

/* x = 2^e f with 1/sqrt 2 <= f < sqrt 2: (f - 1) / (f + 1), and e. */
static double
near_one(float x, double *e)
{
    const uint32_t sqrt_half = 0x3f3504f4; /* the smallest float above it */
    uint32_t bits, half;
    float f;
    memcpy(&bits, &x, sizeof bits);
    half = (bits & 0x007fffff) | 0x3f000000; /* in [1/2, 1) */
    uint32_t low = half < sqrt_half;
    half += low << 23;
    memcpy(&f, &half, sizeof f);
    *e = (double)((int32_t)(bits >> 23) - 126 - (int32_t)low);
    return ((double)f - 1.0) / ((double)f + 1.0);
}

/* log2 of n <= ATTN_LANES finite x >= 2^-126. Our own, because the C library's logarithm
 * differs from one machine to the next: log f = 2 atanh((f - 1) / (f + 1)), whose series
 * in s <= 0.1716 is cut where the rest is below 1e-13. Each step is a loop over all x: one
 * alone is a chain of some 120 cycles. Zen 3, lse of 128 queries a head: 2.3 % of the forward,
 * of 20: 5 %. */
static void
log2_of(double *to, const float *x, int n)
{
    double s[ATTN_LANES], z[ATTN_LANES], e[ATTN_LANES], sum[ATTN_LANES];
    for (int i = 0; i < n; i++) {
        s[i] = near_one(x[i], &e[i]);
        z[i] = s[i] * s[i];
        sum[i] = 0.0;
    }
    for (int k = 15; k >= 1; k -= 2) {
        for (int i = 0; i < n; i++) {
            sum[i] = sum[i] * z[i] + 1.0 / k;
        }
    }
    for (int i = 0; i < n; i++) {
        to[i] = e[i] + 2.0 * s[i] * sum[i] / LN2;
    }
}

/* Natural logarithm of e^top * 2^log2_sum. */
static float
log_add(double top, double log2_sum)
{
    return (float)(top + log2_sum * LN2);
}

float
attn_log_add(float top, float sum)
{
    double log2_sum;
    log2_of(&log2_sum, &sum, 1);
    return log_add(top, log2_sum);
}

static float
sink_of(const attn_block *block, int l)
{
    return attn_sink_of(block->call->p, block->b, block->m0 + l);
}

/* A finite sink in units of log2(e) and, as an unlimited bias, still finite. */
static float
in_units(float sink)
{
    return fmaxf(-FLT_MAX, fminf(sink * ATTN_LOG2E, FLT_MAX));
}

/* Natural logarithm of the row's sum of exponentials; max in units of log2(e). */
static float
log_sum_exp(float max, float sum, double log2_sum, float sink)
{
    if (isnan(sum)) { /* a score was NaN */
        return sum;
    }
    if (isinf(max)) { /* every score was -inf, or one +inf */
        return max;
    }
    if (sink != -INFINITY && max == in_units(sink)) { /* rounded; here it is itself */
        return log_add(sink, log2_sum);
    }
    return (float)(((double)max + log2_sum) * LN2);
}

static void
store_lse(const attn_block *block, float *lse)
{
    const attn_rows *rows = &block->rows;
    double log2_sum[ATTN_LANES];
    log2_of(log2_sum, block->sum, rows->count);
    for (int l = 0; l < rows->count; l++) {
        float sink = sink_of(block, l);
        lse[l] = has(rows->empty, l)
                     ? sink
                     : log_sum_exp(block->max[l], block->sum[l], log2_sum[l], sink);
    }
}

void
attn_row_start(attn_block *block, bool sinks)
{
    for (int l = 0; l < block->lanes; l++) {
        block->max[l] = -INFINITY;
        block->sum[l] = 0.0f;
        if (block->call->backward) {
            block->dots[l] = 0.0f;
        }
        if (block->dscale != NULL) {
            block->dscale[l] = 0.0f;
        }
    }
    sinks = sinks && block->call->p->sink.data != NULL;
    for (int l = 0; sinks && l < block->rows.count; l++) {
        float sink = sink_of(block, l);
        if (sink != -INFINITY) {
            block->max[l] = in_units(sink);
            block->sum[l] = 1.0f;
        }
    }
}

void
attn_row_end(attn_block *block, float *lse)
{
    const attn_rows *rows = &block->rows;
    if (lse != NULL) {
        store_lse(block, lse);
    }
    for (int l = 0; l < rows->count; l++) {
        float max = block->max[l], sum = block->sum[l];
        if (has(rows->empty, l) && !has(rows->uniform, l)) {
            block->sum[l] = has(rows->nan, l) ? NAN : 0.0f;
        } else {
            block->sum[l] = max == INFINITY ? NAN : 1.0f / sum;
        }
        block->max[l] = isinf(max) ? 0.0f : max;
    }
    for (int l = rows->count; l < block->lanes; l++) { /* a lane without a query */
        block->max[l] = 0.0f; /* -inf less -inf would raise FE_INVALID */
    }
}

/* P = exp(s - lse) is wrong by the rounding of lse, which is half its last digit: a
 * relative 2^-19 up to here, and anything at all for an lse of -1e9. The origin of the
 * exponents, lse in units of log2(e), is rounded too, by up to 2^-18 at 64 log2(e) = 92;
 * but by how much is known, and its power of two, 1 + residue ln 2 within 2^-37, is the
 * factor. */
static const float LARGEST_LSE = 64.0f;

bool
attn_reads_saved(const attn_problem *p)
{
    return p->N > ATTN_KEYS;
}

bool
attn_row_restore(attn_block *block)
{
    const float *lse = block->call->saved->lse + attn_row_offset(block, 1);
    for (int l = 0; l < block->rows.count; l++) {
        bool counts = !has(block->rows.empty, l) && isfinite(lse[l]);
        if (counts && fabsf(lse[l]) > LARGEST_LSE) {
            return false;
        }
    }
    for (int l = 0; l < block->rows.count; l++) {
        double origin = (double)lse[l] / LN2;
        block->max[l] = (float)origin;
        block->sum[l] = isfinite(lse[l]) ? (float)(1.0 + (block->max[l] - origin) * LN2)
                                         : 1.0f;
        if (has(block->rows.uniform, l)) {
            block->max[l] = 0.0f;
            block->sum[l] = 1.0f / (float)block->call->p->N;
        } else if (lse[l] == INFINITY) { /* a score was +inf: the row is NaN */
            block->max[l] = NAN;
        }
    }
    return true;
}

void
attn_row_restore_dots(attn_block *block)
{
    const attn_call *c = block->call;
    const int64_t Dv = c->p->Dv;
    const attn_span output = attn_results_of(block, c->saved->output, Dv);
    const attn_span grad = attn_results_of(block, c->grad->output, Dv);
    for (int l = 0; l < block->rows.count; l++) {
        /* sum_j P_j dP_j = sum_j P_j keep_j v_j . dO = O . dO */
        block->dots[l] = attn_simd->dot_row(attn_span_row(output, l),
                                            attn_span_row(grad, l), Dv);
    }
}

void
attn_row_load_grad_lse(attn_block *block)
{
    const float *grad_lse = block->call->grad->lse;
    for (int l = 0; l < block->lanes; l++) {
        bool some = grad_lse != NULL && l < block->rows.count;
        block->dlse[l] = some ? grad_lse[attn_row_offset(block, 1) + l] : 0.0f;
    }
}

/* The sink is a key with P = exp(sink - lse) whose value is 0 and whose weight is not
 * returned, so its dP is 0. forward was: P, lse = softmax of the row. So now:
 *     dsink = P * (0 - dots) + P * dlse.
 * Without a key P is 1 and dots 0; -inf is no sink and has no gradient. */
void
attn_row_store_sinks(const attn_block *block)
{
    float *dsinks = block->call->dsink.rows;
    for (int l = 0; dsinks != NULL && l < block->rows.count; l++) {
        float *dsink = dsinks + attn_row_offset(block, 1) + l, sink = sink_of(block, l);
        float P = in_units(sink);
        attn_simd->prob_tile(&P, 1, 1, &block->max[l], &block->sum[l], NULL);
        *dsink = sink == -INFINITY           ? 0.0f
                 : has(block->rows.empty, l) ? block->dlse[l]
                                             : P * (block->dlse[l] - block->dots[l]);
    }
}

void
attn_row_store_scales(const attn_block *block)
{
    float *dscales = block->call->dscale.rows;
    if (dscales != NULL) {
        memcpy(dscales + attn_row_offset(block, 1), block->dscale,
               (size_t)block->rows.count * sizeof(float));
    }
}
