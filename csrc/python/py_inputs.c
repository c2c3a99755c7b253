/*
 * py_inputs.c -- the inputs of an attention: converted to float32, checked against each
 * other, and measured for the core.
 */
#include "py_attnext.h"

#include <math.h>
#include <string.h>

/* W_q (H, Dq), W_k (H, Dk), w_v (H,) or (1, H), b_h (H,): H is W_q's. */
static int
convert_parameters(const attention_args *args, PyArrayObject *out, attention_inputs *in)
{
    attn_problem *p = &in->problem;
    const npy_intp W_q_dims[2] = {PY_H, p->Dq};

    in->W_q = py_float32_shaped(args->W_q, "W_q", out, 2, W_q_dims);
    if (in->W_q == NULL) {
        return -1;
    }
    p->H = PyArray_DIM(in->W_q, 0);
    const npy_intp W_k_dims[2] = {p->H, p->Dk};
    in->W_k = py_float32_shaped(args->W_k, "W_k", out, 2, W_k_dims);
    if (in->W_k == NULL) {
        return -1;
    }
    in->w_v = py_float32_w_v(args->w_v, out, p->H);
    if (in->w_v == NULL) {
        return -1;
    }
    if (py_is_given(args->b_h)) {
        in->b_h = py_float32_shaped(args->b_h, "b_h", out, 1, W_k_dims);
        if (in->b_h == NULL) {
            return -1;
        }
    }
    p->W_q = py_data(in->W_q);
    p->W_k = py_data(in->W_k);
    p->w_v = py_data(in->w_v);
    p->b_h = py_data(in->b_h);
    return 0;
}

void
attention_shape(const attention_inputs *in, npy_intp rows, npy_intp columns,
                npy_intp dims[PY_MAX_AXES])
{
    memcpy(dims, in->leading, (size_t)(in->ndim - 2) * sizeof *dims);
    dims[in->ndim - 2] = rows;
    dims[in->ndim - 1] = columns;
}

/* queries (..., M, Dq), two axes at least. Its sizes are noted here, once: reading the
 * other arguments may run Python code, which may reshape an array in place. */
static int
convert_queries(const attention_args *args, PyArrayObject *out, attention_inputs *in)
{
    attn_problem *p = &in->problem;
    in->queries = py_float32(args->queries, "queries", out);
    if (in->queries == NULL) {
        return -1;
    }
    in->ndim = PyArray_NDIM(in->queries);
    const npy_intp *dims = PyArray_DIMS(in->queries);
    if (in->ndim < 2) {
        return py_shape_error(in->queries, "queries", "two axes or more: (..., M, D)");
    }
    memcpy(in->leading, dims, (size_t)(in->ndim - 2) * sizeof *dims);
    p->B = PyArray_MultiplyList(dims, in->ndim - 2);
    p->M = dims[in->ndim - 2];
    p->Dq = dims[in->ndim - 1];
    return 0;
}

/* keys (..., N, Dk) and, unless there are none, values (..., N, Dv); the leading axes
 * are the queries', and Dk = Dq unless the score is additive. */
static int
convert_keys_values(const attention_args *args, PyArrayObject *out,
                    attention_inputs *in)
{
    attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];

    attention_shape(in, PY_N, p->score == ATTN_ADDITIVE ? PY_DK : p->Dq, dims);
    in->keys = py_float32_shaped(args->keys, "keys", out, in->ndim, dims);
    if (in->keys == NULL) {
        return -1;
    }
    p->N = PyArray_DIM(in->keys, in->ndim - 2);
    p->Dk = PyArray_DIM(in->keys, in->ndim - 1);
    if (args->values == NULL) {
        return 0;
    }
    attention_shape(in, p->N, PY_DV, dims);
    in->values = py_float32_shaped(args->values, "values", out, in->ndim, dims);
    if (in->values == NULL) {
        return -1;
    }
    p->Dv = PyArray_DIM(in->values, in->ndim - 1);
    return 0;
}

int
attention_inputs_read(attention_inputs *in, const attention_args *args,
                      PyArrayObject *out)
{
    attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];

    p->score = args->score;
    p->empty_rows = args->empty_rows;
    p->dropout_p = args->dropout_p;
    p->seed = args->seed;
    if (convert_queries(args, out, in) < 0 || convert_keys_values(args, out, in) < 0) {
        return -1;
    }
    if (args->score == ATTN_ADDITIVE && convert_parameters(args, out, in) < 0) {
        return -1;
    }
    p->scale = args->scale;
    if (args->score == ATTN_DOT && !args->has_scale) {
        p->scale = p->Dq > 0 ? (float)(1.0 / sqrt((double)p->Dq)) : 1.0f;
    }
    attention_shape(in, p->M, p->Dq, dims);
    return py_valid_lens(args->valid_lens, in->ndim - 1, dims, p->N, out, &p->valid,
                         &in->lens);
}

void
attention_inputs_clear(attention_inputs *in)
{
    Py_CLEAR(in->queries);
    Py_CLEAR(in->keys);
    Py_CLEAR(in->values);
    Py_CLEAR(in->lens);
    Py_CLEAR(in->W_q);
    Py_CLEAR(in->W_k);
    Py_CLEAR(in->w_v);
    Py_CLEAR(in->b_h);
}
