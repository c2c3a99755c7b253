/*
 * score_additive.c -- score(q, k) = w_v . tanh(W_q q + W_k k + b_h)  (Bahdanau et al.
 * 2015).
 *
 * The sum over hidden units runs over pre-activations a = W_q q + b_h and b = W_k k.
 * Both are projected and transformed once, O((M + N) H) work, and the kernels then need
 * one division for two of the M N H terms (kernels_additive.h). Which transform,
 * depends on the size of the numbers. Each query and each key has a form of its own,
 *
 *     form    largest |a_h|    stored as
 *     SMALL        <= 1        tanh a     relative accuracy for small sums
 *     EXP          <= 10.9     e^2a
 *     CLAMPED      <= 43.6     e^2a       e^2a e^2b may overflow: clamped
 *     DIRECT                   a itself
 *
 * and a pair is computed in the larger of its two forms. So what a pair gives depends
 * on that pair alone, never on its neighbours. Almost always all pairs of a tile agree;
 * a tile in which they do not is computed once for each form present, with live words
 * that pick the pairs.
 */
#include "walk.h"

#include <string.h>

#include "projection.h"

typedef struct {
    int64_t H;          /* hidden units, made even: the last one then has weight 0 */
    float *W_kT;        /* [Dk][padded H]  W_k transposed */
    float *raw;         /* (B, N, H)  W_k k */
    float *stored;      /* (B, N, H)  tanh of it in form SMALL, else e^2 of it */
    uint8_t *form;      /* (B, N); ATTN_UNUSED where no query needs the key */
    float *w, *w_exp;   /* (H)  unit * w_v; and times -2, for 1 - 2 / (1 + A B) */
    float bias_exp;     /* unit * sum of w_v */
    float *da;          /* (B, M, p->H)  backward: gradient of a */
    uint8_t *query_use; /* (B, M)  backward: ATTN_UNUSED for empty rows */
    float *dw_blocks;   /* (B, blocks, p->H)  backward: each block's share of dw_v */
} additive_shared;

typedef struct {
    float *Q;                  /* [Dq][lanes] */
    float *raw, *exp, *tanh;   /* [H][lanes]  a, e^2a, tanh a */
    float *top;                /* [lanes]  largest |a_h| */
    uint64_t form[4], upto[4]; /* lanes in that form, and in that or a smaller one */
    int least, most;           /* forms present */
    float
        *keys; /* [keys][H]  transformed again, where the stored form does not serve */
    uint64_t live[ATTN_KEYS]; /* live words of one pass */
    float *da, *dw;           /* [H][lanes]  backward: sums of G (1 - t^2) and of G t */
} additive_scratch;

static int
form_of(float largest)
{
    return largest <= 1.0f    ? ADDITIVE_SMALL
           : largest <= 10.9f ? ADDITIVE_EXP
           : largest <= 43.6f ? ADDITIVE_CLAMPED
                              : ADDITIVE_DIRECT;
}

static double
pair_work(const attn_problem *p)
{
    return 4.0 * (double)p->H;
}

static int64_t
key_width(const attn_problem *p)
{
    return p->H + p->H % 2;
}

/* ---- arrays ---------------------------------------------------------------------- */

static int64_t
padded(int64_t H)
{
    return (H + 15) / 16 * 16;
}

static void
take_shared(attn_call *c, attn_arena *a)
{
    const attn_problem *p = c->p;
    additive_shared local, *s = attn_take(a, sizeof *s, 1, 1);
    c->shared = s;
    s = s == NULL ? &local : s;
    s->H = key_width(p);
    int64_t keys = 0;
    if (__builtin_mul_overflow(p->B / p->group, p->N, &keys)) {
        a->used = SIZE_MAX;
        return;
    }
    s->W_kT = attn_take_floats(a, p->Dk, padded(s->H));
    s->raw = attn_take_floats(a, keys, s->H);
    s->stored = attn_take_floats(a, keys, s->H);
    s->form = attn_take(a, 1, keys, 1);
    s->w = attn_take_floats(a, 1, s->H);
    s->w_exp = attn_take_floats(a, 1, s->H);
    s->da = s->dw_blocks = NULL;
    s->query_use = NULL;
    if (c->backward) {
        int64_t queries = 0;
        if (__builtin_mul_overflow(p->B, p->M, &queries)) {
            a->used = SIZE_MAX;
            return;
        }
        s->da = attn_take_floats(a, queries, p->H);
        s->query_use = attn_take(a, 1, queries, 1);
        s->dw_blocks = attn_take_floats(a, p->B * c->blocks, p->H);
        c->dkeys = attn_take_floats(a, keys, s->H);
    }
}

static void
take_block(attn_block *k, attn_arena *a)
{
    const attn_call *c = k->call;
    const int64_t H = key_width(c->p);
    const int64_t keys = c->p->N < ATTN_KEYS ? c->p->N : ATTN_KEYS;
    additive_scratch local, *s = attn_take(a, sizeof *s, 1, 1);
    k->scratch = s;
    s = s == NULL ? &local : s;
    s->Q = attn_take_floats(a, c->p->Dq, k->lanes);
    s->raw = attn_take_floats(a, H, k->lanes);
    s->exp = attn_take_floats(a, H, k->lanes);
    s->tanh = attn_take_floats(a, H, k->lanes);
    s->top = attn_take_floats(a, 1, k->lanes);
    s->keys = attn_take_floats(a, keys, H);
    s->da = c->backward ? attn_take_floats(a, H, k->lanes) : NULL;
    s->dw = c->backward ? attn_take_floats(a, H, k->lanes) : NULL;
}

/* ---- prepare: project the keys that any query may attend to ---------------------- */

enum { PROJECT_KEYS = 64 }; /* keys of one task */

static int64_t
key_chunks(const attn_problem *p)
{
    return (p->N + PROJECT_KEYS - 1) / PROJECT_KEYS;
}

/* The keys of a task: row <= i < end in (B / group, N, ...). */
static void
chunk_of(const attn_problem *p, int64_t task, int64_t *row, int64_t *end)
{
    int64_t j = task % key_chunks(p) * PROJECT_KEYS;
    *row = task / key_chunks(p) * p->N + j;
    *end = *row + (p->N - j < PROJECT_KEYS ? p->N - j : PROJECT_KEYS);
}

/* Keys `row`, `row` + 1, ..., n of them. */
static void
project_keys(const attn_call *c, int64_t row, int64_t n)
{
    const attn_problem *p = c->p;
    const additive_shared *s = c->shared;
    attn_simd->matmul(s->raw + row * s->H, s->H, c->keys + row * p->Dk, p->Dk, 1,
                      s->W_kT, padded(s->H), n, s->H, p->Dk, false);
    for (int64_t i = row; i < row + n; i++) {
        float *raw_i = s->raw + i * s->H;
        if (s->H > p->H) {
            raw_i[p->H] = 0.0f; /* the added unit: 0 times an infinite key is not 0 */
        }
        s->form[i] = (uint8_t)form_of(attn_simd->absmax_row(raw_i, s->H));
        if (s->form[i] == ADDITIVE_SMALL) {
            attn_simd->tanh_form(s->stored + i * s->H, raw_i, s->H);
        } else {
            attn_simd->exp_form(s->stored + i * s->H, raw_i, s->H);
        }
    }
}

/* Keys that no query needs are not read; their rows are 0, so that tiles which they lie
 * in need not care. */
static void
project_task(void *ctx, int64_t task, int worker)
{
    const attn_call *c = ctx;
    const attn_problem *p = c->p;
    const additive_shared *s = c->shared;
    int64_t row, end;
    (void)worker;
    chunk_of(p, task, &row, &end);
    for (int64_t n; row < end; row += n) {
        int64_t used = attn_used_run(s->form + row, end - row);
        n = used > 0 ? used : -used;
        if (used > 0) {
            project_keys(c, row, n);
        } else {
            memset(s->raw + row * s->H, 0, (size_t)(n * s->H) * sizeof(float));
            memset(s->stored + row * s->H, 0, (size_t)(n * s->H) * sizeof(float));
        }
    }
}

static bool
prepare(attn_call *c)
{
    const attn_problem *p = c->p;
    additive_shared *s = c->shared;
    double sum = 0.0;
    for (int64_t h = 0; h < s->H; h++) {
        float w_h = h < p->H ? p->w_v[h] : 0.0f;
        sum += (double)w_h;
        s->w[h] = c->unit * w_h;
        s->w_exp[h] = -2.0f * s->w[h];
    }
    s->bias_exp = (float)((double)c->unit * sum);
    attn_simd->pack(s->W_kT, (int)padded(s->H), p->W_k, p->Dk, (int)p->H, p->Dk, 1.0f);
    int64_t entries = p->B / p->group;
    double us = (double)entries * (double)p->N * (double)p->Dk * (double)p->H / 30e3;
    return attn_used_keys(s->form, p, c->run) &&
           attn_parallel_for(c->run, entries * key_chunks(p), us, project_task, c);
}

/* ---- the block's queries --------------------------------------------------------- */

static void
load(attn_block *k)
{
    const attn_call *c = k->call;
    const attn_problem *p = c->p;
    const int64_t H = key_width(p);
    additive_scratch *s = k->scratch;

    attn_simd->pack(s->Q, k->lanes, c->queries + attn_row_offset(k, p->Dq), p->Dq,
                    k->rows.count, p->Dq, 1.0f);
    attn_simd->matmul(s->raw, k->lanes, p->W_q, p->Dq, 1, s->Q, k->lanes, p->H,
                      k->lanes, p->Dq, false);
    attn_simd->add_bias_absmax(s->raw, p->b_h, s->top, k->lanes, p->H);
    if (H > p->H) {
        memset(s->raw + p->H * k->lanes, 0, (size_t)k->lanes * sizeof(float));
    }
    memset(s->form, 0, sizeof s->form);
    s->least = ADDITIVE_DIRECT;
    s->most = ADDITIVE_SMALL;
    for (int l = 0; l < k->rows.count; l++) {
        int form = form_of(s->top[l]);
        s->form[form] |= (uint64_t)1 << l;
        s->least = form < s->least ? form : s->least;
        s->most = form > s->most ? form : s->most;
    }
    for (int f = 0; f < 4; f++) {
        s->upto[f] = s->form[f] | (f > 0 ? s->upto[f - 1] : 0);
    }
    attn_simd->exp_form(s->exp, s->raw, H * k->lanes);
    if (s->least == ADDITIVE_SMALL) {
        attn_simd->tanh_form(s->tanh, s->raw, H * k->lanes);
    }
}

/* ---- passes over a tile: one for each form that its pairs need ------------------- */

typedef struct {
    int64_t row; /* of the tile's first key in (B, N, ...) */
    int keys;
    int least_key; /* smallest form of the tile's keys */
    int last;      /* last regime to pass */
    bool mixed;    /* more than one: live words pick the pairs */
    int regime;    /* of this pass, with its operands and live words */
    const float *A, *B;
    const uint64_t *live;
} additive_pass;

static additive_pass
first_pass(const attn_block *k, int64_t k0, int keys)
{
    const additive_shared *shared = k->call->shared;
    const additive_scratch *s = k->scratch;
    additive_pass pass = {
        .row = attn_key_offset(k, k0, 1), .keys = keys, .least_key = ADDITIVE_DIRECT};
    int most_key = ADDITIVE_SMALL;
    for (int i = 0; i < keys; i++) {
        int form = shared->form[pass.row + i];
        if (form == ATTN_UNUSED) {
            continue;
        }
        pass.least_key = form < pass.least_key ? form : pass.least_key;
        most_key = form > most_key ? form : most_key;
    }
    int first = s->least > pass.least_key ? s->least : pass.least_key;
    pass.last = s->most > most_key ? s->most : most_key;
    pass.mixed = first < pass.last;
    pass.regime = first - 1;
    return pass;
}

/* Live pairs whose larger form is this pass's regime. */
static const uint64_t *
live_in_regime(additive_scratch *s, const additive_pass *pass, const uint8_t *form,
               const uint64_t *live)
{
    int r = pass->regime;
    for (int i = 0; i < pass->keys; i++) {
        uint64_t pairs = form[i] > r ? 0 : form[i] == r ? s->upto[r] : s->form[r];
        s->live[i] = live == NULL ? pairs : pairs & live[i];
    }
    return s->live;
}

static bool
next_pass(additive_pass *pass, attn_block *k, const uint64_t *live)
{
    const additive_shared *shared = k->call->shared;
    additive_scratch *s = k->scratch;
    const int64_t H = shared->H;
    if (++pass->regime > pass->last) {
        return false;
    }
    pass->live = pass->mixed ? live_in_regime(s, pass, shared->form + pass->row, live)
                             : live;
    if (pass->regime == ADDITIVE_DIRECT) {
        pass->A = s->raw;
        pass->B = shared->raw + pass->row * H;
    } else {
        bool small = pass->regime == ADDITIVE_SMALL;
        pass->A = small ? s->tanh : s->exp;
        pass->B = shared->stored + pass->row * H;
        if (!small && pass->least_key == ADDITIVE_SMALL) {
            attn_simd->exp_form(s->keys, shared->raw + pass->row * H, pass->keys * H);
            pass->B = s->keys;
        }
    }
    return true;
}

/* S[i][l] = unit * sum_h w_h tanh(a_h + b_h) */
static void
tile(attn_block *k, float *S, int64_t k0, int keys)
{
    const additive_shared *s = k->call->shared;
    additive_pass pass = first_pass(k, k0, keys);
    while (next_pass(&pass, k, NULL)) {
        bool exp = pass.regime == ADDITIVE_EXP || pass.regime == ADDITIVE_CLAMPED;
        attn_simd->additive_tile(S, pass.A, pass.B, exp ? s->w_exp : s->w,
                                 exp ? s->bias_exp : 0.0f, k->lanes, keys, s->H,
                                 (additive_regime)pass.regime, pass.live);
    }
}

/* ---- backward -------------------------------------------------------------------- */

static float
dscore_gain(const attn_problem *p)
{
    (void)p;
    return 1.0f;
}

static void
load_backward(attn_block *k)
{
    const additive_scratch *s = k->scratch;
    size_t bytes = (size_t)(key_width(k->call->p) * k->lanes) * sizeof(float);
    memset(s->da, 0, bytes);
    memset(s->dw, 0, bytes);
}

/* forward was: S = sum_h w_h t_h, t = tanh(a + b).  So now, the factor w_h for later:
 *     da_h += sum_keys dS (1 - t^2),  db_h += sum_queries dS (1 - t^2),
 *     dw_h += sum dS t.
 * The sum over queries runs across lanes, so lanes without a query must be dead. */
static void
tile_backward(attn_block *k, const float *dS)
{
    const additive_shared *shared = k->call->shared;
    const additive_scratch *s = k->scratch;
    const attn_tile *t = &k->tile;
    const int64_t k0 = t->k0 + t->first;
    const int keys = t->end - t->first;
    uint64_t all[ATTN_KEYS];
    const uint64_t *live = t->scored == NULL ? NULL : t->scored + t->first;
    if (live == NULL && k->rows.count < k->lanes) {
        for (int i = 0; i < keys; i++) {
            all[i] = ((uint64_t)1 << k->rows.count) - 1;
        }
        live = all;
    }
    additive_pass pass = first_pass(k, k0, keys);
    while (keys > 0 && next_pass(&pass, k, live)) {
        attn_simd->additive_tile_backward(s->da, s->dw, k->dkeys + k0 * shared->H,
                                          pass.A, pass.B, dS + t->first * k->lanes,
                                          k->lanes, keys, shared->H,
                                          (additive_regime)pass.regime, pass.live);
    }
}

static void
store_backward(attn_block *k)
{
    const attn_call *c = k->call;
    const attn_problem *p = c->p;
    const additive_shared *shared = c->shared;
    const additive_scratch *s = k->scratch;
    int64_t index = k->b * c->blocks + k->m0 / k->lanes;
    float *dw_block = shared->dw_blocks + index * p->H;

    for (int64_t h = 0; h < p->H; h++) {
        float *da_h = s->da + h * k->lanes;
        const float *dw_h = s->dw + h * k->lanes;
        dw_block[h] = 0.0f;
        for (int l = 0; l < k->lanes; l++) {
            da_h[l] *= p->w_v[h];
        }
        for (int l = 0; l < k->rows.count; l++) {
            dw_block[h] += dw_h[l];
        }
    }
    attn_simd->unpack(shared->da + attn_row_offset(k, p->H), p->H, s->da, k->lanes,
                      k->rows.count, p->H, NULL);
    for (int l = 0; l < k->rows.count; l++) {
        bool empty = k->rows.empty >> l & 1;
        shared->query_use[attn_row_offset(k, 1) + l] = empty ? ATTN_UNUSED : 0;
    }
}

/* ---- finish: through the projections --------------------------------------------- */

/* db still lacks the factor w_h. */
static void
scale_db_task(void *ctx, int64_t task, int worker)
{
    const attn_call *c = ctx;
    const attn_problem *p = c->p;
    const additive_shared *s = c->shared;
    int64_t row, end;
    (void)worker;
    chunk_of(p, task, &row, &end);
    for (int64_t i = row; i < end; i++) {
        float *db_i = c->dkeys + i * s->H;
        for (int64_t h = 0; h < p->H; h++) {
            db_i[h] *= p->w_v[h];
        }
    }
}

/* forward was: a = W_q q + b_h, b = W_k k. */
static bool
finish(attn_call *c)
{
    const attn_problem *p = c->p;
    const additive_shared *s = c->shared;
    const attn_projection of_queries = {
        .use = s->query_use,
        .B = p->B,
        .rows = p->M,
        .D = p->Dq,
        .H = p->H,
        .ldy = p->H,
        .dX = c->d->queries,
        .dW = c->d->W_q,
        .dY = s->da,
        .X = c->queries,
        .W = p->W_q,
    };
    const attn_projection of_keys = {
        .use = s->form,
        .B = p->B / p->group,
        .rows = p->N,
        .D = p->Dk,
        .H = p->H,
        .ldy = s->H,
        .dX = c->d->keys,
        .dW = c->d->W_k,
        .dY = c->dkeys,
        .X = c->keys,
        .W = p->W_k,
    };
    int64_t entries = p->B / p->group;
    double us = (double)entries * (double)p->N * (double)p->H / 4e3;
    return attn_parallel_for(c->run, entries * key_chunks(p), us, scale_db_task, c) &&
           attn_projection_backward(&of_queries, c->run) &&
           attn_projection_backward(&of_keys, c->run) &&
           attn_sum_rows(c->d->w_v, s->dw_blocks, p->B * c->blocks, p->H, c->run) &&
           (c->d->b_h == NULL ||
            attn_sum_rows(c->d->b_h, s->da, p->B * p->M, p->H, c->run));
}

const attn_score attn_score_additive = {
    .pair_work = pair_work,
    .key_width = key_width,
    .backward_lanes = 32,
    .take_shared = take_shared,
    .take_block = take_block,
    .prepare = prepare,
    .load = load,
    .tile = tile,
    .dscore_gain = dscore_gain,
    .load_backward = load_backward,
    .tile_backward = tile_backward,
    .store_backward = store_backward,
    .finish = finish,
};
