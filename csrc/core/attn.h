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

#include <stddef.h>
#include <stdint.h>

#include "parallel.h" /* attn_run: how many threads, and how a call is interrupted */

enum { ATTN_INTERRUPTED = -1 };

/* ---- the problem: sizes, score, who takes part ----------------------------------- */

/* The scoring functions: score(q, k) for a query q and a key k. */
typedef enum {
    ATTN_DOT,      /* scale * q.k                           Vaswani et al. 2017 */
    ATTN_ADDITIVE, /* w_v . tanh(W_q q + W_k k + b_h)       Bahdanau et al. 2015 */
    ATTN_GAUSSIAN, /* -(w |q - k|)^2 / 2      Nadaraya 1964, Watson 1964; d2l 11.2 */
} attn_score_kind;

/* What a row becomes in which no key takes part. Its lse is -inf in all three. */
typedef enum {
    ATTN_EMPTY_UNIFORM, /* weights 1/N over all N keys, as d2l for length 0 */
    ATTN_EMPTY_ZERO,    /* weights, output and gradients 0, as PyTorch's SDPA */
    ATTN_EMPTY_NAN,     /* weights, output and the query's gradient NaN */
} attn_empty_rows;

/* Valid lengths: query m of batch entry b attends to keys j < lens[...], 0 <= lens <=
 * N. Entry b / heads of the first axis, row m:   lens[(b / heads) * stride_b + m *
 * stride_m]. */
typedef struct {
    const int64_t *lens; /* NULL: every key */
    int64_t heads; /* batch entries that share one entry of the first axis, >= 1 */
    int64_t stride_b, stride_m;
} attn_valid_lens;

typedef struct {
    int64_t B, M, N, Dq, Dk, Dv;
    attn_score_kind score;
    float scale; /* dot: the scale. gaussian: w = 1 / bandwidth. additive: unused */
    int64_t H;   /* additive: hidden units, and its parameters ... */
    const float *W_q; /* (H, Dq) */
    const float *W_k; /* (H, Dk) */
    const float *w_v; /* (H) */
    const float *b_h; /* (H) or NULL */
    attn_valid_lens valid;
    attn_empty_rows empty_rows;
    float dropout_p; /* 0 <= p < 1: pair (b, m, j) is dropped from the pooling iff */
    uint64_t
        seed; /* Philox4x32-10(seed, flat index of the pair) says so; see dropout.h */
} attn_problem;

/* ---- attention ------------------------------------------------------------------- */

/* output (B, M, Dv); weights (B, M, N), before dropout, or NULL; lse (B, M), natural
 * log of the row's sum of exp(scores), or NULL.  queries (B, M, Dq), keys (B, N, Dk),
 * values (B, N, Dv). */
size_t attn_forward_workspace(const attn_problem *p, int threads);
int attn_forward(float *output, float *weights, float *lse, const float *queries,
                 const float *keys, const float *values, const attn_problem *p,
                 void *workspace, attn_run *run);

/* Where the gradients go; each has the shape of what it belongs to and is overwritten.
 * queries, keys, values are always wanted; the rest only if the score has that
 * parameter. */
typedef struct {
    float *queries, *keys, *values;
    float *W_q, *W_k, *w_v, *b_h; /* additive; b_h NULL without a bias */
    float *w; /* gaussian: one number, the gradient of w = 1 / bandwidth */
} attn_gradients;

/* What flows in, and what the forward may hand back to save recomputing it. */
typedef struct {
    const float *output;  /* (B, M, Dv) gradient of the output */
    const float *weights; /* (B, M, N) gradient of the weights, or NULL */
    const float *lse;     /* (B, M) gradient of lse, or NULL */
} attn_grad_outputs;

typedef struct {
    const float *output; /* (B, M, Dv) the forward's output, or NULL */
    const float *lse;    /* (B, M) the forward's lse, or NULL */
} attn_saved;

size_t attn_backward_workspace(const attn_problem *p, const attn_grad_outputs *grad,
                               int threads);
int attn_backward(const attn_gradients *d, const attn_grad_outputs *grad,
                  const attn_saved *saved, const float *queries, const float *keys,
                  const float *values, const attn_problem *p, void *workspace,
                  attn_run *run);

/* scores (B, M, N): the raw scores of every pair; values, masks and dropout play no
 * part. */
size_t attn_scores_workspace(const attn_problem *p, int threads);
int attn_scores(float *scores, const float *queries, const float *keys,
                const attn_problem *p, void *workspace, attn_run *run);

/* ---- masked softmax and sequence mask on their own ------------------------------- */

/* weights (B, M, N) = softmax over the last axis of X (B, M, N), keys j >= length left
 * out. */
int attn_masked_softmax(float *weights, const float *X, int64_t B, int64_t M, int64_t N,
                        const attn_valid_lens *valid, attn_empty_rows empty_rows,
                        attn_run *run);

/* dX = weights * (dweights - sum_j weights_j dweights_j); 0 outside the length. */
int attn_masked_softmax_backward(float *dX, const float *dweights, const float *weights,
                                 int64_t B, int64_t M, int64_t N,
                                 const attn_valid_lens *valid,
                                 attn_empty_rows empty_rows, attn_run *run);

/* out (B, T, inner) = X, but `value` where t >= lens[b].  T steps of `inner` numbers
 * each. */
int attn_sequence_mask(float *out, const float *X, const int64_t *lens, float value,
                       int64_t B, int64_t T, int64_t inner, attn_run *run);

#endif
