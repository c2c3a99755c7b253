/*
 * pairs.c -- see pairs.h.
 */
#include "pairs.h"

#include <string.h>

enum { GROUP = 16 }; /* lanes, and keys, that are looked at as one */

/* Keys first <= i < end by lanes low <= l < high. */
typedef struct {
    int first, end, low, high;
} patch;

/* The groups of lanes, from the first to the last, that are live at any of n keys. */
static patch
lanes_of_keys(const uint64_t *live, int first, int n)
{
    uint64_t some = 0;
    for (int i = first; i < first + n; i++) {
        some |= live[i];
    }
    patch p = {first, first + n, 0, 0};
    if (some != 0) {
        p.low = __builtin_ctzll(some) / GROUP * GROUP;
        p.high = (63 - __builtin_clzll(some)) / GROUP * GROUP + GROUP;
    }
    return p;
}

static int
smaller(int a, int b)
{
    return a < b ? a : b;
}

/* The next patch of the keys from p->end to `keys`; groups of keys that are alike make one.
 * Before the first p is {0}. */
static bool
next_patch(patch *p, const uint64_t *live, int keys, int lanes)
{
    int first = p->end;
    if (live == NULL || lanes < GROUP) {
        *p = (patch){first, keys, 0, lanes};
        return first < keys;
    }
    p->low = p->high = 0;
    for (; p->low == p->high && first < keys; first = p->end) {
        *p = lanes_of_keys(live, first, smaller(keys - first, GROUP));
    }
    while (p->end < keys) {
        patch next = lanes_of_keys(live, p->end, smaller(keys - p->end, GROUP));
        if (next.low != p->low || next.high != p->high) {
            break;
        }
        p->end = next.end;
    }
    return p->low < p->high;
}

/* Set C (., lanes) to 0 in keys `from` to p->first, and around the lanes of patch p. */
static void
clear_around(float *C, int from, const patch *p, int lanes)
{
    attn_set_zero(C + from * lanes, p->first - from, lanes, 1);
    for (int i = p->first; p->high - p->low < lanes && i < p->end; i++) {
        attn_set_zero(C + i * lanes, p->low, 1, 1);
        attn_set_zero(C + i * lanes + p->high, lanes - p->high, 1, 1);
    }
}

void
attn_set_pairs(const attn_block *block, float *C, attn_span X, const float *Y,
               int64_t D, int first, int keys, const uint64_t *live)
{
    const int lanes = block->lanes;
    int done = 0;
    live = live == NULL ? NULL : live + first;
    for (patch p = {0}; next_patch(&p, live, keys, lanes); done = p.end) {
        clear_around(C, done, &p, lanes);
        attn_simd->matmul(C + p.first * lanes + p.low, lanes, attn_span_row(X, p.first),
                          X.ld, 1, Y + p.low, lanes, p.end - p.first, p.high - p.low, D,
                          ATTN_SET);
    }
    attn_set_zero(C + done * lanes, keys - done, lanes, 1);
}

/* Rows longer than this are copied into panels: 64 rows of 128 numbers lie 512 bytes apart
 * and share eight sets of L1. Zen 3, dK and dV of 128 features: 74 -> 83 % of the peak. At
 * 64 features it is 85 -> 87 %, which the copy costs. */
enum { LONG_ROW = 64 };

attn_pair_rows
attn_take_pair_rows(int64_t D, int lanes, attn_arena *a)
{
    bool copied = D > LONG_ROW && lanes >= GROUP;
    float *panels = copied ? attn_take_floats(a, attn_in_panels(D), lanes) : NULL;
    return (attn_pair_rows){.D = D, .panels = panels};
}

void
attn_load_pair_rows(attn_pair_rows *to, attn_span rows, int count)
{
    to->rows = rows;
    if (to->panels != NULL) {
        attn_rows_in_panels(to->panels, rows, count, to->D);
    }
}

/* C (rows, D) += X (rows, n) times rows low .. low + n - 1 of count, or begins with that */
static void
add_patch(attn_target C, attn_span X, int64_t rows, const attn_pair_rows *Y, int low,
          int n, int count, attn_into into)
{
    const int64_t D = Y->D, width = Y->panels == NULL ? D : attn_simd->panel;
    for (int64_t d = 0; d < D; d += width) {
        int64_t columns = D - d < width ? D - d : width;
        attn_span panel = Y->rows;
        if (Y->panels != NULL) {
            panel = (attn_span){Y->panels + d * count, attn_in_panels(columns)};
        }
        attn_simd->matmul(C.data + d, C.ld, X.data, X.ld, 1, attn_span_row(panel, low),
                          panel.ld, rows, columns, n, into);
    }
}

void
attn_begin_sums(attn_key_sums *sums, int64_t end)
{
    if (sums->begun < end) {
        attn_zero_rows(attn_row_of(sums->to, sums->begun), end - sums->begun,
                       sums->width);
        sums->begun = end;
    }
}

/* A row that is written once needs no 0 to begin with. One query, backward,
 * (8, 8, 1, 1024, 64) on Zen 3: 7.1 -> 5.9 ms; on two threads 3.8 -> 3.0. With stores past the
 * caches it would be 5.2, and whoever wants the gradients would wait for them: left out. */
static void
set_once(const attn_block *block, attn_key_sums *sums, attn_target C, const float *X,
         const attn_pair_rows *Y, const uint64_t *live)
{
    const attn_tile *t = &block->tile;
    attn_begin_sums(sums, t->k0);
    attn_simd->outer(C.data, C.ld, X, Y->rows.data, t->keys, Y->D, live);
    sums->begun = t->k0 + t->keys;
}

/* Whether rows of keys, none of which has a sum yet, begin with all that is added to them now,
 * so that no 0 is written first: the backward of (8, 8, 512, 512, 64) on Cascade Lake, AVX-512,
 * 99 -> 96 ms. Rows with dead pairs begin with 0. */
static bool
begin_with(attn_key_sums *sums, const attn_tile *t, const uint64_t *live)
{
    const bool begins = live == NULL && sums->begun <= t->k0;
    attn_begin_sums(sums, begins ? t->k0 : t->k0 + t->keys);
    if (begins) {
        sums->begun = t->k0 + t->keys;
    }
    return begins;
}

void
attn_add_pairs(const attn_block *block, attn_key_sums *sums, const float *X,
               const attn_pair_rows *Y, const uint64_t *live, bool zeros)
{
    const int lanes = block->lanes, keys = block->tile.keys, count = block->rows.count;
    const attn_target C = attn_row_of(sums->to, block->tile.k0);
    if (sums->once) {
        set_once(block, sums, C, X, Y, live);
        return;
    }
    const bool begins = begin_with(sums, &block->tile, live);
    if (live != NULL && !zeros) {
        attn_simd->matmul_live(C.data, C.ld, X, lanes, Y->rows.data, Y->rows.ld, keys,
                               Y->D, count, live);
        return;
    }
    for (patch p = {0}; next_patch(&p, live, keys, lanes);) {
        add_patch((attn_target){C.data + p.first * C.ld, C.ld},
                  (attn_span){X + p.first * lanes + p.low, lanes}, p.end - p.first, Y,
                  p.low, smaller(p.high, count) - p.low, count,
                  begins ? ATTN_BEGIN : ATTN_ADD);
    }
}

bool
attn_rows_finite(const attn_block *block, attn_span rows, int64_t D)
{
    bool finite = !attn_rows_whole(&block->rows);
    for (int l = 0; finite && l < block->rows.count; l++) {
        finite = attn_is_finite(attn_span_row(rows, l), D);
    }
    return finite;
}

bool
attn_is_finite(const float *x, int64_t n)
{
    const uint32_t exponent = 0x7f800000; /* all ones in infinities and NaN */
    uint32_t some = 0; /* no bool: so the compiler looks at four numbers at a time */
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        some |= (bits & exponent) == exponent ? 1 : 0;
    }
    return some == 0;
}
