/*
 * fuzz_problem.h -- one fuzz input turned into an attention problem.
 *
 * Every option of attn.h, in any composition. What takes no part in the problem is NaN.
 */
#ifndef FUZZ_PROBLEM_H
#define FUZZ_PROBLEM_H

#include "fuzz_masks.h"

typedef struct {
    attn_problem p;
    attn_masks softmax_masks; /* of masked softmax, where they are others than p's */
    uint8_t *pairs;           /* (B, M, N)  who takes part */
    uint8_t *softmax_pairs;   /* (B, M, N)  and in the masked softmax */
    int64_t bias_size, sink_size, scale_size; /* numbers of these */
    float *queries, *keys, *values;
    float *dout, *dweights, *dlse; /* the last two may be NULL */
    bool wants_dbias, wants_dsink, wants_dscale;
    bool hands_back_output, hands_back_weights, hands_back_lse;
    float *X, *dsoftmax; /* masked softmax: its input and gradient, (B, M, N) */
    int threads;
    bool
        strided, /* queries, keys and values are handed in with gaps and heads inside */
        projects_late; /* the backward leaves the projection of the keys for later */
    bool tame;         /* no infinity or NaN where it matters */
    bool modest;       /* and small enough that rounding errors are */
    bool finite;       /* every input is finite, except a bias or sink of -inf */
} problem;

#define ADDRESS_OF_SCORE(name) &attn_score_##name,
static const attn_score *const scores[] = {ATTN_SCORES(ADDRESS_OF_SCORE)};

/* x (entries, rows, width) as it is, or, with gaps of NaN, as (entries / heads, rows,
 * heads, width). */
static attn_operand
operand_of(const float *x, int64_t entries, int64_t rows, int64_t width, bool strided)
{
    if (!strided) {
        return attn_dense(x, rows, width);
    }
    attn_operand y = {.heads = entries % 3 == 0 && entries > 0 ? 3
                                                               : 1 + (entries + 1) % 2};
    y.head = width + 2;
    y.row = y.heads * y.head + 3;
    y.entry = rows * y.row + 1;
    float *copy = nan_floats((entries / y.heads + 1) * y.entry);
    for (int64_t i = 0; i < entries * rows * width; i++) {
        int64_t e = i / width / rows, j = i / width % rows;
        copy[e / y.heads * y.entry + e % y.heads * y.head + j * y.row + i % width] =
            x[i];
    }
    y.data = copy;
    return y;
}

static attn_inputs
inputs_of(const problem *c)
{
    const attn_problem *p = &c->p;
    const int64_t entries = p->B / p->group;
    return (attn_inputs){
        operand_of(c->queries, p->B, p->M, p->Dq, c->strided),
        operand_of(c->keys, entries, p->N, p->Dk, c->strided),
        operand_of(c->values, entries, p->N, p->Dv, c->strided),
    };
}

/* ---- who takes part -------------------------------------------------------------- */

/* Is the row (B * M of them) without any pair that takes part? */
static bool
is_empty(const attn_problem *p, const uint8_t *pairs, int64_t row)
{
    return p->N == 0 || memchr(pairs + row * p->N, 1, (size_t)p->N) == NULL;
}

/* The sink of a row; -inf: none. */
static float
sink_of(const attn_problem *p, int64_t row)
{
    return p->sink.data == NULL ? -INFINITY
                                : float_at(&p->sink, row / p->M, row % p->M, 0);
}

static bool
hands_back(const problem *c)
{
    return c->hands_back_output || c->hands_back_weights || c->hands_back_lse;
}

/* Does an empty row attend to all keys alike? */
static bool
is_uniform(const attn_problem *p)
{
    return p->empty_rows == ATTN_EMPTY_UNIFORM && p->N > 0;
}

/* Is the row one of those? Not if a sink has its weight. */
static bool
is_averaged(const attn_problem *p, const uint8_t *pairs, int64_t row)
{
    return is_uniform(p) && is_empty(p, pairs, row) && sink_of(p, row) == -INFINITY;
}

/* Does any query of the heads that share entry e of the keys attend to key j? */
static bool
key_is_used(const problem *c, int64_t e, int64_t j)
{
    const attn_problem *p = &c->p;
    int64_t first = e * p->group * p->M, end = first + p->group * p->M;
    for (int64_t row = first; row < end; row++) {
        if (c->pairs[row * p->N + j]) {
            return true;
        }
    }
    return false;
}

/* Does any of those queries attend to all keys because it has none to attend to? */
static bool
values_are_averaged(const problem *c, int64_t e)
{
    const attn_problem *p = &c->p;
    int64_t first = e * p->group * p->M, end = first + p->group * p->M;
    for (int64_t row = first; row < end; row++) {
        if (is_averaged(p, c->pairs, row)) {
            return true;
        }
    }
    return false;
}

/* NaN in n numbers from row `row` of x, which may be NULL. */
static void
poison_row(float *x, int64_t row, int64_t n)
{
    for (int64_t i = 0; x != NULL && i < n; i++) {
        x[row * n + i] = NAN;
    }
}

/* NaN wherever the byte is 0. */
static void
poison_pairs(float *x, const uint8_t *pairs, int64_t n)
{
    for (int64_t i = 0; x != NULL && i < n; i++) {
        x[i] = pairs[i] ? x[i] : NAN;
    }
}

/* NaN wherever no rule but the bias's own allows a pair that has this number. */
static void
poison_bias(const problem *c, float *bias)
{
    const attn_problem *p = &c->p;
    const attn_view *v = &p->masks.bias;
    float *poisoned = nan_floats(c->bias_size);
    for (int64_t b = 0; b < p->B; b++) {
        for (int64_t m = 0; m < p->M; m++) {
            for (int64_t j = 0; j < p->N; j++) {
                if (is_allowed(&p->masks, b, m, j)) {
                    poisoned[view_at(v, b, m, j)] = bias[view_at(v, b, m, j)];
                }
            }
        }
    }
    memcpy(bias, poisoned, (size_t)c->bias_size * sizeof *bias);
}

/* NaN over what takes no part: keys and values that no query attends to, queries and
 * gradients of empty rows, gradients of masked weights, masked scores, biases. */
static void
poison(problem *c)
{
    const attn_problem *p = &c->p;
    const int64_t pairs = p->B * p->M * p->N;

    for (int64_t e = 0; e < p->B / p->group; e++) {
        bool averaged = values_are_averaged(c, e);
        for (int64_t j = 0; j < p->N; j++) {
            if (!key_is_used(c, e, j)) {
                poison_row(c->keys, e * p->N + j, p->Dk);
                poison_row(averaged ? NULL : c->values, e * p->N + j, p->Dv);
            }
        }
    }
    for (int64_t row = 0; row < p->B * p->M; row++) {
        if (is_empty(p, c->pairs, row)) {
            poison_row(c->queries, row, p->Dq);
            bool averaged = is_averaged(p, c->pairs, row);
            poison_row(averaged ? NULL : c->dout, row, p->Dv);
            poison_row(sink_of(p, row) != -INFINITY ? NULL : c->dlse, row, 1);
        }
    }
    poison_pairs(c->dweights, c->pairs, pairs);
    poison_pairs(c->X, c->softmax_pairs, pairs);
    poison_pairs(c->dsoftmax, c->softmax_pairs, pairs);
}

/* ---- choices --------------------------------------------------------------------- */

/* Up to three axes of up to four entries; the last one's may share keys. */
static leading_axes
choose_batch(source *s, attn_problem *p)
{
    leading_axes lead = {.count = next_byte(s) % (MOST_AXES + 1)};
    p->B = 1;
    for (int i = 0; i < lead.count; i++) {
        int64_t n = 1 + next_byte(s) % 4;
        bool first_axis = i == lead.count - 1;
        lead.size[i] = first_axis && next_byte(s) % 16 == 0 ? 0 : p->B * n > 8 ? 1 : n;
        p->B *= lead.size[i];
    }
    unsigned sharing = next_byte(s) % 4;
    bool possible = lead.count > 0 && lead.size[0] > 0;
    p->group = !possible || sharing < 2                ? 1
               : sharing == 2 && lead.size[0] % 2 == 0 ? 2
                                                       : lead.size[0];
    return lead;
}

static void
choose_sizes(source *s, attn_problem *p)
{
    bool additive = p->score == &attn_score_additive;
    p->M = size(s, 70);
    p->N = size(s, 260);
    p->Dq = size(s, 40);
    p->Dk = additive ? size(s, 20) : p->Dq;
    p->Dv = size(s, 40);
    p->H = additive ? size(s, 33) : 0;
    unsigned shape = next_byte(s) % 32;
    int64_t M = shape == 0 ? 257 : 0; /* enough queries for two tasks of the backward */
    int64_t N = shape == 1 ? 257 : 0; /* enough keys for a tile between two others */
    p->M += M;
    p->N += N;
    /* smaller until it is fast enough to try many */
    while (p->B * p->M * p->N * (p->Dq + p->Dv + 4 * p->H + 8) > 200000) {
        p->M -= (p->M - M + 2) / 3;
        p->N -= (p->N - N + 7) / 8;
        p->H -= p->H / 4;
        p->Dv -= p->Dv / 4;
    }
}

static void
choose_numbers(source *s, problem *c, unsigned options)
{
    attn_problem *p = &c->p;
    if (p->score == &attn_score_additive) {
        p->parameters[0] = random_floats(s, p->H * p->Dq);
        p->parameters[1] = random_floats(s, p->H * p->Dk);
        p->parameters[2] = random_floats(s, p->H);
        p->parameters[3] = options & 1 ? random_floats(s, p->H) : NULL;
    }
    c->queries = random_floats(s, p->B * p->M * p->Dq);
    c->keys = random_floats(s, p->B / p->group * p->N * p->Dk);
    c->values = random_floats(s, p->B / p->group * p->N * p->Dv);
    c->X = random_floats(s, p->B * p->M * p->N);
    c->dsoftmax = random_floats(s, p->B * p->M * p->N);
    c->dout = random_floats(s, p->B * p->M * p->Dv);
    c->dweights = options & 2 ? random_floats(s, p->B * p->M * p->N) : NULL;
    c->dlse = options & 4 ? random_floats(s, p->B * p->M) : NULL;
}

static void
choose_dropout(source *s, attn_problem *p, const leading_axes *lead)
{
    unsigned kind = next_byte(s) % 8;
    if (kind < 3) {
        p->dropout.p = (float)next_byte(s) / 256.0f;
        p->dropout.seed = next_random(s);
    }
    if (kind == 2 || kind == 3) {
        p->dropout.keep = choose_flags(s, p, lead);
    }
}

/* A sink, some of it -inf, none of it what is refused; scales, finite. */
static void
choose_sink_and_scales(source *s, problem *c, const leading_axes *lead)
{
    attn_problem *p = &c->p;
    bool factor = attn_about(p->score)->scale == ATTN_SCALE_ROOT ||
                  attn_about(p->score)->scale == ATTN_SCALE_ONE;
    unsigned kind = next_byte(s);
    if (kind % 3 == 0) {
        p->sink = choose_shared(s, p, p->M, lead, &c->sink_size);
        float *sink = (float *)p->sink.data;
        for (int64_t i = 0; i < c->sink_size; i++) {
            bool none = next_random(s) % 4 == 0 || !(sink[i] < INFINITY);
            sink[i] = none ? -INFINITY : sink[i];
        }
        c->wants_dsink = c->sink_size > 0 && kind & 64;
    }
    c->scale_size = 1;
    if (factor && kind % 4 == 0) {
        p->scales = choose_shared(s, p, 1, lead, &c->scale_size);
        float *scales = (float *)p->scales.data;
        for (int64_t i = 0; i < c->scale_size; i++) {
            scales[i] = isfinite(scales[i]) ? scales[i] : 0.0f;
        }
    }
    c->wants_dscale = factor && c->scale_size > 0 && kind & 128;
}

static problem
choose_problem(source *s)
{
    static const float smallest_norms[] = {1e-8f, 1.0f, 0.0f, 1e-8f};
    static const float softcaps[] = {0.0f, 1.0f, 0.0f, 0.1f, 0.0f, 30.0f, 0.0f, 1e-30f};
    problem c = {.threads = 1 + (int)(next_byte(s) % 3), .tame = !s->nasty};
    c.modest = c.tame && s->magnitude <= 1.0f;
    attn_problem *p = &c.p;

    p->score = scores[next_byte(s) % 4];
    const leading_axes lead = choose_batch(s, p);
    choose_sizes(s, p);
    p->scale = (float)next_byte(s) / 64.0f - 1.0f;
    p->eps = smallest_norms[next_byte(s) % 4];
    p->softcap = softcaps[next_byte(s) % 8];
    p->empty_rows = (attn_empty_rows)(next_byte(s) % 3);
    choose_masks(s, p, &lead, &c.bias_size);
    c.softmax_masks = p->masks;
    choose_dropout(s, p, &lead);
    choose_sink_and_scales(s, &c, &lead);
    unsigned options = next_byte(s);
    c.wants_dbias = p->masks.bias.data != NULL && options & 8;
    if (options & 16) {
        c.hands_back_output = options & 32;
        c.hands_back_weights = options & 64;
        c.hands_back_lse = options & 128;
    }
    choose_numbers(s, &c, options);

    c.pairs = pairs_of(p, &p->masks, takes_part);
    c.softmax_pairs = pairs_of(p, &p->masks, is_valid);
    c.finite = c.tame && next_byte(s) % 4 == 0;
    if (!c.finite) {
        if (p->masks.bias.data != NULL) {
            poison_bias(&c, (float *)p->masks.bias.data);
        }
        poison(&c);
    }
    return c;
}

#endif
