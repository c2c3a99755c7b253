/*
 * attn.h -- the whole C interface of attnext on one page.
 *
 * Attention in one line:  output = pool(softmax(score(queries, keys)), values). The
 * functions below differ only in the score; everything else is shared.
 *
 * Letters used all through csrc/core:
 *     B   batch: all leading axes together (batch entries times heads)
 *     M   queries            N   keys (= values)
 *     Dq  features of a query, Dk of a key, Dv of a value; Dq = Dk = D unless the score
 *         has a parameter with a shape in which a key's features occur
 *     H   hidden units of a score that has any
 *
 * Every array is float32 and belongs to the caller; results, gradients and parameters
 * are C-contiguous, queries, keys and values may have strides. Nothing here allocates,
 * nothing here can fail: the caller asks *_workspace() how many bytes of scratch a call
 * needs (SIZE_MAX: the sizes overflow, do not call) and passes them, aligned to 64
 * bytes or not. A gradient is named `d` + what it belongs to; order of arguments:
 * outputs, what the forward saved, inputs, the problem, workspace, run.
 *
 * Functions that return int return 0, or ATTN_INTERRUPTED if run->interrupted asked to
 * stop (the outputs are then undefined), or ATTN_NO_ROOM if run->room bytes of workspace
 * are too few: nothing was done then, and run->room is how many it takes. A small call so
 * lays its workspace out once.
 */
#ifndef ATTN_H
#define ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../simd/float_rules.h"
#include "../os/parallel.h" /* attn_run: how many threads, how a call is interrupted */

enum { ATTN_INTERRUPTED = -1, ATTN_NO_ROOM = -2 };

/* In a byte for each row: nothing may be read from it. 0: it is used. */
enum { ATTN_UNUSED = 255 };

/* ---- the problem: sizes, score, who takes part ----------------------------------- */

/* The scoring functions: score(q, k) for a query q and a key k. A new one is one file
 * that fills the struct (walk.h), and one line here. */
typedef struct attn_score attn_score;
/* clang-format off */
#define ATTN_SCORES(X)                                                                 \
    X(dot)      /* scale * q.k                      Vaswani et al. 2017 */             \
    X(cosine)   /* scale * q.k / (|q| |k|)          Graves et al. 2014 */              \
    X(additive) /* w_v . tanh(W_q q + W_k k + b_h)  Bahdanau et al. 2015 */            \
    X(gaussian) /* -(w |q - k|)^2 / 2               Nadaraya, Watson 1964 */
/* clang-format on */
#define ATTN_DECLARE_SCORE(name) extern const attn_score attn_score_##name;
ATTN_SCORES(ATTN_DECLARE_SCORE)

/* A parameter of a score. */
typedef struct {
    const char *name; /* "W_q"; NULL ends the list */
    /* A letter for each axis: H hidden units, G those of the heads of keys (H / group),
     * Q features of a query, K of a key, V of a value; 1, an axis of size 1 that may be
     * left out ("1H": (1, H) as in PyTorch's state dicts, or (H,)). */
    const char *shape;
    bool optional;
    char fan_in; /* the letter whose size n bounds initial values: |x| <= 1 / sqrt(n) */
} attn_parameter;

enum { ATTN_PARAMETERS = 8 }; /* most of one attention */

/* What the number attn_problem.scale is to a score. */
typedef enum {
    ATTN_SCALE_NONE,
    ATTN_SCALE_ROOT,      /* a factor, 1 / sqrt(D) unless given */
    ATTN_SCALE_ONE,       /* a factor, 1 unless given */
    ATTN_SCALE_BANDWIDTH, /* w = 1 / bandwidth, and has a gradient */
} attn_scale_kind;

/* What a caller has to know of a score, or of multi-head attention. */
typedef struct {
    const char *name; /* of its functions in Python: "dot_product" */
    attn_parameter parameters[ATTN_PARAMETERS];
    attn_scale_kind scale;
    bool has_eps;   /* attn_problem.eps counts */
    bool has_heads; /* multi-head: attn_problem.heads does */
} attn_score_info;

const attn_score_info *attn_about(const attn_score *score);

/* What a row becomes in which no key takes part. Its lse is -inf in all three. (A row
 * with a sink is not empty: its output is 0 then, and its lse the sink.) */
typedef enum {
    ATTN_EMPTY_UNIFORM, /* weights 1/N over all N keys, as d2l for length 0 */
    ATTN_EMPTY_ZERO,    /* weights, output and gradients 0, as PyTorch's SDPA */
    ATTN_EMPTY_NAN,     /* weights, output and the query's gradient NaN */
} attn_empty_rows;

/* An array that is read as if it had shape (B, M, N): along an axis that it lacks the
 * stride is 0. Element (b, m, j) lies  offset(b) + m * stride_m + j * stride_j
 * elements from data, where offset(b) follows the axes that B consists of, innermost
 * first (of an array: view.h). */
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

/* Keys that no query attends to: allowed[(b / heads) * stride + j] is 0. */
typedef struct {
    const uint8_t *allowed; /* NULL: every key */
    int64_t heads;          /* entries that share theirs, >= 1 */
    int64_t stride;
} attn_key_mask;

/* Query m of entry b attends to key j iff every rule that is given allows it. */
typedef struct {
    attn_valid_lens valid;
    attn_band band;
    attn_key_mask keys;
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
    int64_t heads; /* so many entries of the queries lie side by side in the rows of
                    * output, gradients and what flows in: see attn_forward. 0 is 1 */
    const attn_score *score;
    float scale;      /* what it is: attn_scale_kind */
    attn_view scales; /* of floats, one for each entry (stride_m and stride_j 0), in the
                       * place of a scale that is a factor */
    float eps;        /* cosine: a norm counts as at least this */
    float softcap; /* scores become softcap * tanh(score / softcap); 0: they do not */
    int64_t H;
    const float
        *parameters[ATTN_PARAMETERS]; /* in the score's order; NULL: not given */
    const void *prepared; /* keys, by attn_key_maker; NULL: the call prepares them */
    attn_masks masks;
    attn_view sink; /* of floats, one for each query (stride_j 0): one more logit in the
                     * row's softmax, which takes weight and has no value; -inf is none.
                     * Not NaN, not +inf */
    attn_empty_rows empty_rows; /* of rows without a sink */
    attn_dropout dropout;
} attn_problem;

/* Its scale where none is given. */
float attn_default_scale(const attn_problem *p);

/* The size that a letter of a parameter's shape stands for. */
int64_t attn_letter_size(const attn_problem *p, char letter);

/* Estimated multiply-adds of a call, all that it does counted in them: what the work is
 * measured in throughout, on one thread. attn_scores: at most those of a forward. */
double attn_forward_work(const attn_problem *p);
double attn_backward_work(const attn_problem *p);

/* ---- queries, keys and values ---------------------------------------------------- */

/* Batch elements that share their rows, as those of a broadcast array do: element b has the
 * rows of distinct element of[b], and `each` elements share those of each distinct one k:
 * users[k * each + i], i < each. */
typedef struct {
    int64_t distinct, each;
    const int64_t *of, *users;
} attn_sharing;

/* Rows of contiguous floats, stored at any distance: float d of row j of batch element e is
 * data[e / heads * entry + e % heads * head + j * row + d]. So heads can be read where they
 * are stored, inside rows (entries, rows, heads, d). With `shared` it is
 * data[shared->of[e / heads] * entry + ...]. */
typedef struct {
    const float *data;
    int64_t heads; /* >= 1 */
    int64_t head, entry, row;
    const attn_sharing *shared; /* NULL: no two elements share rows */
} attn_operand;

/* A C-contiguous array (entries / heads, rows, heads, width); (entries, rows, width). */
static inline attn_operand
attn_beside(const float *data, int64_t heads, int64_t rows, int64_t width)
{
    /* without an element the products may overflow, and do not count */
    uint64_t row = (uint64_t)heads * (uint64_t)width, entry = (uint64_t)rows * row;
    return (attn_operand){data, heads, width, (int64_t)entry, (int64_t)row, NULL};
}

static inline attn_operand
attn_dense(const float *data, int64_t rows, int64_t width)
{
    return attn_beside(data, 1, rows, width);
}

typedef struct {
    attn_operand queries; /* (B, M, Dq) */
    attn_operand keys;    /* (B / group, N, Dk) */
    attn_operand values;  /* (B / group, N, Dv) */
} attn_inputs;

/* ---- attention ------------------------------------------------------------------- */

/* output (B, M, Dv); weights (B, M, N), before dropout, or NULL; lse (B, M), natural
 * log of the row's sum of exp(scores), or NULL.
 *
 * With heads h > 1 the output is (B / h, M, h, Dv), and so are its gradient and that of
 * the queries; those of keys and values are (B / h, N, h / group, ...). So heads are
 * written where they lie, too: of the dot product and the cosine. */
size_t attn_forward_workspace(const attn_problem *p, bool weights, int threads);
int attn_forward(float *output, float *weights, float *lse, const attn_inputs *in,
                 const attn_problem *p, void *workspace, attn_run *run);

/* Where the gradients go; each is C-contiguous, has the shape of what it belongs to and
 * is overwritten. queries, keys and values are always wanted, and those of the
 * parameters that are given. scale: if the score's is a bandwidth, one number, wanted:
 * the gradient of w = 1 / bandwidth; if it is a factor, that of scale, or of scales, or
 * NULL. Those of bias, sink and scales have their own shapes, C-contiguous, as the
 * views of them then must be; NULL: not wanted, or there are no elements.
 *
 * projected and key_use: NULL; or wanted in the place of keys and of the parameters that
 * keys are projected with, all of which are then NULL (attn_key_maker). */
typedef struct {
    float *queries, *keys, *values;
    float *parameters[ATTN_PARAMETERS];
    float *scale;
    float *bias, *sink;
    float *projected; /* (B / group, N, key_width) */
    uint8_t *key_use; /* (B / group, N)  ATTN_UNUSED: no query was scored against it */
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

/* Are output and lse of any use? Not where all keys are one tile, as of a small call, whose
 * softmax is computed again either way: the same bits. */
bool attn_reads_saved(const attn_problem *p);

size_t attn_backward_workspace(const attn_problem *p, const attn_gradients *d,
                               const attn_grad_outputs *grad, int threads);
int attn_backward(const attn_gradients *d, const attn_grad_outputs *grad,
                  const attn_saved *saved, const attn_inputs *in, const attn_problem *p,
                  void *workspace, attn_run *run);

/* scores (B, M, N): the scores of every pair, softcapped if they are to be; values, masks
 * and dropout play no part. */
size_t attn_scores_workspace(const attn_problem *p, int threads);
int attn_scores(float *scores, const attn_inputs *in, const attn_problem *p,
                void *workspace, attn_run *run);

/* The gradients of queries, keys and parameters, those of values and bias being NULL;
 * dscores (B, M, N). Dv is 0, and no masks or dropout are given. */
size_t attn_scores_backward_workspace(const attn_problem *p, const attn_gradients *d,
                                      int threads);
int attn_scores_backward(const attn_gradients *d, const float *dscores,
                         const attn_inputs *in, const attn_problem *p, void *workspace,
                         attn_run *run);

/* ---- multi-head attention -------------------------------------------------------- */

/* Attention by heads, between linear layers (Vaswani et al. 2017, section 3.2.2):
 *
 *     Q = queries W_q^T + b_q,  K = keys W_k^T + b_k,  V = values W_v^T + b_v,
 *     O = the attention of each head,  output = O W_o^T + b_o.
 *
 * A problem of it is that of its heads, with the dot product: B counts every head of
 * every entry, `heads` of them belong to one entry, and `group` of those share a head of
 * keys and values. But Dq, Dk and Dv are the features of queries, keys and values, which
 * have B / heads entries, C-contiguous; H / heads are those of a head; the parameters
 * are those of attn_multi_head. Keys and values that no query needs are not read.
 *
 * output (B / heads, M, H); weights and lse as those of the heads. kept: Q, K, V and O
 * for the backward, in so many bytes (SIZE_MAX: overflow), a multiple of 64, of which a
 * copy will do; or NULL. The backward's gradients are C-contiguous, those of bias, sink
 * and scale as ever; without `kept` it computes the forward again, and of saved the
 * output and lse are of no use. */
extern const attn_score_info attn_multi_head;

double attn_multi_head_work(const attn_problem *p, bool backward);
size_t attn_multi_head_kept(const attn_problem *p);
size_t attn_multi_head_workspace(const attn_problem *p, bool kept, bool weights,
                                 int threads);
int attn_multi_head_forward(float *output, float *weights, float *lse, void *kept,
                            const attn_inputs *in, const attn_problem *p,
                            void *workspace, attn_run *run);

size_t attn_multi_head_backward_workspace(const attn_problem *p,
                                          const attn_gradients *d,
                                          const attn_grad_outputs *grad, bool kept,
                                          int threads);
int attn_multi_head_backward(const attn_gradients *d, const attn_grad_outputs *grad,
                             const attn_saved *saved, const void *kept,
                             const attn_inputs *in, const attn_problem *p,
                             void *workspace, attn_run *run);

/* ---- keys prepared once ---------------------------------------------------------- */

/* What is made of the keys before they meet a query (additive: their projections; cosine:
 * their directions; multi-head attention: K and V) may be made once, and used by any calls
 * whose keys these are: any queries, masks and options, forward and backward, but the same
 * score, eps, parameters, B / group and sizes of keys; N at most the capacity, and as many
 * keys as have been prepared. Hand such memory in as attn_problem.prepared: the results
 * are those without, bit by bit. The gradients of parameters still need the keys
 * themselves. Of problems with the heads of multi-head attention, attn_keys_of_heads.
 *
 * Backwards over the same keys can be added up before they go through the projections:
 * what each leaves in attn_gradients.projected and in values, and of key_use, which is 0
 * where one of them scored a key. From these, dV being what flows to the values, to
 * d->keys, d->values and those of d->parameters; but where no parameter projects, they are
 * these. */
typedef struct {
    /* Bytes, for `capacity` keys of each entry; SIZE_MAX: overflow. 0: there is nothing to
     * prepare, and calls take NULL. */
    size_t (*size)(const attn_problem *p, int64_t capacity);
    /* Once, before the first keys. The memory must then stay where it is. */
    void (*start)(void *prepared, const attn_problem *p, int64_t capacity);
    /* Keys first <= j < end of every entry, in any order, and again where they have
     * changed. Those that p->masks.valid and p->masks.keys leave out for good, the same for
     * all queries and heads of the entry, may not be made, and no query may be scored
     * against them; other masks play no part. */
    int (*make)(void *prepared, const attn_inputs *in, int64_t first, int64_t end,
                const attn_problem *p, attn_run *run);
    /* Is this parameter, given, one that they are made with? Numbers of a projected key,
     * and of a value, or of those themselves. */
    bool (*has)(const attn_score *score, int parameter);
    int64_t (*key_width)(const attn_problem *p);
    int64_t (*value_width)(const attn_problem *p);
    size_t (*backward_workspace)(const attn_problem *p);
    int (*backward)(const attn_gradients *d, const float *dV, const attn_inputs *in,
                    const attn_problem *p, void *workspace, attn_run *run);
} attn_key_maker;

extern const attn_key_maker attn_keys_of_score, attn_keys_of_heads;

/* ---- merging attentions over disjoint sets of keys ------------------------------- */

/* With outputs[i] (rows, Dv) and lses[i] (rows) of each part i:
 *     lse = log sum_i exp(lse_i),  output = sum_i exp(lse_i - lse) output_i.
 * A part whose lse is -inf has no weight and is not read; without any: 0 and -inf. */
size_t attn_merge_workspace(int64_t parts, int threads);
int attn_merge(float *output, float *lse, const float *const *outputs,
               const float *const *lses, int64_t parts, int64_t rows, int64_t Dv,
               void *workspace, attn_run *run);

/* doutputs (parts, rows, Dv), dlses (parts, rows); dlse may be NULL. */
int attn_merge_backward(float *doutputs, float *dlses, const float *doutput,
                        const float *dlse, const float *const *outputs,
                        const float *const *lses, int64_t parts, int64_t rows,
                        int64_t Dv, void *workspace, attn_run *run);

/* ---- masked softmax and sequence mask on their own ------------------------------- */

/* weights (B, M, N) = softmax over the last axis of X (B, M, N) over the keys that the
 * lengths and the mask allow (band, bias and the mask of keys play no part). */
int attn_masked_softmax(float *weights, const float *X, int64_t B, int64_t M, int64_t N,
                        const attn_masks *masks, attn_empty_rows empty_rows,
                        attn_run *run);

/* dX = weights * (dweights - sum_j weights_j dweights_j); 0 where no pair takes
 * part. */
int attn_masked_softmax_backward(float *dX, const float *dweights, const float *weights,
                                 int64_t B, int64_t M, int64_t N,
                                 const attn_masks *masks, attn_empty_rows empty_rows,
                                 attn_run *run);

/* out (B, T, inner) = X, but `value` behind the length of row b, of (B). T steps of `inner`
 * numbers each. */
int attn_sequence_mask(float *out, const float *X, const attn_valid_lens *lens,
                       float value, int64_t B, int64_t T, int64_t inner, attn_run *run);

#endif
