/*
 * modifier.h -- what happens to scores between the scoring function and the softmax.
 *
 * A modifier is one file that fills the struct, and one line in the table. They act in
 * the table's order, backward in the reverse one. The walk and the plans go through the
 * list and know none of them by name.
 */
#ifndef ATTN_MODIFIER_H
#define ATTN_MODIFIER_H

#include "walk.h"

/* clang-format off */
#define ATTN_MODIFIERS(X)                                                              \
    X(softcap) /* c tanh(s / c)  Gemma 2, 2024 */                                      \
    X(bias)    /* s + bias */
/* clang-format on */

struct attn_modifier {
    bool (*applies)(const attn_problem *p);
    bool keeps; /* tile_backward() needs what tile() keeps of the tile at hand */
    /* Arrays of a block; `own` below is what this returns. */
    void *(*take_block)(const attn_block *block, attn_arena *a);
    /* block->S of the keys of the tile that are scored: from score to modified score,
     * in units (attn_call.unit). */
    void (*tile)(attn_block *block, void *own);

    /* Has it anything to do in this backward? What follows is for those that have. */
    bool (*flows)(const attn_call *c);
    /* dS (keys, lanes) of the tile, 0 where no pair takes part: from the gradient of the
     * modified scores to that of the scores. */
    void (*tile_backward)(attn_block *block, void *own, float *dS);
    /* After the block's last tile; may be NULL. */
    void (*store_backward)(attn_block *block, void *own);

    /* Its own gradient is a sum over groups of queries (plan_backward.c); without one all
     * of these are NULL. How many numbers a group's share has, 0 if that is written where
     * it belongs and INT64_MAX if it overflows; a worker begins a group, whose share goes
     * to `share` (NULL: where it belongs); the shares of groups first .. first + count -
     * 1 are added up, in order (false: interrupted); nothing is added up yet, or at
     * all. */
    int64_t (*share_size)(const attn_call *c);
    void (*begin_group)(attn_block *block, void *own, int64_t group, float *share);
    bool (*add_shares)(const attn_call *c, const float *shares, int64_t first,
                       int64_t count);
    void (*no_gradient)(const attn_call *c);
};

/* The list of a call: those that apply. */
void attn_find_modifiers(attn_call *c);

/* The tile at hand: S; dS. */
void attn_modify_tile(attn_block *block);
void attn_modify_tile_backward(attn_block *block, float *dS);

/* Does any of them have something to do backward? Does any of those need the tile's
 * scores for it, even where P is known without them? */
bool attn_modifiers_flow(const attn_call *c);
bool attn_modifiers_keep(const attn_call *c);
void attn_modify_store_backward(attn_block *block);

#endif
