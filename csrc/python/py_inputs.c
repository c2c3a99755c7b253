/*
 * py_inputs.c -- the inputs of an attention: converted to float32, checked against each
 * other, and measured for the core.
 */
#include "py_attention.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

void
attention_inputs_init(attention_inputs *in)
{
    memset(in, 0, offsetof(attention_inputs, leading));
}

/* ---- shapes ---------------------------------------------------------------------- */

static void
shape_of(const npy_intp *leading, int ndim, npy_intp rows, npy_intp columns,
         npy_intp dims[PY_MAX_AXES])
{
    memcpy(dims, leading, (size_t)(ndim - 2) * sizeof *dims);
    dims[ndim - 2] = rows;
    dims[ndim - 1] = columns;
}

void
attention_shape(const attention_inputs *in, npy_intp rows, npy_intp columns,
                npy_intp dims[PY_MAX_AXES])
{
    shape_of(in->leading, in->ndim, rows, columns, dims);
}

void
attention_key_shape(const attention_inputs *in, npy_intp rows, npy_intp columns,
                    npy_intp dims[PY_MAX_AXES])
{
    shape_of(in->key_leading, in->ndim, rows, columns, dims);
}

/* ---- queries, keys, values ------------------------------------------------------- */

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
    if (args->enable_gqa && in->ndim < 3) {
        return py_shape_error(in->queries, "queries",
                              "three axes or more with enable_gqa: (..., heads, M, D)");
    }
    memcpy(in->leading, dims, (size_t)(in->ndim - 2) * sizeof *dims);
    memcpy(in->key_leading, dims, (size_t)(in->ndim - 2) * sizeof *dims);
    p->B = PyArray_MultiplyList(dims, in->ndim - 2);
    p->M = dims[in->ndim - 2];
    p->Dq = dims[in->ndim - 1];
    return 0;
}

/* How many query heads share one key head: the heads of keys are their last leading
 * axis, and divide those of queries. */
static int
read_group(attention_inputs *in)
{
    npy_intp heads = in->leading[in->ndim - 3];
    npy_intp key_heads = PyArray_DIM(in->keys, in->ndim - 3);
    in->key_leading[in->ndim - 3] = key_heads;
    if (key_heads == heads) {
        return 0;
    }
    if (key_heads == 0 || heads % key_heads != 0) {
        char expected[80];
        PyOS_snprintf(expected, sizeof expected,
                      "a number of heads (axis -3) that divides the %lld of queries",
                      (long long)heads);
        return py_shape_error(in->keys, "keys", expected);
    }
    in->problem.group = heads > 0 ? heads / key_heads : 1;
    return 0;
}

/* keys are not of shape dims: says so, and that enable_gqa would take them, if so. */
static int
keys_shape_error(const attention_inputs *in, npy_intp dims[PY_MAX_AXES])
{
    char shape[PY_SHAPE_TEXT], expected[PY_SHAPE_TEXT + 80];
    const char *hint = "";
    int heads_axis = in->ndim - 3;

    py_shape_text(shape, in->ndim, dims);
    if (in->ndim >= 4 && PyArray_NDIM(in->keys) == in->ndim) {
        npy_intp heads = dims[heads_axis];
        npy_intp key_heads = dims[heads_axis] = PyArray_DIM(in->keys, heads_axis);
        if (py_shape_fits(in->keys, in->ndim, dims) && key_heads > 0 &&
            heads % key_heads == 0) {
            hint = "; with enable_gqa=True the heads (axis -3) may be fewer";
        }
    }
    PyOS_snprintf(expected, sizeof expected, "%s%s", shape, hint);
    return py_shape_error(in->keys, "keys", expected);
}

/* keys (..., N, Dk); the leading axes are the queries', but the heads may be fewer with
 * enable_gqa, and Dk = Dq unless the score is additive. */
static int
convert_keys(const attention_args *args, PyArrayObject *out, attention_inputs *in)
{
    attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];

    if (args->enable_gqa) {
        in->key_leading[in->ndim - 3] = PY_HEADS;
    }
    bool additive = p->score == &attn_score_additive;
    attention_key_shape(in, PY_N, additive ? PY_DK : p->Dq, dims);
    in->keys = py_float32(args->keys, "keys", out);
    if (in->keys == NULL) {
        return -1;
    }
    if (!py_shape_fits(in->keys, in->ndim, dims)) {
        return keys_shape_error(in, dims);
    }
    p->N = PyArray_DIM(in->keys, in->ndim - 2);
    p->Dk = PyArray_DIM(in->keys, in->ndim - 1);
    p->group = 1;
    return args->enable_gqa ? read_group(in) : 0;
}

/* values (..., N, Dv), with the leading axes of keys */
static int
convert_values(const attention_args *args, PyArrayObject *out, attention_inputs *in)
{
    npy_intp dims[PY_MAX_AXES];
    attention_key_shape(in, in->problem.N, PY_DV, dims);
    in->values = py_float32_shaped(args->values, "values", out, in->ndim, dims);
    if (in->values == NULL) {
        return -1;
    }
    in->problem.Dv = PyArray_DIM(in->values, in->ndim - 1);
    return 0;
}

/* ---- parameters ------------------------------------------------------------------ */

/* W_q (H, Dq), W_k (H, Dk), w_v (H,) or (1, H), b_h (H,): H is W_q's. */
static int
convert_parameters(const attention_args *args, PyArrayObject *out, attention_inputs *in)
{
    attn_problem *p = &in->problem;
    const npy_intp W_q_dims[2] = {PY_H, p->Dq};

    in->W_q = py_float32_shaped(args->parameters.W_q, "W_q", out, 2, W_q_dims);
    if (in->W_q == NULL) {
        return -1;
    }
    p->H = PyArray_DIM(in->W_q, 0);
    const npy_intp W_k_dims[2] = {p->H, p->Dk};
    in->W_k = py_float32_shaped(args->parameters.W_k, "W_k", out, 2, W_k_dims);
    if (in->W_k == NULL) {
        return -1;
    }
    in->w_v = py_float32_w_v(args->parameters.w_v, out, p->H);
    if (in->w_v == NULL) {
        return -1;
    }
    if (py_is_given(args->parameters.b_h)) {
        in->b_h = py_float32_shaped(args->parameters.b_h, "b_h", out, 1, W_k_dims);
        if (in->b_h == NULL) {
            return -1;
        }
    }
    p->parameters[0] = py_data(in->W_q);
    p->parameters[1] = py_data(in->W_k);
    p->parameters[2] = py_data(in->w_v);
    p->parameters[3] = py_data(in->b_h);
    return 0;
}

/* ---- masks ----------------------------------------------------------------------- */

/* bias: its shape is noted for the gradient's sake. */
static int
convert_bias(const attention_args *args, PyArrayObject *out, const npy_intp *dims,
             attention_inputs *in)
{
    in->bias = py_bias(args->masks.bias, in->ndim, dims, out, &in->problem.masks.bias,
                       in->bias_axes);
    if (in->bias == NULL) {
        return -1;
    }
    in->bias_ndim = py_note_shape(in->bias, in->bias_dims);
    return 0;
}

/* Everything that is about pairs (..., M, N). */
static int
convert_masks(const attention_args *args, PyArrayObject *out, attention_inputs *in)
{
    attn_problem *p = &in->problem;
    int ndim = in->ndim;
    npy_intp dims[PY_MAX_AXES];
    attention_shape(in, p->M, p->N, dims);

    if (py_valid_lens(args->masks.valid_lens, ndim - 1, dims, p->N, out,
                      &p->masks.valid, &in->lens,
                      args->keeps_inputs ? NULL : in->few_lens) < 0) {
        return -1;
    }
    bool band = args->masks.causal || args->masks.causal_offset != NULL ||
                py_is_given(args->masks.window);
    if (band &&
        py_band(args->masks.window, args->masks.causal, args->masks.causal_offset,
                ndim - 1, dims, out, &p->masks.band, &in->offsets) < 0) {
        return -1;
    }
    if (py_is_given(args->masks.mask)) {
        in->mask = py_mask(args->masks.mask, PY_MASK, ndim, dims, out, &p->masks.mask,
                           in->mask_axes);
        if (in->mask == NULL) {
            return -1;
        }
    }
    if (py_is_given(args->masks.bias) && convert_bias(args, out, dims, in) < 0) {
        return -1;
    }
    if (py_is_given(args->dropout.mask)) {
        in->dropout_mask = py_mask(args->dropout.mask, PY_DROPOUT_MASK, ndim, dims, out,
                                   &p->dropout.keep, in->dropout_axes);
        if (in->dropout_mask == NULL) {
            return -1;
        }
    }
    return 0;
}

/* ---- all of them ----------------------------------------------------------------- */

int
attention_inputs_read(attention_inputs *in, const attention_args *args,
                      PyArrayObject *out)
{
    attn_problem *p = &in->problem;

    p->score = args->score;
    p->empty_rows = args->empty_rows;
    p->dropout.p = args->dropout.p;
    p->dropout.seed = args->dropout.seed;
    if (convert_queries(args, out, in) < 0 || convert_keys(args, out, in) < 0) {
        return -1;
    }
    if (args->values != NULL && convert_values(args, out, in) < 0) {
        return -1;
    }
    if (p->score == &attn_score_additive && convert_parameters(args, out, in) < 0) {
        return -1;
    }
    p->scale = args->parameters.scale;
    p->eps = args->parameters.eps;
    if (p->score == &attn_score_dot && !args->parameters.has_scale) {
        p->scale = p->Dq > 0 ? (float)(1.0 / sqrt((double)p->Dq)) : 1.0f;
    }
    return convert_masks(args, out, in);
}

void
attention_inputs_clear(attention_inputs *in)
{
    Py_CLEAR(in->queries);
    Py_CLEAR(in->keys);
    Py_CLEAR(in->values);
    Py_CLEAR(in->W_q);
    Py_CLEAR(in->W_k);
    Py_CLEAR(in->w_v);
    Py_CLEAR(in->b_h);
    Py_CLEAR(in->lens);
    Py_CLEAR(in->offsets);
    Py_CLEAR(in->mask);
    Py_CLEAR(in->bias);
    Py_CLEAR(in->dropout_mask);
}
