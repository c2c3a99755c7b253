/*
 * plan_split.c -- a query or two against very many keys: the parts of the keys are
 * shared out as well, or a decoder's step over a long cache would keep one thread busy.
 *
 * A part in which no key takes part adds nothing, and the parts of a block are merged
 * in the order in which a block that is not split goes through them: the bits do not
 * change.
 */
#include "plan.h"
#include "sums.h"
#include "weights.h"

static attn_block *
begin(attn_call *c, int64_t index, int worker)
{
    attn_block *block = attn_begin_block(c, worker, index / c->blocks,
                                         index % c->blocks);
    if (c->part_tops != NULL) {
        block->pending.tops = c->part_tops + index * attn_tiles(c->p->N);
    }
    return block;
}

static float *
sums_of(const attn_call *c, int64_t task)
{
    return c->part_sums + task * attn_sums_size(c->p->Dv, c->lanes);
}

static void
part_task(void *ctx, int64_t task, int worker)
{
    attn_call *c = ctx;
    attn_block *block = begin(c, task / c->parts, worker);
    c->p->score->load(block);
    attn_forward_part(block, task % c->parts);
    attn_sums_save(block, sums_of(c, task));
}

static void
merge_task(void *ctx, int64_t index, int worker)
{
    attn_call *c = ctx;
    attn_block *block = begin(c, index, worker);
    const int64_t first = index * c->parts;
    attn_sums_load(block, sums_of(c, first));
    for (int64_t part = 1; part < c->parts; part++) {
        attn_sums_save(block, block->part);
        attn_sums_load(block, sums_of(c, first + part));
        attn_sums_merge(block, block->part);
    }
    attn_forward_end(block);
}

bool
attn_forward_split(attn_call *c)
{
    int64_t blocks = c->p->B * c->blocks;
    double merging = 2.0 * ATTN_WORK_NUMBER * attn_work(blocks, c->parts, c->p->Dv);
    return attn_parallel_for(c->run, blocks * c->parts, attn_us(attn_walk_work(c)),
                             part_task, c) &&
           attn_parallel_for(c->run, blocks, attn_us(merging), merge_task, c);
}
