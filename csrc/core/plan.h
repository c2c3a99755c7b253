/*
 * plan.h -- what the plans of forward and backward calls share.
 */
#ifndef ATTN_PLAN_H
#define ATTN_PLAN_H

#include "modifier.h"

/* Sizes, threads and blocks of a call whose modifiers are found. Over an arena without
 * memory (arena.h) this only finds out how much is needed. */
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
