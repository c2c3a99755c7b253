/*
 * test_kernels.c -- every kernel of kernels.h, on every instruction set of this CPU.
 *
 *     cc -std=c11 tests/c/test_kernels.c csrc/simd/(all).c -lm
 *
 *     ./a.out              names the kernels, one a line
 *     ./a.out matmul       runs one of them: every set must give the bits of the scalar table
 *     ./a.out accuracy     exp and tanh of every set, against libm in double precision
 *
 * Each kernel runs over sizes around the vector lengths, in heap buffers of exactly the size
 * its contract names (a sanitizer then sees every step outside), with and without the optional
 * operands. What a dead pair holds is NaN: it must not reach a result. Some runs are given
 * infinities, NaN, zeros of both signs and subnormal numbers. A NaN equals any other NaN.
 *
 * The generic kernels round twice where the target has no fused multiply-add; built for such
 * a target, they are compared within a tolerance, and not on nasty numbers.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/simd/dispatch.h"
#include "../../csrc/simd/kernels.h"

#ifdef __FP_FAST_FMAF
enum { GENERIC_IS_FUSED = 1 };
#else
enum { GENERIC_IS_FUSED = 0 };
#endif

static const double GENERIC_TOLERANCE = 1e-5; /* of the largest number of a run */

/* One run of one kernel: its sizes and options, its buffers, what it wrote. */
typedef struct {
    const attn_kernels *set;
    int a, b, c;       /* sizes */
    int option;        /* which optional operands, 0 .. the kernel's options - 1 */
    bool nasty;        /* infinities, NaN, zeros, subnormals among the operands */
    uint64_t random;
    float *buffer[12]; /* freed at the end */
    int buffers;
    float *result;
    size_t written;
} run;

enum { MOST_WRITTEN = 1 << 16 };

/* ---- random operands in buffers of exactly their size --------------------------------------- */

static uint32_t
next_random(run *r) /* xorshift64* */
{
    r->random ^= r->random >> 12;
    r->random ^= r->random << 25;
    r->random ^= r->random >> 27;
    return (uint32_t)((r->random * UINT64_C(0x2545F4914F6CDD1D)) >> 32);
}

static float
number(run *r, float size) /* in (-size, size), or nasty */
{
    static const float nasty[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-41f, -1e-41f, 3e38f};
    uint32_t word = next_random(r);
    if (r->nasty && word % 16 == 0) {
        return nasty[word / 16 % 8];
    }
    return size * (float)((double)word / 2147483648.0 - 1.0);
}

static void *
buffer(run *r, size_t bytes)
{
    float *memory = malloc(bytes);
    if (memory == NULL || r->buffers == sizeof r->buffer / sizeof *r->buffer) {
        abort();
    }
    return r->buffer[r->buffers++] = memory;
}

static float *
numbers(run *r, int64_t n, float size)
{
    float *x = buffer(r, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = number(r, size);
    }
    return x;
}

/* Live words of a tile: about three pairs in four, one key without any. */
static uint64_t *
live_words(run *r, int rows, int lanes)
{
    uint64_t *live = buffer(r, (size_t)rows * sizeof *live);
    uint64_t all = lanes < 64 ? ((uint64_t)1 << lanes) - 1 : ~(uint64_t)0;
    for (int i = 0; i < rows; i++) {
        uint64_t half = (uint64_t)next_random(r) << 32 | next_random(r);
        uint64_t other = (uint64_t)next_random(r) << 32 | next_random(r);
        live[i] = i == 2 ? 0 : (half | other) & all;
    }
    return live;
}

/* NaN in every dead pair of X [rows][lanes]. */
static void
poison(float *X, int rows, int lanes, const uint64_t *live)
{
    for (int i = 0; live != NULL && i < rows; i++) {
        for (int l = 0; l < lanes; l++) {
            if (!(live[i] >> l & 1)) {
                X[i * lanes + l] = NAN;
            }
        }
    }
}

static void
record(run *r, const float *x, int64_t n)
{
    if (r->written + (size_t)n > MOST_WRITTEN) {
        abort();
    }
    memcpy(r->result + r->written, x, (size_t)n * sizeof *x);
    r->written += (size_t)n;
}

/* ---- the kernels, one function each ----------------------------------------------------------- */

/* Floats of `rows` rows of `cols`, `stride` apart, the last one without what follows it. */
static int64_t
span(int64_t rows, int64_t cols, int64_t stride)
{
    return rows == 0 || cols == 0 ? 0 : (rows - 1) * stride + cols;
}

static void
run_matmul(run *r) /* rows, cols, K; options: add, X walked along columns */
{
    bool add = r->option & 1, columns = r->option & 2;
    int64_t ldc = r->b + 3, ldx = columns ? 1 : r->c, sx = columns ? r->a : 1;
    float *C = numbers(r, span(r->a, r->b, ldc), 2.0f);
    float *X = numbers(r, (int64_t)r->a * r->c, 2.0f), *Y = numbers(r, (int64_t)r->c * r->b, 2.0f);
    r->set->matmul(C, ldc, X, ldx, sx, Y, r->b, r->a, r->b, r->c, add);
    record(r, C, span(r->a, r->b, ldc));
}

static void
run_pool(run *r) /* rows, lanes, K; options: alpha, live */
{
    int lanes = r->b;
    float *C = numbers(r, (int64_t)r->a * lanes, 2.0f);
    float *X = numbers(r, (int64_t)r->c * r->a, 2.0f), *Y = numbers(r, (int64_t)r->c * lanes, 2.0f);
    float *alpha = r->option & 1 ? numbers(r, lanes, 1.0f) : NULL;
    uint64_t *live = r->option & 2 ? live_words(r, r->c, lanes) : NULL;
    poison(Y, r->c, lanes, live);
    r->set->pool(C, X, 1, r->a, Y, lanes, r->a, r->c, alpha, live);
    record(r, C, (int64_t)r->a * lanes);
}

static void
run_matmul_live(run *r) /* rows, cols, K */
{
    int lanes = (r->c + 15) / 16 * 16;
    float *C = numbers(r, (int64_t)r->a * r->b, 2.0f), *X = numbers(r, (int64_t)r->a * lanes, 2.0f);
    float *Y = numbers(r, (int64_t)r->c * r->b, 2.0f);
    uint64_t *live = live_words(r, r->a, lanes);
    poison(X, r->a, lanes, live);
    r->set->matmul_live(C, r->b, X, lanes, Y, r->b, r->a, r->b, r->c, live);
    record(r, C, (int64_t)r->a * r->b);
}

static void
run_distance(run *r) /* rows, lanes, K */
{
    float *S = numbers(r, (int64_t)r->a * r->b, 2.0f), *X = numbers(r, (int64_t)r->a * r->c, 2.0f);
    float *Y = numbers(r, (int64_t)r->c * r->b, 2.0f);
    r->set->distance(S, X, r->c, Y, r->b, r->a, r->c, -0.75f);
    record(r, S, (int64_t)r->a * r->b);
}

static void
run_difference_lanes(run *r) /* rows, lanes, D; option: live */
{
    float *dQ = numbers(r, (int64_t)r->c * r->b, 2.0f), *G = numbers(r, (int64_t)r->a * r->b, 2.0f);
    float *X = numbers(r, (int64_t)r->a * r->c, 2.0f), *Q = numbers(r, (int64_t)r->c * r->b, 2.0f);
    uint64_t *live = r->option ? live_words(r, r->a, r->b) : NULL;
    poison(G, r->a, r->b, live);
    r->set->difference_lanes(dQ, G, X, r->c, Q, r->b, r->a, r->c, live);
    record(r, dQ, (int64_t)r->c * r->b);
}

static void
run_difference_rows(run *r) /* rows, K, D; option: live */
{
    int lanes = (r->b + 15) / 16 * 16;
    float *dX = numbers(r, (int64_t)r->a * r->c, 2.0f), *G = numbers(r, (int64_t)r->a * lanes, 2.0f);
    float *Y = numbers(r, (int64_t)r->b * r->c, 2.0f), *X = numbers(r, (int64_t)r->a * r->c, 2.0f);
    uint64_t *live = r->option ? live_words(r, r->a, lanes) : NULL;
    poison(G, r->a, lanes, live);
    r->set->difference_rows(dX, G, lanes, Y, X, r->a, r->b, r->c, 0.75f, live);
    record(r, dX, (int64_t)r->a * r->c);
}

static void
run_pack(run *r) /* rows, cols */
{
    int lanes = (r->a + 15) / 16 * 16;
    int64_t lds = r->b + 5;
    float *dst = numbers(r, (int64_t)r->b * lanes, 2.0f);
    float *src = numbers(r, span(r->a, r->b, lds), 2.0f);
    r->set->pack(dst, lanes, src, lds, r->a, r->b, 1.25f);
    record(r, dst, (int64_t)r->b * lanes);
}

static void
run_unpack(run *r) /* rows, cols; option: factor */
{
    int lanes = (r->a + 15) / 16 * 16;
    int64_t ldd = r->b + 5;
    float *dst = numbers(r, span(r->a, r->b, ldd), 2.0f);
    float *src = numbers(r, (int64_t)r->b * lanes, 2.0f);
    float *factor = r->option ? numbers(r, lanes, 2.0f) : NULL;
    r->set->unpack(dst, ldd, src, lanes, r->a, r->b, factor);
    record(r, dst, span(r->a, r->b, ldd));
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
    for (int i = 0; i < r->b; i++) { /* finite where it ought to be, for the check of poison */
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
    float *dP = numbers(r, (int64_t)r->a * r->b, 2.0f), *P = numbers(r, (int64_t)r->a * r->b, 1.0f);
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

static void
run_prob_row(run *r) /* n */
{
    float *w = numbers(r, r->a, 140.0f);
    r->set->prob_row(w, r->a, 3.5f, 0.3f);
    record(r, w, r->a);
}

static void
run_softmax_row(run *r) /* n; option: of size 100, so that exp underflows */
{
    float *out = numbers(r, r->a, 1.0f), *x = numbers(r, r->a, r->option ? 100.0f : 4.0f);
    if (r->a > 0) { /* rows without a key are the caller's */
        r->set->softmax_row(out, x, r->a);
    }
    record(r, out, r->a);
}

static void
run_softmax_row_backward(run *r) /* n */
{
    float *dx = numbers(r, r->a, 1.0f), *dw = numbers(r, r->a, 2.0f), *w = numbers(r, r->a, 1.0f);
    r->set->softmax_row_backward(dx, dw, w, r->a);
    record(r, dx, r->a);
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
    float *out = numbers(r, r->a, 1.0f), *x = numbers(r, r->a, r->option ? 43.6f : 3.0f);
    r->set->exp_form(out, x, r->a);
    record(r, out, r->a);
}

static void
run_tanh_form(run *r) /* n; option: of size 1, around the two ways tanh is computed */
{
    float *out = numbers(r, r->a, 1.0f), *x = numbers(r, r->a, r->option ? 1.0f : 30.0f);
    r->set->tanh_form(out, x, r->a);
    record(r, out, r->a);
}

static void
run_add_bias_absmax(run *r) /* H, lanes; option: bias */
{
    float *A = numbers(r, (int64_t)r->a * r->b, 3.0f), *top = numbers(r, r->b, 1.0f);
    float *bias = r->option ? numbers(r, r->a, 3.0f) : NULL;
    r->set->add_bias_absmax(A, bias, top, r->b, r->a);
    record(r, A, (int64_t)r->a * r->b);
    record(r, top, r->b);
}

/* Pre-activations of the regime's full range, in the form that the regime takes. */
static float *
additive_operand(run *r, int64_t n, additive_regime regime)
{
    static const float limit[] = {1.0f, 10.9f, 43.6f, 60.0f};
    float *x = numbers(r, n, limit[regime]);
    for (int64_t i = 0; i < n; i++) {
        x[i] = i % 7 == 3 ? copysignf(limit[regime], x[i]) : x[i];
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
    float *A = additive_operand(r, (int64_t)r->c * r->b, regime);
    float *B = additive_operand(r, (int64_t)r->a * r->c, regime);
    float *w = numbers(r, r->c, 1.0f), *S = numbers(r, (int64_t)r->a * r->b, 1.0f);
    uint64_t *live = r->option & 4 ? live_words(r, r->a, r->b) : NULL;
    bool exp = regime == ADDITIVE_EXP || regime == ADDITIVE_CLAMPED;
    r->set->additive_tile(S, A, B, w, exp ? 0.5f : 0.0f, r->b, r->a, r->c, regime, live);
    record(r, S, (int64_t)r->a * r->b);
}

static void
run_additive_tile_backward(run *r) /* rows, lanes, H; options: regime, live */
{
    additive_regime regime = (additive_regime)(r->option & 3);
    float *A = additive_operand(r, (int64_t)r->c * r->b, regime);
    float *B = additive_operand(r, (int64_t)r->a * r->c, regime);
    float *dA = numbers(r, (int64_t)r->c * r->b, 1.0f), *C = numbers(r, (int64_t)r->c * r->b, 1.0f);
    float *dB = numbers(r, (int64_t)r->a * r->c, 1.0f), *G = numbers(r, (int64_t)r->a * r->b, 1.0f);
    uint64_t *live = r->option & 4 ? live_words(r, r->a, r->b) : NULL;
    poison(G, r->a, r->b, live);
    r->set->additive_tile_backward(dA, C, dB, A, B, G, r->b, r->a, r->c, regime, live);
    record(r, dA, (int64_t)r->c * r->b);
    record(r, C, (int64_t)r->c * r->b);
    record(r, dB, (int64_t)r->a * r->c);
}

/* ---- the sizes of each kernel; lists end with END ---------------------------------------------- */

enum { END = -1 };
static const int none[] = {0, END};
static const int row_counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, END};
static const int few_rows[] = {0, 1, 2, 3, 4, 5, 8, 9, END};
static const int widths[] = {0,  1,  2,  3,  4,  5,  7,  8,  9,  11, 12, 13, 15, 16, 17, 19,
                             20, 23, 24, 25, 31, 32, 33, 40, 47, 48, 49, 63, 64, 65, 67, END};
static const int lane_counts[] = {16, 32, 48, 64, END};
static const int backward_lanes[] = {16, 32, END};
static const int queries[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, END};
static const int columns[] = {0, 1, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 49, 64, END};
static const int chunks[] = {0, 1, 2, 3, 256, 257, 513, END};
static const int tile_keys[] = {0, 1, 2, 3, 16, 127, 128, END};
static const int hidden[] = {2, 4, 6, 16, 34, END};

static const struct {
    const char *name;
    void (*run)(run *r);
    const int *a, *b, *c;
    int options;
} kernels[] = {
    {"matmul", run_matmul, row_counts, columns, chunks, 4},
    {"pool", run_pool, row_counts, lane_counts, tile_keys, 4},
    {"matmul_live", run_matmul_live, few_rows, widths, queries, 1},
    {"distance", run_distance, row_counts, lane_counts, chunks, 1},
    {"difference_lanes", run_difference_lanes, row_counts, lane_counts, few_rows, 2},
    {"difference_rows", run_difference_rows, few_rows, queries, widths, 2},
    {"pack", run_pack, queries, widths, none, 1},
    {"unpack", run_unpack, queries, widths, none, 2},
    {"softmax_tile", run_softmax_tile, tile_keys, lane_counts, none, 4},
    {"prob_tile", run_prob_tile, tile_keys, lane_counts, none, 2},
    {"scale_tile", run_scale_tile, tile_keys, lane_counts, none, 1},
    {"dot_tile", run_dot_tile, tile_keys, lane_counts, none, 2},
    {"dscore_tile", run_dscore_tile, tile_keys, lane_counts, none, 2},
    {"keep_tile", run_keep_tile, tile_keys, lane_counts, none, 1},
    {"prob_row", run_prob_row, widths, none, none, 1},
    {"softmax_row", run_softmax_row, widths, none, none, 2},
    {"softmax_row_backward", run_softmax_row_backward, widths, none, none, 1},
    {"dot_row", run_dot_row, widths, none, none, 1},
    {"absmax_row", run_absmax_row, widths, none, none, 1},
    {"exp_form", run_exp_form, widths, none, none, 2},
    {"tanh_form", run_tanh_form, widths, none, none, 2},
    {"add_bias_absmax", run_add_bias_absmax, row_counts, lane_counts, none, 2},
    {"additive_tile", run_additive_tile, row_counts, lane_counts, hidden, 8},
    {"additive_tile_backward", run_additive_tile_backward, row_counts, backward_lanes, hidden, 8},
};
enum { KERNELS = sizeof kernels / sizeof *kernels };

/* ---- running and comparing ----------------------------------------------------------------------- */

enum { SETS = 4 };

static const attn_kernels *
set_named(const char *name)
{
    attn_cpu_select(name);
    return attn_simd;
}

static void
run_once(int kernel, run *r)
{
    r->random = UINT64_C(0x9E3779B97F4A7C15);
    r->buffers = 0;
    r->written = 0;
    kernels[kernel].run(r);
    while (r->buffers > 0) {
        free(r->buffer[--r->buffers]);
    }
}

/* Index of the first number that differs by more than is allowed, or -1. */
static int64_t
first_difference(const run *got, const run *expected, bool exact)
{
    double largest = 0.0;
    for (size_t i = 0; i < expected->written; i++) {
        largest = fmax(largest, fabs((double)expected->result[i]));
    }
    for (size_t i = 0; i < expected->written; i++) {
        float x = got->result[i], y = expected->result[i];
        bool same = (isnan(x) && isnan(y)) || memcmp(&x, &y, sizeof x) == 0;
        bool near = fabs((double)x - (double)y) <= GENERIC_TOLERANCE * largest;
        if (!same && (exact || !near)) {
            return (int64_t)i;
        }
    }
    return got->written == expected->written ? -1 : (int64_t)expected->written;
}

static void
fail(int kernel, const run *r, const char *what, int64_t i, float got, float expected)
{
    printf("FAILED %s %s(%d, %d, %d) option %d%s: %s at %lld: %a, expected %a\n", r->set->name,
           kernels[kernel].name, r->a, r->b, r->c, r->option, r->nasty ? " nasty" : "", what,
           (long long)i, (double)got, (double)expected);
    exit(1);
}

static void
check_no_poison(int kernel, const run *r)
{
    for (size_t i = 0; !r->nasty && i < r->written; i++) {
        if (!isfinite(r->result[i])) {
            fail(kernel, r, "not finite", (int64_t)i, r->result[i], 0.0f);
        }
    }
}

/* Runs one case on all sets; adds the numbers compared to compared[]. */
static void
compare_case(int kernel, const run *what, const attn_kernels *const sets[], int count,
             int64_t compared[SETS])
{
    static float specified[MOST_WRITTEN], result[MOST_WRITTEN];
    run expected = *what;
    expected.set = &attn_kernels_scalar;
    expected.result = specified;
    run_once(kernel, &expected);
    check_no_poison(kernel, &expected);
    for (int s = 0; s < count; s++) {
        bool exact = sets[s] != &attn_kernels_generic || GENERIC_IS_FUSED;
        run got = *what;
        if (!exact && what->nasty) {
            continue;
        }
        got.set = sets[s];
        got.result = result;
        run_once(kernel, &got);
        check_no_poison(kernel, &got);
        int64_t i = first_difference(&got, &expected, exact);
        if (i >= 0) {
            fail(kernel, &got, "differs from scalar", i, result[i], specified[i]);
        }
        compared[s] += (int64_t)got.written;
    }
}

static void
compare(int kernel)
{
    const char *names[SETS];
    const attn_kernels *sets[SETS];
    int64_t compared[SETS] = {0};
    int count = attn_cpu_available(names, SETS);
    for (int s = 0; s < count; s++) {
        sets[s] = set_named(names[s]);
    }
    run r = {0};
    for (const int *a = kernels[kernel].a; *a != END; a++) {
        for (const int *b = kernels[kernel].b; *b != END; b++) {
            for (const int *c = kernels[kernel].c; *c != END; c++) {
                for (int option = 0; option < 2 * kernels[kernel].options; option++) {
                    r.a = *a;
                    r.b = *b;
                    r.c = *c;
                    r.option = option / 2;
                    r.nasty = option % 2;
                    compare_case(kernel, &r, sets, count, compared);
                }
            }
        }
    }
    for (int s = 0; s < count; s++) {
        bool exact = sets[s] != &attn_kernels_generic || GENERIC_IS_FUSED;
        printf("%s %s %lld\n", names[s], exact ? "equal" : "near", (long long)compared[s]);
    }
}

/* ---- exp and tanh against libm ------------------------------------------------------------------- */

enum { STEP = 1499, BLOCK = 1024 }; /* every 1499th float */

static double
ulps(float got, double exact)
{
    int exponent;
    frexp(exact, &exponent);
    exponent = exponent > -125 ? exponent : -125;
    return fabs((double)got - exact) / ldexp(1.0, exponent - 24);
}

static void
exp2_of(const attn_kernels *k, float *out, const float *x, int64_t n)
{
    memcpy(out, x, (size_t)n * sizeof *x);
    k->prob_row(out, n, 0.0f, 1.0f);
}

static void
exp_of(const attn_kernels *k, float *out, const float *x, int64_t n)
{
    float half[BLOCK];
    for (int64_t i = 0; i < n; i++) {
        half[i] = 0.5f * x[i]; /* exact: no subnormals come here */
    }
    k->exp_form(out, half, n);
}

static void
tanh_of(const attn_kernels *k, float *out, const float *x, int64_t n)
{
    k->tanh_form(out, x, n);
}

static const struct {
    const char *name;
    void (*of)(const attn_kernels *k, float *out, const float *x, int64_t n);
    double (*exact)(double x);
    float low, high;
} functions[] = {
    {"exp2", exp2_of, exp2, -126.0f, 127.0f},
    {"exp", exp_of, exp, -87.3f, 87.0f},
    {"exp_near", exp_of, exp, -2.0f, 2.0f},
    {"tanh", tanh_of, tanh, -100.0f, 100.0f},
};

/* Prints the largest error of one function on one set, in units in the last place. */
static void
measure(const attn_kernels *k, int f)
{
    float x[BLOCK], y[BLOCK], at = 0.0f;
    double worst = 0.0;
    int n = 0;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += STEP) {
        uint32_t word = (uint32_t)bits;
        memcpy(&x[n], &word, sizeof word);
        n += x[n] >= functions[f].low && x[n] <= functions[f].high && fabsf(x[n]) > FLT_MIN;
        if (n == BLOCK || (n > 0 && bits + STEP >= UINT64_C(1) << 32)) {
            functions[f].of(k, y, x, n);
            for (int i = 0; i < n; i++) {
                double error = ulps(y[i], functions[f].exact((double)x[i]));
                at = error > worst ? x[i] : at;
                worst = fmax(worst, error);
            }
            n = 0;
        }
    }
    printf("%s %s %.3f %a\n", k->name, functions[f].name, worst, (double)at);
}

/* Prints what the functions make of special numbers. */
static void
specials(const attn_kernels *k)
{
    const float t[] = {-INFINITY, -200.0f, -126.00001f, -126.0f, 0.0f,
                       127.0f, 128.0f, INFINITY, NAN};
    const float x[] = {-INFINITY, -20.0f, -1e-41f, -0.0f, 0.0f, 1e-41f, 20.0f, INFINITY, NAN};
    enum { N = sizeof t / sizeof *t };
    float y[N];
    exp2_of(k, y, t, N);
    printf("%s exp2_special", k->name);
    for (int i = 0; i < N; i++) {
        printf(" %a", (double)y[i]);
    }
    tanh_of(k, y, x, N);
    printf("\n%s tanh_special", k->name);
    for (int i = 0; i < N; i++) {
        printf(" %a", (double)y[i]);
    }
    printf("\n");
}

static void
accuracy(void)
{
    const char *names[SETS];
    int count = attn_cpu_available(names, SETS);
    for (int s = 0; s < count; s++) {
        for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
            measure(set_named(names[s]), (int)f);
        }
        specials(set_named(names[s]));
    }
}

int
main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "accuracy") == 0) {
        accuracy();
        return 0;
    }
    for (int kernel = 0; kernel < KERNELS; kernel++) {
        if (argc == 2 && strcmp(argv[1], kernels[kernel].name) == 0) {
            compare(kernel);
            return 0;
        }
        if (argc < 2) {
            puts(kernels[kernel].name);
        }
    }
    return argc < 2 ? 0 : 2;
}
