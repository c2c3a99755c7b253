/*
 * score.c -- the table of scoring functions. A new one is a file score_<name>.c that
 * fills an attn_score (walk.h), its kind in attn.h, and its line here.
 */
#include "walk.h"

extern const attn_score attn_score_dot, attn_score_additive, attn_score_gaussian;

static const attn_score *const scores[] = {
    [ATTN_DOT] = &attn_score_dot,
    [ATTN_ADDITIVE] = &attn_score_additive,
    [ATTN_GAUSSIAN] = &attn_score_gaussian,
};

const attn_score *
attn_score_of(attn_score_kind kind)
{
    return scores[kind];
}
