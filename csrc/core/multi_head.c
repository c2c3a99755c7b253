/*
 * multi_head.c -- multi-head attention: linear layers, and between them the attention of
 * the heads, which are read and written where the layers have them, side by side in
 * rows (..., M, heads, d).
 */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "arena.h"
#include "mask.h"
#include "operand.h"
#include "projection.h"
#include "walk.h"
#include "work.h"

/* The parameters, in the order of the info. */
enum { W_Q, W_K, W_V, W_O, B_Q, B_K, B_V, B_O };

/* What lies between the layers, or its gradients. */
typedef struct {
    float *Q;     /* (entries, M, heads, d) */
    float *K, *V; /* (entries, N, key heads, d) */
    float *O;     /* (entries, M, heads, d) */
} between;

typedef struct {
    const attn_problem *p;
    attn_problem
        inner; /* that of the heads, as attn_forward and attn_backward take it */
    int64_t entries, H, G; /* G: hidden units of K and V */
    between made, d;
    float *WT; /* a layer's W transposed: [D][lanes of H] */
    /* (entries, M), (entries, N): ATTN_UNUSED where nobody is interested in Q, K or V;
     * NULL: in all. K and V share theirs unless an empty row pools all values. */
    uint8_t *query_use, *key_use, *value_use;
    uint8_t *nan; /* (entries, M)  1: the query's gradient is NaN; NULL: no one's */
    uint8_t *all_used; /* (entries, M)  0 */
    float *lse;        /* (B, M)  of a forward that is computed again */
    void *workspace;   /* of the attention itself */
} multi_head;

/* ---- sizes and memory ------------------------------------------------------------ */

static multi_head
begin(const attn_problem *p)
{
    multi_head m = {.p = p, .inner = *p, .entries = p->B / p->heads, .H = p->H};
    m.G = p->H / p->group;
    m.inner.Dq = m.inner.Dk = m.inner.Dv = p->H / p->heads;
    return m;
}

static int64_t
lanes_of(int64_t H)
{
    return (H + 15) / 16 * 16;
}

static int64_t
largest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void
take_between(between *x, const multi_head *m, attn_arena *a)
{
    const size_t query = (size_t)m->H * sizeof(float),
                 key = (size_t)m->G * sizeof(float);
    x->Q = attn_take(a, query, m->entries, m->p->M);
    x->K = attn_take(a, key, m->entries, m->p->N);
    x->V = attn_take(a, key, m->entries, m->p->N);
    x->O = attn_take(a, query, m->entries, m->p->M);
}

size_t
attn_multi_head_kept(const attn_problem *p)
{
    multi_head m = begin(p);
    attn_arena a = attn_arena_over(NULL);
    take_between(&m.made, &m, &a);
    return attn_arena_size(&a);
}

/* Q, K, V and O where they are kept, or in the workspace. */
static void
find_made(multi_head *m, const void *kept, bool is_kept, attn_arena *a)
{
    attn_arena own = attn_arena_over((void *)kept);
    take_between(&m->made, m, is_kept ? &own : a);
}

static void
take_use(multi_head *m, attn_arena *a)
{
    const attn_problem *p = m->p;
    m->key_use = m->value_use = NULL;
    if (attn_may_be_empty(p)) {
        m->key_use = m->value_use = attn_take(a, 1, m->entries, p->N);
        if (p->empty_rows == ATTN_EMPTY_UNIFORM) {
            m->value_use = attn_take(a, 1, m->entries, p->N);
        }
    }
}

static void
lay_out(multi_head *m, const void *kept, bool is_kept, attn_arena *a)
{
    const attn_problem *p = m->p;
    find_made(m, kept, is_kept, a);
    take_use(m, a);
    if (m->H > INT_MAX / 2) { /* the kernels count lanes in int */
        a->used = SIZE_MAX;
    }
    m->WT = attn_take_floats(a, largest(largest(p->Dq, p->Dk), largest(p->Dv, m->H)),
                             lanes_of(m->H));
}

/* ---- the layers, forward --------------------------------------------------------- */

enum { TASK_ROWS = 64 };

/* Y (all, H) = X (all, D) W^T + b, for the rows that are used. */
typedef struct {
    float *Y;
    attn_operand X;
    int64_t rows, all, D, H; /* rows: of an entry of X */
    const float *WT, *b;
    const uint8_t *use;
} layer;

static void
put_bias(const layer *y, int64_t row, int64_t n)
{
    for (int64_t i = row; y->b != NULL && i < row + n; i++) {
        memcpy(y->Y + i * y->H, y->b, (size_t)y->H * sizeof(float));
    }
}

static void
layer_task(void *ctx, int64_t task, int worker)
{
    const layer *y = ctx;
    const int64_t together = attn_is_even(&y->X, y->rows) ? y->all : y->rows;
    int64_t row = task * TASK_ROWS;
    int64_t end = y->all - row < TASK_ROWS ? y->all : row + TASK_ROWS;
    (void)worker;
    for (int64_t n; row < end; row += n) { /* as many as are alike, and one span */
        bool used = true;
        int64_t at = row % together;
        n = together - at < end - row ? together - at : end - row;
        n = y->use == NULL ? n : attn_use_run(y->use + row, n, &used);
        if (used) {
            attn_span X = attn_read(&y->X, row / together, at);
            put_bias(y, row, n);
            attn_simd->matmul(y->Y + row * y->H, y->H, X.data, X.ld, 1, y->WT,
                              lanes_of(y->H), n, y->H, y->D, y->b != NULL);
        }
    }
}

static bool
project(const multi_head *m, layer y, const float *W, attn_run *run)
{
    attn_simd->pack(m->WT, (int)lanes_of(y.H), W, y.D, (int)y.H, y.D, 1.0f);
    y.all = m->entries * y.rows;
    y.WT = m->WT;
    return attn_parallel_for(run, attn_ceil_div(y.all, TASK_ROWS),
                             attn_us(attn_work(y.all, y.D, y.H)), layer_task, &y);
}

/* Which keys and values the heads of an entry are interested in. */
static bool
find_used_keys(const multi_head *m, attn_run *run)
{
    attn_problem p = *m->p;
    p.group = p.heads;
    return m->key_use == NULL || (attn_used_keys(m->key_use, &p, false, run) &&
                                  (m->value_use == m->key_use ||
                                   attn_used_keys(m->value_use, &p, true, run)));
}

static bool
project_inputs(const multi_head *m, const attn_inputs *in, attn_run *run)
{
    const attn_problem *p = m->p;
    const float *const *w = p->parameters;
    const layer q = {.Y = m->made.Q,
                     .X = in->queries,
                     .rows = p->M,
                     .D = p->Dq,
                     .H = m->H,
                     .b = w[B_Q]};
    const layer k = {.Y = m->made.K,
                     .X = in->keys,
                     .rows = p->N,
                     .D = p->Dk,
                     .H = m->G,
                     .b = w[B_K],
                     .use = m->key_use};
    const layer v = {.Y = m->made.V,
                     .X = in->values,
                     .rows = p->N,
                     .D = p->Dv,
                     .H = m->G,
                     .b = w[B_V],
                     .use = m->value_use};
    return find_used_keys(m, run) && project(m, q, w[W_Q], run) &&
           project(m, k, w[W_K], run) && project(m, v, w[W_V], run);
}

/* ---- forward --------------------------------------------------------------------- */

/* Q, K and V as the attention reads them. */
static attn_inputs
heads_of(const multi_head *m)
{
    const attn_problem *p = m->p;
    const int64_t key_heads = p->heads / p->group, d = m->inner.Dq;
    return (attn_inputs){
        .queries = attn_beside(m->made.Q, p->heads, p->M, d),
        .keys = attn_beside(m->made.K, key_heads, p->N, d),
        .values = attn_beside(m->made.V, key_heads, p->N, d),
    };
}

/* Q, K, V and O. The attention may well want fewer threads than a layer. */
static bool
make(const multi_head *m, float *weights, float *lse, const attn_inputs *in,
     attn_run *run)
{
    const int threads = run->threads;
    if (!project_inputs(m, in, run)) {
        return false;
    }
    const attn_inputs heads = heads_of(m);
    int result = attn_forward(m->made.O, weights, lse, &heads, &m->inner, m->workspace,
                              run);
    run->threads = threads;
    return result == 0;
}

static void
lay_out_forward(multi_head *m, const void *kept, bool is_kept, int threads,
                attn_arena *a)
{
    lay_out(m, kept, is_kept, a);
    m->workspace = attn_take(a, 1, (int64_t)attn_forward_workspace(&m->inner, threads),
                             1);
}

size_t
attn_multi_head_workspace(const attn_problem *p, bool kept, int threads)
{
    multi_head m = begin(p);
    attn_arena a = attn_arena_over(NULL);
    lay_out_forward(&m, NULL, kept, threads, &a);
    return attn_arena_size(&a);
}

int
attn_multi_head_forward(float *output, float *weights, float *lse, void *kept,
                        const attn_inputs *in, const attn_problem *p, void *memory,
                        attn_run *run)
{
    multi_head m = begin(p);
    attn_arena a = attn_arena_over(memory);
    if (p->B == 0 || p->M == 0) { /* however large the other sizes are */
        return 0;
    }
    lay_out_forward(&m, kept, kept != NULL, run->threads, &a);
    const layer o = {.Y = output,
                     .X = attn_dense(m.made.O, p->M, m.H),
                     .rows = p->M,
                     .D = m.H,
                     .H = m.H,
                     .b = p->parameters[B_O]};
    bool done = make(&m, weights, lse, in, run) &&
                project(&m, o, p->parameters[W_O], run);
    return done ? 0 : ATTN_INTERRUPTED;
}

/* ---- backward: which queries count ----------------------------------------------- */

static void
take_query_use(multi_head *m, attn_arena *a)
{
    const attn_problem *p = m->p;
    m->query_use = attn_take(a, 1, m->entries, p->M);
    m->all_used = attn_take(a, 1, m->entries, p->M);
    m->nan = NULL;
    if (!attn_may_be_empty(p)) { /* the layers' backward asks */
        m->key_use = m->value_use = attn_take(a, 1, m->entries, p->N);
    }
    if (p->empty_rows == ATTN_EMPTY_NAN && attn_may_be_empty(p)) {
        m->nan = attn_take(a, 1, m->entries, p->M);
    }
}

/* The queries of one entry: in use if any head finds it a key. */
static void
query_task(void *ctx, int64_t entry, int worker)
{
    const multi_head *m = ctx;
    const attn_problem *p = m->p;
    uint8_t *use = m->query_use + entry * p->M;
    (void)worker;
    for (int64_t i = 0; i < p->heads * p->M;) {
        int64_t m0 = i % p->M, left = p->M - m0;
        int count = left < ATTN_LANES ? (int)left : ATTN_LANES;
        attn_rows rows;
        attn_rows_of(&rows, p, entry * p->heads + i / p->M, m0, count);
        for (int l = 0; l < count; l++) {
            if (!(rows.empty >> l & 1)) {
                use[m0 + l] = 0;
            }
            if (rows.nan >> l & 1) {
                m->nan[entry * p->M + m0 + l] = 1;
            }
        }
        i += count;
    }
}

static bool
find_used(const multi_head *m, attn_run *run)
{
    const attn_problem *p = m->p;
    const bool nothing = p->M == 0 || p->N == 0;
    const bool some = attn_may_be_empty(p) && !nothing;
    const size_t queries = (size_t)(m->entries * p->M);
    memset(m->all_used, 0, queries);
    memset(m->query_use, nothing || some ? ATTN_UNUSED : 0, queries);
    if (!some) { /* K and V share theirs, or there are no keys, or no queries */
        size_t keys = (size_t)(m->entries * p->N);
        memset(m->key_use, nothing ? ATTN_UNUSED : 0, keys);
        memset(m->value_use, nothing ? ATTN_UNUSED : 0, keys);
    }
    if (m->nan != NULL) {
        memset(m->nan, 0, queries);
    }
    double work = ATTN_WORK_NUMBER * attn_work(p->B, p->M, 1);
    return !some ||
           (find_used_keys(m, run) &&
            attn_parallel_for(run, m->entries, attn_us(work), query_task, (void *)m));
}

/* ---- backward -------------------------------------------------------------------- */

/* A layer's gradients: forward was Y = X W^T + b.  So now:
 *     dX = dY W,  dW = dY^T X,  db = sum of the rows of dY,
 * over the rows that are used; dX is 0 in the others. */
static bool
layer_backward(const attn_projection *y, float *db, attn_run *run)
{
    attn_set_zero(y->dX, y->B, y->rows, y->D);
    return attn_projection_backward(y, run) &&
           (db == NULL || attn_sum_rows(db, y->dY, y->B * y->rows, y->H, run));
}

/* forward was: output = O W_o^T + b_o. */
static bool
output_backward(const multi_head *m, const attn_gradients *d,
                const attn_grad_outputs *grad, attn_run *run)
{
    const attn_projection o = {
        .use = m->all_used,
        .B = 1,
        .rows = m->entries * m->p->M,
        .D = m->H,
        .H = m->H,
        .ldy = m->H,
        .dX = m->d.O,
        .dW = d->parameters[W_O],
        .dY = grad->output,
        .W = m->p->parameters[W_O],
        .X = attn_dense(m->made.O, m->p->M, m->H),
        .X_rows = m->p->M,
    };
    return layer_backward(&o, d->parameters[B_O], run);
}

/* forward was: Q = queries W_q^T + b_q, and so on. All queries count as one entry, for M
 * may be 1; keys do not, so that no sum depends on how many of them are padding. */
static bool
inputs_backward(const multi_head *m, const attn_gradients *d, const attn_inputs *in,
                attn_run *run)
{
    const attn_problem *p = m->p;
    const attn_projection q = {
        .use = m->query_use,
        .B = 1,
        .rows = m->entries * p->M,
        .D = p->Dq,
        .H = m->H,
        .ldy = m->H,
        .dX = d->queries,
        .dW = d->parameters[W_Q],
        .dY = m->d.Q,
        .W = p->parameters[W_Q],
        .X = in->queries,
        .X_rows = p->M,
    };
    const attn_projection k = {
        .use = m->key_use,
        .B = m->entries,
        .rows = p->N,
        .D = p->Dk,
        .H = m->G,
        .ldy = m->G,
        .dX = d->keys,
        .dW = d->parameters[W_K],
        .dY = m->d.K,
        .W = p->parameters[W_K],
        .X = in->keys,
        .X_rows = p->N,
    };
    const attn_projection v = {
        .use = m->value_use,
        .B = m->entries,
        .rows = p->N,
        .D = p->Dv,
        .H = m->G,
        .ldy = m->G,
        .dX = d->values,
        .dW = d->parameters[W_V],
        .dY = m->d.V,
        .W = p->parameters[W_V],
        .X = in->values,
        .X_rows = p->N,
    };
    return layer_backward(&q, d->parameters[B_Q], run) &&
           layer_backward(&k, d->parameters[B_K], run) &&
           layer_backward(&v, d->parameters[B_V], run);
}

/* From the gradient of O to those of Q, K and V, and of what is the heads' own. Rows
 * without any key give nothing to W_q either, under "nan" too: so that is "zero" here. */
static bool
heads_backward(const multi_head *m, const attn_gradients *d,
               const attn_grad_outputs *grad, const attn_saved *saved, attn_run *run)
{
    const int threads = run->threads;
    const attn_inputs heads = heads_of(m);
    const attn_gradients to = {
        .queries = m->d.Q,
        .keys = m->d.K,
        .values = m->d.V,
        .scale = d->scale,
        .bias = d->bias,
        .sink = d->sink,
    };
    const attn_grad_outputs from = {m->d.O, grad->weights, grad->lse};
    const attn_saved made = {m->made.O, saved->weights, saved->lse};
    attn_problem inner = m->inner;
    if (inner.empty_rows == ATTN_EMPTY_NAN) {
        inner.empty_rows = ATTN_EMPTY_ZERO;
    }
    int result = attn_backward(&to, &from, &made, &heads, &inner, m->workspace, run);
    run->threads = threads;
    return result == 0;
}

static void
settle_queries(const multi_head *m, float *dqueries)
{
    const int64_t D = m->p->Dq;
    for (int64_t i = 0; m->nan != NULL && i < m->entries * m->p->M; i++) {
        for (int64_t d = 0; m->nan[i] != 0 && d < D; d++) {
            dqueries[i * D + d] = NAN;
        }
    }
}

/* What the attention needs, forward again or backward: one after the other. */
static int64_t
workspace_of(const multi_head *m, const attn_gradients *d,
             const attn_grad_outputs *grad, bool kept, int threads)
{
    size_t forward = kept ? 0 : attn_forward_workspace(&m->inner, threads);
    size_t backward = attn_backward_workspace(&m->inner, d, grad, threads);
    return (int64_t)(forward > backward ? forward : backward);
}

static void
lay_out_backward(multi_head *m, const attn_gradients *d, const attn_grad_outputs *grad,
                 const void *kept, bool is_kept, int threads, attn_arena *a)
{
    lay_out(m, kept, is_kept, a);
    take_between(&m->d, m, a);
    take_query_use(m, a);
    m->lse = is_kept ? NULL : attn_take_floats(a, m->p->B, m->p->M);
    m->workspace = attn_take(a, 1, workspace_of(m, d, grad, is_kept, threads), 1);
}

size_t
attn_multi_head_backward_workspace(const attn_problem *p, const attn_gradients *d,
                                   const attn_grad_outputs *grad, bool kept,
                                   int threads)
{
    multi_head m = begin(p);
    attn_arena a = attn_arena_over(NULL);
    lay_out_backward(&m, d, grad, NULL, kept, threads, &a);
    return attn_arena_size(&a);
}

int
attn_multi_head_backward(const attn_gradients *d, const attn_grad_outputs *grad,
                         const attn_saved *saved, const void *kept,
                         const attn_inputs *in, const attn_problem *p, void *memory,
                         attn_run *run)
{
    multi_head m = begin(p);
    attn_arena a = attn_arena_over(memory);
    attn_saved of_heads = *saved;
    lay_out_backward(&m, d, grad, kept, kept != NULL, run->threads, &a);
    if (kept == NULL) {
        if (!make(&m, NULL, m.lse, in, run)) {
            return ATTN_INTERRUPTED;
        }
        of_heads.lse = m.lse;
    }
    if (!find_used(&m, run) || !output_backward(&m, d, grad, run) ||
        !heads_backward(&m, d, grad, &of_heads, run) ||
        !inputs_backward(&m, d, in, run)) {
        return ATTN_INTERRUPTED;
    }
    settle_queries(&m, d->queries);
    return 0;
}

/* ---- what it costs --------------------------------------------------------------- */

double
attn_multi_head_work(const attn_problem *p, bool backward)
{
    const multi_head m = begin(p);
    double layers = attn_work(m.entries, p->M, m.H) * (double)(p->Dq + m.H) +
                    attn_work(m.entries, p->N, m.G) * (double)(p->Dk + p->Dv);
    return backward ? 3.0 * layers + attn_backward_work(&m.inner)
                    : layers + attn_forward_work(&m.inner);
}

/* ---- what it says of itself ------------------------------------------------------ */

/* clang-format off */
static const attn_score_text text = {
    .pooling = "several heads of scaled dot-product attention",
    .see_also = "dot_product_attention : One head, without the projections.",
    .notes =
"``output = concat(head_1, ..., head_h) W_o^T + b_o``, where the heads are scaled\n"
"dot-product attentions over slices of d = H / num_heads columns of\n"
"``Q = queries W_q^T + b_q``, ``K = keys W_k^T + b_k`` and ``V = values W_v^T + b_v``\n"
"(Vaswani et al. 2017, \"Attention is all you need\", section 3.2.2). With\n"
"`num_kv_heads` heads of K and V, each serves ``num_heads / num_kv_heads`` heads of Q\n"
"(Ainslie et al. 2023, \"GQA\").\n"
"\n"
"Weights and lse are those of the heads, (..., num_heads, M, N) and (..., num_heads,\n"
"M); `mask`, `bias`, `dropout_mask` and `sink` broadcast to these, `scale` to\n"
"``(..., num_heads)``. `valid_lens` has the shapes it has without heads, which share\n"
"it: a mask of each entry is (B, 1, M, N).",
    .example =
">>> import numpy as np\n"
">>> from attnext import multi_head_attention\n"
">>> x, eye = np.eye(4)[None], np.eye(4)\n"
">>> output, weights = multi_head_attention(\n"
"...     x, x, x, 4 * eye, eye, eye, eye, [3], num_heads=2, return_weights=True\n"
"... )\n"
">>> weights.shape\n"
"(1, 2, 4, 4)\n"
">>> weights[0, 0].round(2)\n"
"array([[0.89, 0.05, 0.05, 0.  ],\n"
"       [0.05, 0.89, 0.05, 0.  ],\n"
"       [0.33, 0.33, 0.33, 0.  ],\n"
"       [0.33, 0.33, 0.33, 0.  ]], dtype=float32)",
    .backward_notes =
"The output's layer first: with O the heads side by side and g = `grad_output`,\n"
"``dW_o = g^T O`` and ``dO = g W_o``; then the heads as in\n"
"`dot_product_attention_backward`; then each projection, as ``dW_q = dQ^T queries``\n"
"and ``dqueries = dQ W_q``. Heads that share keys add up. The forward is computed\n"
"again, so `output` saves nothing here.",
    .backward_example =
">>> import numpy as np\n"
">>> from attnext import multi_head_attention_backward\n"
">>> x, eye = np.eye(2), np.eye(2)\n"
">>> d = multi_head_attention_backward(x, x, x, x, eye, eye, eye, eye, num_heads=2)\n"
">>> d.W_o.round(2)\n"
"array([[0.73, 0.5 ],\n"
"       [0.5 , 0.73]], dtype=float32)",
};

const attn_score_info attn_multi_head = {
    .name = "multi_head",
    .parameters = {
        [W_Q] = {"W_q", "HQ", false, 'Q',
                 "Projection of the queries; the rows of a head lie together."},
        [W_K] = {"W_k", "GK", false, 'K',
                 "Projection of the keys, ``Hk = H / num_heads * num_kv_heads``."},
        [W_V] = {"W_v", "GV", false, 'V', "Projection of the values."},
        [W_O] = {"W_o", "HH", false, 'H', "Projection of the heads' outputs."},
        [B_Q] = {"b_q", "H", true, 'Q', "Bias of the projected queries."},
        [B_K] = {"b_k", "G", true, 'K', "Bias of the projected keys."},
        [B_V] = {"b_v", "G", true, 'V', "Bias of the projected values."},
        [B_O] = {"b_o", "H", true, 'H', "Bias of the output."},
    },
    .scale = ATTN_SCALE_ROOT,
    .has_heads = true,
    .text = &text,
};
/* clang-format on */
