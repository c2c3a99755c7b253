/*
 * float_rules.h -- refuse to compile with options that change results.
 *
 * Infinities mask, NaN has a meaning, sums have one order: what these options allow a
 * compiler to ignore. setup.py removes them; this is for any other build.
 */
#ifndef ATTN_FLOAT_RULES_H
#define ATTN_FLOAT_RULES_H

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error \
    "attnext computes wrong results with -ffast-math, -Ofast or -ffinite-math-only: \
remove the option, or add -fno-fast-math -fno-finite-math-only after it."
#endif

#if defined(__x86_64__) && defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "attnext needs floats that are computed as floats: compile with -mfpmath=sse."
#endif

#endif
