/*
 * keys.h -- prepared keys: what a score makes of the keys before the walk, in memory of
 * the call's own or of the caller's (attn_key_maker).
 */
#ifndef ATTN_KEYS_H
#define ATTN_KEYS_H

#include "arena.h"
#include "operand.h"

typedef struct {
    int64_t capacity; /* rows of an entry: row e * capacity + j belongs to key j of e */
    const attn_sharing *shared; /* those entries are then the distinct ones; or NULL */
    void *rows;                 /* the score's own */
} attn_prepared;

/* The call's own; NULL while the arena only counts, or if the score prepares nothing. shared:
 * that of the keys, or NULL to prepare those of each entry. */
attn_prepared *attn_take_prepared(attn_arena *a, const attn_problem *p,
                                  const attn_sharing *shared, int64_t capacity);

/* Numbers of the operand made of a key. */
int64_t attn_key_width(const attn_problem *p);

/* The caller's. */
const attn_prepared *attn_prepared_at(const void *memory);

/* Makes what does not depend on the keys. Once, first. */
void attn_start_keys(attn_prepared *to, const attn_problem *p);

/* Makes the rows of keys first <= j < end of every entry, or of those of them that use
 * (B / group, end - first) does not call ATTN_UNUSED; use NULL: that lengths and the mask of
 * keys leave (attn_key_maker). Shared keys: of every distinct entry. false: interrupted. */
bool attn_make_keys(attn_prepared *to, const attn_operand *keys, const uint8_t *use,
                    int64_t first, int64_t end, const attn_problem *p, attn_run *run);

/* After the walk: the gradient of the operand becomes that of the keys, for those that
 * are used. false: interrupted. */
typedef struct attn_call attn_call;
bool attn_make_keys_backward(attn_call *c);

#endif
