/*
 * test_kernels.c -- every kernel of kernels.h, on every instruction set of this CPU.
 *
 *     cc -std=c11 tests/c/test_kernels.c csrc/simd/(all).c -lm
 *
 *     ./a.out              names the kernels, one a line
 *     ./a.out matmul       runs one of them: every set must give the bits of the scalar table
 *     ./a.out matmul avx2  likewise, this set alone
 *     ./a.out matmul 500   likewise every set, in about so many of the cases, spread over all
 *     ./a.out accuracy     exp, tanh and softcap of every set, against libm in double precision
 *     ./a.out accuracy 500 likewise, of about so many floats
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

#include "../../csrc/simd/dispatch.h"
#include "kernel_runs.h"

#ifdef __FP_FAST_FMAF
enum { GENERIC_IS_FUSED = 1 };
#else
enum { GENERIC_IS_FUSED = 0 };
#endif

static const double GENERIC_TOLERANCE = 1e-5; /* of the largest number of a run */

/* ---- the sizes of each kernel; lists end with END ---------------------------------------------- */

enum { END = -1 };
static const int none[] = {0, END};
static const int row_counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, END};
static const int few_rows[] = {0, 1, 2, 3, 4, 5, 8, 9, END};
static const int features[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 17, 64, 67, END};
static const int widths[] = {0,  1,  2,  3,  4,  5,  7,  8,  9,  11, 12,
                             13, 15, 16, 17, 19, 20, 23, 24, 25, 31, 32,
                             33, 40, 47, 48, 49, 63, 64, 65, 67, END};
static const int row_widths[] = {1,  2,  3,  5,  7,   8,   9,   15,  16, 17, 31,
                                 32, 33, 47, 48, 49,  55,  56,  57,  63, 64, 65,
                                 79, 80, 81, 96, 127, 128, 129, 150, END};
static const int lane_counts[] = {1, 16, 32, 48, 64, END};
static const int backward_lanes[] = {1, 16, 32, END};
static const int queries[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, END};
static const int columns[] = {0,  1,  3,  4,  5,  7,  8,  9,  12, 15,
                              16, 17, 24, 31, 32, 33, 49, 64, END};
static const int chunks[] = {0, 1, 2, 3, 256, 257, 513, END};
static const int tile_keys[] = {0, 1, 2, 3, 16, 127, 128, END};
/* Sums of 64 at a time: of one, and of two. */
static const int hidden[] = {2, 4, 6, 16, 34, 66, END};

static const struct {
    const char *name;
    void (*run)(run *r);
    const int *a, *b, *c;
    int options;
} kernels[] = {
    {"matmul", run_matmul, row_counts, columns, chunks, 4},
    {"pool", run_pool, features, lane_counts, tile_keys, 4},
    {"matmul_live", run_matmul_live, few_rows, widths, queries, 1},
    {"distance", run_distance, row_counts, lane_counts, chunks, 1},
    {"difference_lanes", run_difference_lanes, row_counts, lane_counts, few_rows, 2},
    {"difference_rows", run_difference_rows, few_rows, queries, widths, 2},
    {"outer", run_outer, few_rows, widths, none, 2},
    {"pack", run_pack, queries, widths, none, 2},
    {"unpack", run_unpack, queries, widths, none, 4},
    {"live_bytes", run_live_bytes, queries, tile_keys, none, 2},
    {"live_floats", run_live_floats, queries, tile_keys, none, 1},
    {"softmax_tile", run_softmax_tile, tile_keys, lane_counts, none, 4},
    {"prob_tile", run_prob_tile, tile_keys, lane_counts, none, 2},
    {"add_tile", run_add_tile, tile_keys, lane_counts, none, 2},
    {"softcap", run_softcap, widths, none, none, 4},
    {"scale_tile", run_scale_tile, tile_keys, lane_counts, none, 1},
    {"dot_tile", run_dot_tile, tile_keys, lane_counts, none, 2},
    {"dscore_tile", run_dscore_tile, tile_keys, lane_counts, none, 2},
    {"keep_tile", run_keep_tile, tile_keys, lane_counts, none, 1},
    {"softmax_rows", run_softmax_rows, row_widths, row_counts, none, 8},
    {"softmax_rows_backward", run_softmax_rows_backward, row_widths, few_rows, none, 4},
    {"dot_row", run_dot_row, widths, none, none, 1},
    {"absmax_row", run_absmax_row, widths, none, none, 1},
    {"exp_form", run_exp_form, widths, none, none, 2},
    {"tanh_form", run_tanh_form, widths, none, none, 2},
    {"negate_absmax", run_negate_absmax, row_counts, lane_counts, none, 2},
    {"additive_tile", run_additive_tile, row_counts, lane_counts, hidden, 8},
    {"additive_tile_backward", run_additive_tile_backward, few_rows, backward_lanes,
     hidden, 8},
    {"philox", run_philox, widths, none, none, 2},
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
    printf("FAILED %s %s(%d, %d, %d) option %d%s: %s at %lld: %a, expected %a\n",
           r->set->name, kernels[kernel].name, r->a, r->b, r->c, r->option,
           r->nasty ? " nasty" : "", what, (long long)i, (double)got, (double)expected);
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

/* Runs one case on all sets; adds the numbers compared to compared[]. Scalar comes first. */
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
    compared[0] += (int64_t)expected.written;
    for (int s = 1; s < count; s++) {
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

static int
length(const int *list)
{
    int n = 0;
    while (list[n] != END) {
        n++;
    }
    return n;
}

/* The case of this number: options turn fastest, then c, b, a; the quotient is what is left. */
static int
choose(const int *list, int64_t *number)
{
    int n = length(list), i = (int)(*number % n);
    *number /= n;
    return list[i];
}

static run
case_of(int kernel, int64_t number)
{
    int options = 2 * kernels[kernel].options, option = (int)(number % options);
    run r = {.option = option / 2, .nasty = option % 2};
    number /= options;
    r.c = choose(kernels[kernel].c, &number);
    r.b = choose(kernels[kernel].b, &number);
    r.a = choose(kernels[kernel].a, &number);
    return r;
}

static int64_t
common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* So far apart that about `most` are left of so many, and prime to their number, hence to the
 * length of each list: every size comes with every option, and with other ones. */
static int64_t
stride(int64_t cases, int64_t most)
{
    int64_t step = cases > most ? cases / most : 1;
    while (common_divisor(cases, step) > 1) {
        step++;
    }
    return step;
}

static void
compare(int kernel, const char *only, int64_t most)
{
    const char *names[SETS];
    const attn_kernels *sets[SETS];
    int64_t compared[SETS] = {0};
    int count = 0, available = attn_cpu_available(names, SETS);
    for (int s = 0; s < available; s++) {
        if (s == 0 || only == NULL ||
            strcmp(names[s], only) == 0) { /* the first is scalar */
            names[count] = names[s];
            sets[count++] = set_named(names[s]);
        }
    }
    int64_t cases = 2 * kernels[kernel].options;
    cases *= length(kernels[kernel].a) * length(kernels[kernel].b);
    cases *= length(kernels[kernel].c);
    int64_t step = stride(cases, most);
    for (int64_t i = 0; i < cases; i += step) {
        const run r = case_of(kernel, i);
        compare_case(kernel, &r, sets, count, compared);
    }
    for (int s = 0; s < count; s++) {
        bool exact = sets[s] != &attn_kernels_generic || GENERIC_IS_FUSED;
        printf("%s %s %lld\n", names[s], exact ? "equal" : "near",
               (long long)compared[s]);
    }
}

/* ---- exp, tanh and softcap against libm --------------------------------------------------------- */

enum { BLOCK = 1024 };
static const int64_t ALL_FLOATS = INT64_C(1) << 32;

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
    const float origin = 0.0f, factor = 1.0f;
    k->prob_tile(out, 1, (int)n, &origin, &factor, NULL);
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

/* Under a cap of 3, whose inverse is rounded; the slope of one of 1, whose is not. */
static void
softcap_of(const attn_kernels *k, float *out, const float *x, int64_t n)
{
    memcpy(out, x, (size_t)n * sizeof *x);
    k->softcap(out, NULL, n, 3.0f, 1.0f / 3.0f);
}

static double
softcap(double x)
{
    return 3.0 * tanh(x / 3.0);
}

static void
slope_of(const attn_kernels *k, float *out, const float *x, int64_t n)
{
    float under_cap[BLOCK];
    memcpy(under_cap, x, (size_t)n * sizeof *x);
    k->softcap(under_cap, out, n, 1.0f, 1.0f);
}

static double
slope(double x)
{
    return 1.0 / (cosh(x) * cosh(x));
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
    {"softcap", softcap_of, softcap, -FLT_MAX, FLT_MAX},
    {"slope", slope_of, slope, -43.5f, 43.5f},
};

/* Prints the largest error of one function on one set, in units in the last place, over one float
 * in so many. */
static void
measure(const attn_kernels *k, int f, int64_t step)
{
    float x[BLOCK], y[BLOCK], at = 0.0f;
    double worst = 0.0;
    int n = 0;
    for (int64_t bits = 0; bits < ALL_FLOATS; bits += step) {
        uint32_t word = (uint32_t)bits;
        memcpy(&x[n], &word, sizeof word);
        n += x[n] >= functions[f].low && x[n] <= functions[f].high &&
             fabsf(x[n]) > FLT_MIN;
        if (n == BLOCK || (n > 0 && bits + step >= ALL_FLOATS)) {
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
                       127.0f,    128.0f,  INFINITY,    NAN};
    const float x[] = {-INFINITY, -20.0f, -1e-41f,  -0.0f, 0.0f,
                       1e-41f,    20.0f,  INFINITY, NAN};
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
accuracy(int64_t floats)
{
    const char *names[SETS];
    int count = attn_cpu_available(names, SETS);
    for (int s = 0; s < count; s++) {
        for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
            measure(set_named(names[s]), (int)f, ALL_FLOATS / floats);
        }
        specials(set_named(names[s]));
    }
}

int
main(int argc, char **argv)
{
    long long most = argc == 3 ? strtoll(argv[2], NULL, 10) : 0; /* 0 of a set's name */
    if (argc >= 2 && strcmp(argv[1], "accuracy") == 0) {
        accuracy(most > 0 ? most : ALL_FLOATS / 1499);
        return 0;
    }
    for (int kernel = 0; kernel < KERNELS; kernel++) {
        if (argc >= 2 && strcmp(argv[1], kernels[kernel].name) == 0) {
            compare(kernel, argc == 3 && most == 0 ? argv[2] : NULL,
                    most > 0 ? most : INT64_MAX);
            return 0;
        }
        if (argc < 2) {
            puts(kernels[kernel].name);
        }
    }
    return argc < 2 ? 0 : 2;
}
