/*
 * product.h -- what scores have in common that are products of two operands, a query's
 * and a key's: s = q' . k'. They differ in how the operands are made.
 */
#ifndef ATTN_PRODUCT_H
#define ATTN_PRODUCT_H

#include "walk.h"

typedef struct {
    int64_t D;      /* features of the operands */
    float *Q;       /* [D][lanes]  the block's queries, times unit */
    float *dQ;      /* [D][lanes]  backward: sum over keys of dS k' */
    attn_span rows; /* (count, D)  backward: the block's queries as rows */
    bool finite;    /* they are */
} attn_product;

/* Takes Q and, backward, dQ. */
void attn_product_take(attn_product *s, const attn_block *block, int64_t D,
                       attn_arena *a);

/* S (keys, lanes) = K' (keys, D) Q (D, lanes) */
void attn_product_tile(const attn_product *s, const attn_block *block, float *S,
                       attn_span keys_t, int keys);

/* dQ = 0. */
void attn_product_load_backward(attn_product *s, const attn_block *block);

/* dQ += dS^T K',  dK' += dS Q', for the pairs of the tile that are scored. */
void attn_product_tile_backward(const attn_product *s, attn_block *block,
                                const float *dS, attn_span keys_t);

#endif
