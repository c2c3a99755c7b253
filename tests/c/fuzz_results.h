/*
 * fuzz_results.h -- everything that attn.h computes of a fuzzed problem.
 *
 * Outputs and workspace start as NaN, so that what is not written, or is read before it
 * is, shows.
 */
#ifndef FUZZ_RESULTS_H
#define FUZZ_RESULTS_H

#include <fenv.h>
#include <stdio.h>

#include "fuzz_problem.h"

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
    D_BIAS,
    D_SINK,
    D_SCALE,
    SOFTMAX,
    D_X,
    SCORES,
    SCORES_D_QUERIES,
    SCORES_D_KEYS,
    SCORES_D_W_Q,
    SCORES_D_W_K,
    SCORES_D_W_V,
    SCORES_D_B_H,
    SCORES_D_W,
    SCORES_D_SCALE,
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
    [D_BIAS] = "dbias",
    [D_SINK] = "dsink",
    [D_SCALE] = "dscale",
    [SOFTMAX] = "masked softmax",
    [D_X] = "masked softmax backward",
    [SCORES] = "scores",
    [SCORES_D_QUERIES] = "dq of scores",
    [SCORES_D_KEYS] = "dk of scores",
    [SCORES_D_W_Q] = "dW_q of scores",
    [SCORES_D_W_K] = "dW_k of scores",
    [SCORES_D_W_V] = "dw_v of scores",
    [SCORES_D_B_H] = "db_h of scores",
    [SCORES_D_W] = "dw of scores",
    [SCORES_D_SCALE] = "dscale of scores",
};

typedef struct {
    const char *set;
    float *of[RESULTS]; /* NULL: not computed */
    int64_t n[RESULTS];
} results;

static void
print_view(const char *name, const attn_view *v)
{
    if (v->data == NULL) {
        return;
    }
    fprintf(stderr, "%s (", name);
    for (int i = v->axis_count - 1; i >= 0; i--) {
        fprintf(stderr, "%d: %d, ", (int)v->axes[i].size, (int)v->axes[i].stride);
    }
    fprintf(stderr, "M: %d, N: %d)\n", (int)v->stride_m, (int)v->stride_j);
}

static void
print_problem(const problem *c)
{
    const attn_problem *p = &c->p;
    const attn_masks *masks = &p->masks;
    fprintf(stderr, "%s B %d M %d N %d Dq %d Dk %d Dv %d H %d, ",
            attn_about(p->score)->name, (int)p->B, (int)p->M, (int)p->N, (int)p->Dq,
            (int)p->Dk, (int)p->Dv, (int)p->H);
    fprintf(stderr, "group %d, scale %g, eps %g, softcap %g, empty rows %d, ",
            (int)p->group, (double)p->scale, (double)p->eps, (double)p->softcap,
            (int)p->empty_rows);
    fprintf(stderr, "threads %d\n", c->threads);
    fprintf(stderr, "lengths %d (%d, %d, %d), ", masks->valid.lens != NULL,
            (int)masks->valid.heads, (int)masks->valid.stride_b,
            (int)masks->valid.stride_m);
    fprintf(stderr, "left %d (%d), right %d (%d), offset %d (%d)\n",
            masks->band.has_left, (int)masks->band.left, masks->band.has_right,
            (int)masks->band.right, masks->band.offset != NULL, (int)masks->band.heads);
    print_view("mask", &masks->mask);
    print_view("bias", &masks->bias);
    print_view("keep", &p->dropout.keep);
    print_view("sink", &p->sink);
    print_view("scales", &p->scales);
    fprintf(stderr, "dropout %g; dweights %d, dlse %d, dbias %d, dsink %d, dscale %d; ",
            (double)p->dropout.p, c->dweights != NULL, c->dlse != NULL, c->wants_dbias,
            c->wants_dsink, c->wants_dscale);
    fprintf(stderr, "handed back: output %d, weights %d, lse %d\n",
            c->hands_back_output, c->hands_back_weights, c->hands_back_lse);
}

static void
check(bool holds, const problem *c, const char *set, int which, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s: %s: %s\n", set, names[which], what);
        print_problem(c);
        abort();
    }
}

/* ---- computing them -------------------------------------------------------------- */

static void
allocate_results(results *r, const problem *c)
{
    const attn_problem *p = &c->p;
    const bool additive = p->score == &attn_score_additive;
    int64_t n[RESULTS] = {
        [OUTPUT] = p->B * p->M * p->Dv,
        [WEIGHTS] = p->B * p->M * p->N,
        [LSE] = p->B * p->M,
        [D_QUERIES] = p->B * p->M * p->Dq,
        [D_KEYS] = p->B / p->group * p->N * p->Dk,
        [D_VALUES] = p->B / p->group * p->N * p->Dv,
        [D_W_Q] = additive ? p->H * p->Dq : -1,
        [D_W_K] = additive ? p->H * p->Dk : -1,
        [D_W_V] = additive ? p->H : -1,
        [D_B_H] = p->parameters[3] != NULL ? p->H : -1,
        [D_W] = p->score == &attn_score_gaussian ? 1 : -1,
        [D_BIAS] = c->wants_dbias ? c->bias_size : -1,
        [D_SINK] = c->wants_dsink ? c->sink_size : -1,
        [D_SCALE] = c->wants_dscale ? c->scale_size : -1,
        [SOFTMAX] = p->B * p->M * p->N,
        [D_X] = p->B * p->M * p->N,
        [SCORES] = p->B * p->M * p->N,
        [SCORES_D_QUERIES] = p->B * p->M * p->Dq,
        [SCORES_D_KEYS] = p->B / p->group * p->N * p->Dk,
    };
    memcpy(n + SCORES_D_W_Q, n + D_W_Q, (D_W - D_W_Q + 1) * sizeof *n);
    n[SCORES_D_SCALE] = n[D_SCALE];
    for (int i = 0; i < RESULTS; i++) {
        r->n[i] = n[i] < 0 ? 0 : n[i];
        r->of[i] = n[i] < 0 ? NULL : nan_floats(n[i]);
    }
}

/* What the forward computed, as a caller may hand it back: NaN where it does not count. */
static attn_saved
hand_back(const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    attn_saved saved = {0};
    float *output = copy_floats(r->of[OUTPUT], r->n[OUTPUT]);
    float *weights = copy_floats(r->of[WEIGHTS], r->n[WEIGHTS]);
    float *lse = copy_floats(r->of[LSE], r->n[LSE]);
    for (int64_t row = 0; row < p->B * p->M; row++) {
        if (is_empty(p, c->pairs, row) && !c->finite) {
            poison_row(output, row, p->Dv);
            poison_row(lse, row, 1);
        }
        if (!is_averaged(p, c->pairs, row) && !c->finite) {
            poison_pairs(weights + row * p->N, c->pairs + row * p->N, p->N);
        }
    }
    saved.output = c->hands_back_output ? output : NULL;
    saved.weights = c->hands_back_weights ? weights : NULL;
    saved.lse = c->hands_back_lse ? lse : NULL;
    return saved;
}

/* A backward that leaves the gradient of the keys before their projection, which then
 * comes by itself; or is that of the keys, where there is none. */
static void
backward_projected_late(attn_gradients d, const attn_grad_outputs *grad,
                        const attn_saved *saved, const attn_inputs *in,
                        const problem *c)
{
    const attn_problem *p = &c->p;
    const int64_t keys = p->B / p->group * p->N;
    attn_gradients walk = d, through = d;
    bool projects = false;
    walk.keys = NULL;
    walk.projected = nan_floats(keys * attn_keys_of_score.key_width(p));
    walk.key_use = nan_bytes((size_t)keys);
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        if (attn_keys_of_score.has(p->score, i)) {
            projects = true;
            walk.parameters[i] = NULL;
        }
    }
    attn_run run = {.threads = c->threads};
    void *work = workspace(attn_backward_workspace(p, &walk, grad, c->threads));
    attn_backward(&walk, grad, saved, in, p, work, &run);
    if (!projects) {
        memcpy(d.keys, walk.projected, (size_t)(keys * p->Dk) * sizeof(float));
        return;
    }
    through.projected = walk.projected;
    through.key_use = walk.key_use;
    run = (attn_run){.threads = c->threads};
    work = workspace(attn_keys_of_score.backward_workspace(p));
    attn_keys_of_score.backward(&through, d.values, in, p, work, &run);
}

static void
compute_attention(results *r, const problem *c)
{
    const attn_problem *p = &c->p;
    attn_run run = {.threads = c->threads};
    void *work = workspace(attn_forward_workspace(p, true, c->threads));
    const attn_inputs in = inputs_of(c);
    attn_forward(r->of[OUTPUT], r->of[WEIGHTS], r->of[LSE], &in, p, work, &run);

    attn_gradients d = {
        .queries = r->of[D_QUERIES],
        .keys = r->of[D_KEYS],
        .values = r->of[D_VALUES],
        .parameters = {r->of[D_W_Q], r->of[D_W_K], r->of[D_W_V], r->of[D_B_H]},
        .scale = r->of[D_W] != NULL ? r->of[D_W] : r->of[D_SCALE],
        .bias = r->of[D_BIAS],
        .sink = r->of[D_SINK],
    };
    attn_grad_outputs grad = {c->dout, c->dweights, c->dlse};
    attn_saved saved = hand_back(c, r);
    run = (attn_run){.threads = c->threads};
    if (c->projects_late) {
        backward_projected_late(d, &grad, &saved, &in, c);
    } else {
        work = workspace(attn_backward_workspace(p, &d, &grad, c->threads));
        attn_backward(&d, &grad, &saved, &in, p, work, &run);
    }
}

/* As the callers of these have it: every pair, no values. The gradient of the scores is
 * the scores. */
static void
compute_scores(results *r, const problem *c)
{
    attn_problem p = c->p;
    p.masks = (attn_masks){0};
    p.dropout = (attn_dropout){0};
    p.sink = (attn_view){0};
    p.Dv = 0;
    attn_run run = {.threads = c->threads};
    void *work = workspace(attn_scores_workspace(&p, c->threads));
    attn_inputs in = inputs_of(c);
    in.values = (attn_operand){.heads = 1};
    attn_scores(r->of[SCORES], &in, &p, work, &run);

    const attn_gradients d = {
        .queries = r->of[SCORES_D_QUERIES],
        .keys = r->of[SCORES_D_KEYS],
        .parameters = {r->of[SCORES_D_W_Q], r->of[SCORES_D_W_K], r->of[SCORES_D_W_V],
                       r->of[SCORES_D_B_H]},
        .scale = r->of[SCORES_D_W] != NULL ? r->of[SCORES_D_W] : r->of[SCORES_D_SCALE],
    };
    run = (attn_run){.threads = c->threads};
    work = workspace(attn_scores_backward_workspace(&p, &d, c->threads));
    attn_scores_backward(&d, r->of[SCORES], &in, &p, work, &run);
}

static void
compute_softmax(results *r, const problem *c)
{
    const attn_problem *p = &c->p;
    attn_run run = {.threads = c->threads};
    attn_masked_softmax(r->of[SOFTMAX], c->X, p->B, p->M, p->N, &c->softmax_masks,
                        p->empty_rows, &run);
    float *weights = copy_floats(r->of[SOFTMAX], r->n[SOFTMAX]);
    if (!c->finite) {
        poison_pairs(weights, c->softmax_pairs, r->n[SOFTMAX]);
    }
    run = (attn_run){.threads = c->threads};
    attn_masked_softmax_backward(r->of[D_X], c->dsoftmax, weights, p->B, p->M, p->N,
                                 &c->softmax_masks, p->empty_rows, &run);
}

/* Finite inputs raise neither FE_INVALID nor FE_DIVBYZERO, on the way either: a host that
 * traps them would be killed. WebAssembly has no such flags. */
static void
check_exceptions(const problem *c, const char *set, int which)
{
#ifdef FE_INVALID
    check(!c->finite || fetestexcept(FE_INVALID) == 0, c, set, which,
          "raises FE_INVALID");
    check(!c->finite || fetestexcept(FE_DIVBYZERO) == 0, c, set, which,
          "raises FE_DIVBYZERO");
    feclearexcept(FE_ALL_EXCEPT);
#else
    (void)c, (void)set, (void)which;
#endif
}

static results
compute(const problem *c, const char *set)
{
    results r = {.set = set};
    allocate_results(&r, c);
    feclearexcept(FE_ALL_EXCEPT);
    compute_attention(&r, c);
    check_exceptions(c, set, OUTPUT);
    compute_scores(&r, c);
    check_exceptions(c, set, SCORES);
    compute_softmax(&r, c);
    check_exceptions(c, set, SOFTMAX);
    return r;
}

/* ---- comparing them -------------------------------------------------------------- */

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

/* The bits of `n` of the results, one after another from `first`. */
static void
check_same(const problem *c, const results *a, const results *b, int first, int n,
           const char *what)
{
    for (int i = first; i < first + n; i++) {
        check(same_bits(a->of[i], b->of[i], a->n[i]), c, b->set, i, what);
    }
}

static double
largest_of(const float *x, int64_t n)
{
    double largest = 0.0;
    for (int64_t i = 0; i < n; i++) {
        largest = isfinite(x[i]) ? fmax(largest, fabs((double)x[i])) : largest;
    }
    return largest;
}

/* Equal to within 1/1000 of `size`, that of the numbers that they were made of: not a
 * test of accuracy. */
static void
check_near(const problem *c, const char *set, int which, const float *a, const float *b,
           int64_t n, double size, const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        bool near = fabs((double)a[i] - (double)b[i]) <= 1e-3 * size + 1e-6;
        check(near || same_bits(&a[i], &b[i], 1), c, set, which, what);
    }
}

#endif
