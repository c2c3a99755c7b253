/*
 * score_additive.c -- score(q, k) = w_v . tanh(W_q q + W_k k + b_h)  (Bahdanau et al.
 * 2015): blocks of queries. See additive.h for the forms in which numbers are kept.
 *
 * Almost always all pairs of a tile agree on a form; a tile in which they do not is
 * computed once for each form present, with live words that pick the pairs.
 */
#include "additive.h"
#include "pairs.h"

#include <string.h>

typedef struct {
    float *Q;                  /* [Dq][lanes] */
    float *raw, *exp, *tanh;   /* [H][lanes]  a = -(W_q q + b_h), e^2a, tanh a */
    float *top;                /* [lanes]  largest |a_h| */
    uint64_t form[4], upto[4]; /* lanes in that form, and in that or a smaller one */
    int least, most;           /* forms present */
    float *keys; /* [keys][H]  where the stored form or size does not serve a pass */
    float *safe; /* [H][lanes]  the same of the lanes */
    uint64_t live[ATTN_KEYS]; /* live words of one pass */
    float *da, *dw;           /* [H][lanes]  backward: sums of G (1 - t^2) and of G t */
} additive_scratch;

static double
pair_work(const attn_problem *p)
{
    return 4.0 * (double)p->H;
}

static double
query_work(const attn_problem *p)
{
    return (double)p->Dq * (double)p->H;
}

static double
key_work(const attn_problem *p)
{
    return (double)p->Dk * (double)p->H;
}

/* ---- arrays ---------------------------------------------------------------------- */

static void
take_shared(attn_call *c, attn_arena *a)
{
    const attn_problem *p = c->p;
    additive_shared local, *s = attn_take(a, sizeof *s, 1, 1);
    c->shared = s;
    s = s == NULL ? &local : s;
    s->H = attn_additive_width(p);
    s->few = s->da = s->dw_blocks = NULL;
    s->query_use = NULL;
    int64_t queries = 0;
    if (__builtin_mul_overflow(p->B, p->M, &queries)) {
        a->used = SIZE_MAX;
        return;
    }
    if (c->backward) {
        s->panels = attn_take_panels_backward(a, p->Dq, p->H, p->B, p->M);
    } else if (attn_additive_few(p)) {
        s->panels = attn_take_panels(a, p->Dq, p->H);
    }
    if (attn_additive_few(p)) {
        s->few = attn_take_floats(a, queries, s->H);
    }
    s->w = attn_take_floats(a, 1, s->H);
    if (c->backward) {
        s->da = attn_take_floats(a, queries, p->H);
        s->query_use = attn_take(a, 1, queries, 1);
        s->dw_blocks = attn_take(a, (size_t)p->H * sizeof(float), p->B, c->blocks);
    }
}

static void
take_block(attn_block *block, attn_arena *a)
{
    const attn_call *c = block->call;
    const int64_t H = attn_additive_width(c->p);
    const int64_t keys = c->p->N < ATTN_KEYS ? c->p->N : ATTN_KEYS;
    additive_scratch local, *s = attn_take(a, sizeof *s, 1, 1);
    block->scratch = s;
    s = s == NULL ? &local : s;
    s->Q = attn_take_floats(a, c->p->Dq, block->lanes);
    s->raw = attn_take_floats(a, H, block->lanes);
    s->exp = attn_take_floats(a, H, block->lanes);
    s->tanh = attn_take_floats(a, H, block->lanes);
    s->top = attn_take_floats(a, 1, block->lanes);
    s->keys = attn_take_floats(a, keys, H);
    s->safe = attn_take_floats(a, H, block->lanes);
    s->da = c->backward ? attn_take_floats(a, H, block->lanes) : NULL;
    s->dw = c->backward ? attn_take_floats(a, H, block->lanes) : NULL;
}

/* ---- the block's queries --------------------------------------------------------- */

static const additive_keys *
keys_of(const attn_block *block)
{
    return block->call->prepared->rows;
}

/* raw = W_q q, in lanes. */
static void
project(attn_block *block)
{
    const attn_call *c = block->call;
    const attn_problem *p = c->p;
    const additive_shared *shared = c->shared;
    additive_scratch *s = block->scratch;
    if (attn_additive_few(p)) {
        attn_simd->pack(s->raw, block->lanes,
                        shared->few + attn_row_offset(block, shared->H), shared->H,
                        block->rows.count, p->H, 1.0f);
        return;
    }
    const attn_span queries = attn_queries_of(block);
    attn_simd->pack(s->Q, block->lanes, queries.data, queries.ld, block->rows.count,
                    p->Dq, 1.0f);
    attn_simd->matmul(s->raw, block->lanes, p->parameters[W_Q], p->Dq, 1, s->Q,
                      block->lanes, p->H, block->lanes, p->Dq, ATTN_SET);
}

/* Set the pre-activations of lanes without a query to 0, which every form can hold: b_h alone
 * may be too large for the form of the queries, and give inf / inf (FE_INVALID). */
static void
clear_spare_lanes(const attn_block *block)
{
    const additive_scratch *s = block->scratch;
    const int lanes = block->lanes, count = block->rows.count;
    for (int64_t h = 0; count < lanes && h < block->call->p->H; h++) {
        memset(s->raw + h * lanes + count, 0, (size_t)(lanes - count) * sizeof(float));
    }
}

static void
load(attn_block *block)
{
    const attn_problem *p = block->call->p;
    const additive_shared *shared = block->call->shared;
    const int64_t H = attn_additive_width(p);
    additive_scratch *s = block->scratch;

    project(block);
    attn_simd->negate_absmax(s->raw, p->parameters[B_H], s->top, block->lanes, p->H);
    if (p->parameters[B_H] != NULL) {
        clear_spare_lanes(block);
    }
    memset(s->raw + p->H * block->lanes, 0,
           (size_t)((H - p->H) * block->lanes) * sizeof(float));
    memset(s->form, 0, sizeof s->form);
    s->least = ADDITIVE_DIRECT;
    s->most = ADDITIVE_SMALL;
    for (int l = 0; l < block->rows.count; l++) {
        int form = shared->direct ? ADDITIVE_DIRECT : attn_additive_form(s->top[l]);
        s->form[form] |= (uint64_t)1 << l;
        s->least = form < s->least ? form : s->least;
        s->most = form > s->most ? form : s->most;
    }
    if (block->rows.count < block->lanes) { /* spare lanes take no pass of their own */
        s->form[s->least] |= ~(uint64_t)0 << block->rows.count;
    }
    for (int f = 0; f < 4; f++) {
        s->upto[f] = s->form[f] | (f > 0 ? s->upto[f - 1] : 0);
    }
    attn_simd->exp_form(s->exp, s->raw, H * block->lanes);
    if (s->least == ADDITIVE_SMALL) {
        attn_simd->tanh_form(s->tanh, s->raw, H * block->lanes);
    }
}

/* ---- passes over a tile: one for each form that its pairs need ------------------- */

typedef struct {
    int64_t row; /* of the tile's first key among the prepared ones */
    int keys;
    int least_key; /* smallest form of the tile's keys */
    int last;      /* last regime to pass */
    bool mixed;    /* more than one: live words pick the pairs */
    int regime;    /* of this pass, with its operands and live words */
    const float *A, *B;
    const uint64_t *live;
} additive_pass;

static additive_pass
first_pass(const attn_block *block, int64_t k0, int keys)
{
    const additive_scratch *s = block->scratch;
    additive_pass pass = {.row = attn_prepared_row(block, k0),
                          .keys = keys,
                          .least_key = ADDITIVE_DIRECT};
    int most_key = ADDITIVE_SMALL;
    for (int i = 0; i < keys; i++) {
        int form = keys_of(block)->form[pass.row + i];
        if (form == NO_FORM) {
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

/* Replace what this pass must not compute with, of a tile whose pairs need several passes:
 * lanes and keys of a larger form. Their pairs are selected away, but e^2a of a large a would
 * overflow on the way to inf / inf (FE_INVALID). In the forms that divide 0, or 1, stands
 * for any operand. */
static void
replace_larger_forms(additive_pass *pass, const attn_block *block)
{
    const additive_scratch *s = block->scratch;
    const int64_t H = attn_additive_width(block->call->p);
    const uint8_t *form = keys_of(block)->form + pass->row;
    const float safe = pass->regime == ADDITIVE_SMALL ? 0.0f : 1.0f;
    const int lanes = block->lanes;
    const uint64_t larger = ~s->upto[pass->regime];
    for (int64_t h = 0; h < H; h++) {
        for (int l = 0; l < lanes; l++) {
            int64_t at = h * lanes + l;
            s->safe[at] = larger >> l & 1 ? safe : pass->A[at];
        }
    }
    for (int64_t i = 0; i < pass->keys; i++) {
        for (int64_t h = 0; h < H; h++) {
            int64_t at = i * H + h;
            s->keys[at] = form[i] > pass->regime ? safe : pass->B[at];
        }
    }
    pass->A = s->safe;
    pass->B = s->keys;
}

static bool
next_pass(additive_pass *pass, attn_block *block, const uint64_t *live)
{
    const additive_keys *made = keys_of(block);
    additive_scratch *s = block->scratch;
    const int64_t H = attn_additive_width(block->call->p);
    if (++pass->regime > pass->last) {
        return false;
    }
    pass->live = pass->mixed ? live_in_regime(s, pass, made->form + pass->row, live)
                             : live;
    if (pass->regime == ADDITIVE_DIRECT) {
        pass->A = s->raw;
        pass->B = made->raw + pass->row * H;
    } else {
        bool small = pass->regime == ADDITIVE_SMALL;
        pass->A = small ? s->tanh : s->exp;
        pass->B = made->stored + pass->row * H;
        if (!small && pass->least_key == ADDITIVE_SMALL) {
            attn_simd->exp_form(s->keys, made->raw + pass->row * H, pass->keys * H);
            pass->B = s->keys;
        }
        if (pass->mixed) {
            replace_larger_forms(pass, block);
        }
    }
    return true;
}

/* S[i][l] = unit * sum_h w_h tanh(b_h - a_h) */
static void
tile(attn_block *block, float *S, int64_t k0, int keys)
{
    const additive_shared *s = block->call->shared;
    additive_pass pass = first_pass(block, k0, keys);
    if (pass.mixed) { /* no pass has the keys that no query needs */
        memset(S, 0, (size_t)(keys * block->lanes) * sizeof(float));
    }
    while (next_pass(&pass, block, NULL)) {
        attn_simd->additive_tile(S, pass.A, pass.B, s->w, block->lanes, keys, s->H,
                                 (additive_regime)pass.regime, pass.live);
    }
}

/* ---- backward -------------------------------------------------------------------- */

static void
load_backward(attn_block *block)
{
    const additive_scratch *s = block->scratch;
    size_t bytes = (size_t)(attn_additive_width(block->call->p) * block->lanes) *
                   sizeof(float);
    memset(s->da, 0, bytes);
    memset(s->dw, 0, bytes);
}

/* Keys whose terms are one sum before they are added to da and dw: longer chains lose
 * digits, one of all keys of a tile twice as many as PyTorch's sums do. */
enum { SUM_KEYS = 32 };

/* forward was: S = sum_h w_h t_h, t = tanh(b - a).  So now, the factor w_h for later, and
 * da the gradient of what a was before its sign was changed:
 *     da_h += sum_keys dS (1 - t^2),  db_h += sum_queries dS (1 - t^2),
 *     dw_h += sum dS t.
 * The sum over queries runs across lanes, so lanes without a query must be dead. */
static void
tile_backward(attn_block *block, const float *dS)
{
    const int64_t H = attn_additive_width(block->call->p);
    const additive_scratch *s = block->scratch;
    const attn_tile *t = &block->tile;
    const int64_t k0 = t->k0 + t->first;
    const int keys = t->end - t->first;
    uint64_t all[ATTN_KEYS];
    const uint64_t *live = t->scored == NULL ? NULL : t->scored + t->first;
    if (live == NULL && block->rows.count < block->lanes) {
        for (int i = 0; i < keys; i++) {
            all[i] = ((uint64_t)1 << block->rows.count) - 1;
        }
        live = all;
    }
    additive_pass pass = first_pass(block, k0, keys);
    attn_begin_sums(&block->dkeys, k0 + keys);
    while (keys > 0 && next_pass(&pass, block, live)) {
        for (int i = 0, n; i < keys; i += n) {
            n = SUM_KEYS - (t->first + i) % SUM_KEYS;
            n = n < keys - i ? n : keys - i;
            attn_simd->additive_tile_backward(
                s->da, s->dw, block->dkeys.to.data + (k0 + i) * H, pass.A,
                pass.B + i * H, dS + (t->first + i) * block->lanes, block->lanes, n, H,
                (additive_regime)pass.regime, pass.live == NULL ? NULL : pass.live + i);
        }
    }
}

static void
store_backward(attn_block *block)
{
    const attn_call *c = block->call;
    const attn_problem *p = c->p;
    const additive_shared *shared = c->shared;
    const additive_scratch *s = block->scratch;
    int64_t index = block->b * c->blocks + block->m0 / c->lanes;
    float ones[ATTN_LANES];

    for (int64_t h = 0; h < p->H; h++) {
        float *da_h = s->da + h * block->lanes;
        for (int l = 0; l < block->lanes; l++) {
            da_h[l] *= p->parameters[W_V][h];
        }
    }
    for (int l = 0; l < block->lanes; l++) {
        ones[l] = 1.0f; /* lanes without a query hold 0 in dw */
    }
    attn_simd->matmul(shared->dw_blocks + index * p->H, 1, s->dw, block->lanes, 1, ones,
                      1, p->H, 1, block->lanes, ATTN_SET);
    attn_simd->unpack(shared->da + attn_row_offset(block, p->H), p->H, s->da,
                      block->lanes, block->rows.count, p->H, NULL);
    attn_note_queries(block, shared->query_use);
}

const attn_score attn_score_additive = {
    .about =
        {
            .name = "additive",
            .parameters = {[W_Q] = {"W_q", "HQ", .fan_in = 'Q'},
                           [W_K] = {"W_k", "HK", .fan_in = 'K'},
                           [W_V] = {"w_v", "1H", .fan_in = 'H'},
                           [B_H] = {"b_h", "H", .optional = true, .fan_in = 'Q'}},
        },
    .pair_work = pair_work,
    .query_work = query_work,
    .key_work = key_work,
    .key_width = attn_additive_width,
    .most_lanes = 32,
    .few_queries = {4, 1}, /* backward, sums over queries have the order of lanes */
    .take_keys = attn_additive_take_keys,
    .start_keys = attn_additive_start_keys,
    .make_keys = attn_additive_make_keys,
    .clear_keys = attn_additive_clear_keys,
    .make_keys_backward = attn_additive_make_keys_backward,
    .take_shared = take_shared,
    .take_block = take_block,
    .prepare = attn_additive_prepare,
    .load = load,
    .tile = tile,
    .load_backward = load_backward,
    .tile_backward = tile_backward,
    .store_backward = store_backward,
    .finish = attn_additive_finish,
    .projected_backward = attn_additive_projected_backward,
};
