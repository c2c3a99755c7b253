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
#include "kernel_accuracy.h"
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
    {"matmul", run_matmul, row_counts, columns, chunks, 6},
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
    size_t bytes = expected->written * sizeof *expected->result;
    if (got->written == expected->written &&
        memcmp(got->result, expected->result, bytes) == 0) {
        return -1; /* most often, and the quickest way to see it */
    }
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
