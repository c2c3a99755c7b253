/*
 * fuzz_variants.h -- the same problem asked in another way: what has to stay as it was.
 */
#ifndef FUZZ_VARIANTS_H
#define FUZZ_VARIANTS_H

#include "fuzz_results.h"

/* Asking for nothing but the output, on one thread, changes no bit of it. */
static void
check_output_alone(const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    attn_run run = {.threads = 1};
    float *output = nan_floats(r->n[OUTPUT]);
    void *work = workspace(attn_forward_workspace(p, false, 1));
    const attn_inputs in = inputs_of(c);
    attn_forward(output, NULL, NULL, &in, p, work, &run);
    check(same_bits(output, r->of[OUTPUT], r->n[OUTPUT]), c, r->set, OUTPUT,
          "depends on the extras or the threads");
}

/* ---- some rows of one entry ------------------------------------------------------ */

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

/* The view of entry b alone, from its query m0 on. */
static attn_view
view_from(const attn_view *v, size_t item, int64_t b, int64_t m0)
{
    attn_view part = *v;
    part.axis_count = 0;
    if (v->data != NULL) {
        part.data = (const char *)v->data + view_at(v, b, m0, 0) * (int64_t)item;
    }
    return part;
}

/* The masks of queries m0 .. m0 + count - 1 of entry b and the first N keys. */
static attn_masks
masks_from(const attn_masks *masks, int64_t b, int64_t m0, int64_t count, int64_t N)
{
    attn_masks part = *masks;
    const attn_valid_lens *valid = &masks->valid;
    if (valid->lens != NULL) {
        int64_t *lens = allocate((size_t)count * sizeof *lens);
        const int64_t *from = valid->lens + b / valid->heads * valid->stride_b;
        for (int64_t m = 0; m < count; m++) {
            int64_t n = from[(m0 + m) * valid->stride_m];
            lens[m] = n < N ? n : N;
        }
        part.valid = (attn_valid_lens){.lens = lens, .heads = 1, .stride_m = 1};
    }
    int64_t *offset = allocate(sizeof *offset);
    const attn_band *band = &masks->band;
    *offset = m0 + (band->offset ? band->offset[b / band->heads] : 0);
    part.band.offset = offset;
    part.band.heads = 1;
    part.mask = view_from(&masks->mask, 1, b, m0);
    part.bias = view_from(&masks->bias, sizeof(float), b, m0);
    return part;
}

/* Query rows [row, row + count) of entry b as a problem of their own, cut off behind the
 * last key they use. */
static problem
part_of(const problem *c, int64_t b, int64_t row, int64_t count)
{
    const attn_problem *p = &c->p;
    int64_t N = p->N > 0, e = b / p->group, m0 = row - b * p->M;
    for (int64_t i = row * p->N; i < (row + count) * p->N; i++) {
        bool used = c->pairs[i] || c->softmax_pairs[i] ||
                    is_averaged(p, c->pairs, i / p->N) ||
                    (is_uniform(p) && is_empty(p, c->softmax_pairs, i / p->N));
        N = used && i % p->N >= N ? i % p->N + 1 : N;
    }
    problem part = *c;
    part.p.B = part.p.group = 1;
    part.p.M = count;
    part.p.N = N;
    part.p.masks = part.softmax_masks = masks_from(&p->masks, b, m0, count, N);
    part.p.dropout.keep = view_from(&p->dropout.keep, 1, b, m0);
    part.p.sink = view_from(&p->sink, sizeof(float), b, m0);
    part.p.scales = view_from(&p->scales, sizeof(float), b, m0);
    part.wants_dbias = part.wants_dsink = part.wants_dscale = false;
    part.queries = columns_of(c->queries, row, count, p->Dq, p->Dq);
    part.keys = columns_of(c->keys, e * p->N, N, p->Dk, p->Dk);
    part.values = columns_of(c->values, e * p->N, N, p->Dv, p->Dv);
    part.X = columns_of(c->X, row, count, p->N, N);
    part.dsoftmax = columns_of(c->dsoftmax, row, count, p->N, N);
    part.dout = columns_of(c->dout, row, count, p->Dv, p->Dv);
    part.dweights = columns_of(c->dweights, row, count, p->N, N);
    part.dlse = columns_of(c->dlse, row, count, 1, 1);
    part.pairs = pairs_of(&part.p, &part.p.masks, takes_part);
    part.softmax_pairs = pairs_of(&part.p, &part.p.masks, is_valid);
    return part;
}

/* Some rows alone give what they gave among all: neither the neighbours nor the padding
 * mattered. Not with dropout by seed, whose pattern goes by the place in the batch, nor
 * the gradients from saved results, which the number of tiles decides the use of. */
static void
check_part(source *s, const problem *c, const results *whole)
{
    static const int by_row[] = {OUTPUT, WEIGHTS, LSE, SOFTMAX, D_X, D_QUERIES};
    const attn_problem *p = &c->p;
    bool by_seed = p->dropout.p > 0.0f && p->dropout.keep.data == NULL;
    if (p->B == 0 || p->M == 0 || by_seed) {
        return;
    }
    int64_t b = next_byte(s) % p->B, m0 = next_byte(s) % p->M;
    int64_t count = 1 + next_byte(s) % (p->M - m0), row = b * p->M + m0;
    const problem part = part_of(c, b, row, count);
    const results r = compute(&part, whole->set);

    for (size_t i = 0; i < sizeof by_row / sizeof *by_row - hands_back(c); i++) {
        int which = by_row[i];
        int64_t n = r.n[which] / count, stride = whole->n[which] / (p->B * p->M);
        for (int64_t m = 0; m < count; m++) {
            const float *expected = whole->of[which] + (row + m) * stride;
            check(same_bits(r.of[which] + m * n, expected, n), c, whole->set, which,
                  "of some rows depends on the others, or on padding");
        }
    }
}

/* ---- nothing broadcast, nothing shared, nothing saved ----------------------------- */

/* The bias written out for every pair. */
static float *
full_bias(const attn_problem *p)
{
    float *bias = nan_floats(p->B * p->M * p->N);
    for (int64_t i = 0; i < p->B * p->M * p->N; i++) {
        bias[i] = float_at(&p->masks.bias, i / p->N / p->M, i / p->N % p->M, i % p->N);
    }
    return bias;
}

static bool
is_kept(const attn_masks *keep, int64_t b, int64_t m, int64_t j)
{
    return byte_at(&keep->mask, b, m, j);
}

/* All rules in one byte for each pair, and one bias: the same bits. The gradient of a
 * bias that pairs share is the sum of theirs. */
static void
check_full_masks(const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    problem full = *c;
    full.p.masks = full.softmax_masks = (attn_masks){0};
    full.p.masks.mask = full_view(p, pairs_of(p, &p->masks, is_allowed));
    full.softmax_masks.mask = full_view(p, c->softmax_pairs);
    if (p->masks.bias.data != NULL) {
        full.p.masks.bias = full_view(p, full_bias(p));
        full.bias_size = p->B * p->M * p->N;
    }
    if (p->dropout.keep.data != NULL) {
        const attn_masks keep = {.mask = p->dropout.keep};
        full.p.dropout.keep = full_view(p, pairs_of(p, &keep, is_kept));
    }
    const results f = compute(&full, r->set);
    check_same(c, r, &f, OUTPUT, D_BIAS, "not the bits of masks written out");
    check_same(c, r, &f, SOFTMAX, 2, "not the bits of masks written out");
    if (!c->wants_dbias || !c->tame) {
        return;
    }
    double *sum = calloc((size_t)c->bias_size, sizeof *sum);
    float *rounded = nan_floats(c->bias_size);
    for (int64_t i = 0; i < full.bias_size; i++) {
        int64_t j = i % p->N, m = i / p->N % p->M, b = i / p->N / p->M;
        sum[view_at(&p->masks.bias, b, m, j)] += (double)f.of[D_BIAS][i];
    }
    for (int64_t i = 0; i < c->bias_size; i++) {
        rounded[i] = (float)sum[i];
    }
    free(sum);
    /* n terms of this size in float, in chains of up to 256: off by n 256^(1/2) 2^-24 of
     * it, besides the thousandth that all may be off by */
    double n = (double)full.bias_size / (double)c->bias_size;
    check_near(c, r->set, D_BIAS, r->of[D_BIAS], rounded, c->bias_size,
               largest_of(f.of[D_BIAS], full.bias_size) * (1.0 + 1000.0 * 0x1p-20 * n),
               "not the sum over the pairs that share it");
}

/* Each entry of x, n numbers, `group` times. */
static float *
repeated(const float *x, int64_t entries, int64_t n, int64_t group)
{
    float *copy = nan_floats(entries * group * n);
    for (int64_t e = 0; e < entries * group; e++) {
        memcpy(copy + e * n, x + e / group * n, (size_t)n * sizeof *x);
    }
    return copy;
}

/* Keys and values written out for each head that shares them: the same bits, and the
 * values' gradient is the sum of theirs. */
static void
check_repeated_keys(const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    const int64_t entries = p->B / p->group, n = p->N * p->Dv;
    if (p->group == 1) {
        return;
    }
    problem each = *c;
    each.p.group = 1;
    each.keys = repeated(c->keys, entries, p->N * p->Dk, p->group);
    each.values = repeated(c->values, entries, n, p->group);
    const results e = compute(&each, r->set);
    check_same(c, r, &e, OUTPUT, 4, "not the bits of repeated keys");
    if (!c->tame) {
        return;
    }
    float *sum = memset(nan_floats(r->n[D_VALUES]), 0,
                        (size_t)r->n[D_VALUES] * sizeof *sum);
    for (int64_t i = 0; i < e.n[D_VALUES]; i++) {
        sum[i / n / p->group * n + i % n] += e.of[D_VALUES][i];
    }
    check_near(c, r->set, D_VALUES, r->of[D_VALUES], sum, r->n[D_VALUES],
               largest_of(e.of[D_VALUES], e.n[D_VALUES]),
               "not the sum over the heads that share them");
}

/* Heads read where they lie inside rows, and rows with gaps: the same bits. */
static void
check_strided(const problem *c, const results *r)
{
    problem strided = *c;
    strided.strided = true;
    const results s = compute(&strided, r->set);
    check_same(c, r, &s, 0, RESULTS, "not the bits of contiguous inputs");
}

/* x (heads, rows, width) as (rows, heads, width), or back. */
static float *
beside(const float *x, int64_t heads, int64_t rows, int64_t width, bool back)
{
    float *copy = nan_floats(heads * rows * width);
    for (int64_t i = 0; i < heads * rows; i++) {
        int64_t other = i % rows * heads + i / rows;
        memcpy(copy + (back ? i : other) * width, x + (back ? other : i) * width,
               (size_t)width * sizeof *x);
    }
    return copy;
}

/* Heads written where they lie inside rows: the same bits. */
static void
check_beside(const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    const bool product = p->score == &attn_score_dot || p->score == &attn_score_cosine;
    if (!product || p->B < 2 || c->hands_back_output || c->projects_late) {
        return;
    }
    problem all = *c;
    all.p.heads = p->B;
    all.dout = beside(c->dout, p->B, p->M, p->Dv, false);
    results b = compute(&all, r->set);
    const struct {
        int which;
        int64_t heads, rows, width;
    } beside_each_other[] = {
        {OUTPUT, p->B, p->M, p->Dv},
        {D_QUERIES, p->B, p->M, p->Dq},
        {D_KEYS, p->B / p->group, p->N, p->Dk},
        {D_VALUES, p->B / p->group, p->N, p->Dv},
        {SCORES_D_QUERIES, p->B, p->M, p->Dq},
        {SCORES_D_KEYS, p->B / p->group, p->N, p->Dk},
    };
    for (size_t i = 0; i < sizeof beside_each_other / sizeof *beside_each_other; i++) {
        int which = beside_each_other[i].which;
        b.of[which] = beside(b.of[which], beside_each_other[i].heads,
                             beside_each_other[i].rows, beside_each_other[i].width,
                             true);
    }
    check_same(c, r, &b, 0, RESULTS, "of heads side by side, not the same bits");
}

/* Keys' gradients that go through their projection by themselves: the same bits. */
static void
check_projected_late(const problem *c, const results *r)
{
    problem late = *c;
    late.projects_late = true;
    const results l = compute(&late, r->set);
    check_same(c, r, &l, 0, RESULTS, "not the bits of one backward");
}

/* Keys prepared once, in two pieces and in memory with room for more, for calls with
 * other queries, too: the same bits, and no call writes to the memory. */
static void
check_prepared(const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    const int64_t capacity = p->N + 3, half = p->N / 2;
    const size_t size = attn_keys_of_score.size(p, capacity);
    const attn_inputs in = inputs_of(c);
    if (size == 0) {
        return;
    }
    attn_run run = {.threads = c->threads};
    problem prepared = *c;
    attn_problem every_key = *p;
    void *memory = nan_bytes(size);
    every_key.masks = (attn_masks){0};
    attn_keys_of_score.start(memory, p, capacity);
    attn_keys_of_score.make(memory, &in, half, p->N, &every_key, &run);
    attn_keys_of_score.make(memory, &in, 0, half, &every_key, &run);
    void *before = memcpy(nan_bytes(size), memory, size);
    prepared.p.prepared = memory;
    const results once = compute(&prepared, r->set);
    check_same(c, r, &once, 0, RESULTS, "not the bits without prepared keys");

    problem other = *c;
    int64_t n = p->B * p->M * p->Dq;
    other.queries = copy_floats(c->queries, n);
    for (int64_t i = 0; i < n; i++) {
        other.queries[i] *= -0.5f;
    }
    prepared.queries = other.queries;
    const results direct = compute(&other, r->set), again = compute(&prepared, r->set);
    check_same(c, &direct, &again, 0, RESULTS, "of other queries, not the same bits");
    check(memcmp(before, memory, size) == 0, c, r->set, SCORES,
          "a call wrote to prepared keys");
}

/* Keys that are left out for good, for all heads that share them: the bits of masks written
 * out; and nothing is prepared of them, or read. */
static void
check_key_mask(source *s, const problem *c, const results *r)
{
    const attn_problem *p = &c->p;
    const int64_t room = p->N + 3, entries = p->B / p->group;
    attn_run run = {.threads = c->threads};
    problem keys = *c;
    keys.p.masks.keys = (attn_key_mask){random_flags(s, entries * room), p->group,
                                        room};
    keys.pairs = pairs_of(p, &keys.p.masks, takes_part);
    problem full = keys, prepared = keys;
    full.p.masks = (attn_masks){
        .mask = full_view(p, pairs_of(p, &keys.p.masks, is_allowed)),
        .bias = p->masks.bias,
    };
    const results k = compute(&keys, r->set), f = compute(&full, r->set);
    check_same(c, &f, &k, 0, SCORES, "not the bits of a mask of keys written out");

    const size_t size = attn_keys_of_score.size(p, room);
    const attn_inputs in = inputs_of(c);
    if (size != 0) {
        attn_problem lasting = *p;
        void *memory = nan_bytes(size);
        lasting.masks = (attn_masks){.keys = keys.p.masks.keys};
        attn_keys_of_score.start(memory, p, room);
        attn_keys_of_score.make(memory, &in, 0, p->N, &lasting, &run);
        prepared.p.prepared = memory;
        prepared.finite = false; /* the scores are those of unprepared keys, too */
        const results once = compute(&prepared, r->set);
        check_same(c, &k, &once, 0, SCORES, "reads what is not prepared");
    }
}

/* A cap far above all scores changes no bit: not of them, and not of the gradients but
 * that of w, whose sum has another origin (score_gaussian.c). One that is not is what the
 * definition has it be, of the scores without it. */
static void
check_softcap(const problem *c, const results *r)
{
    problem other = *c;
    const float cap = c->p.softcap;
    other.p.softcap = cap == 0.0f ? 1e30f : 0.0f;
    const results o = compute(&other, r->set);
    if (cap == 0.0f) {
        check_same(c, r, &o, OUTPUT, D_W - OUTPUT, "not the bits without a cap");
        check_same(c, r, &o, D_BIAS, 1, "not the bits without a cap");
        check_same(c, r, &o, SCORES, RESULTS - SCORES, "not the bits without a cap");
        return;
    }
    float *capped = nan_floats(r->n[SCORES]);
    for (int64_t i = 0; i < r->n[SCORES]; i++) {
        capped[i] = (float)((double)cap * tanh((double)o.of[SCORES][i] / (double)cap));
    }
    check_near(c, r->set, SCORES, r->of[SCORES], capped, r->n[SCORES],
               fmin(1.0, (double)cap), "not as defined");
}

/* Gradients from saved results are those without. */
static void
check_handed_back(const problem *c, const results *r)
{
    if (!hands_back(c) || !c->modest) {
        return;
    }
    problem again = *c;
    again.hands_back_output = again.hands_back_weights = again.hands_back_lse = false;
    const results a = compute(&again, r->set);
    for (int i = D_QUERIES; i <= D_SCALE; i++) {
        check_near(c, r->set, i, r->of[i], a.of[i], r->n[i],
                   1.0 + largest_of(a.of[i], r->n[i]),
                   "with saved results is not what it is without");
    }
}

#endif
