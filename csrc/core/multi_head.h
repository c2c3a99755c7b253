/*
 * multi_head.h -- what the files of multi-head attention share: multi_head.c, forward and
 * keys that are projected once, and multi_head_backward.c.
 *
 * Linear layers, and between them the attention of the heads, which are read and written
 * where the layers have them, side by side in rows (..., M, heads, d).
 */
#ifndef ATTN_MULTI_HEAD_H
#define ATTN_MULTI_HEAD_H

#include "projection.h"

/* The parameters, in the order of the info. */
enum { W_Q, W_K, W_V, W_O, B_Q, B_K, B_V, B_O };

/* What lies between the layers, or its gradients. */
typedef struct {
    float *Q;     /* (entries, M, heads, d) */
    float *K, *V; /* (entries, N, key heads, d); NULL if they are prepared */
    float *O;     /* (entries, M, heads, d) */
} attn_between;

typedef struct {
    const attn_problem *p;
    attn_problem
        inner; /* that of the heads, as attn_forward and attn_backward take it */
    int64_t entries, H, G; /* G: hidden units of K and V */
    /* of keys and values alike: K, V and what is used of them are those of the distinct
     * entries; or NULL */
    const attn_sharing *shared;
    attn_between made, d;
    attn_panels panels; /* of one layer after the other */
    /* (entries, M), (entries, N): ATTN_UNUSED where nobody is interested in Q, K or V;
     * NULL: in all. K and V share theirs unless an empty row pools all values. */
    uint8_t *query_use, *key_use, *value_use;
    uint8_t *nan;    /* (entries, M)  1: the query's gradient is NaN; NULL: no one's */
    float *lse;      /* (B, M)  of a forward that is computed again */
    void *workspace; /* of the attention itself */
} attn_multi_head_call;

/* multi_head.c. A call, without memory yet; most of it, and what is kept. */
attn_multi_head_call attn_multi_head_begin(const attn_problem *p);
void attn_take_between(attn_between *x, const attn_multi_head_call *m, attn_arena *a);
const void *attn_multi_head_find_kept(const void *memory);
void attn_multi_head_lay_out(attn_multi_head_call *m, const void *kept, bool is_kept,
                             bool backward, attn_arena *a);

/* Which keys and values the heads of an entry are interested in. false: interrupted. */
bool attn_multi_head_find_keys(const attn_multi_head_call *m, attn_run *run);

/* Q, K and V as the attention reads them. */
attn_inputs attn_multi_head_operands(const attn_multi_head_call *m);

/* Makes Q, K, V and O. false: interrupted. */
bool attn_multi_head_make(const attn_multi_head_call *m, float *weights, float *lse,
                          const attn_inputs *in, attn_run *run);

/* K and V made once: attn_key_maker. */
size_t attn_heads_size(const attn_problem *p, int64_t capacity);
void attn_heads_start(void *prepared, const attn_problem *p, int64_t capacity);
int attn_heads_make(void *prepared, const attn_inputs *in, int64_t first, int64_t end,
                    const attn_problem *p, attn_run *run);

/* The layers of queries, keys and values, and of O. */
attn_projection attn_multi_head_layer(const attn_multi_head_call *m,
                                      const attn_inputs *in, int weight);

#endif
