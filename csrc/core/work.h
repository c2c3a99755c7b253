/*
 * work.h -- what things cost, in one unit: the multiply-adds of the kernels. Only
 * whether a call is worth threads, and how many, follows from these numbers.
 */
#ifndef ATTN_WORK_H
#define ATTN_WORK_H

#include <stdint.h>

static inline int64_t
attn_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* A number that is read or written outside the kernels' products, and a pair that is
 * only asked whether it takes part, as multiply-adds: 2 and 4 a nanosecond. */
static const double ATTN_WORK_NUMBER = 15.0, ATTN_WORK_ASKED = 7.5;

/* Multiply-adds of a weight's softmax. */
static const double ATTN_WORK_SOFTMAX = 8.0;

/* Microseconds on one thread: 30 multiply-adds a nanosecond. */
static inline double
attn_us(double work)
{
    return work / 30e3;
}

/* a * b * c, without overflow. */
static inline double
attn_work(int64_t a, int64_t b, int64_t c)
{
    return (double)a * (double)b * (double)c;
}

#endif
