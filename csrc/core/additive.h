/*
 * additive.h -- what the two files of the additive score share: score_additive.c, which
 * works on blocks of queries, and additive_keys.c, which works on the whole call before
 * and after: keys and parameters.
 *
 * The sum over hidden units runs over pre-activations a = W_q q + b_h and b = W_k k.
 * Both are projected and transformed once, O((M + N) H) work, and the kernels then need
 * one division for four of the M N H terms (kernels_additive.h). Which transform,
 * depends on the size of the numbers. Each query and each key has a form of its own,
 *
 *     form    largest |a_h|    stored as
 *     SMALL        <= 1        tanh a     relative accuracy for small sums
 *     EXP          <= 9        e^2a
 *     LARGE        <= 21.8     e^2a
 *     DIRECT                   a itself
 *
 * and a pair is computed in the larger of its two forms (in DIRECT, if w_v is very large:
 * queries then are DIRECT, whatever they hold). So what a pair gives depends on that pair
 * alone, never on its neighbours.
 *
 * Of queries, a is kept with the other sign, as tanh(b - a) is a quotient without a
 * product, (e^2b - e^2a) / (e^2b + e^2a).
 */
#ifndef ATTN_ADDITIVE_H
#define ATTN_ADDITIVE_H

#include "walk.h"

/* The parameters, in the order of the score's info. */
enum { W_Q, W_K, W_V, B_H };

/* Prepared keys (keys.h). */
typedef struct {
    float *W_kT;   /* W_k transposed, in panels */
    float *raw;    /* (rows, H)  W_k k */
    float *stored; /* (rows, H)  tanh of it in form SMALL, else e^2 of it */
    uint8_t *form; /* (rows)  or NO_FORM, of a key that was not needed */
} additive_keys;

enum { NO_FORM = 255 };

typedef struct {
    bool direct;        /* w_v too large for forms that divide: all pairs are DIRECT */
    int64_t H;          /* hidden units, made a multiple of 4 by some of weight 0 */
    attn_panels panels; /* of W_q: transposed, if queries are few; and backward */
    float *few;         /* (B, M, H)  W_q q of all queries, if they are few */
    float *w;           /* (H)  unit * w_v */
    float *da;          /* (B, M, p->H)  backward: gradient of a */
    uint8_t *query_use; /* (B, M)  backward: ATTN_UNUSED for empty rows */
    float *dw_blocks;   /* (B, blocks, p->H)  backward: each block's share of dw_v */
} additive_shared;

/* A key's gradient has as many numbers as its operand. */
static inline int64_t
attn_additive_width(const attn_problem *p)
{
    return (p->H + 3) / 4 * 4;
}

/* So few queries that a block of them would read all of W_q for little: they are
 * projected together. */
static inline bool
attn_additive_few(const attn_problem *p)
{
    return p->M <= p->score->few_queries[0];
}

/* The form of a row whose largest |a_h| this is. */
static inline int
attn_additive_form(float largest)
{
    return largest <= 1.0f    ? ADDITIVE_SMALL
           : largest <= 9.0f  ? ADDITIVE_EXP
           : largest <= 21.8f ? ADDITIVE_LARGE
                              : ADDITIVE_DIRECT;
}

/* additive_keys.c: the score's prepared keys, prepare and finish. */
void *attn_additive_take_keys(const attn_problem *p, int64_t rows, attn_arena *a);
void attn_additive_start_keys(void *rows, const attn_problem *p, int64_t count);
void attn_additive_make_keys(void *rows, int64_t row, attn_span keys, int64_t n,
                             const attn_problem *p);
void attn_additive_clear_keys(void *rows, int64_t row, int64_t n,
                              const attn_problem *p);
void attn_additive_make_keys_backward(attn_call *c, int64_t e, int64_t j, int64_t n);
bool attn_additive_prepare(attn_call *c);
bool attn_additive_finish(attn_call *c);
bool attn_additive_projected_backward(const attn_gradients *d, const attn_operand *keys,
                                      const attn_problem *p, attn_panels panels,
                                      attn_run *run);

#endif
