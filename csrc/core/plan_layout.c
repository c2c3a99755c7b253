/*
 * plan_layout.c -- how a call is laid out: what it costs, its lanes, blocks and parts, the
 * arrays of its workspace.
 */
#include "pairs.h"
#include "plan.h"
#include "sums.h"
#include "weights.h"

#include <math.h>

const attn_score_info *
attn_about(const attn_score *score)
{
    return &score->about;
}

float
attn_default_scale(const attn_problem *p)
{
    const int64_t D = p->heads > 0 ? p->H / p->heads : p->Dq;
    return p->score->about.scale == ATTN_SCALE_ROOT && D > 0
               ? (float)(1.0 / sqrt((double)D))
               : 1.0f;
}

int64_t
attn_letter_size(const attn_problem *p, char letter)
{
    return letter == 'H'   ? p->H
           : letter == 'Q' ? p->Dq
           : letter == 'K' ? p->Dk
           : letter == 'V' ? p->Dv
                           : 1;
}

/* ---- what a call costs ----------------------------------------------------------- */

static double
pairs_work(const attn_problem *p)
{
    double pair = p->score->pair_work(p) + (double)p->Dv + ATTN_WORK_SOFTMAX;
    return attn_work(p->B, p->M, p->N) * pair;
}

/* Of what is done once for each query and each key. */
static double
rows_work(const attn_problem *p)
{
    const attn_score *score = p->score;
    double query = score->query_work == NULL ? 0.0 : score->query_work(p);
    bool made = score->key_work != NULL && p->prepared == NULL;
    return attn_work(p->B, p->M, 1) * query +
           attn_work(p->B / p->group, p->N, 1) * (made ? score->key_work(p) : 0.0);
}

double
attn_forward_work(const attn_problem *p)
{
    return pairs_work(p) + rows_work(p);
}

/* A product forward is three backward: it again, and one for each of its factors. For a
 * pair the pooling's gradients come to them. */
double
attn_backward_work(const attn_problem *p)
{
    return 4.0 * pairs_work(p) + 3.0 * rows_work(p);
}

double
attn_walk_work(const attn_call *c)
{
    return (c->backward ? 4.0 : 1.0) * pairs_work(c->p);
}

/* ---- sizes, threads, blocks ------------------------------------------------------ */

/* Lanes of a block of so many queries, at most so many. */
static int
lanes_for(int64_t queries, int most)
{
    return queries >= most ? most : (int)attn_ceil_div(queries, 16) * 16;
}

static int
lanes_of(const attn_call *c)
{
    const attn_problem *p = c->p;
    int most = p->score->most_lanes;
    most = c->backward || most < attn_simd->lanes ? most : attn_simd->lanes;
    return p->M <= p->score->few_queries[c->backward] ? 1 : lanes_for(p->M, most);
}

/* Prepared keys, if they are not handed in; and which keys are needed at all, if that
 * matters: for preparing them, and for the gradients of what they were prepared with. */
static void
take_keys(attn_call *c, attn_arena *a)
{
    const attn_problem *p = c->p;
    /* A backward returns gradients for each entry anyway. */
    const attn_sharing *shared = c->in == NULL || c->backward ? NULL
                                                              : c->in->keys.shared;
    c->prepared = attn_prepared_at(p->prepared);
    c->to_prepare = NULL;
    c->key_use = c->backward ? c->d->key_use : NULL;
    if (p->score->take_keys == NULL) {
        return;
    }
    if (p->prepared == NULL) {
        c->prepared = c->to_prepare = attn_take_prepared(a, p, shared, p->N);
    }
    if (c->key_use == NULL && (p->prepared == NULL || c->backward)) {
        c->key_use = attn_take(a, 1, attn_distinct(shared, p->B / p->group), p->N);
    }
}

static float *
take_dkeys(const attn_call *c, attn_arena *a)
{
    const attn_problem *p = c->p;
    size_t row = (size_t)attn_key_width(p) * sizeof(float);
    return c->d->projected != NULL       ? c->d->projected
           : p->score->key_width == NULL ? c->d->keys
                                         : attn_take(a, row, p->B / p->group, p->N);
}

/* How many parts the keys have; memory for their sums, if they are shared out. */
static void
take_parts(attn_call *c, attn_arena *a)
{
    const attn_problem *p = c->p;
    int64_t tasks = 0;
    c->part_sums = c->part_tops = NULL;
    c->parts = c->backward || p->N <= ATTN_PART ? 1 : attn_ceil_div(p->N, ATTN_PART);
    if (!attn_is_split(c)) {
        return;
    }
    if (__builtin_mul_overflow(p->B, c->blocks * c->parts, &tasks)) {
        a->used = SIZE_MAX;
        return;
    }
    c->part_sums = attn_take_floats(a, tasks, attn_sums_size(p->Dv, c->lanes));
    if (c->returns_weights) {
        c->part_tops = attn_take_floats(a, p->B * c->blocks, attn_tiles(p->N));
    }
}

void
attn_lay_out(attn_call *c, attn_arena *a, int threads)
{
    const attn_problem *p = c->p;
    c->lanes = lanes_of(c);
    c->blocks = attn_ceil_div(p->M, c->lanes);
    double tasks = (double)p->B * (double)(c->blocks + attn_ceil_div(p->N, 64));
    c->workers = tasks < threads ? (tasks < 1 ? 1 : (int)tasks) : threads;
    take_keys(c, a);
    c->dkeys = c->backward ? take_dkeys(c, a) : NULL;
    c->dkey_heads = c->backward && c->dkeys == c->d->keys ? attn_key_heads(p) : 1;
    if (attn_projects_back(c)) {
        c->panels = attn_take_panels_backward(a, p->Dk, p->H, p->B / p->group, p->N);
    }
    if (p->score->take_shared != NULL) {
        p->score->take_shared(c, a);
    }
    take_parts(c, a);
    c->block = attn_take(a, sizeof *c->block, c->workers, 1);
    int64_t keys = p->N < ATTN_KEYS ? p->N : ATTN_KEYS;
    bool dscale = attn_wants_dscale(c);
    for (int w = 0; w < c->workers; w++) {
        attn_block local, *block = c->block == NULL ? &local : &c->block[w];
        block->call = c;
        block->worker = w;
        block->lanes = c->lanes; /* the last one of an entry may have fewer */
        block->S = attn_take_floats(a, keys, c->lanes);
        block->max = attn_take_floats(a, 1, c->lanes);
        block->sum = attn_take_floats(a, 1, c->lanes);
        block->alpha = attn_take_floats(a, 1, c->lanes);
        block->O = c->backward ? NULL : attn_take_floats(a, p->Dv, c->lanes);
        attn_take_pending(block, a);
        block->part = c->parts > 1 ? attn_take_floats(a, p->Dv + 2, c->lanes) : NULL;
        block->dO = c->backward ? attn_take_floats(a, p->Dv, c->lanes) : NULL;
        block->dout = attn_take_pair_rows(p->Dv, c->backward ? c->lanes : 0, a);
        block->dP = c->backward ? attn_take_floats(a, keys, c->lanes) : NULL;
        block->dweights = c->backward ? attn_take_floats(a, keys, c->lanes) : NULL;
        block->dots = c->backward ? attn_take_floats(a, 1, c->lanes) : NULL;
        block->dlse = c->backward ? attn_take_floats(a, 1, c->lanes) : NULL;
        block->unscaled = dscale ? attn_take_floats(a, keys, c->lanes) : NULL;
        block->dscale = dscale ? attn_take_floats(a, 1, c->lanes) : NULL;
        for (int i = 0; i < c->modifiers; i++) {
            block->modifier[i] = c->modifier[i]->take_block(block, a);
        }
        p->score->take_block(block, a);
    }
}

attn_block *
attn_begin_block(attn_call *c, int worker, int64_t b, int64_t index)
{
    attn_block *block = &c->block[worker];
    int64_t left = c->p->M - index * c->lanes;
    block->lanes = lanes_for(left, c->lanes);
    block->b = b;
    block->e = b / c->p->group;
    block->m0 = index * c->lanes;
    attn_rows_of(&block->rows, c->p, b, block->m0,
                 left < c->lanes ? (int)left : c->lanes);
    return block;
}
