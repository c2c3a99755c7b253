/*
 * bias.c -- see bias.h. A bias may lack any axis: then its numbers are shared, and its
 * gradient is a sum over that axis. Sums over a block are made here, sums over blocks
 * and entries in plan_backward.c.
 */
#include "bias.h"

/* The bias is brought into lanes first; one column of it, if all keys share it. */
void
attn_bias_add(attn_block *k)
{
    const attn_call *c = k->call;
    const attn_view *v = &c->p->masks.bias;
    const attn_tile *t = &k->tile;
    const float *bias_t = (const float *)v->data + attn_view_row(v, k->b, k->m0) +
                          (t->k0 + t->first) * v->stride_j;
    int keys = t->end - t->first;
    attn_simd->pack(k->bias, k->lanes, bias_t, v->stride_m, k->rows.count,
                    v->stride_j == 0 ? 1 : keys, 1.0f);
    attn_simd->add_tile(k->S + t->first * k->lanes, k->lanes, keys, k->bias,
                        v->stride_j == 0 ? 0 : k->lanes, c->unit);
}

/* to[i] += sum of row i of X (rows, lanes) over the lanes that are queries. */
static void
add_lanes(const attn_block *k, float *to, const float *X, int rows)
{
    static const float one = 1.0f;
    attn_simd->matmul(to, 1, X, k->lanes, 1, &one, 0, rows, 1, k->rows.count, true);
}

/* forward was: s_mj = q_m . k_j + bias_mj.  So now: dbias_mj = ds_mj, summed over what
 * the bias is shared by. */
void
attn_bias_gradient(attn_block *k, const float *dS)
{
    static const float one = 1.0f;
    const attn_tile *t = &k->tile;
    if (k->call->p->masks.bias.stride_j == 0) {
        attn_simd->matmul(k->dbias_sum, k->lanes, &one, 0, 0, dS, k->lanes, 1, k->lanes,
                          t->keys, true);
    } else if (k->dbias_stride == 0) {
        add_lanes(k, k->dbias + t->k0, dS, t->keys);
    } else {
        attn_simd->unpack(k->dbias + t->k0, k->dbias_stride, dS, k->lanes,
                          k->rows.count, t->keys, NULL);
    }
}

void
attn_bias_store_gradient(attn_block *k)
{
    if (k->call->p->masks.bias.stride_j != 0) {
        return;
    }
    if (k->dbias_stride == 0) {
        add_lanes(k, k->dbias, k->dbias_sum, 1);
        return;
    }
    for (int l = 0; l < k->rows.count; l++) {
        k->dbias[l * k->dbias_stride] = k->dbias_sum[l];
    }
}
