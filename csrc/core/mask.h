/*
 * mask.h -- who takes part: the rows of a block, and the tiles they need.
 *
 * Everything that decides whether a pair takes part, and what becomes of a row without
 * any, ends here in two things the walk can use: which tiles to visit at all, and, for
 * a tile that straddles a limit, one live word per key (kernels.h).
 */
#ifndef ATTN_MASK_H
#define ATTN_MASK_H

#include <stdbool.h>
#include <stdint.h>

#include "../simd/kernels.h"
#include "attn.h"

/* The queries of one block, one lane each. */
typedef struct {
    int count;                 /* queries: lanes 0..count-1 */
    int64_t limit[ATTN_LANES]; /* the lane attends to keys j < limit */
    int64_t low, high;         /* smallest and largest limit */
    int64_t scored_high;       /* largest limit of a row whose scores count */
    uint64_t empty;            /* lanes in which no key takes part ... */
    uint64_t uniform; /* ... those of them whose weights are 1/N: their limit is N,
                                   their scores count as 0 and have no gradient */
    attn_empty_rows empty_rows; /* what the other empty lanes become: 0 or NaN */
} attn_rows;

/* One tile of a block: keys k0 .. k0 + keys - 1. */
typedef struct {
    int64_t k0;
    int keys;
    const uint64_t *live;   /* who is pooled; NULL: every pair */
    const uint64_t *scored; /* whose score counts: live without the uniform lanes */
    uint64_t words[2][ATTN_KEYS];
} attn_tile;

/* How many keys query m of entry b may attend to. */
int64_t attn_limit(const attn_valid_lens *valid, int64_t b, int64_t m, int64_t N);

/* Keys of entry b that any of its M queries may attend to: j < this. */
int64_t attn_keys_used(const attn_problem *p, int64_t b);

/* How many queries of entry b from m on, or keys from j on, take part (> 0), or take
 * no part (< 0), together. */
int64_t attn_used_queries(const attn_problem *p, int64_t b, int64_t m);
int64_t attn_used_keys(const attn_problem *p, int64_t b, int64_t j);

void attn_rows_of(attn_rows *rows, const attn_problem *p, int64_t b, int64_t m0,
                  int count);

/* for (attn_first_tile(&t); attn_next_tile(&t, &rows);) visits the tiles that take
 * part. */
void attn_first_tile(attn_tile *t);
bool attn_next_tile(attn_tile *t, const attn_rows *rows);

#endif
