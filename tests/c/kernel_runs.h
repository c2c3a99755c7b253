/*
 * kernel_runs.h -- every kernel of kernels.h once, in the order of the table, on the operands
 * that its contract allows. Where the sets share plain code, so that equal bits prove little,
 * the result is checked against the contract here.
 */
#ifndef KERNEL_RUNS_H
#define KERNEL_RUNS_H

#include "kernel_operands.h"

static void
run_matmul(run *r) /* rows, cols, K; options: into, X walked along columns */
{
    attn_into into = r->option % 3;
    bool columns = r->option / 3;
    int64_t ldc = r->b == 1 ? 1
                            : r->b + 3; /* a column by itself is a case of its own */
    int64_t ldx = columns ? 1 : r->c, sx = columns ? r->a : 1;
    float *C = numbers(r, span(r->a, r->b, ldc), 2.0f);
    float *X = numbers(r, (int64_t)r->a * r->c, 2.0f),
          *Y = numbers(r, (int64_t)r->c * r->b, 2.0f);
    r->set->matmul(C, ldc, X, ldx, sx, Y, r->b, r->a, r->b, r->c, into);
    record(r, C, span(r->a, r->b, ldc));
}

/* Whatever dead pairs hold: 0, which may be added as long as X is finite, or NaN. */
static void
run_pool(run *r) /* features, lanes, K; options: alpha, live */
{
    int lanes = r->b;
    int64_t n = (int64_t)r->a * lanes;
    float *C = numbers(r, n, 2.0f), *zeros = numbers(r, n, 2.0f);
    float *X = numbers(r, (int64_t)r->c * r->a, 2.0f),
          *Y = numbers(r, (int64_t)r->c * lanes, 2.0f);
    float *alpha = r->option & 1 ? numbers(r, lanes, 1.0f) : NULL;
    uint64_t *live = r->option & 2 ? live_words(r, r->c, lanes) : NULL;
    memcpy(zeros, C, (size_t)n * sizeof *C);
    poison(Y, r->c, lanes, live);
    r->set->pool(C, X, r->a, Y, lanes, r->a, r->c, alpha, live);
    fill_dead_pairs(Y, r->c, lanes, live, 0.0f);
    r->set->pool(zeros, X, r->a, Y, lanes, r->a, r->c, alpha, live);
    for (int64_t i = 0; i < n; i++) {
        bool same = C[i] == zeros[i] || (isnan(C[i]) && isnan(zeros[i]));
        check(r, same, "a dead pair counts", i);
    }
    record(r, C, n);
}

static void
run_matmul_live(run *r) /* rows, cols, K */
{
    int lanes = (r->c + 15) / 16 * 16;
    float *C = numbers(r, (int64_t)r->a * r->b, 2.0f),
          *X = numbers(r, (int64_t)r->a * lanes, 2.0f);
    float *Y = numbers(r, (int64_t)r->c * r->b, 2.0f);
    uint64_t *live = live_words(r, r->a, lanes);
    poison(X, r->a, lanes, live);
    r->set->matmul_live(C, r->b, X, lanes, Y, r->b, r->a, r->b, r->c, live);
    record(r, C, (int64_t)r->a * r->b);
}

static void
run_distance(run *r) /* rows, lanes, K */
{
    float *S = numbers(r, (int64_t)r->a * r->b, 2.0f),
          *X = numbers(r, (int64_t)r->a * r->c, 2.0f);
    float *Y = numbers(r, (int64_t)r->c * r->b, 2.0f);
    r->set->distance(S, X, r->c, Y, r->b, r->a, r->c, -0.75f);
    record(r, S, (int64_t)r->a * r->b);
}

static void
run_difference_lanes(run *r) /* rows, lanes, D; option: live */
{
    float *dQ = numbers(r, (int64_t)r->c * r->b, 2.0f),
          *G = numbers(r, (int64_t)r->a * r->b, 2.0f);
    float *X = numbers(r, (int64_t)r->a * r->c, 2.0f),
          *Q = numbers(r, (int64_t)r->c * r->b, 2.0f);
    uint64_t *live = r->option ? live_words(r, r->a, r->b) : NULL;
    poison(G, r->a, r->b, live);
    r->set->difference_lanes(dQ, G, X, r->c, Q, r->b, r->a, r->c, live);
    record(r, dQ, (int64_t)r->c * r->b);
}

static void
run_difference_rows(run *r) /* rows, K, D; option: live */
{
    int lanes = (r->b + 15) / 16 * 16;
    float *dX = numbers(r, (int64_t)r->a * r->c, 2.0f),
          *G = numbers(r, (int64_t)r->a * lanes, 2.0f);
    int64_t ldy = r->c + 3, ldx = r->c + 5;
    float *Y = numbers(r, r->b * ldy, 2.0f), *X = numbers(r, r->a * ldx, 2.0f);
    uint64_t *live = r->option ? live_words(r, r->a, lanes) : NULL;
    poison(G, r->a, lanes, live);
    r->set->difference_rows(dX, G, lanes, Y, ldy, X, ldx, r->a, r->b, r->c, 0.75f,
                            live);
    record(r, dX, (int64_t)r->a * r->c);
}

static void
run_outer(run *r) /* keys, D; option: live */
{
    int64_t ldc = r->b + 3;
    float *C = numbers(r, r->a * ldc, 2.0f), *X = numbers(r, r->a, 2.0f);
    float *Y = numbers(r, r->b, 2.0f);
    uint64_t *live = r->option ? live_words(r, r->a, 1) : NULL;
    poison(X, r->a, 1, live);
    r->set->outer(C, ldc, X, Y, r->a, r->b, live);
    for (int64_t i = 0; i < r->a; i++) {
        for (int64_t d = 0; d < r->b; d++) {
            bool dead = live != NULL && (live[i] & 1) == 0;
            float term = dead ? 0.0f : X[i] * Y[d], c = C[i * ldc + d];
            bool same = c == term || (isnan(c) && isnan(term));
            check(r, same && (c != 0.0f || !signbit(c)), "not 0 + x y", i * ldc + d);
        }
    }
    record(r, C, r->a * ldc);
}

/* Lanes for so many rows; one lane, if that is enough and wanted. */
static int
lanes_for(int rows, bool one)
{
    return rows == 1 && one ? 1 : (rows + 15) / 16 * 16;
}

static void
run_pack(run *r) /* rows, cols; option: one lane */
{
    int lanes = lanes_for(r->a, r->option);
    int64_t lds = r->b + 5;
    float *dst = numbers(r, (int64_t)r->b * lanes, 2.0f);
    float *src = numbers(r, span(r->a, r->b, lds), 2.0f);
    r->set->pack(dst, lanes, src, lds, r->a, r->b, 1.25f);
    record(r, dst, (int64_t)r->b * lanes);
}

static void
run_unpack(run *r) /* rows, cols; options: factor, one lane */
{
    int lanes = lanes_for(r->a, r->option & 2);
    int64_t ldd = r->b + 5;
    float *dst = numbers(r, span(r->a, r->b, ldd), 2.0f);
    float *src = numbers(r, (int64_t)r->b * lanes, 2.0f);
    float *factor = r->option & 1 ? numbers(r, lanes, 2.0f) : NULL;
    for (int64_t i = 0; i < (int64_t)r->b * lanes; i += 7) {
        src[i] = -0.0f;
    }
    r->set->unpack(dst, ldd, src, lanes, r->a, r->b, factor);
    for (int64_t l = 0; l < r->a; l++) {
        for (int64_t c = 0; c < r->b; c++) {
            float x = dst[l * ldd + c];
            check(r, x != 0.0f || !signbit(x), "a -0", l * ldd + c);
        }
    }
    record(r, dst, span(r->a, r->b, ldd));
}

/* Two halves of each live word as numbers, so that they can be compared. */
static void
record_words(run *r, const uint64_t *live, int n)
{
    for (int i = 0; i < n; i++) {
        float halves[] = {(float)(live[i] & 0xffffff),
                          (float)(live[i] >> 24 & 0xffffff), (float)(live[i] >> 48)};
        record(r, halves, 3);
    }
}

/* Bit l of live[i] is left iff it was set, and row l is there and allows key i. */
static void
check_word(run *r, const uint64_t *live, const uint64_t *before, int l, int i,
           bool allows)
{
    bool was = before[i] >> l & 1, is = live[i] >> l & 1;
    check(r, is == (was && l < r->a && allows), "wrong live bit", (int64_t)i * 64 + l);
}

static void
run_live_bytes(run *r) /* rows, keys; option: rows walked backwards */
{
    int64_t stride = r->b + 3, n = span(r->a, r->b, stride);
    uint64_t *live = live_words(r, r->b, 64), *before = live_words(r, r->b, 64);
    uint8_t *bytes = mask_bytes(r, n, true);
    memcpy(before, live, (size_t)r->b * sizeof *live);
    if (r->option && r->b > 0) {
        bytes += (r->a - 1) * stride;
        stride = -stride;
    }
    r->set->live_bytes(live, bytes, stride, r->a, r->b);
    for (int i = 0; i < r->b * 64; i++) {
        int l = i % 64, key = i / 64;
        check_word(r, live, before, l, key, l < r->a && bytes[l * stride + key] != 0);
    }
    record_words(r, live, r->b);
}

static void
run_live_floats(run *r) /* rows, keys */
{
    int64_t stride = r->b + 3, n = span(r->a, r->b, stride);
    uint64_t *live = live_words(r, r->b, 64), *before = live_words(r, r->b, 64);
    float *x = numbers(r, n, 2.0f);
    memcpy(before, live, (size_t)r->b * sizeof *live);
    for (int64_t i = 0; i < n; i++) {
        x[i] = next_random(r) % 4 == 0 ? -INFINITY : x[i];
    }
    r->set->live_floats(live, x, stride, r->a, r->b);
    for (int i = 0; i < r->b * 64; i++) {
        int l = i % 64, key = i / 64;
        check_word(r, live, before, l, key,
                   l < r->a && x[l * stride + key] != -INFINITY);
    }
    record_words(r, live, r->b);
}

static void
run_softmax_tile(run *r) /* rows, lanes; options: live, nothing seen before */
{
    float *S = numbers(r, (int64_t)r->a * r->b, 30.0f), *m = numbers(r, r->b, 30.0f);
    float *l = numbers(r, r->b, 9.0f), *alpha = numbers(r, r->b, 1.0f);
    uint64_t *live = r->option & 1 ? live_words(r, r->a, r->b) : NULL;
    for (int i = 0; r->option & 2 && i < r->b; i++) {
        m[i] = -INFINITY;
        l[i] = 0.0f;
    }
    poison(S, r->a, r->b, live);
    r->set->softmax_tile(S, r->b, r->a, m, l, alpha, live);
    record(r, S, (int64_t)r->a * r->b);
    record(r, l, r->b);
    record(r, alpha, r->b);
    for (int i = 0; i < r->b;
         i++) { /* finite where it ought to be, for the check of poison */
        m[i] = r->option & 2 && m[i] == -INFINITY ? -1.0f : m[i];
    }
    record(r, m, r->b);
}

static void
run_prob_tile(run *r) /* rows, lanes; option: live */
{
    float *S = numbers(r, (int64_t)r->a * r->b, 30.0f), *m = numbers(r, r->b, 30.0f);
    float *inv = numbers(r, r->b, 1.0f);
    uint64_t *live = r->option ? live_words(r, r->a, r->b) : NULL;
    poison(S, r->a, r->b, live);
    r->set->prob_tile(S, r->b, r->a, m, inv, live);
    record(r, S, (int64_t)r->a * r->b);
}

static void
run_add_tile(run *r) /* rows, lanes; option: one row for all */
{
    int ldt = r->option ? 0 : r->b;
    float *S = numbers(r, (int64_t)r->a * r->b, 2.0f);
    float *T = numbers(r, r->option ? r->b : (int64_t)r->a * r->b, 2.0f);
    r->set->add_tile(S, r->b, r->a, T, ldt, 1.5f);
    record(r, S, (int64_t)r->a * r->b);
}

static void
run_softcap(run *r) /* n; options: slope, of size 50: most of it at the cap */
{
    float *S = numbers(r, r->a, r->option & 2 ? 50.0f : 1.0f);
    float *slope = r->option & 1 ? numbers(r, r->a, 1.0f) : NULL;
    r->set->softcap(S, slope, r->a, 0.7f, 1.0f / 0.7f);
    for (int64_t i = 0; i < r->a; i++) {
        check(r, isnan(S[i]) || fabsf(S[i]) <= 0.7f, "above the cap", i);
        check(r, slope == NULL || (slope[i] >= 0.0f && slope[i] <= 1.0f),
              "no slope of tanh", i);
    }
    record(r, S, r->a);
    record(r, slope == NULL ? S : slope, r->a);
}

static void
run_scale_tile(run *r) /* rows, lanes */
{
    float *S = numbers(r, (int64_t)r->a * r->b, 2.0f), *factor = numbers(r, r->b, 2.0f);
    r->set->scale_tile(S, r->b, r->a, factor);
    record(r, S, (int64_t)r->a * r->b);
}

static void
run_dot_tile(run *r) /* rows, lanes; option: live */
{
    float *D = numbers(r, r->b, 2.0f), *X = numbers(r, (int64_t)r->a * r->b, 2.0f);
    float *Y = numbers(r, (int64_t)r->a * r->b, 2.0f);
    uint64_t *live = r->option ? live_words(r, r->a, r->b) : NULL;
    poison(X, r->a, r->b, live);
    poison(Y, r->a, r->b, live);
    r->set->dot_tile(D, X, Y, r->b, r->a, live);
    record(r, D, r->b);
}

static void
run_dscore_tile(run *r) /* rows, lanes; option: live */
{
    float *dP = numbers(r, (int64_t)r->a * r->b, 2.0f),
          *P = numbers(r, (int64_t)r->a * r->b, 1.0f);
    float *D = numbers(r, r->b, 2.0f), *E = numbers(r, r->b, 1e-6f);
    uint64_t *live = r->option ? live_words(r, r->a, r->b) : NULL;
    poison(dP, r->a, r->b, live);
    poison(P, r->a, r->b, live);
    r->set->dscore_tile(dP, P, D, E, 0.125f, r->b, r->a, live);
    record(r, dP, (int64_t)r->a * r->b);
}

static void
run_keep_tile(run *r) /* rows, lanes */
{
    float *P = numbers(r, (int64_t)r->a * r->b, 1.0f);
    uint64_t *keep = live_words(r, r->a, r->b);
    r->set->keep_tile(P, r->b, r->a, 1.0f / 0.9f, keep);
    record(r, P, (int64_t)r->a * r->b);
}

/* Rows of a softmax: r->b rows of r->a elements, of which live[] says who takes part. */
typedef struct {
    int64_t n[ATTN_LANES];
    const uint8_t *mask[ATTN_LANES];
    const uint8_t *const *masks;
    uint8_t *live; /* [rows][N] */
} softmax_keys;

/* mask: as bytes, else every element; uneven: every row has a length of its own, the
 * first has none; else n = N. */
static void
find_keys(softmax_keys *keys, run *r, bool mask, bool uneven)
{
    uint8_t *bytes = mask_bytes(r, (int64_t)r->a * r->b, mask);
    keys->live = buffer(r, (size_t)r->a * (size_t)r->b);
    keys->masks = mask ? keys->mask : NULL;
    for (int i = 0; i < r->b; i++) {
        int64_t N = r->a, n = uneven ? next_random(r) % (N + 1) : N;
        keys->n[i] = uneven && i == 0 ? 0 : n;
        keys->mask[i] = mask ? bytes + i * N : NULL;
        for (int64_t j = 0; j < N; j++) {
            keys->live[i * N + j] = j < keys->n[i] && (!mask || bytes[i * N + j] != 0);
        }
    }
}

static bool
same(const float *x, const float *y, int64_t n)
{
    bool equal = true;
    for (int64_t i = 0; i < n; i++) {
        equal = equal &&
                ((isnan(x[i]) && isnan(y[i])) || memcmp(x + i, y + i, sizeof *x) == 0);
    }
    return equal;
}

static void
check_dead_are_0(const run *r, const float *x, const softmax_keys *keys)
{
    for (int i = 0; i < r->a * r->b; i++) {
        check(r, keys->live[i] || x[i] == 0.0f, "a dead element is not 0", i);
    }
}

static void
run_softmax_rows(run *r) /* N, rows; options: exp underflows; mask; uneven */
{
    int64_t N = r->a, all = N * r->b;
    float *out = numbers(r, all, 1.0f),
          *x = numbers(r, all, r->option & 1 ? 100.0f : 4.0f);
    float *alone = numbers(r, N, 1.0f);
    softmax_keys keys;
    find_keys(&keys, r, r->option & 2, r->option & 4);
    poison_row(x, all, keys.live);
    r->set->softmax_rows(out, x, N, r->b, keys.n, keys.masks);
    check_dead_are_0(r, out, &keys);
    for (int i = 0; i < r->b; i++) {
        r->set->softmax_rows(alone, x + i * N, N, 1, keys.n + i,
                             keys.masks ? keys.masks + i : NULL);
        check(r, same(alone, out + i * N, N), "alone a row has other bits", i);
    }
    record(r, out, all);
}

static void
run_softmax_rows_backward(run *r) /* N, rows; options: mask; uneven */
{
    int64_t N = r->a, all = N * r->b;
    float *dx = numbers(r, all, 1.0f), *dw = numbers(r, all, 2.0f),
          *w = numbers(r, all, 1.0f);
    softmax_keys keys;
    find_keys(&keys, r, r->option & 1, r->option & 2);
    poison_row(dw, all, keys.live);
    poison_row(w, all, keys.live);
    r->set->softmax_rows_backward(dx, dw, w, N, r->b, keys.n, keys.masks);
    check_dead_are_0(r, dx, &keys);
    record(r, dx, all);
}

static void
run_dot_row(run *r) /* n */
{
    float *x = numbers(r, r->a, 2.0f), *y = numbers(r, r->a, 2.0f), sum = 0.0f;
    sum = r->set->dot_row(x, y, r->a);
    record(r, &sum, 1);
}

static void
run_absmax_row(run *r) /* n */
{
    float *x = numbers(r, r->a, 2.0f), top = r->set->absmax_row(x, r->a);
    record(r, &top, 1);
}

static void
run_exp_form(run *r) /* n; option: of size 43, as the additive score has it */
{
    float *out = numbers(r, r->a, 1.0f),
          *x = numbers(r, r->a, r->option ? 43.6f : 3.0f);
    r->set->exp_form(out, x, r->a);
    record(r, out, r->a);
}

static void
run_tanh_form(run *r) /* n; option: of size 1, around the two ways tanh is computed */
{
    float *out = numbers(r, r->a, 1.0f),
          *x = numbers(r, r->a, r->option ? 1.0f : 30.0f);
    r->set->tanh_form(out, x, r->a);
    record(r, out, r->a);
}

static void
run_negate_absmax(run *r) /* H, lanes; option: bias */
{
    float *A = numbers(r, (int64_t)r->a * r->b, 3.0f), *top = numbers(r, r->b, 1.0f);
    float *bias = r->option ? numbers(r, r->a, 3.0f) : NULL;
    r->set->negate_absmax(A, bias, top, r->b, r->a);
    record(r, A, (int64_t)r->a * r->b);
    record(r, top, r->b);
}

/* Three keys: all numbers are as large as the regime allows, so that denominators and
 * numerators are, and tanh(b - a) is 1. */
static bool
all_largest(const run *r)
{
    return r->a == 3;
}

/* Pre-activations of the regime's full range, in the form that the regime takes. */
static float *
additive_operand(run *r, int64_t n, additive_regime regime, float sign)
{
    static const float limit[] = {1.0f, 9.0f, 21.8f, 60.0f};
    float *x = numbers(r, n, limit[regime]);
    for (int64_t i = 0; i < n; i++) {
        x[i] = i % 7 == 3 ? copysignf(limit[regime], x[i]) : x[i];
        x[i] = all_largest(r) ? sign * limit[regime] : x[i];
        x[i] = regime == ADDITIVE_SMALL    ? (float)tanh(x[i])
               : regime == ADDITIVE_DIRECT ? x[i]
                                           : (float)exp(2.0 * x[i]);
    }
    return x;
}

static void
run_additive_tile(run *r) /* rows, lanes, H; options: regime, live */
{
    additive_regime regime = (additive_regime)(r->option & 3);
    int H = (r->c + 3) / 4 * 4;
    float *A = additive_operand(r, (int64_t)H * r->b, regime, -1.0f);
    float *B = additive_operand(r, (int64_t)r->a * H, regime, 1.0f);
    float *w = numbers(r, H, all_largest(r) ? 0x1p13f : 1.0f);
    float *S = numbers(r, (int64_t)r->a * r->b, 1.0f);
    uint64_t *live = r->option & 4 ? live_words(r, r->a, r->b) : NULL;
    r->set->additive_tile(S, A, B, w, r->b, r->a, H, regime, live);
    record(r, S, (int64_t)r->a * r->b);
}

static void
run_additive_tile_backward(run *r) /* rows, lanes, H; options: regime, live */
{
    additive_regime regime = (additive_regime)(r->option & 3);
    int H = (r->c + 3) / 4 * 4;
    float *A = additive_operand(r, (int64_t)H * r->b, regime, -1.0f);
    float *B = additive_operand(r, (int64_t)r->a * H, regime, 1.0f);
    float *dA = numbers(r, (int64_t)H * r->b, 1.0f),
          *C = numbers(r, (int64_t)H * r->b, 1.0f);
    float *dB = numbers(r, (int64_t)r->a * H, 1.0f),
          *G = numbers(r, (int64_t)r->a * r->b, 1.0f);
    uint64_t *live = r->option & 4 ? live_words(r, r->a, r->b) : NULL;
    poison(G, r->a, r->b, live);
    r->set->additive_tile_backward(dA, C, dB, A, B, G, r->b, r->a, H, regime, live);
    record(r, dA, (int64_t)H * r->b);
    record(r, C, (int64_t)H * r->b);
    record(r, dB, (int64_t)r->a * H);
}

static void
run_philox(run *r) /* n; option: counters that carry into their second word */
{
    uint32_t *words = buffer(r, 4 * (size_t)r->a * sizeof *words);
    uint64_t counter = r->option ? UINT64_C(0xfffffff9) : 12345;
    r->set->philox(words, r->a, counter, UINT64_C(0x123456789abcdef0),
                   UINT64_C(0xfedcba9876543210));
    for (int i = 0; i < 4 * r->a; i++) {
        float halves[] = {(float)(words[i] >> 16), (float)(words[i] & 0xffff)};
        record(r, halves, 2);
    }
}

#endif
