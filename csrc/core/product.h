/*
 * product.h -- what scores have in common that are products of two operands, a query's
 * and a key's: s = q' . k'. They differ in how the operands are made.
 */
#ifndef ATTN_PRODUCT_H
#define ATTN_PRODUCT_H

#include "walk.h"

/* The first member of such a score's scratch. `take` fills the arrays and `keys`, the
 * score's load sets rows, and Q: from them by `load`, if the score has a scale. */
typedef struct {
    int64_t D; /* features of the operands */
    float *Q;  /* [D][lanes]  the block's queries, times unit */
    float
        *Q_unscaled; /* [D][lanes]  if the scale has a gradient: without it and unit */
    float *dQ;       /* [D][lanes]  backward: sum over keys of dS k' */
    attn_span rows;  /* (count, D)  backward: the block's queries as rows */
    attn_pair_rows pair_rows; /* and for the products of dK */
    bool finite;              /* they are */
    attn_span (*keys)(const attn_block *block, int64_t j); /* k' from key j on */
} attn_product;

void attn_product_take(attn_product *s, const attn_block *block, int64_t D,
                       attn_span (*keys)(const attn_block *block, int64_t j),
                       attn_arena *a);

void attn_product_load(attn_block *block);

/* For the score's struct, as they are. */
void attn_product_tile(attn_block *block, float *S, int64_t k0, int keys);
void attn_product_unscaled_tile(attn_block *block, float *S, int64_t k0, int keys);
void attn_product_load_backward(attn_block *block);
void attn_product_tile_backward(attn_block *block, const float *dS);

#endif
