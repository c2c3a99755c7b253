/*
 * softcap.c -- scores under a cap c, forward and backward: c tanh(s / c)  (Gemma 2, 2024;
 * softcap in ONNX's Attention and in FlashAttention). Before the bias and the masks.
 */
#include "modifier.h"

#include <float.h>
#include <math.h>

typedef struct {
    float cap, inv; /* in units; 1 / cap */
    float *slope;   /* [keys][lanes]  backward: 1 - tanh^2 of the tile at hand */
} softcap_own;

static bool
applies(const attn_problem *p)
{
    return p->softcap > 0.0f;
}

/* The cap and its inverse are kept finite, so that 0 stays 0 under any cap. */
static void *
take_block(const attn_block *block, attn_arena *a)
{
    const attn_call *c = block->call;
    const int64_t keys = c->p->N < ATTN_KEYS ? c->p->N : ATTN_KEYS;
    const double cap = (double)c->p->softcap * (double)c->unit;
    softcap_own local, *own = attn_take(a, sizeof *own, 1, 1);
    softcap_own *s = own == NULL ? &local : own;
    s->cap = (float)fmin(cap, (double)FLT_MAX);
    s->inv = (float)fmin(1.0 / cap, (double)FLT_MAX);
    s->slope = c->backward ? attn_take_floats(a, keys, block->lanes) : NULL;
    return own;
}

/* The numbers of the tile's keys that are scored: where they begin, and how many. */
static int64_t
first_number(const attn_block *block)
{
    return (int64_t)block->tile.first * block->lanes;
}

static int64_t
numbers(const attn_block *block)
{
    return (int64_t)(block->tile.end - block->tile.first) * block->lanes;
}

static void
tile(attn_block *block, void *own)
{
    const softcap_own *s = own;
    const int64_t at = first_number(block);
    attn_simd->softcap(block->S + at, s->slope == NULL ? NULL : s->slope + at,
                       numbers(block), s->cap, s->inv);
}

static bool
flows(const attn_call *c)
{
    return c->backward;
}

/* forward was: s' = c tanh(s / c).  So now: ds = ds' (1 - tanh^2(s / c)). */
static void
tile_backward(attn_block *block, void *own, float *dS)
{
    const softcap_own *s = own;
    const int64_t at = first_number(block);
    for (int64_t i = at; i < at + numbers(block); i++) {
        dS[i] *= s->slope[i];
    }
}

const attn_modifier attn_modifier_softcap = {
    .applies = applies,
    .keeps = true,
    .take_block = take_block,
    .tile = tile,
    .flows = flows,
    .tile_backward = tile_backward,
};
