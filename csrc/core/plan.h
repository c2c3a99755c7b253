/*
 * plan.h -- what the plans of forward and backward calls share.
 */
#ifndef ATTN_PLAN_H
#define ATTN_PLAN_H

#include "walk.h"

static inline bool
attn_wants_dbias(const attn_call *c)
{
    return c->backward && c->d->bias != NULL;
}

/* Sizes, threads and blocks of a call; with an arena that only counts, just the
 * counting. */
void attn_lay_out(attn_call *c, attn_arena *a, int threads);

/* Block `index` of entry b, made ready on this worker. */
attn_block *attn_begin_block(attn_call *c, int worker, int64_t b, int64_t index);

/* plan_split.c: how many parts the keys have, and memory for their sums if they are
 * shared out; whether they are; the forward that does it (false: interrupted). */
void attn_take_parts(attn_call *c, attn_arena *a);
bool attn_is_split(const attn_call *c);
bool attn_forward_split(attn_call *c);

/* Estimated multiply-adds of the walk. */
double attn_walk_work(const attn_call *c);

/* Prepares what the call prepares of its own; takes the gradient of the keys' operand
 * back to the keys. false: interrupted. */
bool attn_prepare(attn_call *c);
bool attn_finish(attn_call *c);

#endif
