/*
 * plan.h -- what the plans of forward and backward calls share.
 */
#ifndef ATTN_PLAN_H
#define ATTN_PLAN_H

#include "modifier.h"

/* plan_layout.c: sizes, threads and blocks of a call whose modifiers are found. Over an arena without
 * memory (arena.h) this only finds out how much is needed. */
void attn_lay_out(attn_call *c, attn_arena *a, int threads);

/* Block `index` of entry b, made ready on this worker. */
attn_block *attn_begin_block(attn_call *c, int worker, int64_t b, int64_t index);

/* Estimated multiply-adds of the walk. */
double attn_walk_work(const attn_call *c);

/* plan_split.c: the forward of a call whose keys are shared out (false: interrupted). */
bool attn_forward_split(attn_call *c);

/* Are the parts of its keys tasks of their own? */
static inline bool
attn_is_split(const attn_call *c)
{
    return c->parts > 1 && c->lanes == 1;
}

/* Does the gradient of the keys' operand go through a projection in this call? */
static inline bool
attn_projects_back(const attn_call *c)
{
    return c->backward && c->p->score->projected_backward != NULL &&
           c->d->projected == NULL;
}

/* plan.c: prepares what the call prepares of its own; takes the gradient of the keys' operand
 * back to the keys. false: interrupted. */
bool attn_prepare(attn_call *c);
bool attn_finish(attn_call *c);

#endif
