/*
 * fuzz_masks.h -- masks of every kind for a fuzzed problem, and what they mean.
 *
 * The meaning is takes_part(), straight from the definition and from nothing in mask.c.
 */
#ifndef FUZZ_MASKS_H
#define FUZZ_MASKS_H

#include "../../csrc/core/attn.h"
#include "fuzz_source.h"

/* ---- what they mean -------------------------------------------------------------- */

/* Where element (b, m, j) of a view lies. */
static int64_t
view_at(const attn_view *v, int64_t b, int64_t m, int64_t j)
{
    int64_t at = m * v->stride_m + j * v->stride_j;
    for (int i = 0; i < v->axis_count; i++) {
        at += b % v->axes[i].size * v->axes[i].stride;
        b /= v->axes[i].size;
    }
    return at;
}

static bool
byte_at(const attn_view *v, int64_t b, int64_t m, int64_t j)
{
    return ((const uint8_t *)v->data)[view_at(v, b, m, j)] != 0;
}

static float
float_at(const attn_view *v, int64_t b, int64_t m, int64_t j)
{
    return ((const float *)v->data)[view_at(v, b, m, j)];
}

/* Do lengths and mask let query m of entry b attend to key j? */
static bool
is_valid(const attn_masks *masks, int64_t b, int64_t m, int64_t j)
{
    const attn_valid_lens *v = &masks->valid;
    int64_t at = v->lens == NULL ? 0 : b / v->heads * v->stride_b + m * v->stride_m;
    return (v->lens == NULL || j < v->lens[at]) &&
           (masks->mask.data == NULL || byte_at(&masks->mask, b, m, j));
}

/* Do lengths, masks and band? */
static bool
is_allowed(const attn_masks *masks, int64_t b, int64_t m, int64_t j)
{
    const attn_key_mask *keys = &masks->keys;
    const attn_band *band = &masks->band;
    int64_t i = m;
    if (band->offset != NULL) {
        i += band->offset[b / band->heads];
    }
    return (keys->allowed == NULL ||
            keys->allowed[b / keys->heads * keys->stride + j]) &&
           is_valid(masks, b, m, j) && (!band->has_left || i - band->left <= j) &&
           (!band->has_right || j <= i + band->right);
}

/* Do all of them? Then the pair takes part. */
static bool
takes_part(const attn_masks *masks, int64_t b, int64_t m, int64_t j)
{
    return is_allowed(masks, b, m, j) &&
           (masks->bias.data == NULL || float_at(&masks->bias, b, m, j) != -INFINITY);
}

typedef bool pair_rule(const attn_masks *masks, int64_t b, int64_t m, int64_t j);

/* A byte for each pair of (B, M, N): 1 where the rule holds. */
static uint8_t *
pairs_of(const attn_problem *p, const attn_masks *masks, pair_rule *rule)
{
    uint8_t *pairs = nan_bytes((size_t)(p->B * p->M * p->N));
    for (int64_t b = 0; b < p->B; b++) {
        for (int64_t m = 0; m < p->M; m++) {
            for (int64_t j = 0; j < p->N; j++) {
                pairs[(b * p->M + m) * p->N + j] = rule(masks, b, m, j);
            }
        }
    }
    return pairs;
}

/* ---- views ----------------------------------------------------------------------- */

enum { MOST_AXES = 3 };

/* The leading axes that B consists of, innermost first. */
typedef struct {
    int64_t size[MOST_AXES];
    int count;
} leading_axes;

/* An array as it is laid out axis by axis, the innermost first: NumPy's views may have
 * gaps between rows, and axes walked backwards. */
typedef struct {
    source *s;
    bool packed;    /* C-contiguous */
    int64_t stride; /* of the next axis */
    int64_t first;  /* where element 0 lies; */
    int64_t extent; /* elements from the lowest to the highest */
} array_layout;

/* Adds an axis; its stride, 0 if the array lacks the axis. */
static int64_t
add_axis(array_layout *a, int64_t n, bool lacks)
{
    int64_t stride = a->stride, span = n > 0 ? (n - 1) * stride : 0;
    if (lacks) {
        return 0;
    }
    a->stride = stride * (n > 0 ? n : 1);
    a->extent = n > 0 && a->extent > 0 ? a->extent + span : 0;
    if (a->packed) {
        return stride;
    }
    uint32_t r = next_random(a->s);
    a->stride += r % 4;
    if (r / 4 % 4 != 0 || a->extent == 1) {
        return stride;
    }
    a->first += span;
    return -stride;
}

/* A view with some of the axes of (..., M, N), and its layout; no data yet. */
static attn_view
choose_view(source *s, const attn_problem *p, const leading_axes *lead, bool packed,
            array_layout *a)
{
    unsigned has = next_byte(s), count = next_byte(s);
    attn_axis *axes = allocate(MOST_AXES * sizeof *axes);
    attn_view v = {.axes = axes, .axis_count = lead->count};
    if (count % 4 == 0) { /* fewer axes than queries have */
        v.axis_count = (int)(count / 4 % (unsigned)(lead->count + 1));
    }
    *a = (array_layout){.s = s, .packed = true, .stride = 1, .extent = 1};
    v.stride_j = add_axis(a, p->N, (has & 3) == 0);
    a->packed = packed;
    a->stride += packed ? 0 : next_random(s) % 3;
    v.stride_m = add_axis(a, p->M, (has & 12) == 0);
    for (int i = 0; i < v.axis_count; i++) {
        bool lacks = has >> (4 + i) & 1;
        axes[i] = (attn_axis){lead->size[i], add_axis(a, lead->size[i], lacks)};
    }
    return v;
}

static attn_view
choose_flags(source *s, const attn_problem *p, const leading_axes *lead)
{
    array_layout a;
    attn_view v = choose_view(s, p, lead, false, &a);
    v.data = random_flags(s, a.extent) + a.first;
    return v;
}

/* Nobody attends to the keys of the second tile. */
static void
forbid_a_tile(const attn_problem *p, const attn_view *v)
{
    for (int64_t row = 0; row < p->B * p->M; row++) {
        for (int64_t j = 128; j < 256 && j < p->N; j++) {
            ((uint8_t *)v->data)[view_at(v, row / p->M, row % p->M, j)] = 0;
        }
    }
}

/* A bias is C-contiguous; -inf in some of them. `n` of its numbers. */
static attn_view
choose_bias(source *s, const attn_problem *p, const leading_axes *lead, int64_t *n)
{
    array_layout a;
    attn_view v = choose_view(s, p, lead, true, &a);
    float *bias = random_floats(s, a.extent);
    if (next_byte(s) % 2 == 0) {
        const uint8_t *flags = random_flags(s, a.extent);
        for (int64_t i = 0; i < a.extent; i++) {
            bias[i] = flags[i] != 0 ? bias[i] : -INFINITY;
        }
    }
    v.data = bias;
    *n = a.extent;
    return v;
}

/* What rows share, or, with no M, entries: C-contiguous, too. `n` of its numbers. */
static attn_view
choose_shared(source *s, const attn_problem *p, int64_t M, const leading_axes *lead,
              int64_t *n)
{
    attn_problem rows = *p;
    array_layout a;
    rows.M = M;
    rows.N = 1;
    attn_view v = choose_view(s, &rows, lead, true, &a);
    v.stride_m = M == p->M ? v.stride_m : 0;
    v.stride_j = 0;
    v.data = random_floats(s, a.extent);
    *n = a.extent;
    return v;
}

/* One number for each pair, of shape (B, M, N). */
static attn_view
full_view(const attn_problem *p, const void *data)
{
    attn_axis *axis = allocate(sizeof *axis);
    *axis = (attn_axis){p->B, p->M * p->N};
    return (attn_view){data, axis, 1, p->N, 1};
}

/* ---- lengths and band ------------------------------------------------------------ */

/* Valid lengths: one for all, one of each entry of the first axis, or one of each of
 * its queries. */
static attn_valid_lens
choose_lens(source *s, const attn_problem *p, int64_t heads)
{
    unsigned kind = next_byte(s) % 4;
    int64_t entries = kind == 0 ? 1 : p->B / heads;
    int64_t n = entries * (kind > 1 ? p->M : 1);
    int64_t *lens = allocate((size_t)n * sizeof *lens);
    for (int64_t i = 0; i < n; i++) {
        uint32_t r = next_random(s);
        lens[i] = r % 8 == 0 ? 0 : (int64_t)(r / 8) % (p->N + 1);
    }
    return (attn_valid_lens){lens, heads,
                             kind == 0  ? 0
                             : kind > 1 ? p->M
                                        : 1,
                             kind > 1};
}

static attn_band
choose_band(source *s, const attn_problem *p, int64_t heads)
{
    unsigned kind = next_byte(s);
    attn_band band = {.has_left = kind & 1, .has_right = kind & 2};
    band.left = kind & 4 ? next_byte(s) : next_byte(s) % 4;
    band.right = kind & 8 ? next_byte(s) : next_byte(s) % 4;
    if (kind & 16) {
        return band;
    }
    band.heads = kind & 32 ? heads : INT64_MAX;
    int64_t n = kind & 32 ? p->B / heads : 1;
    int64_t *offset = allocate((size_t)n * sizeof *offset);
    for (int64_t i = 0; i < n; i++) {
        uint32_t r = next_random(s);
        offset[i] = (int64_t)(r % (uint64_t)(p->M + p->N + 5)) - p->M - 2;
        offset[i] = r >> 28 == 0 ? INT64_C(1) << 40 : offset[i];
        offset[i] = r >> 28 == 1 ? -(INT64_C(1) << 40) : offset[i];
    }
    band.offset = offset;
    return band;
}

/* Any of the masks, each in two of five problems; `n`: the numbers of the bias. */
static void
choose_masks(source *s, attn_problem *p, const leading_axes *lead, int64_t *n)
{
    unsigned kinds[4];
    for (int i = 0; i < 4; i++) {
        kinds[i] = next_byte(s) % 5;
    }
    int64_t first = lead->count > 0 ? lead->size[lead->count - 1] : 1;
    int64_t heads = p->B > 0 ? p->B / first : 1;
    if (kinds[0] < 2) {
        p->masks.valid = choose_lens(s, p, next_byte(s) % 4 != 0 ? heads : 1);
    }
    if (kinds[1] < 2) {
        p->masks.band = choose_band(s, p, next_byte(s) % 4 != 0 ? heads : 1);
    }
    if (kinds[2] < 2) {
        p->masks.mask = choose_flags(s, p, lead);
        if (p->N > 256 && p->masks.mask.stride_j != 0 && next_byte(s) % 2 == 0) {
            forbid_a_tile(p, &p->masks.mask);
        }
    }
    if (kinds[3] < 2) {
        p->masks.bias = choose_bias(s, p, lead, n);
    }
}

#endif
