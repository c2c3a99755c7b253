/*
 * walk.h -- what the walk (attention.c), the scoring functions (score_*.c) and the plan
 * of a call (plan.c) share.
 *
 *     call    one call of the C interface: its arrays, its workspace, its threads
 *     block   up to ATTN_LANES queries of one batch entry, worked on by one thread
 *     tile    one block against up to ATTN_KEYS keys
 */
#ifndef ATTN_WALK_H
#define ATTN_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "attn.h"
#include "keys.h"
#include "mask.h"
#include "operand.h"
#include "projection.h"
#include "rowwise.h"
#include "work.h"

/* Keys of a part: however many keys there are, sums (sums.h) run over so many, and the
 * parts are merged in order (sums.c). 2 MiB of keys and values at 64 features, some
 * 100 us of work for one query: worth a task of its own. A multiple of ATTN_KEYS. */
enum { ATTN_PART = 4096 };

static const float ATTN_LOG2E = 1.44269504088896340736f;

typedef struct attn_block attn_block;
typedef struct attn_call attn_call;
typedef struct attn_modifier attn_modifier;

/* A scoring function: everything the walk does not know about it. A new one is one file
 * that fills this struct, and one line in attn.h. What a score has no use for is NULL:
 * query_work, key_work (not if there is take_keys), key_width, take_keys and what
 * belongs to it, take_shared, prepare, unscaled_tile, dscore_gain, finish,
 * projected_backward. */
struct attn_score {
    attn_score_info about;
    /* Multiply-adds, forward: of one pair; before the walk, of one query and one key. */
    double (*pair_work)(const attn_problem *p);
    double (*query_work)(const attn_problem *p);
    double (*key_work)(const attn_problem *p);
    /* Features of the operand that a key enters the tiles with, if they are not Dk; its
     * gradient has as many. */
    int64_t (*key_width)(const attn_problem *p);
    int most_lanes; /* most queries of a block: 32 or 64; forward, maybe fewer */
    int64_t few_queries[2]; /* so many, or fewer, are blocks of one lane each: forward,
                               backward */

    /* Prepared keys (keys.h): takes arrays of so many rows; makes what does not depend
     * on the keys; makes rows row .. row + n - 1 of as many keys; sets such rows to 0, of keys
     * that are masked between others (NULL: they stay uninitialised). After the walk, the
     * gradient of the operand back to that of keys j .. j + n - 1 of entry e. */
    void *(*take_keys)(const attn_problem *p, int64_t rows, attn_arena *a);
    void (*start_keys)(void *rows, const attn_problem *p, int64_t count);
    void (*make_keys)(void *rows, int64_t row, attn_span keys, int64_t n,
                      const attn_problem *p);
    void (*clear_keys)(void *rows, int64_t row, int64_t n, const attn_problem *p);
    void (*make_keys_backward)(attn_call *c, int64_t e, int64_t j, int64_t n);

    /* Arrays of the whole call; of one block. */
    void (*take_shared)(attn_call *c, attn_arena *a);
    void (*take_block)(attn_block *block, attn_arena *a);

    /* Before the walk, after the keys are prepared; false: interrupted. */
    bool (*prepare)(attn_call *c);
    /* Brings the block's queries into lanes. */
    void (*load)(attn_block *block);
    /* S[i][l] = unit * score(query l, key k0 + i), i < keys. */
    void (*tile)(attn_block *block, float *S, int64_t k0, int keys);

    /* Of a score whose scale is a factor, backward: the same at scale 1, without unit. */
    void (*unscaled_tile)(attn_block *block, float *S, int64_t k0, int keys);

    /* The tile's dS (gradient of the scores, times dscore_gain) goes into the block's
     * gradient of the queries and into block->dkeys; only pairs live in tile.scored
     * count. */
    float (*dscore_gain)(const attn_block *block);
    void (*load_backward)(attn_block *block);
    void (*tile_backward)(attn_block *block, const float *dS);
    /* After the block's last tile; after the last block (false: interrupted). */
    void (*store_backward)(attn_block *block);
    bool (*finish)(attn_call *c);
    /* attn_key_maker.backward, of a score that projects keys to H hidden units; false:
     * interrupted. */
    bool (*projected_backward)(const attn_gradients *d, const attn_operand *keys,
                               const attn_problem *p, attn_panels panels,
                               attn_run *run);
};

enum { ATTN_MODIFIERS_MAX = 4 };

struct attn_call {
    const attn_problem *p;
    attn_run *run;
    float unit; /* what a score of 1 is in the tiles: log2(e), or 1 of scores alone */
    bool backward;
    int lanes;      /* lanes of a block: a multiple of 16, or 1 */
    int64_t blocks; /* blocks of one batch entry */
    int workers;
    attn_block *block; /* one per worker */
    void *shared;      /* the scoring function's own */

    const attn_inputs *in;
    const attn_prepared *prepared; /* NULL: the score prepares nothing */
    attn_prepared *to_prepare;     /* the same, if that is left to this call */
    /* (B / group, N)  ATTN_UNUSED for keys that no query needs; NULL: nobody asks */
    uint8_t *key_use;
    float *output, *weights, *lse; /* forward; weights also takes attn_scores' result */
    bool returns_weights;          /* forward */
    int64_t parts;                 /* of ATTN_PART keys each, forward */
    /* plan_split.c: (B, blocks, parts, attn_sums_size) and (B, blocks, tiles), or NULL */
    float *part_sums, *part_tops;

    const attn_gradients *d; /* backward */
    const attn_grad_outputs *grad;
    const attn_saved *saved;
    float *dkeys; /* (B / group, N, key_width): gradient of the keys' operand; that of
                   * the keys themselves, if key_width is NULL; where the caller wants
                   * it, or the call's own */
    int64_t dkey_heads; /* that lie in its rows */
    attn_panels panels; /* backward, for projected_backward */
    /* plan_backward.c: the queries of an entry are cut into groups of so many; group i
     * of all is group i % groups of entry i / groups */
    int64_t groups, group_queries;

    attn_rowwise dsink, dscale;

    int modifiers; /* modifier.h: those that apply; whether they do, backward */
    const attn_modifier *modifier[ATTN_MODIFIERS_MAX];
    bool flows[ATTN_MODIFIERS_MAX];
};

/* Rows of D numbers, one for each query of the block: as they lie, and if they are long
 * also in panels (projection.h), or NULL. */
typedef struct {
    attn_span rows;
    int64_t D;
    float *panels;
} attn_pair_rows;

/* Sums over queries, a row for each key, that grow with the tiles of a group. */
typedef struct {
    attn_target to;
    int64_t width;
    int64_t begun; /* rows before this one hold a sum, were it of nothing */
    bool once;     /* there is one query: a row is done with its first term */
} attn_key_sums;

/* weights.c, forward: what becomes the weights when their rows' max and sum are known. */
typedef struct {
    float *P; /* [N][lanes]  S of all tiles, if they are few enough to wait; or NULL */
    float *tops; /* [tiles][lanes]  the maximum that the P of each are relative to */
} attn_pending;

struct attn_block {
    attn_call *call;
    int worker;
    int lanes;
    int64_t b, m0; /* its batch entry and first query */
    int64_t e;     /* its entry of keys and values */
    attn_rows rows;
    attn_tile tile;
    uint64_t keep[ATTN_KEYS];           /* dropout's decision for the tile */
    void *scratch;                      /* the scoring function's own */
    void *modifier[ATTN_MODIFIERS_MAX]; /* and the modifiers' */

    float *S; /* [keys][lanes]  scores, then P */
    /* [lanes]  softmax: running maximum, sum, rescaling; at the end of the row max is
     * the origin of the exponents and sum the factor 1 / sum */
    float *max, *sum, *alpha;
    float *O;    /* [Dv][lanes]  forward: the pooled values */
    float *part; /* forward: the sums of the parts before, if there are more than one */
    attn_pending pending; /* forward, if weights are wanted */

    bool P_is_0; /* backward: P of dead pairs is 0, and dO is finite */
    float *dO;   /* [Dv][lanes]  backward: the gradient of the output, transposed, */
    attn_pair_rows dout; /* (count, Dv)  and as it is */
    float *dP;           /* [keys][lanes]  gradient of P, then of the scores */
    float *dweights;     /* [keys][lanes]  gradient of the returned weights, if any */
    float *dots;         /* [lanes]  sum_j P_j dP_j of the row ... */
    float *dlse;         /* [lanes]  ... and the gradient of its lse */
    float *unscaled; /* [keys][lanes]  if the scale has a gradient: the scores at 1, */
    float *dscale;   /* [lanes]  sum_j dS_j unscaled_j of the row */
    attn_key_sums dkeys, dvalues; /* (N, key_width), (N, Dv) of the group */
};

/* attention.c: one block each. The forward also in pieces: the queries being loaded,
 * the sums (sums.h) over the keys of one part; the results from the sums of all. */
void attn_forward_block(attn_block *block);
void attn_forward_part(attn_block *block, int64_t part);
void attn_forward_end(attn_block *block);
void attn_backward_block(attn_block *block);
void attn_scores_block(attn_block *block);
void attn_scores_backward_block(attn_block *block);

/* The queries' gradients in rows without any key that takes part: 0, or NaN where the
 * output was NaN. */
void attn_settle_queries(const attn_call *c, const attn_rows *rows);

/* use (B, M) of the block's queries: ATTN_UNUSED for those rows, else 0. */
void attn_note_queries(const attn_block *block, uint8_t *use);

/* The factor of the block's scores: that of its entry. */
static inline float
attn_scale_of(const attn_block *block)
{
    const attn_problem *p = block->call->p;
    const float *scales = p->scales.data;
    return scales == NULL ? p->scale : scales[attn_view_row(&p->scales, block->b, 0)];
}

/* Is the gradient of that factor wanted? */
static inline bool
attn_wants_dscale(const attn_call *c)
{
    return c->backward && c->d->scale != NULL && c->p->score->unscaled_tile != NULL;
}

/* The block's first row, in an array of one row of `width` numbers for each query. */
static inline int64_t
attn_row_offset(const attn_block *block, int64_t width)
{
    return (block->b * block->call->p->M + block->m0) * width;
}

/* The block's rows of what has one for each query: results, (B, M, width), or with heads
 * side by side, that were handed back; where they go. */
static inline attn_span
attn_results_of(const attn_block *block, const float *data, int64_t width)
{
    const attn_problem *p = block->call->p;
    const attn_operand x = attn_beside(data, attn_heads(p), p->M, width);
    return attn_read(&x, block->b, block->m0);
}

static inline attn_target
attn_results_to(const attn_block *block, float *to, int64_t width)
{
    const attn_problem *p = block->call->p;
    return attn_write(to, attn_heads(p), p->M, width, block->b, block->m0);
}

/* The block's queries; its keys and values from key j on. */
static inline attn_span
attn_queries_of(const attn_block *block)
{
    return attn_read(&block->call->in->queries, block->b, block->m0);
}

static inline attn_span
attn_keys_of(const attn_block *block, int64_t j)
{
    return attn_read(&block->call->in->keys, block->e, j);
}

static inline attn_span
attn_values_of(const attn_block *block, int64_t j)
{
    return attn_read(&block->call->in->values, block->e, j);
}

/* The row of its key j among those that are prepared. */
static inline int64_t
attn_prepared_row(const attn_block *block, int64_t j)
{
    const attn_prepared *keys = block->call->prepared;
    const int64_t e = keys->shared == NULL ? block->e : keys->shared->of[block->e];
    return e * keys->capacity + j;
}

#endif
