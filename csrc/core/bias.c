/*
 * bias.c -- see bias.h. A bias may lack any axis: then its numbers are shared, and its
 * gradient is a sum over that axis. Sums over a block are made here, sums over blocks
 * and entries in plan_backward.c.
 */
#include "bias.h"

/* The bias is brought into lanes first; one column of it, if all keys share it. */
void
attn_bias_add(attn_block *block)
{
    const attn_call *c = block->call;
    const attn_view *v = &c->p->masks.bias;
    const attn_tile *t = &block->tile;
    const float *bias_t = (const float *)v->data +
                          attn_view_row(v, block->b, block->m0) +
                          (t->k0 + t->first) * v->stride_j;
    int keys = t->end - t->first;
    attn_simd->pack(block->bias, block->lanes, bias_t, v->stride_m, block->rows.count,
                    v->stride_j == 0 ? 1 : keys, 1.0f);
    attn_simd->add_tile(block->S + t->first * block->lanes, block->lanes, keys,
                        block->bias, v->stride_j == 0 ? 0 : block->lanes, c->unit);
}

/* to[i] += sum of row i of X (rows, lanes) over the lanes that are queries. */
static void
add_lanes(const attn_block *block, float *to, const float *X, int rows)
{
    static const float one = 1.0f;
    attn_simd->matmul(to, 1, X, block->lanes, 1, &one, 0, rows, 1, block->rows.count,
                      true);
}

/* forward was: s_mj = q_m . k_j + bias_mj.  So now: dbias_mj = ds_mj, summed over what
 * the bias is shared by. */
void
attn_bias_gradient(attn_block *block, const float *dS)
{
    static const float one = 1.0f;
    const attn_tile *t = &block->tile;
    if (block->call->p->masks.bias.stride_j == 0) {
        attn_simd->matmul(block->dbias_sum, block->lanes, &one, 0, 0, dS, block->lanes,
                          1, block->lanes, t->keys, true);
    } else if (block->dbias_stride == 0) {
        add_lanes(block, block->dbias + t->k0, dS, t->keys);
    } else {
        attn_simd->unpack(block->dbias + t->k0, block->dbias_stride, dS, block->lanes,
                          block->rows.count, t->keys, NULL);
    }
}

void
attn_bias_store_gradient(attn_block *block)
{
    if (block->call->p->masks.bias.stride_j != 0) {
        return;
    }
    if (block->dbias_stride == 0) {
        add_lanes(block, block->dbias, block->dbias_sum, 1);
        return;
    }
    for (int l = 0; l < block->rows.count; l++) {
        block->dbias[l * block->dbias_stride] = block->dbias_sum[l];
    }
}
