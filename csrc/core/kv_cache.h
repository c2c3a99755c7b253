/*
 * kv_cache.h -- keys and values that stay for many calls, in memory of the caller's, with room
 * for more; and what flows to them, added up over the calls. What is made of the keys once
 * is in keys.h; which of them take part, in mask.h.
 */
#ifndef ATTN_KV_CACHE_H
#define ATTN_KV_CACHE_H

#include "attn.h"

/* ---- keys and values with room --------------------------------------------------- */

/* A cache of keys and values, their mask, and what is made of the keys once, which several may
 * hold. Whoever does knows of its first keys, so many as there were when it came; these never
 * change, and more are written behind them. Where there is no room for more, or for their
 * mask, all move to a new cache, and the old one stays as it is for as long as somebody holds
 * it. Appending is for one thread at a time, the rest for any. */
typedef struct {
    const attn_key_maker *maker;
    int64_t entries; /* of keys and values: p.B counts heads, too */
    int64_t rows;    /* of each entry, that are written, ... */
    int64_t made;    /* ... and of them, from the first on, those that are prepared */
    attn_problem p;  /* of N keys, as many as there is room for; it has no queries */
    attn_inputs in;  /* the keys and values: */
    float *keys;     /* (entries, N, Dk) */
    float *values;   /* (entries, N, Dv) */
    uint8_t *mask;   /* (entries, N): no query attends to a key with 0; NULL: no mask */
    void *prepared;  /* by the maker; NULL: there is nothing to prepare */
    void *block;     /* in which all of it lies, of so many bytes */
    size_t bytes;
    _Atomic size_t holders;
} attn_kv;

/* Memory is the caller's: so many bytes at a multiple of 16, or NULL; and back. */
typedef void *attn_take_block(size_t bytes);
typedef void attn_give_block(void *block, size_t bytes);

/* A new cache, held once, of the rows of `of`, not prepared yet, with room for n more, or for
 * twice as many as that had; and with a mask, if it is to have one or that had. Before the
 * first there is none, and `of` has maker, entries, and of p what does not count keys: sizes,
 * score, parameters, lengths. NULL: there is no memory of *bytes, or these are more than there
 * can be, or cannot be counted: SIZE_MAX. */
attn_kv *attn_kv_moved(const attn_kv *of, int64_t n, bool masked, attn_take_block *take,
                       size_t *bytes);

void attn_kv_hold(attn_kv *kv);
void attn_kv_release(attn_kv *kv, attn_give_block *give);

/* Is there room for n rows more, with a mask or without? */
bool attn_kv_takes(const attn_kv *kv, int64_t n, bool masked);

/* So many rows of each entry; without a mask queries may attend to all. */
typedef struct {
    const float *keys, *values;
    const uint8_t *mask;
    int64_t rows;
} attn_kv_rows;

/* The first n of them become rows behind those of *kv. */
void attn_kv_append(attn_kv *kv, int64_t n, const attn_kv_rows *from);

/* Prepares what is not, where there is anything to prepare: without a workspace, and 0 or
 * ATTN_INTERRUPTED. How much work that is. */
int attn_kv_prepare(attn_kv *kv, attn_run *run);
double attn_kv_work(const attn_kv *kv);

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

/* to += from, n numbers. */
void attn_add(float *to, const float *from, int64_t n);

/* Writes that 0 into those of n rows of `projected`. */
void attn_zero_unused(float *projected, const uint8_t *key_use, int64_t n,
                      int64_t width);

#endif
