/*
 * plan.c -- how one call becomes tasks: its partition, its order of sums.
 *
 * The partition is a function of the shape alone, and every element of a result has one
 * task that writes it, so that the bits do not depend on the threads:
 *     forward    a task is one block of queries;
 *     backward   see plan_backward.c.
 */
#include "plan.h"
#include "weights.h"

bool
attn_prepare(attn_call *c)
{
    const attn_problem *p = c->p;
    const attn_score *score = p->score;
    const attn_sharing *shared = c->backward ? NULL : c->in->keys.shared;
    if (c->key_use != NULL && !attn_used_keys(c->key_use, p, shared, false, c->run)) {
        return false;
    }
    if (c->to_prepare != NULL) {
        attn_start_keys(c->to_prepare, p);
        if (!attn_make_keys(c->to_prepare, &c->in->keys, c->key_use, 0, p->N, p,
                            c->run)) {
            return false;
        }
    }
    return score->prepare == NULL || score->prepare(c);
}

bool
attn_finish(attn_call *c)
{
    const attn_score *score = c->p->score;
    attn_gradients d = *c->d;
    if ((score->make_keys_backward != NULL && !attn_make_keys_backward(c)) ||
        (score->finish != NULL && !score->finish(c))) {
        return false;
    }
    if (!attn_projects_back(c)) {
        return true;
    }
    d.projected = c->dkeys;
    d.key_use = c->key_use;
    return score->projected_backward(&d, &c->in->keys, c->p, c->panels, c->run);
}

/* ---- forward and scores ---------------------------------------------------------- */

/* The last block of an entry first: under a causal mask it takes the longest, and nobody
 * should begin it when the others are done. Two heads of 512 causal queries on two threads:
 * 0.310 -> 0.263 ms. */
static attn_block *
block_of_task(attn_call *c, int64_t task, int worker)
{
    int64_t last = c->blocks - 1 - task % c->blocks;
    return attn_begin_block(c, worker, task / c->blocks, last);
}

static void
forward_task(void *ctx, int64_t task, int worker)
{
    attn_forward_block(block_of_task(ctx, task, worker));
}

static bool
walk_forward(attn_call *c)
{
    return attn_is_split(c)
               ? attn_forward_split(c)
               : attn_parallel_for(c->run, c->p->B * c->blocks,
                                   attn_us(attn_walk_work(c)), forward_task, c);
}

static void
scores_task(void *ctx, int64_t task, int worker)
{
    attn_scores_block(block_of_task(ctx, task, worker));
}

static bool
walk_scores(attn_call *c)
{
    return attn_parallel_for(c->run, c->p->B * c->blocks, attn_us(attn_walk_work(c)),
                             scores_task, c);
}

static size_t
workspace(const attn_problem *p, bool weights, int threads)
{
    attn_call c = {.p = p, .unit = 1.0f, .returns_weights = weights};
    attn_arena a = attn_arena_over(NULL);
    attn_find_modifiers(&c);
    attn_lay_out(&c, &a, threads);
    return attn_arena_size(&a);
}

static int
run_call(attn_call *c, void *memory, bool (*walk)(attn_call *c))
{
    attn_arena a = attn_arena_within(memory, c->run->room);
    attn_find_modifiers(c);
    attn_lay_out(c, &a, c->run->threads);
    if (!attn_arena_fits(&a, &c->run->room)) {
        return ATTN_NO_ROOM;
    }
    attn_weights_clear(c);
    c->run->threads = c->workers;
    return attn_prepare(c) && walk(c) ? 0 : ATTN_INTERRUPTED;
}

size_t
attn_forward_workspace(const attn_problem *p, bool weights, int threads)
{
    return workspace(p, weights, threads);
}

int
attn_forward(float *output, float *weights, float *lse, const attn_inputs *in,
             const attn_problem *p, void *memory, attn_run *run)
{
    attn_call c = {.p = p,
                   .run = run,
                   .unit = ATTN_LOG2E,
                   .in = in,
                   .output = output,
                   .weights = weights,
                   .returns_weights = weights != NULL,
                   .lse = lse};
    bool nothing = p->Dv == 0 && lse == NULL && (weights == NULL || p->N == 0);
    if (p->B == 0 || p->M == 0 || nothing) { /* however large the other sizes are */
        return 0;
    }
    return run_call(&c, memory, walk_forward);
}

size_t
attn_scores_workspace(const attn_problem *p, int threads)
{
    return workspace(p, false, threads);
}

int
attn_scores(float *scores, const attn_inputs *in, const attn_problem *p, void *memory,
            attn_run *run)
{
    attn_call c = {.p = p, .run = run, .unit = 1.0f, .in = in, .weights = scores};
    if (p->B == 0 || p->M == 0 || p->N == 0) {
        return 0;
    }
    return run_call(&c, memory, walk_scores);
}
