/*
 * prove_indices.c -- for all sizes: where the core looks for a row, a key or a tile is
 * computed without overflow, and lies inside what there is. As prove_sizes.c: every size
 * unknown, a proof a function prove_*. With -DWRONG each claims a little more than is true,
 * which has to be refuted.
 *
 * Of views and operands it is taken for granted that the array exists: its axes reach no
 * further than memory does, in either direction. Lengths make the keys of a row only fewer.
 */
#include "../../csrc/core/kv_cache.c"
#include "../../csrc/core/mask.c"
#include "../../csrc/core/operand.h"
#include "../../csrc/core/view.c"

#ifdef WRONG
enum { MORE = 1 };
#else
enum { MORE = 0 };
#endif

/* ---- views ----------------------------------------------------------------------- */

/* How far an array reaches before and behind its first element, along the axes looked at so far. */
static prove_wide before, behind;

static int64_t
any_stride(int64_t size)
{
    const int64_t stride = any_size(0, INT64_MAX);
    const prove_wide reach = ((prove_wide)size - 1) * (prove_wide)stride;
    __ESBMC_assume(reach <= (prove_wide)INT64_MAX);
    if (nondet_bool()) {
        behind += reach;
        return stride;
    }
    before += reach;
    return -stride;
}

static int64_t
length(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

static void
assert_inside(int64_t at)
{
    __ESBMC_assert(at < 0 ? (prove_wide)-at <= before : (prove_wide)at + MORE <= behind,
                   "inside");
}

int
prove_steps(void)
{
    const int64_t n = any_size(1, INT64_MAX), i = any_size(0, n - 1 + MORE);
    const int64_t size = any_size(0, INT64_MAX);
    __ESBMC_assert(is_within((prove_wide)i, (prove_wide)n, (prove_wide)size), "within");
    return 0;
}

/* Of any number of axes: the rows, which come first; then one axis more, from wherever those before
 * it may have led, and with whatever they left of b. */
int
prove_rows(void)
{
    const int64_t M = any_size(1, INT64_MAX), m = any_size(0, M - 1);
    const attn_view v = {.stride_m = any_stride(M)};
    step(m, M, length(v.stride_m));
    assert_inside(attn_view_row(&v, any_size(0, INT64_MAX), m));
    return 0;
}

int
prove_axis(void)
{
    const int64_t b = any_size(0, INT64_MAX), size = any_size(1, INT64_MAX);
    before = any_size(0, INT64_MAX);
    behind = any_size(0, INT64_MAX);
    const int64_t so_far = nondet_bool() ? any_size(0, (int64_t)behind)
                                         : -any_size(0, (int64_t)before);
    const attn_axis axis = {size, any_stride(size)};
    const attn_view v = {.axes = &axis, .axis_count = 1, .stride_m = so_far};
    step(b % size, size, length(axis.stride));
    __ESBMC_assume(before + behind <= (prove_wide)INT64_MAX);
    assert_inside(attn_view_row(&v, b, 1));
    __ESBMC_assert(b / size >= 0, "what is left of b");
    return 0;
}

/* ---- operands -------------------------------------------------------------------- */

int
prove_operand(void)
{
    const int64_t rows = any_size(1, INT64_MAX), heads = any_size(1, INT64_MAX);
    const int64_t entries = any_size(1, INT64_MAX), e = any_size(0, INT64_MAX);
    const int64_t j = any_size(0, rows - 1);
    const attn_operand x = {
        NULL, heads, any_stride(heads), any_stride(entries), any_stride(rows), NULL};
    __ESBMC_assume(e / heads < entries);
    __ESBMC_assume(before + behind <= (prove_wide)INT64_MAX);
    step(e / heads, entries, length(x.entry));
    step(e % heads, heads, length(x.head));
    step(j, rows, length(x.row));
    assert_inside(attn_at(&x, e, j));
    return 0;
}

/* ---- rows with room -------------------------------------------------------------- */

int
prove_room(void)
{
    const int64_t entries = any_size(1, INT64_MAX), rows = any_size(1, INT64_MAX);
    const int64_t size = any_size(1, INT64_MAX), e = any_size(0, entries - 1);
    const int64_t at = any_size(0, rows - 1), n = any_size(1, rows - at);
    const prove_wide all = (prove_wide)entries * (prove_wide)rows;
    __ESBMC_assume(all <= (prove_wide)INT64_MAX);
    __ESBMC_assume(all * (prove_wide)size <= (prove_wide)INT64_MAX);
    step(e, entries, rows);
    /* In this order the solver takes a second; with the next two exchanged, hours. */
    step(0, n, size);
    step(e * rows + at + n - 1, (int64_t)all, size);
    const prove_wide end = (prove_wide)row_at(rows, e, at, (size_t)size) +
                           (prove_wide)n * (prove_wide)size;
    __ESBMC_assert(end + MORE <= all * (prove_wide)size, "inside");
    return 0;
}

/* ---- the keys of a row, and the tiles of a block --------------------------------- */

/* The numbers of a band are as the door clips them: to FAR, offsets to twice that. */
#define FAR ((int64_t)1 << 61)

int
prove_interval(void)
{
    const int64_t far = any_size(0, 2 * FAR), offset = nondet_bool() ? far : -far;
    const int64_t N = any_size(0, MOST), m = any_size(0, MOST - 1 + MORE);
    attn_problem p = {.N = N};
    p.masks.band = (attn_band){nondet_bool(),
                               nondet_bool(),
                               any_size(0, FAR),
                               any_size(0, FAR),
                               nondet_bool() ? &offset : NULL,
                               INT64_MAX};
    int64_t start, limit;
    interval_of(&p, 0, m, &start, &limit);
    __ESBMC_assert(start >= 0 && start <= limit, "an interval");
    __ESBMC_assert(start == limit || limit + MORE <= N, "of keys");
    return 0;
}

int
prove_tile(void)
{
    attn_rows rows;
    const int64_t N = any_size(0, MOST);
    rows.low = any_size(0, N);
    rows.high = any_size(0, N + MORE);
    rows.scored_low = any_size(0, N);
    rows.scored_high = any_size(0, N);
    attn_tile t;
    attn_first_tile(&t, &rows);
    __ESBMC_assert(t.k0 + ATTN_KEYS >= 0 && t.k0 + ATTN_KEYS <= rows.low, "the first");
    const int64_t later = any_size(0, MOST);
    t.k0 += ATTN_KEYS + later;
    if (t.k0 < rows.high) {
        __ESBMC_assert(place_tile(&t, &rows) <= N, "of keys");
        __ESBMC_assert(t.keys > 0 && t.keys <= ATTN_KEYS, "a tile");
        __ESBMC_assert(t.first >= 0 && t.first <= t.end && t.end <= t.keys, "scored");
    }
    return 0;
}

/* With indices looked at: one lane, which comes and goes anywhere. */
int
prove_words(void)
{
    attn_rows rows;
    uint64_t words[ATTN_KEYS];
    rows.count = 1;
    rows.start[0] = nondet_int64();
    rows.limit[0] = nondet_int64();
    const int64_t k0 = nondet_int64();
    const int keys = nondet_int();
    __ESBMC_assume(rows.start[0] >= 0 && rows.limit[0] >= 0 && k0 >= 0);
    __ESBMC_assume(keys > 0 && keys <= ATTN_KEYS + MORE);
    interval_words(words, &rows, k0, keys);
    return 0;
}
