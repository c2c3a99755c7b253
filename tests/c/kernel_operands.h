/*
 * kernel_operands.h -- one run of one kernel in a test: random operands in heap buffers of
 * exactly the size that the contract names, and what the kernel wrote.
 */
#ifndef KERNEL_OPERANDS_H
#define KERNEL_OPERANDS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/simd/kernels.h"

/* One run of one kernel: its sizes and options, its buffers, what it wrote. */
typedef struct {
    const attn_kernels *set;
    int a, b, c; /* sizes */
    int option;  /* which optional operands, 0 .. the kernel's options - 1 */
    bool nasty;  /* infinities, NaN, zeros, subnormals among the operands */
    uint64_t random;
    float *buffer[12]; /* freed at the end */
    int buffers;
    float *result;
    size_t written;
} run;

enum { MOST_WRITTEN = 1 << 16 };

/* ---- random operands in buffers of exactly their size --------------------------------------- */

static uint32_t
next_random(run *r) /* xorshift64* */
{
    r->random ^= r->random >> 12;
    r->random ^= r->random << 25;
    r->random ^= r->random >> 27;
    return (uint32_t)((r->random * UINT64_C(0x2545F4914F6CDD1D)) >> 32);
}

static float
number(run *r, float size) /* in (-size, size), or nasty */
{
    static const float nasty[] = {0.0f, -0.0f,  INFINITY, -INFINITY,
                                  NAN,  1e-41f, -1e-41f,  3e38f};
    uint32_t word = next_random(r);
    if (r->nasty && word % 16 == 0) {
        return nasty[word / 16 % 8];
    }
    return size * (float)((double)word / 2147483648.0 - 1.0);
}

static void *
buffer(run *r, size_t bytes)
{
    float *memory = malloc(bytes);
    if (memory == NULL || r->buffers == sizeof r->buffer / sizeof *r->buffer) {
        abort();
    }
    return r->buffer[r->buffers++] = memory;
}

static float *
numbers(run *r, int64_t n, float size)
{
    float *x = buffer(r, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = number(r, size);
    }
    return x;
}

/* Live words of a tile: about three pairs in four, one key without any. */
static uint64_t *
live_words(run *r, int rows, int lanes)
{
    uint64_t *live = buffer(r, (size_t)rows * sizeof *live);
    uint64_t all = lanes < 64 ? ((uint64_t)1 << lanes) - 1 : ~(uint64_t)0;
    for (int i = 0; i < rows; i++) {
        uint64_t half = (uint64_t)next_random(r) << 32 | next_random(r);
        uint64_t other = (uint64_t)next_random(r) << 32 | next_random(r);
        live[i] = i == 2 ? 0 : (half | other) & all;
    }
    return live;
}

/* A mask of n bytes, about three in four not 0; NULL if it is not wanted. */
static uint8_t *
mask_bytes(run *r, int64_t n, bool wanted)
{
    uint8_t *mask = wanted ? buffer(r, (size_t)n) : NULL;
    for (int64_t i = 0; wanted && i < n; i++) {
        uint32_t word = next_random(r);
        mask[i] = word % 4 == 0 ? 0 : (uint8_t)(1 + word / 4 % 255);
    }
    return mask;
}

/* NaN in x where the mask is 0. */
static void
poison_row(float *x, int64_t n, const uint8_t *mask)
{
    for (int64_t i = 0; mask != NULL && i < n; i++) {
        x[i] = mask[i] != 0 ? x[i] : NAN;
    }
}

/* x in every dead pair of X [rows][lanes]. */
static void
fill_dead_pairs(float *X, int rows, int lanes, const uint64_t *live, float x)
{
    for (int i = 0; live != NULL && i < rows; i++) {
        for (int l = 0; l < lanes; l++) {
            if (!(live[i] >> l & 1)) {
                X[i * lanes + l] = x;
            }
        }
    }
}

static void
poison(float *X, int rows, int lanes, const uint64_t *live)
{
    fill_dead_pairs(X, rows, lanes, live, NAN);
}

static void
record(run *r, const float *x, int64_t n)
{
    if (r->written + (size_t)n > MOST_WRITTEN) {
        abort();
    }
    memcpy(r->result + r->written, x, (size_t)n * sizeof *x);
    r->written += (size_t)n;
}

/* Floats of `rows` rows of `cols`, `stride` apart, the last one without what follows it. */
static int64_t
span(int64_t rows, int64_t cols, int64_t stride)
{
    return rows == 0 || cols == 0 ? 0 : (rows - 1) * stride + cols;
}

/* What a contract promises beyond the bits of scalar. */
static void
check(const run *r, bool holds, const char *what, int64_t at)
{
    if (!holds) {
        printf("FAILED %s (%d, %d, %d) option %d: %s at %lld\n", r->set->name, r->a,
               r->b, r->c, r->option, what, (long long)at);
        exit(1);
    }
}

#endif
