/*
 * fuzz_attention.c -- random problems through the C interface of attn.h, for libFuzzer.
 *
 *     clang -std=c11 -g -O1 -pthread -fsanitize=fuzzer,address,undefined \
 *         tests/c/fuzz_attention.c csrc/core/(all).c csrc/simd/(all).c -lm
 *
 * How an input becomes a problem is in fuzz_problem.h. Outputs and workspace start as NaN,
 * so that what is not written, or is read before it is, shows. Checked:
 *
 *     every instruction set gives the bits of the scalar one (but generic on a target
 *     without fused multiply-add, which rounds twice);
 *     tame numbers in, finite numbers out, whatever stands in the padding; weights that
 *     sum to 1 and are 0 there;
 *     the output is the same without weights and lse, and with several threads;
 *     some rows of one entry, alone and with less padding, give what they gave before.
 *
 * A few inputs have infinities and NaN among their numbers; of them only bits are compared.
 */
#include <stdio.h>

#include "../../csrc/simd/dispatch.h"
#include "fuzz_problem.h"

#ifdef __FP_FAST_FMAF
static const bool generic_is_fused = true;
#else
static const bool generic_is_fused = false;
#endif

/* ---- what is computed of it ------------------------------------------------------ */

enum {
    OUTPUT,
    WEIGHTS,
    LSE,
    D_QUERIES,
    D_KEYS,
    D_VALUES,
    D_W_Q,
    D_W_K,
    D_W_V,
    D_B_H,
    D_W,
    SOFTMAX,
    D_X,
    SCORES,
    RESULTS,
};

static const char *const names[RESULTS] = {
    [OUTPUT] = "output",
    [WEIGHTS] = "weights",
    [LSE] = "lse",
    [D_QUERIES] = "dq",
    [D_KEYS] = "dk",
    [D_VALUES] = "dv",
    [D_W_Q] = "dW_q",
    [D_W_K] = "dW_k",
    [D_W_V] = "dw_v",
    [D_B_H] = "db_h",
    [D_W] = "dw",
    [SOFTMAX] = "masked softmax",
    [D_X] = "masked softmax backward",
    [SCORES] = "scores",
};

typedef struct {
    const char *set;
    float *of[RESULTS]; /* NULL: not computed */
    int64_t n[RESULTS];
} results;

static void
check(bool holds, const problem *c, const char *set, int which, const char *what)
{
    const attn_problem *p = &c->p;
    if (holds) {
        return;
    }
    fprintf(stderr, "%s: %s: %s\n", set, names[which], what);
    fprintf(stderr, "score %d B %d M %d N %d Dq %d Dk %d Dv %d H %d, ", (int)p->score,
            (int)p->B, (int)p->M, (int)p->N, (int)p->Dq, (int)p->Dk, (int)p->Dv,
            (int)p->H);
    fprintf(stderr, "empty rows %d, dropout %g, threads %d\n", (int)p->empty_rows,
            (double)p->dropout_p, c->threads);
    abort();
}

static void
allocate_results(results *r, const problem *c)
{
    const attn_problem *p = &c->p;
    const bool additive = p->score == ATTN_ADDITIVE;
    const int64_t n[RESULTS] = {
        [OUTPUT] = p->B * p->M * p->Dv,
        [WEIGHTS] = p->B * p->M * p->N,
        [LSE] = p->B * p->M,
        [D_QUERIES] = p->B * p->M * p->Dq,
        [D_KEYS] = p->B * p->N * p->Dk,
        [D_VALUES] = p->B * p->N * p->Dv,
        [D_W_Q] = additive ? p->H * p->Dq : -1,
        [D_W_K] = additive ? p->H * p->Dk : -1,
        [D_W_V] = additive ? p->H : -1,
        [D_B_H] = p->b_h != NULL ? p->H : -1,
        [D_W] = p->score == ATTN_GAUSSIAN ? 1 : -1,
        [SOFTMAX] = p->B * p->M * p->N,
        [D_X] = p->B * p->M * p->N,
        [SCORES] = p->B * p->M * p->N,
    };
    for (int i = 0; i < RESULTS; i++) {
        r->n[i] = n[i] < 0 ? 0 : n[i];
        r->of[i] = n[i] < 0 ? NULL : nan_floats(n[i]);
    }
}

static results
compute(const problem *c, const char *set)
{
    const attn_problem *p = &c->p;
    results r = {.set = set};
    allocate_results(&r, c);
    attn_run run = {.threads = c->threads};
    void *work = nan_bytes(attn_forward_workspace(p, c->threads));
    attn_forward(r.of[OUTPUT], r.of[WEIGHTS], r.of[LSE], c->queries, c->keys, c->values,
                 p, work, &run);
    attn_gradients d = {
        r.of[D_QUERIES], r.of[D_KEYS], r.of[D_VALUES], r.of[D_W_Q],
        r.of[D_W_K],     r.of[D_W_V],  r.of[D_B_H],    r.of[D_W],
    };
    attn_grad_outputs grad = {c->dout, c->dweights, c->dlse};
    attn_saved saved = {c->use_saved ? r.of[OUTPUT] : NULL,
                        c->use_saved ? r.of[LSE] : NULL};
    run = (attn_run){.threads = c->threads};
    work = nan_bytes(attn_backward_workspace(p, &grad, c->threads));
    attn_backward(&d, &grad, &saved, c->queries, c->keys, c->values, p, work, &run);

    run = (attn_run){.threads = c->threads};
    attn_masked_softmax(r.of[SOFTMAX], c->X, p->B, p->M, p->N, &p->valid, p->empty_rows,
                        &run);
    run = (attn_run){.threads = c->threads};
    attn_masked_softmax_backward(r.of[D_X], c->dsoftmax, r.of[SOFTMAX], p->B, p->M,
                                 p->N, &p->valid, p->empty_rows, &run);

    attn_problem every_pair = *p; /* as the callers of attn_scores have it */
    every_pair.valid = (attn_valid_lens){.heads = 1};
    run = (attn_run){.threads = c->threads};
    work = nan_bytes(attn_scores_workspace(&every_pair, c->threads));
    attn_scores(r.of[SCORES], c->queries, c->keys, &every_pair, work, &run);
    return r;
}

/* The bits of all results so far, those of the scalar kernels: for fuzz_main.c. */
uint64_t fuzz_checksum = UINT64_C(0xcbf29ce484222325);

static void
add_to_checksum(const results *r) /* FNV-1a, a word at a time */
{
    for (int i = 0; i < RESULTS; i++) {
        for (int64_t k = 0; k < r->n[i]; k++) {
            uint32_t word = 0x7fc00000; /* of any NaN */
            if (!isnan(r->of[i][k])) {
                memcpy(&word, &r->of[i][k], sizeof word);
            }
            fuzz_checksum = (fuzz_checksum ^ word) * UINT64_C(0x100000001b3);
        }
    }
}

/* ---- what must hold -------------------------------------------------------------- */

/* A NaN equals any other NaN. */
static bool
same_bits(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i]))) {
            return false;
        }
    }
    return true;
}

/* Row `row` of width n is finite, unless the row is empty: then it is `empty`. */
static bool
row_is_right(const float *x, int64_t n, bool is_empty, float empty)
{
    for (int64_t i = 0; i < n; i++) {
        if (is_empty && !isfinite(empty) ? !same_bits(&x[i], &empty, 1)
                                         : !isfinite(x[i])) {
            return false;
        }
    }
    return true;
}

static void
check_finite(const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    const float of_empty = p->empty_rows == ATTN_EMPTY_NAN && p->N > 0 ? NAN : 0.0f;
    const int64_t width[RESULTS] = {
        [OUTPUT] = p->Dv,    [WEIGHTS] = p->N, [LSE] = 1,
        [D_QUERIES] = p->Dq, [SOFTMAX] = p->N, [D_X] = p->N,
    };
    for (int i = 0; i < SCORES; i++) { /* scores also have pairs that take no part */
        if (width[i] == 0) {           /* not one row of each query */
            check(row_is_right(r->of[i], r->n[i], false, 0.0f), c, r->set, i,
                  "not finite");
            continue;
        }
        for (int64_t row = 0; row < p->B * p->M; row++) {
            bool is_empty = limit_of(p, row / p->M, row % p->M) == 0;
            check(row_is_right(r->of[i] + row * width[i], width[i], is_empty,
                               i == LSE ? -INFINITY : of_empty),
                  c, r->set, i, "not finite, or an empty row is not what it should be");
        }
    }
}

static void
check_weights(const problem *c, const results *r, int which)
{
    const attn_problem *p = &c->p;
    for (int64_t row = 0; row < p->B * p->M; row++) {
        const float *w = r->of[which] + row * p->N;
        int64_t limit = limit_of(p, row / p->M, row % p->M);
        double sum = 0.0, wanted = limit > 0 ? 1.0 : 0.0;
        for (int64_t j = 0; j < p->N; j++) {
            sum += (double)w[j];
            check(j < limit || limit == 0 || w[j] == 0.0f, c, r->set, which,
                  "padding weighs");
        }
        if (limit == 0 && p->empty_rows == ATTN_EMPTY_UNIFORM && p->N > 0) {
            wanted = 1.0;
        }
        check(isnan(sum) || fabs(sum - wanted) < 1e-5, c, r->set, which, "wrong sum");
    }
}

/* Asking for nothing but the output, on one thread, changes no bit of it. */
static void
check_output_alone(const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    attn_run run = {.threads = 1};
    float *output = nan_floats(r->n[OUTPUT]);
    void *work = nan_bytes(attn_forward_workspace(p, 1));
    attn_forward(output, NULL, NULL, c->queries, c->keys, c->values, p, work, &run);
    check(same_bits(output, r->of[OUTPUT], r->n[OUTPUT]), c, r->set, OUTPUT,
          "depends on the extras or the threads");
}

/* A copy of the first n of `stride` columns of rows [first, first + count); NULL of NULL. */
static float *
columns_of(const float *x, int64_t first, int64_t count, int64_t stride, int64_t n)
{
    if (x == NULL) {
        return NULL;
    }
    float *copy = nan_floats(count * n);
    for (int64_t row = 0; row < count; row++) {
        for (int64_t j = 0; j < n; j++) {
            copy[row * n + j] = x[(first + row) * stride + j];
        }
    }
    return copy;
}

/* Query rows [row, row + count) of entry b as a problem of their own, cut off behind the
 * last key they use. */
static problem
part_of(const problem *c, int64_t b, int64_t row, int64_t count)
{
    const attn_problem *p = &c->p;
    int64_t *lens = allocate((size_t)count * sizeof *lens);
    int64_t N = p->N > 0;
    for (int64_t m = 0; m < count; m++) {
        lens[m] = limit_of(p, b, row + m - b * p->M);
        N = lens[m] == 0 && p->empty_rows == ATTN_EMPTY_UNIFORM ? p->N : N;
        N = lens[m] > N ? lens[m] : N;
    }
    problem part = *c;
    part.p.B = 1;
    part.p.M = count;
    part.p.N = N;
    part.p.valid = (attn_valid_lens){.lens = lens, .heads = 1, .stride_m = 1};
    part.queries = columns_of(c->queries, row, count, p->Dq, p->Dq);
    part.keys = columns_of(c->keys, b * p->N, N, p->Dk, p->Dk);
    part.values = columns_of(c->values, b * p->N, N, p->Dv, p->Dv);
    part.X = columns_of(c->X, row, count, p->N, N);
    part.dsoftmax = columns_of(c->dsoftmax, row, count, p->N, N);
    part.dout = columns_of(c->dout, row, count, p->Dv, p->Dv);
    part.dweights = columns_of(c->dweights, row, count, p->N, N);
    part.dlse = columns_of(c->dlse, row, count, 1, 1);
    return part;
}

/* Some rows alone give what they gave among all: neither the neighbours nor the padding
 * mattered. Not with dropout, whose pattern goes by the place in the batch, nor with the
 * saved output and lse. */
static void
check_part(source *s, const problem *c, const results *whole)
{
    static const int by_row[] = {OUTPUT, WEIGHTS, LSE, D_QUERIES, SOFTMAX, D_X};
    const attn_problem *p = &c->p;
    if (p->B == 0 || p->M == 0 || p->dropout_p > 0.0f || c->use_saved) {
        return;
    }
    int64_t b = next_byte(s) % p->B, m0 = next_byte(s) % p->M;
    int64_t count = 1 + next_byte(s) % (p->M - m0), row = b * p->M + m0;
    const problem part = part_of(c, b, row, count);
    const results r = compute(&part, whole->set);

    for (size_t i = 0; i < sizeof by_row / sizeof *by_row; i++) {
        int which = by_row[i];
        int64_t n = r.n[which] / count, stride = whole->n[which] / (p->B * p->M);
        for (int64_t m = 0; m < count; m++) {
            const float *expected = whole->of[which] + (row + m) * stride;
            check(same_bits(r.of[which] + m * n, expected, n), c, whole->set, which,
                  "of some rows depends on the others, or on padding");
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    source s = open_source(data, length);
    const problem c = choose_problem(&s);
    const char *sets[8];
    int count = attn_cpu_available(sets, 8); /* scalar first */
    results scalar = {0};

    for (int i = 0; i < count; i++) {
        attn_cpu_select(sets[i]);
        const results r = compute(&c, sets[i]);
        if (i == 0) {
            scalar = r;
            add_to_checksum(&r);
        }
        bool comparable = strcmp(sets[i], "generic") != 0 || generic_is_fused;
        for (int k = 0; comparable && k < RESULTS; k++) {
            check(same_bits(scalar.of[k], r.of[k], r.n[k]), &c, r.set, k,
                  "not the bits of scalar");
        }
        if (c.tame) {
            check_finite(&c, &r);
            check_weights(&c, &r, WEIGHTS);
            check_weights(&c, &r, SOFTMAX);
        }
        check_output_alone(&c, &r);
        source same = s;
        check_part(&same, &c, &r);
    }
    free_all();
    return 0;
}
