/*
 * score.c -- the table of scoring functions.
 */
#include "score.h"

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
