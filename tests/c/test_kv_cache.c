/*
 * test_kv_cache.c -- caches of keys and values, and sums of what flows to them, beside the
 * plainest loops that mean the same. Every buffer is as large as it has to be, and not larger.
 *
 *     cc -std=c11 -pthread tests/c/test_kv_cache.c csrc/(core,os,simd)/(all).c -lm
 */
#undef NDEBUG /* the checks are asserts */

#include "../../csrc/core/kv_cache.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMES = 2000, OLD = 77 };

static uint32_t state = 1;

/* 0 .. n - 1 */
static int64_t
below(int64_t n)
{
    state = state * 1664525u + 1013904223u;
    return (int64_t)(state >> 8) % n;
}

static void *
allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    assert(memory != NULL || bytes == 0);
    return memory;
}

static uint8_t *
bytes_of(int64_t n, int value)
{
    uint8_t *bytes = allocate((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        bytes[i] = value >= 0 ? (uint8_t)value : (uint8_t)below(256);
    }
    return bytes;
}

static float *
numbers(int64_t n)
{
    float *x = allocate((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)(below(2001) - 1000) * 0.0037f;
    }
    return x;
}

/* ---- a cache --------------------------------------------------------------------- */

static int64_t blocks; /* that are taken, and not given back */

static void *
take(size_t bytes)
{
    blocks++;
    return allocate(bytes);
}

static void
give(void *block, size_t bytes)
{
    memset(block, OLD, bytes);
    blocks--;
    free(block);
}

static void *
take_nothing(size_t bytes)
{
    assert(bytes > 0);
    return NULL;
}

static void *
take_never(size_t bytes)
{
    (void)bytes;
    abort();
}

/* All that was appended, (entries, MOST, width) each, the keys that a mask leaves among them;
 * and a cache that has the first N. */
enum { MOST = 256 };
typedef struct {
    attn_kv *kv;
    int64_t N;
    bool masked;
    float *keys, *values;
    uint8_t *mask;
} history;

static history
begin(const attn_kv *first)
{
    const int64_t rows = first->entries * MOST;
    return (history){NULL,
                     0,
                     false,
                     numbers(rows * first->p.Dk),
                     numbers(rows * first->p.Dv),
                     bytes_of(rows, 1)};
}

static void
end(history *h)
{
    attn_kv_release(h->kv, give);
    free(h->keys);
    free(h->values);
    free(h->mask);
}

/* n rows more, as whoever has the memory does it. */
static void
append(history *h, const attn_kv *first, int64_t n, bool masked)
{
    const attn_kv *of = h->kv == NULL ? first : h->kv;
    const int64_t had = of->p.N, all = h->N + n;
    const attn_kv_rows rows = {h->keys + h->N * of->p.Dk, h->values + h->N * of->p.Dv,
                               masked ? h->mask + h->N : NULL, MOST};
    attn_run run = {.threads = 1};
    for (int64_t i = 0; masked && i < of->entries * n; i++) {
        h->mask[i / n * MOST + h->N + i % n] = (uint8_t)below(2);
    }
    if (h->kv == NULL || !attn_kv_takes(h->kv, n, masked)) {
        size_t bytes;
        attn_kv *next = attn_kv_moved(of, n, masked, take, &bytes);
        assert(next->bytes == bytes && next->rows == h->N && next->made == 0);
        assert(next->p.N == (all <= had ? had : all > 2 * had ? all : 2 * had));
        if (h->kv != NULL) {
            attn_kv_release(h->kv, give);
        }
        h->kv = next;
    }
    attn_kv_append(h->kv, n, &rows);
    h->N = all;
    h->masked = h->masked || masked;
    assert(attn_kv_prepare(h->kv, &run) == 0);
    assert(h->kv->rows == all && h->kv->made == all && attn_kv_work(h->kv) == 0.0);
}

/* Are the first N rows of *kv those? */
static void
check_rows(const history *h, const attn_kv *kv, int64_t N)
{
    const int64_t room = kv->p.N, Dk = kv->p.Dk, Dv = kv->p.Dv;
    for (int64_t i = 0; i < kv->entries * N; i++) {
        const int64_t j = i / N * room + i % N, k = i / N * MOST + i % N;
        assert(memcmp(kv->keys + j * Dk, h->keys + k * Dk,
                      (size_t)Dk * sizeof(float)) == 0);
        assert(memcmp(kv->values + j * Dv, h->values + k * Dv,
                      (size_t)Dv * sizeof(float)) == 0);
        assert((kv->mask == NULL ? 1 : kv->mask[j]) == h->mask[k]);
    }
}

/* What others hold stays as it was when they came; and goes with the last of them. */
static void
check_appends(void)
{
    enum { HOLDERS = 4 };
    const attn_kv first = {
        .maker = &attn_keys_of_score,
        .entries = below(4),
        .p = {.Dk = below(5), .Dv = below(5), .group = 1, .score = &attn_score_dot}};
    history h = begin(&first), held[HOLDERS] = {{0}};
    for (int i = 0; i < 12; i++) {
        append(&h, &first, below(9), below(4) == 0);
        assert((h.kv->mask != NULL) == h.masked && h.kv->prepared == NULL);
        history *other = &held[below(HOLDERS)];
        if (other->kv != NULL) {
            attn_kv_release(other->kv, give);
        }
        *other = h;
        attn_kv_hold(h.kv);
        check_rows(&h, h.kv, h.N);
        for (int k = 0; k < HOLDERS; k++) {
            if (held[k].kv != NULL) {
                check_rows(&h, held[k].kv, held[k].N);
            }
        }
    }
    end(&h);
    for (int k = 0; k < HOLDERS; k++) {
        if (held[k].kv != NULL) {
            attn_kv_release(held[k].kv, give);
        }
    }
    assert(blocks == 0);
}

/* Where there is no memory all stays as it was. */
static void
check_no_memory(void)
{
    attn_kv of = {.maker = &attn_keys_of_score,
                  .entries = 2,
                  .p = {.Dk = 3, .Dv = 1, .group = 1, .score = &attn_score_dot}};
    history h = begin(&of);
    size_t bytes = 0, more = 0;
    append(&h, &of, 5, false);
    assert(attn_kv_moved(h.kv, 1, false, take_nothing, &bytes) == NULL);
    assert(bytes >= 2 * 10 * (3 + 1) * sizeof(float) && bytes < 4096);
    assert(attn_kv_moved(h.kv, 1, true, take_nothing, &more) == NULL);
    assert(more >= bytes + 2 * 10);
    check_rows(&h, h.kv, 5);
    assert(attn_kv_takes(h.kv, 0, false) && !attn_kv_takes(h.kv, 0, true) &&
           !attn_kv_takes(h.kv, 1, false));
    end(&h);
    assert(blocks == 0);
}

static void
check_overflow(void)
{
    attn_kv of = {.maker = &attn_keys_of_score,
                  .p = {.group = 1, .score = &attn_score_dot}};
    size_t bytes;
    static const int64_t sizes[][4] = {/* entries, n, Dk, Dv */
                                       {INT64_MAX / 2, 3, 1, 0},
                                       {2, INT64_MAX / 2, 1, 1},
                                       {2, INT64_MAX / 2, 0, 1},
                                       {1, INT64_MAX, 0, 8}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        of.entries = sizes[i][0];
        of.p.Dk = sizes[i][2];
        of.p.Dv = sizes[i][3];
        assert(attn_kv_moved(&of, sizes[i][1], false, take_never, &bytes) == NULL);
        assert(bytes == SIZE_MAX);
    }
    of.entries = 1;
    of.p.Dk = of.p.Dv = of.p.H = 4;
    of.p.score =
        &attn_score_additive; /* with what is made of the keys it is too large */
    assert(attn_kv_moved(&of, PTRDIFF_MAX / 40, false, take_never, &bytes) == NULL);
    assert(bytes > PTRDIFF_MAX);
    of.p.H = 64; /* and that alone */
    assert(attn_kv_moved(&of, PTRDIFF_MAX / 400, false, take_never, &bytes) == NULL);
    assert(bytes == SIZE_MAX);
    of.maker = &attn_keys_of_heads; /* heads of so many entries */
    of.entries = INT64_MAX / 2;
    of.p.Dk = of.p.Dv = 0;
    of.p.heads = of.p.group = 4;
    assert(attn_kv_moved(&of, 1, false, take_never, &bytes) == NULL);
    of.maker = &attn_keys_of_score; /* without a row nothing is walked through */
    of.entries = INT64_MAX;
    of.p.heads = 0;
    of.p.score = &attn_score_dot;
    attn_kv *none = attn_kv_moved(&of, 0, true, take, &bytes);
    attn_kv_append(none, 0, &(attn_kv_rows){NULL, NULL, NULL, 0});
    attn_kv_release(none, give);
    assert(blocks == 0);
}

/* ---- what is made of the keys ---------------------------------------------------- */

enum { ENTRIES = 2 };

/* The output of one query of each entry, or head, over the keys: as they are, or as the cache
 * has them. */
static float *
attend(const attn_problem *p, const attn_inputs *in)
{
    const int64_t n = p->heads > 0 ? p->B / p->heads * p->H : p->B * p->Dv;
    attn_run run = {.threads = 1};
    float *output = allocate((size_t)n * sizeof *output);
    const size_t bytes = p->heads > 0 ? attn_multi_head_workspace(p, false, false, 1)
                                      : attn_forward_workspace(p, false, 1);
    void *workspace = allocate(bytes);
    const int result = p->heads > 0
                           ? attn_multi_head_forward(output, NULL, NULL, NULL, in, p,
                                                     workspace, &run)
                           : attn_forward(output, NULL, NULL, in, p, workspace, &run);
    assert(result == 0);
    free(workspace);
    return output;
}

/* The first N rows of each entry of what was appended, side by side. */
static float *
together(const history *h, const float *rows, int64_t width)
{
    float *to = allocate((size_t)(ENTRIES * h->N * width) * sizeof *to);
    for (int64_t e = 0; h->N > 0 && e < ENTRIES; e++) {
        memcpy(to + e * h->N * width, rows + e * MOST * width,
               (size_t)(h->N * width) * sizeof *to);
    }
    return to;
}

/* A call of one query of each entry, over the keys as they are. A call's lengths, which go into
 * lens, are no more than there are keys. */
static attn_problem
call_of(const history *h, const attn_problem *sizes, int64_t lens[ENTRIES])
{
    const int64_t heads = sizes->heads > 0 ? sizes->heads : 1;
    attn_problem p = *sizes;
    for (int64_t e = 0; e < ENTRIES; e++) {
        lens[e] = sizes->masks.valid.lens[e] < h->N ? sizes->masks.valid.lens[e] : h->N;
    }
    p.B = h->kv->p.B;
    p.M = 1;
    p.N = h->N;
    p.Dq = p.Dk;
    p.scale = p.eps = 0.5f;
    p.empty_rows = ATTN_EMPTY_ZERO;
    p.masks.valid = (attn_valid_lens){lens, heads, 1, 0};
    p.masks.keys = (attn_key_mask){h->mask, heads, MOST};
    return p;
}

/* The same bits as of keys that nobody prepared, however these came. */
static void
check_attention(const attn_kv *first)
{
    const int64_t D = first->p.Dk, times = 1 + below(6);
    history h = begin(first);
    for (int64_t i = 0; i < times; i++) {
        append(&h, first, below(4) == 0 ? 40 : below(9), below(3) == 0);
    }
    float *queries = numbers(ENTRIES * D), *keys = together(&h, h.keys, D);
    float *values = together(&h, h.values, D);
    attn_inputs in = {attn_dense(queries, 1, D), attn_dense(keys, h.N, D),
                      attn_dense(values, h.N, D)};
    int64_t lens[ENTRIES];
    attn_problem p = call_of(&h, &first->p, lens);
    float *expected = attend(&p, &in);
    in.keys = h.kv->in.keys;
    in.values = h.kv->in.values;
    p.prepared = h.kv->prepared;
    p.masks.keys.allowed = h.kv->mask;
    p.masks.keys.stride = h.kv->p.N;
    float *output = attend(&p, &in);
    assert(memcmp(output, expected, ENTRIES * (size_t)D * sizeof *output) == 0);
    float *const all[] = {queries, keys, values, expected, output};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
    end(&h);
    assert(blocks == 0);
}

static void
check_scores(void)
{
    enum { D = 8 };
    static const attn_score *const scores[] = {&attn_score_dot, &attn_score_cosine,
                                               &attn_score_additive,
                                               &attn_score_gaussian};
    const int64_t lens[ENTRIES] = {below(60), MOST};
    float *parameters[ATTN_PARAMETERS];
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        parameters[i] = numbers(D * D);
    }
    for (int i = 0; i < 5; i++) {
        const bool heads = i == 4;
        attn_kv first = {.maker = heads ? &attn_keys_of_heads : &attn_keys_of_score,
                         .entries = ENTRIES,
                         .p = {.Dk = D,
                               .Dv = D,
                               .H = D,
                               .heads = heads ? 4 : 0,
                               .group = heads ? 2 : 1,
                               .score = scores[heads ? 0 : i]}};
        first.p.masks.valid = (attn_valid_lens){lens, 1, 1, 0};
        memcpy(first.p.parameters, parameters, sizeof parameters);
        check_attention(&first);
    }
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        free(parameters[i]);
    }
}

/* ---- sums ------------------------------------------------------------------------ */

/* What means nothing is NaN. */
static attn_key_sums
random_sums(int64_t entries, int64_t rows, int64_t D, int64_t Dv)
{
    attn_key_sums sums = {rows, numbers(entries * rows * D),
                          numbers(entries * rows * Dv), bytes_of(entries * rows, 0)};
    for (int64_t i = 0; i < entries * rows; i++) {
        sums.key_use[i] = below(3) == 0 ? ATTN_UNUSED : (uint8_t)below(2);
        for (int64_t d = 0; sums.key_use[i] == ATTN_UNUSED && d < D; d++) {
            sums.projected[i * D + d] = NAN;
        }
    }
    return sums;
}

static void
free_sums(attn_key_sums *sums)
{
    free(sums->projected);
    free(sums->values);
    free(sums->key_use);
}

static void *
copy_of(const void *from, int64_t n, size_t size)
{
    void *copy = allocate((size_t)n * size);
    if (n > 0) {
        memcpy(copy, from, (size_t)n * size);
    }
    return copy;
}

/* What `from`, if it has the row, adds to one number of `to`. */
static float
sum_of(float to, bool to_counts, const float *from, bool from_counts)
{
    return !from_counts ? to : to_counts ? to + *from : *from;
}

static void
check_sums(int64_t entries, int64_t most, int64_t D, int64_t Dv, int threads)
{
    const int64_t rows = below(most), longer = rows + below(3), keys = entries * longer;
    attn_key_sums to = random_sums(entries, longer, D, Dv);
    attn_key_sums from = random_sums(entries, rows, D, Dv);
    const attn_key_sums was = {longer, copy_of(to.projected, keys * D, sizeof(float)),
                               copy_of(to.values, keys * Dv, sizeof(float)),
                               copy_of(to.key_use, keys, 1)};
    attn_add_key_sums(&to, &from, entries, D, Dv, threads);
    for (int64_t k = 0; k < keys; k++) {
        const int64_t j = k % longer, i = k / longer * rows + j;
        const bool added = j < rows, used = added && from.key_use[i] != ATTN_UNUSED;
        const bool was_used = was.key_use[k] != ATTN_UNUSED;
        assert(to.key_use[k] ==
               (added ? was.key_use[k] & from.key_use[i] : was.key_use[k]));
        for (int64_t d = 0; d < D; d++) {
            const float x = sum_of(was.projected[k * D + d], was_used,
                                   from.projected + i * D + d, used);
            assert(was_used || used ? to.projected[k * D + d] == x : isnan(x));
        }
        for (int64_t d = 0; d < Dv; d++) {
            const float x = sum_of(was.values[k * Dv + d], true,
                                   from.values + i * Dv + d, added);
            assert(to.values[k * Dv + d] == x);
        }
    }
    attn_zero_unused(to.projected, to.key_use, keys, D);
    for (int64_t i = 0; i < keys * D; i++) {
        assert(to.key_use[i / D] == ATTN_UNUSED ? to.projected[i] == 0.0f
                                                : !isnan(to.projected[i]));
    }
    attn_key_sums all[] = {to, from, was};
    for (int i = 0; i < 3; i++) {
        free_sums(&all[i]);
    }
}

int
main(void)
{
    for (int i = 0; i < TIMES; i++) {
        check_appends();
        check_sums(below(4), 1 + below(6), below(5), below(5), 1);
    }
    for (int i = 0; i < TIMES / 10; i++) {
        check_scores();
    }
    check_no_memory();
    check_overflow();
    check_sums(8, 400, 64, 48, 4); /* so many that threads share them out */
    printf("kv_cache: %d times rows and sums\n", TIMES);
    return 0;
}
