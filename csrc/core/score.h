/*
 * score.h -- the scoring functions, one file each: score_dot.c, score_additive.c, ...
 */
#ifndef ATTN_SCORE_H
#define ATTN_SCORE_H

#include "walk.h"

extern const attn_score attn_score_dot, attn_score_additive, attn_score_gaussian;

#endif
