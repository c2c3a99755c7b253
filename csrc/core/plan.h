/*
 * plan.h -- what the plans of forward and backward calls share.
 */
#ifndef ATTN_PLAN_H
#define ATTN_PLAN_H

#include "walk.h"

static const float ATTN_LOG2E = 1.44269504088896340736f;

static inline int64_t
attn_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

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

/* Estimated microseconds of the walk on one thread. */
double attn_walk_us(const attn_call *c);

#endif
