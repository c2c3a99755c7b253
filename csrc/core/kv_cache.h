/*
 * kv_cache.h -- keys and values that stay for many calls, in memory of the caller's: rows
 * with room behind them, and what flows to them, added up over the calls. What is made of
 * the keys once is in keys.h; which of them take part, in mask.h.
 */
#ifndef ATTN_KV_CACHE_H
#define ATTN_KV_CACHE_H

#include "attn.h"

/* ---- rows with room -------------------------------------------------------------- */

/* So many rows of each entry, `size` bytes each, the rows of an entry behind those of the one
 * before. */
typedef struct {
    void *data;
    int64_t rows;
} attn_rows_kept;

/* Rows at .. at + n - 1 of every entry of `to` become the first n of `from`, or, if that has
 * no data, bytes of 1: keys to which a mask says nothing. */
void attn_put_rows(attn_rows_kept to, int64_t at, int64_t n, attn_rows_kept from,
                   int64_t entries, size_t size);

/* ---- what flows to them ---------------------------------------------------------- */

/* What a backward leaves of so many keys of each entry: attn_gradients.projected, values and
 * key_use. Where that is ATTN_UNUSED, what `projected` has means nothing, and counts as 0. */
typedef struct {
    int64_t rows;
    float *projected; /* (entries, rows, key_width) */
    float *values;    /* (entries, rows, value_width) */
    uint8_t *key_use; /* (entries, rows) */
} attn_key_sums;

/* *to += *from, which has no more rows. It cannot be interrupted. */
void attn_add_key_sums(const attn_key_sums *to, const attn_key_sums *from,
                       int64_t entries, int64_t key_width, int64_t value_width,
                       int threads);

/* Writes that 0 into those of n rows of `projected`. */
void attn_zero_unused(float *projected, const uint8_t *key_use, int64_t n,
                      int64_t width);

#endif
