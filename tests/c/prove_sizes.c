/*
 * prove_sizes.c -- for all sizes: what a call asks its workspace for is counted without overflow,
 * and never negative; and the workspace gives each array the room it asks for, or says that there
 * is none.
 *
 * A bounded model checker goes through the functions as they are compiled, with every size unknown
 * (.ci/steps/sizes; esbmc, with integers that have no size: prove.h). A function prove_* is one
 * proof; those with a score are made for each, -DSCORE=attn_score_dot. prove_arena is about
 * arena.h; for the others, with -DPROVE_CALLS, attn_take only looks at what it is asked for.
 *
 * What is taken for granted: an array has at most MOST numbers, and their leading axes
 * together at most INT64_MAX, both of which the door has checked when there is a problem at
 * all. One worker: each takes what the first takes. Modifiers ask for a tile each of their
 * own, and are left out; numbers in double, which bound the waves of a backward, count as
 * exact. Multi-head attention (-DPROVE_HEADS) is proved around that of its heads, a problem
 * like any other.
 */
#include "../../csrc/core/multi_head.h"
#include "../../csrc/core/plan.h"
#include "../../csrc/simd/kernels.h"

enum { THREADS = 1 };

static size_t
any_bytes(size_t most)
{
    const prove_wide n = nondet_wide();
    __ESBMC_assume(n >= 0 && n <= (prove_wide)most);
    return (size_t)n;
}

/* ---- the workspace --------------------------------------------------------------- */

#ifndef PROVE_CALLS
int
prove_arena(void)
{
    attn_arena a = {NULL, any_bytes(SIZE_MAX), SIZE_MAX};
    const size_t size = any_bytes(4096), before = a.used;
    const int64_t n1 = any_size(0, INT64_MAX), n2 = any_size(0, INT64_MAX);
    __ESBMC_assume(size > 0);
    __ESBMC_assume(before == SIZE_MAX || before % ATTN_ALIGN == 0);
    attn_take(&a, size, n1, n2);
    __ESBMC_assert(a.used == SIZE_MAX || a.used % ATTN_ALIGN == 0, "aligned");
    if (a.used != SIZE_MAX) {
        const prove_wide bytes = (prove_wide)n1 * (prove_wide)n2 * (prove_wide)size;
        __ESBMC_assert(before != SIZE_MAX, "once it overflows, it does for good");
        __ESBMC_assert((prove_wide)a.used >= (prove_wide)before + bytes, "room");
    }
    const size_t asked = attn_arena_size(&a);
    __ESBMC_assert(asked == SIZE_MAX || asked - a.used == ATTN_ALIGN, "slack");
    return 0;
}
#endif

/* ---- calls ----------------------------------------------------------------------- */

#ifdef PROVE_CALLS
static attn_kernels kernels;
const attn_kernels *attn_simd = &kernels;
static int64_t queries;

/* In the place of mask.c's and modifier.c's: a sink is an array that exists, and so has as many
 * numbers as its entries have queries, if it has an axis of these. */
int64_t
attn_view_entries(const attn_view *v)
{
    const int64_t entries = any_size(0, MOST);
    __ESBMC_assume(v->stride_m == 0 ||
                   (prove_wide)entries * (prove_wide)queries <= (prove_wide)MOST);
    return entries;
}

void
attn_find_modifiers(attn_call *c)
{
    c->modifiers = 0;
}

static attn_problem
any_problem(const attn_score *score)
{
    attn_problem p = {.score = score};
    kernels.lanes = nondet_bool() ? 32 : 64;
    p.B = any_size(0, INT64_MAX);
    p.M = queries = any_size(0, MOST);
    p.N = any_size(0, MOST);
    p.Dq = any_size(0, MOST);
    p.Dk = any_size(0, MOST);
    p.Dv = any_size(0, MOST);
    p.H = any_size(0, MOST);
    p.group = any_size(1, INT64_MAX);
    __ESBMC_assume(p.B % p.group == 0);
    p.sink.stride_m = nondet_bool() ? 1 : 0;
    p.prepared = nondet_bool() ? &kernels : NULL; /* only whether there is any counts */
    return p;
}

static attn_gradients
any_gradients(void)
{
    static float x[1];
    attn_gradients d = {.queries = x, .keys = x, .values = x};
    d.scale = nondet_bool() ? x : NULL;
    d.sink = nondet_bool() ? x : NULL;
    if (nondet_bool()) {
        d.keys = NULL;
        d.projected = x;
        d.key_use = (uint8_t *)x;
    }
    return d;
}

#ifndef PROVE_HEADS
int
prove_forward(void)
{
    const attn_problem p = any_problem(&SCORE);
    attn_forward_workspace(&p, nondet_bool(), THREADS);
    return 0;
}

int
prove_backward(void)
{
    const attn_problem p = any_problem(&SCORE);
    const attn_gradients d = any_gradients();
    const attn_grad_outputs grad = {.output = NULL};
    attn_backward_workspace(&p, &d, &grad, THREADS);
    return 0;
}

int
prove_prepared(void)
{
    const attn_problem p = any_problem(&SCORE);
    attn_keys_of_score.size(&p, any_size(0, MOST));
    attn_keys_of_score.backward_workspace(&p);
    return 0;
}

/* What has to be refuted: that the queries of all entries together can be counted at all. */
int
prove_nonsense(void)
{
    const attn_problem p = any_problem(&SCORE);
    return p.B * p.M < 0;
}
#else
/* Proved by the others. */
size_t
attn_forward_workspace(const attn_problem *p, bool weights, int threads)
{
    (void)p, (void)weights, (void)threads;
    return any_bytes(INT64_MAX);
}

size_t
attn_backward_workspace(const attn_problem *p, const attn_gradients *d,
                        const attn_grad_outputs *grad, int threads)
{
    (void)p, (void)d, (void)grad, (void)threads;
    return any_bytes(INT64_MAX);
}

static attn_problem
any_heads(void)
{
    attn_problem p = any_problem(&attn_score_dot);
    p.heads = any_size(1, MOST);
    return p;
}

int
prove_multi_head(void)
{
    const attn_problem p = any_heads();
    attn_multi_head_kept(&p);
    attn_heads_size(&p, any_size(0, MOST));
    attn_multi_head_workspace(&p, nondet_bool(), nondet_bool(), THREADS);
    return 0;
}

int
prove_multi_head_backward(void)
{
    const attn_problem p = any_heads();
    const attn_gradients d = any_gradients();
    const attn_grad_outputs grad = {.output = NULL};
    attn_keys_of_heads.backward_workspace(&p);
    attn_multi_head_backward_workspace(&p, &d, &grad, nondet_bool(), THREADS);
    return 0;
}
#endif
#endif
