/*
 * attn.h -- the whole C interface of attnext on one page.
 *
 * Attention in one line:  output = pool(softmax(score(queries, keys)), values). The
 * functions below differ only in the score; everything else is shared.
 *
 * Letters used all through csrc/core:
 *     B   batch: all leading axes together (batch entries times heads)
 *     M   queries            N   keys (= values)
 *     Dq  features of a query, Dk of a key, Dv of a value; Dq = Dk = D unless additive
 *     H   hidden units of the additive score
 *
 * Every array is float32, C-contiguous and belongs to the caller. Nothing here
 * allocates, nothing here can fail: the caller asks *_workspace() how many bytes of
 * scratch a call needs (SIZE_MAX: the sizes overflow, do not call) and passes them,
 * aligned to 64 bytes or not. A gradient is named `d` + what it belongs to; order of
 * arguments: outputs, what the forward saved, inputs, the problem, workspace, run.
 *
 * Functions that return int return 0, or ATTN_INTERRUPTED if run->interrupted asked to
 * stop (the outputs are then undefined).
 */
#ifndef ATTN_H
#define ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../os/parallel.h" /* attn_run: how many threads, how a call is interrupted */

enum { ATTN_INTERRUPTED = -1 };

/* ---- the problem: sizes, score, who takes part ----------------------------------- */

/* The scoring functions: score(q, k) for a query q and a key k. A new one is one file
 * that fills the struct (walk.h), and one line here. */
typedef struct attn_score attn_score;
extern const attn_score
    attn_score_dot,      /* scale * q.k                      Vaswani et al. 2017 */
    attn_score_cosine,   /* scale * q.k / (|q| |k|)          Graves et al. 2014 */
    attn_score_additive, /* w_v . tanh(W_q q + W_k k + b_h)  Bahdanau et al. 2015 */
    attn_score_gaussian; /* -(w |q - k|)^2 / 2               Nadaraya, Watson 1964 */

/* What a row becomes in which no key takes part. Its lse is -inf in all three. */
typedef enum {
    ATTN_EMPTY_UNIFORM, /* weights 1/N over all N keys, as d2l for length 0 */
    ATTN_EMPTY_ZERO,    /* weights, output and gradients 0, as PyTorch's SDPA */
    ATTN_EMPTY_NAN,     /* weights, output and the query's gradient NaN */
} attn_empty_rows;

/* An array that is read as if it had shape (B, M, N): along an axis that it lacks the
 * stride is 0. Element (b, m, j) lies  offset(b) + m * stride_m + j * stride_j
 * elements from data, where offset(b) follows the axes that B consists of, innermost
 * first. */
typedef struct {
    int64_t size, stride;
} attn_axis;

typedef struct {
    const void *data; /* NULL: not given */
    const attn_axis *axes;
    int axis_count;
    int64_t stride_m;
    int64_t stride_j; /* 0 or 1 */
} attn_view;

/* Valid lengths: j < lens[(b / heads) * stride_b + m * stride_m], 0 <= lens <= N. */
typedef struct {
    const int64_t *lens; /* NULL: every key */
    int64_t heads;       /* entries that share theirs, >= 1 */
    int64_t stride_b, stride_m;
} attn_valid_lens;

/* A band along the diagonal: i - left <= j <= i + right, i = m + offset of the entry.
 * Causal is right = 0. Numbers so small that sums of them do not overflow. */
typedef struct {
    bool has_left, has_right;
    int64_t left, right;
    const int64_t *offset; /* offset[b / heads]; NULL: 0 */
    int64_t heads;         /* entries that share theirs, >= 1 */
} attn_band;

/* Query m of entry b attends to key j iff every rule that is given allows it. */
typedef struct {
    attn_valid_lens valid;
    attn_band band;
    attn_view mask; /* of bytes: 0 forbids */
    attn_view bias; /* of floats, added to the score: -inf forbids */
} attn_masks;

/* Dropout: pair (b, m, j) is left out of the pooling iff Philox4x32-10(seed, flat
 * index of the pair) says so, or keep does; the others count 1 / (1 - p) times. See
 * dropout.h. */
typedef struct {
    float p; /* 0 <= p < 1 */
    uint64_t seed;
    attn_view keep; /* of bytes: 0 drops; given, it decides instead of the seed */
} attn_dropout;

/* Keys and values have B / group entries; entry b of the queries attends to the keys
 * of entry b / group. group >= 1 divides B. */
typedef struct {
    int64_t B, M, N, Dq, Dk, Dv;
    int64_t group; /* query heads that share one key head: see above */
    const attn_score *score;
    float scale;      /* dot, cosine: the scale. gaussian: w = 1 / bandwidth */
    float eps;        /* cosine: a norm counts as at least this */
    int64_t H;        /* additive: hidden units, and its parameters ... */
    const float *W_q; /* (H, Dq) */
    const float *W_k; /* (H, Dk) */
    const float *w_v; /* (H) */
    const float *b_h; /* (H) or NULL */
    attn_masks masks;
    attn_empty_rows empty_rows;
    attn_dropout dropout;
} attn_problem;

/* ---- attention ------------------------------------------------------------------- */

/* output (B, M, Dv); weights (B, M, N), before dropout, or NULL; lse (B, M), natural
 * log of the row's sum of exp(scores), or NULL.  queries (B, M, Dq), keys (B/group, N,
 * Dk), values (B/group, N, Dv). */
size_t attn_forward_workspace(const attn_problem *p, int threads);
int attn_forward(float *output, float *weights, float *lse, const float *queries,
                 const float *keys, const float *values, const attn_problem *p,
                 void *workspace, attn_run *run);

/* Where the gradients go; each has the shape of what it belongs to and is overwritten.
 * queries, keys, values are always wanted; parameters only if the score has them; the
 * bias's (its own shape, C-contiguous, as the view of the bias then must be) or NULL,
 * as for a bias without elements. */
typedef struct {
    float *queries, *keys, *values;
    float *W_q, *W_k, *w_v, *b_h; /* additive; b_h NULL without a bias */
    float *w; /* gaussian: one number, the gradient of w = 1 / bandwidth */
    float *bias;
} attn_gradients;

/* What flows in, and what the forward may hand back to save recomputing it. */
typedef struct {
    const float *output;  /* (B, M, Dv) gradient of the output */
    const float *weights; /* (B, M, N) gradient of the weights, or NULL */
    const float *lse;     /* (B, M) gradient of lse, or NULL */
} attn_grad_outputs;

typedef struct {
    const float *output;  /* (B, M, Dv) the forward's output, or NULL */
    const float *weights; /* (B, M, N) the forward's weights, or NULL */
    const float *lse;     /* (B, M) the forward's lse, or NULL */
} attn_saved;

size_t attn_backward_workspace(const attn_problem *p, const attn_gradients *d,
                               const attn_grad_outputs *grad, int threads);
int attn_backward(const attn_gradients *d, const attn_grad_outputs *grad,
                  const attn_saved *saved, const float *queries, const float *keys,
                  const float *values, const attn_problem *p, void *workspace,
                  attn_run *run);

/* scores (B, M, N): the raw scores of every pair; values, masks and dropout play no
 * part. */
size_t attn_scores_workspace(const attn_problem *p, int threads);
int attn_scores(float *scores, const float *queries, const float *keys,
                const attn_problem *p, void *workspace, attn_run *run);

/* ---- merging attentions over disjoint sets of keys ------------------------------- */

/* With outputs[i] (rows, Dv) and lses[i] (rows) of each part i:
 *     lse = log sum_i exp(lse_i),  output = sum_i exp(lse_i - lse) output_i.
 * A part whose lse is -inf has no weight and is not read; without any: 0 and -inf. */
size_t attn_merge_workspace(int64_t parts, int threads);
int attn_merge(float *output, float *lse, const float *const *outputs,
               const float *const *lses, int64_t parts, int64_t rows, int64_t Dv,
               void *workspace, attn_run *run);

/* doutputs[i], dlses[i] as outputs[i], lses[i]; dlse may be NULL. */
int attn_merge_backward(float *const *doutputs, float *const *dlses,
                        const float *doutput, const float *dlse,
                        const float *const *outputs, const float *const *lses,
                        int64_t parts, int64_t rows, int64_t Dv, void *workspace,
                        attn_run *run);

/* ---- masked softmax and sequence mask on their own ------------------------------- */

/* weights (B, M, N) = softmax over the last axis of X (B, M, N) over the keys that the
 * lengths and the mask allow (band and bias play no part). */
int attn_masked_softmax(float *weights, const float *X, int64_t B, int64_t M, int64_t N,
                        const attn_masks *masks, attn_empty_rows empty_rows,
                        attn_run *run);

/* dX = weights * (dweights - sum_j weights_j dweights_j); 0 where no pair takes
 * part. */
int attn_masked_softmax_backward(float *dX, const float *dweights, const float *weights,
                                 int64_t B, int64_t M, int64_t N,
                                 const attn_masks *masks, attn_empty_rows empty_rows,
                                 attn_run *run);

/* out (B, T, inner) = X, but `value` where t >= lens[b].  T steps of `inner` numbers
 * each. */
int attn_sequence_mask(float *out, const float *X, const int64_t *lens, float value,
                       int64_t B, int64_t T, int64_t inner, attn_run *run);

#endif
