/*
 * fuzz_attention.c -- random problems through the C interface of attn.h, for libFuzzer.
 *
 *     clang -std=c11 -g -O1 -pthread -fsanitize=fuzzer,address,undefined \
 *         tests/c/fuzz_attention.c csrc/(core,os,simd)/(all).c -lm
 *
 * How an input becomes a problem is in fuzz_problem.h and fuzz_masks.h, what is computed
 * of it in fuzz_results.h; fuzz_merge.h does both for merge. Checked here, in
 * fuzz_variants.h and in fuzz_definition.h:
 *
 *     every instruction set gives the bits of the scalar one (but generic on a target
 *     without fused multiply-add, which rounds twice);
 *     tame numbers in, finite numbers out, whatever stands where no pair takes part;
 *     weights that sum to 1, and weights and gradients that are exactly 0 there;
 *     the output is the same without weights and lse, and with several threads;
 *     some rows of one entry, alone and with less padding, give what they gave before;
 *     so do masks written out as one byte and one bias for each pair, and shared keys
 *     written out for each head;
 *     so do queries, keys and values with strides, keys that were prepared before, and
 *     gradients that are projected after;
 *     so do scores under a cap that is far above them;
 *     what is handed back to the backward only saves time;
 *     weights, lse, output, dv, dbias, dsink and dscale are those of the definition, from
 *     the scores.
 *
 * A few inputs have infinities and NaN among their numbers; of them only bits are compared.
 */
#include "../../csrc/simd/dispatch.h"
#include "fuzz_definition.h"
#include "fuzz_merge.h"
#include "fuzz_variants.h"

#ifdef __FP_FAST_FMAF
static const bool generic_is_fused = true;
#else
static const bool generic_is_fused = false;
#endif

/* The bits of all results so far, those of the scalar kernels: for fuzz_main.c. */
uint64_t fuzz_checksum = UINT64_C(0xcbf29ce484222325);

static void
add_to_checksum(const float *x, int64_t n) /* FNV-1a, a word at a time */
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t word = 0x7fc00000; /* of any NaN */
        if (!isnan(x[i])) {
            memcpy(&word, &x[i], sizeof word);
        }
        fuzz_checksum = (fuzz_checksum ^ word) * UINT64_C(0x100000001b3);
    }
}

/* ---- finite, and 0 where nobody takes part --------------------------------------- */

static bool
all_finite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            return false;
        }
    }
    return true;
}

static bool
all_equal(const float *x, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++) {
        if (isnan(value) ? !isnan(x[i]) : x[i] != value) {
            return false;
        }
    }
    return true;
}

/* Everything is finite, but what empty rows have to be. */
static void
check_finite(const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    const bool nan_rows = p->empty_rows == ATTN_EMPTY_NAN && p->N > 0;
    const int64_t width[RESULTS] = {
        [OUTPUT] = p->Dv,    [WEIGHTS] = p->N, [LSE] = 1,
        [D_QUERIES] = p->Dq, [SOFTMAX] = p->N, [D_X] = p->N,
    };
    for (int i = 0; i < SCORES; i++) { /* scores also have pairs that take no part */
        const uint8_t *pairs = i < SOFTMAX ? c->pairs : c->softmax_pairs;
        int64_t rows = width[i] > 0 ? p->B * p->M : r->of[i] != NULL;
        int64_t n = width[i] > 0 ? width[i] : r->n[i];
        for (int64_t row = 0; row < rows; row++) {
            bool empty = width[i] > 0 && is_empty(p, pairs, row);
            const float *x = r->of[i] + row * n;
            float sink = empty && i < SOFTMAX ? sink_of(p, row) : -INFINITY;
            bool nan = empty && nan_rows && sink == -INFINITY;
            bool right = i == LSE && empty ? x[0] == sink
                         : nan             ? all_equal(x, n, NAN)
                                           : all_finite(x, n);
            check(right, c, r->set, i,
                  "not finite, or an empty row is not what it should be");
        }
    }
}

/* Rows of weights sum to 1, with a sink to less, and are 0 where no pair takes part; empty
 * ones are all alike. */
static void
check_weights(const problem *c, const results *r, int which, const uint8_t *pairs)
{
    const attn_problem *p = &c->p;
    for (int64_t row = 0; row < p->B * p->M; row++) {
        const float *w = r->of[which] + row * p->N;
        bool sink = which == WEIGHTS && sink_of(p, row) != -INFINITY;
        double sum = 0.0;
        if (is_empty(p, pairs, row)) {
            float each = sink                                  ? 0.0f
                         : p->empty_rows == ATTN_EMPTY_UNIFORM ? 1.0f / (float)p->N
                         : p->empty_rows == ATTN_EMPTY_NAN     ? NAN
                                                               : 0.0f;
            check(all_equal(w, p->N, each), c, r->set, which, "of an empty row");
            continue;
        }
        for (int64_t j = 0; j < p->N; j++) {
            sum += (double)w[j];
            check(pairs[row * p->N + j] || w[j] == 0.0f, c, r->set, which,
                  "padding weighs");
        }
        check(isnan(sum) || (sink ? sum < 1.0 + 1e-5 : fabs(sum - 1.0) < 1e-5), c,
              r->set, which, "wrong sum");
    }
}

/* The gradient of a bias is 0 unless a pair that has this bias takes part. */
static void
check_dbias(const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    uint8_t *used = memset(nan_bytes((size_t)r->n[D_BIAS]), 0, (size_t)r->n[D_BIAS]);
    for (int64_t i = 0; i < p->B * p->M * p->N; i++) {
        int64_t j = i % p->N, m = i / p->N % p->M, b = i / p->N / p->M;
        if (c->pairs[i]) {
            used[view_at(&p->masks.bias, b, m, j)] = 1;
        }
    }
    for (int64_t i = 0; i < r->n[D_BIAS]; i++) {
        check(used[i] || r->of[D_BIAS][i] == 0.0f, c, r->set, D_BIAS,
              "not 0 though no pair takes part");
    }
}

/* Keys and values that no pair needs have a gradient of 0, as have masked scores. */
static void
check_zeros(const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    for (int64_t e = 0; e < p->B / p->group; e++) {
        bool averaged = values_are_averaged(c, e);
        for (int64_t j = 0; j < p->N; j++) {
            const float *dk = r->of[D_KEYS] + (e * p->N + j) * p->Dk;
            const float *dv = r->of[D_VALUES] + (e * p->N + j) * p->Dv;
            bool used = key_is_used(c, e, j);
            check(used || all_equal(dk, p->Dk, 0.0f), c, r->set, D_KEYS, "not 0");
            check(used || averaged || all_equal(dv, p->Dv, 0.0f), c, r->set, D_VALUES,
                  "not 0");
        }
    }
    for (int64_t i = 0; i < r->n[D_X]; i++) {
        bool nan_row = p->empty_rows == ATTN_EMPTY_NAN &&
                       is_empty(p, c->softmax_pairs, i / p->N);
        check(c->softmax_pairs[i] || nan_row || r->of[D_X][i] == 0.0f, c, r->set, D_X,
              "not 0");
    }
    if (c->wants_dbias) {
        check_dbias(c, r);
    }
}

/* ---- one input ------------------------------------------------------------------- */

/* What is checked on every instruction set. */
static void
check_results(const problem *c, const results *r)
{
    if (c->tame) {
        check_finite(c, r);
        check_weights(c, r, WEIGHTS, c->pairs);
        check_weights(c, r, SOFTMAX, c->softmax_pairs);
        check_zeros(c, r);
    }
    check_output_alone(c, r);
}

/* And on one of them. */
static void
check_variants(source *s, const problem *c, const results *r)
{
    check_part(s, c, r);
    check_full_masks(c, r);
    check_repeated_keys(c, r);
    check_strided(c, r);
    check_beside(c, r);
    check_prepared(c, r);
    check_projected_late(c, r);
    check_handed_back(c, r);
    if (c->tame) {
        check_softcap(c, r);
    }
    if (c->modest) {
        check_definition(c, r);
    }
    check_key_mask(s, c, r);
}

static void
try_attention(source *s, const char *const sets[], int count)
{
    const problem c = choose_problem(s);
    int chosen = (int)(next_byte(s) % (unsigned)count);
    results scalar = {0};
    for (int i = 0; i < count; i++) {
        attn_cpu_select(sets[i]);
        const results r = compute(&c, sets[i]);
        if (i == 0) {
            scalar = r;
            for (int k = 0; k < RESULTS; k++) {
                add_to_checksum(r.of[k], r.n[k]);
            }
        }
        if (strcmp(sets[i], "generic") != 0 || generic_is_fused) {
            check_same(&c, &scalar, &r, 0, RESULTS, "not the bits of scalar");
        }
        check_results(&c, &r);
        if (i == chosen) {
            check_variants(s, &c, &r);
        }
    }
}

static void
try_merge(source *s, const char *const sets[], int count)
{
    const merge_problem c = choose_merge(s);
    merge_results scalar;
    for (int i = 0; i < count; i++) {
        bool comparable = strcmp(sets[i], "generic") != 0 || generic_is_fused;
        attn_cpu_select(sets[i]);
        const merge_results r = merge_and_check(&c, sets[i],
                                                i > 0 && comparable ? &scalar : NULL);
        scalar = i == 0 ? r : scalar;
    }
    add_to_checksum(scalar.output, c.rows * c.Dv);
    add_to_checksum(scalar.lse, c.rows);
    for (int64_t i = 0; i < c.parts; i++) {
        add_to_checksum(scalar.doutputs[i], c.rows * c.Dv);
        add_to_checksum(scalar.dlses[i], c.rows);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    const char *sets[8];
    int count = attn_cpu_available(sets, 8); /* scalar first */
    source s = open_source(data, length);
    if (next_byte(&s) % 8 == 0) {
        try_merge(&s, sets, count);
    } else {
        try_attention(&s, sets, count);
    }
    free_all();
    return 0;
}
