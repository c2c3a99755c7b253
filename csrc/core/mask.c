/*
 * mask.c -- lengths, band, mask and bias turned into an interval for every row, and the
 * intervals into tiles to skip, take whole, or take pair by pair.
 */
#include "mask.h"

#include <string.h>

#include "operand.h"
#include "work.h"

/* ---- one row --------------------------------------------------------------------- */

/* Does element `at` of a mask (bytes) or a bias (floats) leave its pair in? */
static bool
allows(const attn_view *v, bool floats, int64_t at)
{
    const uint8_t *bytes = v->data;
    const float *numbers = v->data;
    return floats ? numbers[at] != -INFINITY : bytes[at] != 0;
}

/* Row (b, m) of mask and bias: where it begins in each; and of the mask of keys, or NULL. */
typedef struct {
    const attn_masks *masks;
    const uint8_t *keys;
    int64_t mask_at, bias_at;
} mask_row;

static mask_row
mask_row_of(const attn_masks *masks, int64_t b, int64_t m)
{
    return (mask_row){masks, attn_key_row(&masks->keys, b),
                      attn_view_row(&masks->mask, b, m),
                      attn_view_row(&masks->bias, b, m)};
}

static bool
allowed(const mask_row *r, int64_t j)
{
    const attn_view *mask = &r->masks->mask, *bias = &r->masks->bias;
    return (r->keys == NULL || r->keys[j] != 0) &&
           (mask->data == NULL ||
            allows(mask, false, r->mask_at + j * mask->stride_j)) &&
           (bias->data == NULL || allows(bias, true, r->bias_at + j * bias->stride_j));
}

/* Padding is most often a long run of zeros. So many of n bytes are 0, in eights, counted
 * from the first byte on, or from the last one back. */
static int64_t
zeros_ahead(const uint8_t *bytes, int64_t n)
{
    int64_t i = 0;
    for (uint64_t eight = 0; i + 8 <= n; i += 8) {
        memcpy(&eight, bytes + i, sizeof eight);
        if (eight != 0) {
            break;
        }
    }
    return i;
}

static int64_t
zeros_behind(const uint8_t *bytes, int64_t n)
{
    int64_t i = n;
    for (uint64_t eight = 0; i >= 8; i -= 8) {
        memcpy(&eight, bytes + i - 8, sizeof eight);
        if (eight != 0) {
            break;
        }
    }
    return n - i;
}

/* Moves both ends of start <= j < limit inwards to the first and the last allowed key;
 * start = limit if there is none. */
static void
shrink(const mask_row *r, int64_t *start, int64_t *limit)
{
    const attn_view *mask = &r->masks->mask;
    const bool bytes = mask->data != NULL && mask->stride_j != 0;
    const uint8_t *row = bytes ? (const uint8_t *)mask->data + r->mask_at : r->keys;
    int64_t low = *start, high = *limit;
    while (low < high && !allowed(r, low)) {
        int64_t zeros = row != NULL ? zeros_ahead(row + low, high - low) : 0;
        low += zeros > 0 ? zeros : 1;
    }
    while (low < high && !allowed(r, high - 1)) {
        int64_t zeros = row != NULL ? zeros_behind(row + low, high - low) : 0;
        high -= zeros > 0 ? zeros : 1;
    }
    *start = low;
    *limit = high;
}

/* The keys that lengths and band leave to query m of entry b: start <= j < limit. */
static void
interval_of(const attn_problem *p, int64_t b, int64_t m, int64_t *start, int64_t *limit)
{
    const attn_band *band = &p->masks.band;
    int64_t low = 0, high = attn_limit(&p->masks.valid, b, m, p->N);
    if (band->has_left || band->has_right) {
        int64_t i = m + (band->offset ? band->offset[b / band->heads] : 0);
        low = band->has_left && i - band->left > low ? i - band->left : low;
        high = band->has_right && i + band->right < high ? i + band->right + 1 : high;
    }
    *start = low;
    *limit = high > low ? high : low;
}

/* ---- the rows of a block --------------------------------------------------------- */

bool
attn_may_be_empty(const attn_problem *p)
{
    const attn_masks *masks = &p->masks;
    return masks->valid.lens != NULL || masks->band.has_left || masks->band.has_right ||
           attn_has_holes(masks);
}

/* Does every query of an entry attend to the same keys? */
static bool
rows_alike(const attn_masks *masks)
{
    return masks->valid.stride_m == 0 && !masks->band.has_left &&
           !masks->band.has_right && masks->mask.stride_m == 0 &&
           masks->bias.stride_m == 0;
}

/* Both ends of what lane l attends to; lanes that are alike are looked at once. */
static void
find_ends(attn_rows *rows, int l, bool alike)
{
    const attn_masks *masks = &rows->p->masks;
    if (l > 0 && alike) {
        rows->start[l] = rows->start[0];
        rows->limit[l] = rows->limit[0];
        return;
    }
    interval_of(rows->p, rows->b, rows->m0 + l, &rows->start[l], &rows->limit[l]);
    if (rows->holes) {
        mask_row r = mask_row_of(masks, rows->b, rows->m0 + l);
        shrink(&r, &rows->start[l], &rows->limit[l]);
    }
}

static int64_t
min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t
max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The empty lanes that a rule other than "zero" may be for. With no keys at all there
 * is nothing to spread the weight over, and every mode gives 0; with a sink, that has
 * the weight. */
static uint64_t
ruled_lanes(const attn_rows *rows)
{
    uint64_t lanes = rows->p->N > 0 ? rows->empty : 0;
    for (uint64_t w = rows->p->sink.data == NULL ? 0 : lanes; w != 0; w &= w - 1) {
        int l = __builtin_ctzll(w);
        if (attn_sink_of(rows->p, rows->b, rows->m0 + l) != -INFINITY) {
            lanes &= ~((uint64_t)1 << l);
        }
    }
    return lanes;
}

/* An empty row under "uniform" is an ordinary row over all N keys whose scores are all
 * 0: one mechanism, no special case in the walk. */
static void
settle_empty(attn_rows *rows)
{
    const attn_problem *p = rows->p;
    uint64_t ruled = rows->empty == 0 ? 0 : ruled_lanes(rows);
    rows->uniform = p->empty_rows == ATTN_EMPTY_UNIFORM ? ruled : 0;
    rows->nan = p->empty_rows == ATTN_EMPTY_NAN ? ruled : 0;
    for (uint64_t w = rows->empty; w != 0; w &= w - 1) {
        int l = __builtin_ctzll(w);
        rows->start[l] = 0;
        rows->limit[l] = rows->uniform >> l & 1 ? p->N : 0;
    }
}

void
attn_rows_of(attn_rows *rows, const attn_problem *p, int64_t b, int64_t m0, int count)
{
    rows->p = p;
    rows->b = b;
    rows->m0 = m0;
    rows->count = count;
    rows->holes = attn_has_holes(&p->masks);
    rows->low = rows->scored_low = rows->whole_high = p->N;
    rows->high = rows->scored_high = rows->whole_low = 0;
    rows->empty = 0;
    const bool alike = rows_alike(&p->masks);
    for (int l = 0; l < count; l++) {
        find_ends(rows, l, alike);
        if (rows->start[l] >= rows->limit[l]) {
            rows->empty |= (uint64_t)1 << l;
        } else {
            rows->scored_low = min(rows->scored_low, rows->start[l]);
            rows->scored_high = max(rows->scored_high, rows->limit[l]);
        }
    }
    settle_empty(rows);
    for (int l = 0; l < count; l++) {
        rows->low = min(rows->low, rows->start[l]);
        rows->high = max(rows->high, rows->limit[l]);
        rows->whole_low = max(rows->whole_low, rows->start[l]);
        rows->whole_high = min(rows->whole_high, rows->limit[l]);
    }
}

/* ---- tiles ----------------------------------------------------------------------- */

/* words[i]: the lanes whose interval holds key k0 + i. Every lane comes at its start
 * and goes at its limit, so one pass over the lanes and one over the keys is enough. */
static void
interval_words(uint64_t words[ATTN_KEYS], const attn_rows *rows, int64_t k0, int keys)
{
    uint64_t changes[ATTN_KEYS] = {0}, here = 0;
    for (int l = 0; l < rows->count; l++) {
        uint64_t bit = (uint64_t)1 << l;
        int64_t start = rows->start[l] - k0, limit = rows->limit[l] - k0;
        if (start >= limit || start >= keys || limit <= 0) {
            continue;
        }
        changes[start > 0 ? start : 0] ^= bit;
        if (limit < keys) {
            changes[limit] ^= bit;
        }
    }
    for (int i = 0; i < keys; i++) {
        here ^= changes[i];
        words[i] = here;
    }
}

void
attn_view_words(uint64_t words[ATTN_KEYS], const attn_view *v, bool floats,
                const attn_rows *rows, int64_t k0, int keys)
{
    int64_t at = attn_view_row(v, rows->b, rows->m0) + k0 * v->stride_j;
    if (v->stride_j != 0 && v->stride_m != 0) {
        const uint8_t *bytes = v->data;
        const float *numbers = v->data;
        if (floats) {
            attn_simd->live_floats(words, numbers + at, v->stride_m, rows->count, keys);
        } else {
            attn_simd->live_bytes(words, bytes + at, v->stride_m, rows->count, keys);
        }
        return;
    }
    uint64_t lanes = 0; /* one element for each lane, or one for each key */
    for (int l = 0; l < rows->count; l++) {
        lanes |= (uint64_t)allows(v, floats, at + l * v->stride_m) << l;
    }
    for (int i = 0; i < keys; i++) {
        bool all = v->stride_j != 0 && allows(v, floats, at + i);
        words[i] &= v->stride_j == 0 ? lanes : all ? ~(uint64_t)0 : 0;
    }
}

/* Pair by pair: who is pooled, and whose score counts. false: nobody. Not inlined: a small
 * call, whose tiles are whole, would take 3 % longer. */
__attribute__((noinline)) static bool
find_pairs(attn_tile *t, const attn_rows *rows)
{
    const attn_masks *masks = &rows->p->masks;
    const uint8_t *keys = attn_key_row(&masks->keys, rows->b);
    uint64_t *live = t->words[0], *scored = t->words[1];
    uint64_t every = ~(uint64_t)0 >> (64 - rows->count), some = 0, all = every;

    interval_words(live, rows, t->k0, t->keys);
    for (int i = 0; keys != NULL && i < t->keys; i++) {
        live[i] &= keys[t->k0 + i] != 0 ? every : 0;
    }
    if (masks->mask.data != NULL) {
        attn_view_words(live, &masks->mask, false, rows, t->k0, t->keys);
    }
    if (masks->bias.data != NULL) {
        attn_view_words(live, &masks->bias, true, rows, t->k0, t->keys);
    }
    for (int i = 0; i < t->keys; i++) {
        scored[i] = live[i] & ~rows->uniform;
        live[i] |= rows->uniform;
        some |= live[i];
        all &= scored[i];
    }
    bool whole = all == every;
    t->live = whole ? NULL : live;
    t->scored = whole ? NULL : rows->uniform == 0 ? live : scored;
    return some != 0;
}

bool
attn_rows_whole(const attn_rows *rows)
{
    return !rows->holes && rows->uniform == 0 && rows->low >= rows->whole_low &&
           rows->high <= rows->whole_high;
}

void
attn_first_tile(attn_tile *t, const attn_rows *rows)
{
    t->k0 = rows->low / ATTN_KEYS * ATTN_KEYS - ATTN_KEYS;
}

/* Which keys a tile at k0 has, and scores; the key behind them. */
static int64_t
place_tile(attn_tile *t, const attn_rows *rows)
{
    int64_t end = t->k0 + min(rows->high - t->k0, ATTN_KEYS);
    t->keys = (int)(end - t->k0);
    t->first = (int)(min(max(rows->scored_low, t->k0), end) - t->k0);
    t->end = (int)(max(min(rows->scored_high, end), t->k0 + t->first) - t->k0);
    return end;
}

bool
attn_next_tile(attn_tile *t, const attn_rows *rows)
{
    for (t->k0 += ATTN_KEYS; t->k0 < rows->high; t->k0 += ATTN_KEYS) {
        int64_t end = place_tile(t, rows);
        t->live = t->scored = NULL;
        bool whole = !rows->holes && rows->uniform == 0 && t->k0 >= rows->whole_low &&
                     end <= rows->whole_high;
        if (whole || find_pairs(t, rows)) {
            return true;
        }
    }
    return false;
}

void
attn_zero_holes(float *row, const attn_rows *rows, int l)
{
    if (!rows->holes || rows->uniform >> l & 1) {
        return;
    }
    mask_row r = mask_row_of(&rows->p->masks, rows->b, rows->m0 + l);
    for (int64_t j = rows->start[l]; j < rows->limit[l]; j++) {
        row[j] = allowed(&r, j) ? row[j] : 0.0f;
    }
}

/* ---- rows that no pair needs ----------------------------------------------------- */

typedef struct {
    const attn_problem *p;
    const attn_sharing *shared;
    uint8_t *use;
    bool pooled;
} used_job;

/* Marks the keys of one block of queries; how many of them are new. */
static int64_t
mark_block(uint8_t *use, const attn_rows *rows, bool pooled)
{
    int64_t marked = 0;
    attn_tile t;
    for (attn_first_tile(&t, rows); attn_next_tile(&t, rows);) {
        const uint64_t *pairs = pooled ? t.live : t.scored;
        int end = pooled ? t.keys : t.end;
        for (int i = pooled ? 0 : t.first; i < end; i++) {
            uint8_t *u = use + t.k0 + i;
            if (*u != 0 && (pairs == NULL || pairs[i] != 0)) {
                *u = 0;
                marked++;
            }
        }
    }
    return marked;
}

/* Marks the keys that the queries of one entry of the keys use, of which `unused` are left;
 * returns how many are then. The last queries first, because under a causal mask they attend to
 * most keys. */
static int64_t
mark_entry(uint8_t *use, const used_job *job, int64_t entry, int64_t unused)
{
    const attn_problem *p = job->p;
    int64_t rows_needed = rows_alike(&p->masks) ? min(p->M, 1) : p->M;
    for (int64_t head = 0; head < p->group; head++) {
        for (int64_t end = rows_needed; end > 0 && unused > 0; end -= ATTN_LANES) {
            int64_t m0 = max(end - ATTN_LANES, 0);
            attn_rows rows;
            attn_rows_of(&rows, p, entry * p->group + head, m0, (int)(end - m0));
            unused -= mark_block(use, &rows, job->pooled);
        }
    }
    return unused;
}

/* A task is the keys of one entry, or of all entries that share them. */
static void
used_task(void *ctx, int64_t task, int worker)
{
    const used_job *job = ctx;
    const attn_sharing *shared = job->shared;
    const int64_t each = shared == NULL ? 1 : shared->each;
    uint8_t *use = job->use + task * job->p->N;
    int64_t unused = job->p->N;
    (void)worker;
    memset(use, ATTN_UNUSED, (size_t)job->p->N);
    for (int64_t i = 0; i < each && unused > 0; i++) {
        const int64_t entry = shared == NULL ? task : shared->users[task * each + i];
        unused = mark_entry(use, job, entry, unused);
    }
}

bool
attn_used_keys(uint8_t *use, const attn_problem *p, const attn_sharing *shared,
               bool pooled, attn_run *run)
{
    used_job job = {p, shared, use, pooled};
    const int64_t entries = attn_distinct(shared, p->B / p->group);
    double us = attn_us(ATTN_WORK_ASKED * attn_work(p->B, p->M, p->N));
    if (!attn_may_be_empty(p)) { /* nothing is masked: all of them */
        memset(use, 0, (size_t)(entries * p->N));
        return true;
    }
    return attn_parallel_for(run, entries, us, used_task, &job);
}

int64_t
attn_use_run(const uint8_t *use, int64_t at, int64_t end, bool *used)
{
    *used = use == NULL || use[at] != ATTN_UNUSED;
    if (use == NULL) {
        return end - at;
    }
    int64_t i = at + 1;
    while (i < end && (use[i] != ATTN_UNUSED) == *used) {
        i++;
    }
    return i - at;
}

/* ---- keys alone ------------------------------------------------------------------ */

void
attn_lasting_keys(uint8_t *use, const attn_problem *p, int64_t b, int64_t j, int64_t n)
{
    const uint8_t *allowed = attn_key_row(&p->masks.keys, b);
    const int64_t limit = attn_limit(&p->masks.valid, b, 0, p->N);
    for (int64_t i = 0; i < n; i++) {
        const bool lasts = j + i < limit && (allowed == NULL || allowed[j + i] != 0);
        use[i] = lasts ? 0 : ATTN_UNUSED;
    }
}
