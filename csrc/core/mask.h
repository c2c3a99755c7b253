/*
 * mask.h -- who takes part: the rows of a block, and the tiles they need.
 *
 * Lengths, band, masks and bias, and what becomes of a row that they leave without any
 * key, all end here in two things the walk can use: which tiles to visit at all, and,
 * for a tile in which not every pair takes part, one live word per key (kernels.h).
 */
#ifndef ATTN_MASK_H
#define ATTN_MASK_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "../simd/kernels.h"
#include "attn.h"
#include "view.h"

/* How many keys the lengths leave to query m of entry b. */
static inline int64_t
attn_limit(const attn_valid_lens *v, int64_t b, int64_t m, int64_t N)
{
    return v->lens == NULL ? N : v->lens[b / v->heads * v->stride_b + m * v->stride_m];
}

/* A byte for each key of entry b, 0 where no query attends to it; NULL: it may to all. */
static inline const uint8_t *
attn_key_row(const attn_key_mask *keys, int64_t b)
{
    return keys->allowed == NULL ? NULL
                                 : keys->allowed + b / keys->heads * keys->stride;
}

/* May pairs between the first and the last key of a row be forbidden? */
static inline bool
attn_has_holes(const attn_masks *masks)
{
    return masks->keys.allowed != NULL || masks->mask.data != NULL ||
           masks->bias.data != NULL;
}

/* Of n keys from j on, ATTN_UNUSED those that lengths, the same for all its queries, and the mask
 * of keys leave to no query of entry b, and 0 the others. */
void attn_lasting_keys(uint8_t *use, const attn_problem *p, int64_t b, int64_t j,
                       int64_t n);

/* The sink of query m of entry b; -inf: it has none. */
static inline float
attn_sink_of(const attn_problem *p, int64_t b, int64_t m)
{
    const float *sink = p->sink.data;
    return sink == NULL ? -INFINITY : sink[attn_view_row(&p->sink, b, m)];
}

/* The queries of one block, one lane each. */
typedef struct {
    const attn_problem *p;
    int64_t b, m0;
    int count; /* queries: lanes 0..count-1 */
    /* The lane attends to no key outside start <= j < limit, and to both ends of it. */
    int64_t start[ATTN_LANES], limit[ATTN_LANES];
    int64_t low, high;               /* smallest start, largest limit */
    int64_t whole_low, whole_high;   /* largest start, smallest limit */
    int64_t scored_low, scored_high; /* as low, high, of the rows whose scores count */
    bool holes;                      /* a mask or bias may forbid pairs in between */
    uint64_t empty;                  /* lanes in which no key takes part ... */
    uint64_t uniform; /* ... those of them whose weights are 1/N: they attend to all N
                         keys, their scores count as 0 and have no gradient */
    uint64_t
        nan; /* ... those that become NaN. The others are 0 but for their lse, which
                     is the sink */
} attn_rows;

/* One tile of a block: keys k0 .. k0 + keys - 1. */
typedef struct {
    int64_t k0;
    int keys;
    int first, end;         /* keys first <= i < end hold all that are scored */
    const uint64_t *live;   /* who is pooled; NULL: every pair */
    const uint64_t *scored; /* whose score counts: live without the uniform lanes */
    uint64_t words[2][ATTN_KEYS];
} attn_tile;

void attn_rows_of(attn_rows *rows, const attn_problem *p, int64_t b, int64_t m0,
                  int count);

/* Do all pairs take part in every tile that is visited? */
bool attn_rows_whole(const attn_rows *rows);

/* for (attn_first_tile(&t, &rows); attn_next_tile(&t, &rows);) visits the tiles in
 * which any pair takes part. */
void attn_first_tile(attn_tile *t, const attn_rows *rows);
bool attn_next_tile(attn_tile *t, const attn_rows *rows);

/* words[i] loses the bits of the lanes to which the view forbids key k0 + i: of bytes, a 0; of
 * floats, -inf. */
void attn_view_words(uint64_t words[ATTN_KEYS], const attn_view *v, bool floats,
                     const attn_rows *rows, int64_t k0, int keys);

/* row (N), that of lane l: 0 wherever mask or bias forbid. */
void attn_zero_holes(float *row, const attn_rows *rows, int l);

/* Can any row be empty at all? */
bool attn_may_be_empty(const attn_problem *p);

/* ---- rows of queries or keys that no pair needs ---------------------------------- */

/* use (B / group, N), or, of shared keys, (distinct, N): 0 for a key that any query is scored
 * against, or, if so, whose value is pooled, be it by an empty row; else ATTN_UNUSED. false:
 * interrupted. */
bool attn_used_keys(uint8_t *use, const attn_problem *p, const attn_sharing *shared,
                    bool pooled, attn_run *run);

/* How many of the rows at .. end - 1, at least one, are alike from the first on: all used
 * (use NULL: all are), or all unused. */
int64_t attn_use_run(const uint8_t *use, int64_t at, int64_t end, bool *used);

#endif
