/*
 * py_attention.c -- the one path from Python objects to attn_forward, attn_backward and
 * attn_scores. The exposed functions (py_functions.c) and types (py_modules.c) both take it:
 *
 *     convert and check the inputs -> allocate the outputs through NumPy -> call the core,
 *     without the GIL where the work is worth it -> one exit that gives up what is not returned
 */
#include "py_attnext.h"

#include <math.h>
#include <string.h>

/* Multiply-adds of one forward, padding counted as work. A softmax weight counts as 8. */
static double
forward_work(const attn_problem *p)
{
    double pairs = (double)p->B * (double)p->M * (double)p->N;
    double score = p->score == ATTN_ADDITIVE ? 4.0 * (double)p->H : (double)p->Dk;
    double projections = (double)p->B * (double)p->H *
                         ((double)p->M * (double)p->Dq + (double)p->N * (double)p->Dk);
    return pairs * (score + (double)p->Dv + 8.0) + projections;
}

/* ---- inputs --------------------------------------------------------------------------------- */

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

/* dims = (..., rows, columns) with the leading axes of queries. */
static void
shape_of(const attention_inputs *in, npy_intp rows, npy_intp columns, npy_intp dims[PY_MAX_AXES])
{
    memcpy(dims, in->leading, (size_t)(in->ndim - 2) * sizeof *dims);
    dims[in->ndim - 2] = rows;
    dims[in->ndim - 1] = columns;
}

/* queries (..., M, Dq), two axes at least. Its sizes are noted here, once: reading the other
 * arguments may run Python code, which may reshape an array in place. */
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

/* keys (..., N, Dk) and, unless there are none, values (..., N, Dv); the leading axes are the
 * queries', and Dk = Dq unless the score is additive. */
static int
convert_keys_values(const attention_args *args, PyArrayObject *out, attention_inputs *in)
{
    attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];

    shape_of(in, PY_N, p->score == ATTN_ADDITIVE ? PY_DK : p->Dq, dims);
    in->keys = py_float32_shaped(args->keys, "keys", out, in->ndim, dims);
    if (in->keys == NULL) {
        return -1;
    }
    p->N = PyArray_DIM(in->keys, in->ndim - 2);
    p->Dk = PyArray_DIM(in->keys, in->ndim - 1);
    if (args->values == NULL) {
        return 0;
    }
    shape_of(in, p->N, PY_DV, dims);
    in->values = py_float32_shaped(args->values, "values", out, in->ndim, dims);
    if (in->values == NULL) {
        return -1;
    }
    p->Dv = PyArray_DIM(in->values, in->ndim - 1);
    return 0;
}

/* Fills *in, its problem included. On failure the caller clears it. */
static int
convert_inputs(const attention_args *args, PyArrayObject *out, attention_inputs *in)
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
    shape_of(in, p->M, p->Dq, dims);
    return py_valid_lens(args->valid_lens, in->ndim - 1, dims, p->N, out, &p->valid, &in->lens);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* output (..., M, Dv): out itself or new; weights (..., M, N) and lse (..., M) where wanted. */
static int
make_outputs(const attention_args *args, const attention_inputs *in, PyArrayObject *out,
             attention_outputs *outputs)
{
    const attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];

    shape_of(in, p->M, p->Dv, dims);
    if (out == NULL) {
        outputs->output = py_new_float32(in->ndim, dims);
    } else if (py_check_shape(out, "out", in->ndim, dims) == 0) {
        outputs->output = (PyArrayObject *)Py_NewRef(out);
    }
    if (outputs->output == NULL) {
        return -1;
    }
    shape_of(in, p->M, p->N, dims);
    if (args->want_weights && (outputs->weights = py_new_float32(in->ndim, dims)) == NULL) {
        return -1;
    }
    if (args->want_lse && (outputs->lse = py_new_float32(in->ndim - 1, dims)) == NULL) {
        return -1;
    }
    return 0;
}

static bool
is_empty(PyArrayObject *a)
{
    return a == NULL || PyArray_SIZE(a) == 0;
}

int
attention_forward(attnext_state *state, const attention_args *args, attention_inputs *in,
                  attention_outputs *outputs)
{
    int result = -1;
    PyArrayObject *out = NULL;
    py_run run;
    const attn_problem *p = &in->problem;

    *in = (attention_inputs){0};
    *outputs = (attention_outputs){0};
    if (py_out(args->out, &out) < 0 || convert_inputs(args, out, in) < 0 ||
        make_outputs(args, in, out, outputs) < 0) {
        goto done;
    }
    if (is_empty(outputs->output) && is_empty(outputs->weights) && is_empty(outputs->lse)) {
        result = 0; /* nothing to write, however large the other sizes */
        goto done;
    }
    py_plan(&run, state, forward_work(p));
    void *scratch = py_scratch(&run, attn_forward_workspace(p, run.run.threads));
    if (scratch == NULL) {
        goto done;
    }
    py_enter(&run);
    int rc = attn_forward(py_data(outputs->output), py_data(outputs->weights),
                          py_data(outputs->lse), py_data(in->queries), py_data(in->keys),
                          py_data(in->values), p, scratch, &run.run);
    result = py_leave(&run, rc);
done:
    Py_XDECREF(out);
    if (result < 0) {
        attention_inputs_clear(in);
        attention_outputs_clear(outputs);
    }
    return result;
}

/* ---- backward --------------------------------------------------------------------------------- */

/* The arrays of the backward that are of no use after it. */
typedef struct {
    PyArrayObject *grad_output, *grad_weights, *grad_lse, *output, *lse;
} backward_inputs;

/* *array = object as float32 of this shape; stays NULL if not given. */
static int
convert_optional(PyObject *object, const char *name, int ndim, const npy_intp *dims,
                 PyArrayObject **array)
{
    if (!py_is_given(object)) {
        return 0;
    }
    *array = py_float32_shaped(object, name, NULL, ndim, dims);
    return *array == NULL ? -1 : 0;
}

/* grad_output, output (..., M, Dv), grad_weights (..., M, N), grad_lse, lse (..., M) */
static int
convert_backward_inputs(const attention_args *args, const attention_inputs *in,
                        backward_inputs *back)
{
    const attn_problem *p = &in->problem;
    int ndim = in->ndim;
    npy_intp output_dims[PY_MAX_AXES], weights_dims[PY_MAX_AXES];
    shape_of(in, p->M, p->Dv, output_dims);
    shape_of(in, p->M, p->N, weights_dims);

    back->grad_output =
        py_float32_shaped(args->grad_output, "grad_output", NULL, ndim, output_dims);
    if (back->grad_output == NULL ||
        convert_optional(args->grad_weights, "grad_weights", ndim, weights_dims,
                         &back->grad_weights) < 0 ||
        convert_optional(args->grad_lse, "grad_lse", ndim - 1, weights_dims,
                         &back->grad_lse) < 0 ||
        convert_optional(args->output, "output", ndim, output_dims, &back->output) < 0 ||
        convert_optional(args->lse, "lse", ndim - 1, weights_dims, &back->lse) < 0) {
        return -1;
    }
    return 0;
}

static void
backward_inputs_clear(backward_inputs *back)
{
    Py_CLEAR(back->grad_output);
    Py_CLEAR(back->grad_weights);
    Py_CLEAR(back->grad_lse);
    Py_CLEAR(back->output);
    Py_CLEAR(back->lse);
}

/* *gradient = a new array of shape (..., rows, columns) */
static int
make_gradient(const attention_inputs *in, npy_intp rows, npy_intp columns,
              PyArrayObject **gradient)
{
    npy_intp dims[PY_MAX_AXES];
    shape_of(in, rows, columns, dims);
    *gradient = py_new_float32(in->ndim, dims);
    return *gradient == NULL ? -1 : 0;
}

/* The parameters' gradients; w_v's in the shape w_v came in. */
static int
make_parameter_gradients(const attention_inputs *in, attention_gradients *d)
{
    const attn_problem *p = &in->problem;
    const npy_intp W_q_dims[2] = {p->H, p->Dq}, W_k_dims[2] = {p->H, p->Dk}, row[2] = {1, p->H};
    int w_v_ndim = PyArray_NDIM(in->w_v) == 2 ? 2 : 1;

    d->W_q = py_new_float32(2, W_q_dims);
    d->W_k = py_new_float32(2, W_k_dims);
    d->w_v = py_new_float32(w_v_ndim, row + 2 - w_v_ndim);
    if (d->W_q == NULL || d->W_k == NULL || d->w_v == NULL) {
        return -1;
    }
    if (in->b_h != NULL && (d->b_h = py_new_float32(1, row + 1)) == NULL) {
        return -1;
    }
    return 0;
}

static int
make_gradients(const attention_inputs *in, attention_gradients *d)
{
    const attn_problem *p = &in->problem;
    if (make_gradient(in, p->M, p->Dq, &d->queries) < 0 ||
        make_gradient(in, p->N, p->Dk, &d->keys) < 0 ||
        make_gradient(in, p->N, p->Dv, &d->values) < 0) {
        return -1;
    }
    return p->score == ATTN_ADDITIVE ? make_parameter_gradients(in, d) : 0;
}

/* Without a pair nothing flows back, and the sizes that are not 0 may be huge. */
static void
zero_gradients(attention_gradients *d)
{
    PyArrayObject *all[] = {d->queries, d->keys, d->values, d->W_q, d->W_k, d->w_v, d->b_h};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!is_empty(all[i])) {
            memset(PyArray_DATA(all[i]), 0, (size_t)PyArray_NBYTES(all[i]));
        }
    }
    d->w = 0.0f;
}

/* Calls the core on inputs and gradients that are ready. */
static int
run_backward(attnext_state *state, const attention_inputs *in, const backward_inputs *back,
             attention_gradients *d)
{
    const attn_problem *p = &in->problem;
    const attn_gradients to = {
        .queries = py_data(d->queries), .keys = py_data(d->keys), .values = py_data(d->values),
        .W_q = py_data(d->W_q), .W_k = py_data(d->W_k), .w_v = py_data(d->w_v),
        .b_h = py_data(d->b_h), .w = &d->w,
    };
    const attn_grad_outputs from = {
        .output = py_data(back->grad_output), .weights = py_data(back->grad_weights),
        .lse = py_data(back->grad_lse),
    };
    const attn_saved saved = {.output = py_data(back->output), .lse = py_data(back->lse)};
    py_run run;

    py_plan(&run, state, 3.0 * forward_work(p));
    void *scratch = py_scratch(&run, attn_backward_workspace(p, run.run.threads));
    if (scratch == NULL) {
        return -1;
    }
    py_enter(&run);
    int rc = attn_backward(&to, &from, &saved, py_data(in->queries), py_data(in->keys),
                           py_data(in->values), p, scratch, &run.run);
    return py_leave(&run, rc);
}

int
attention_backward(attnext_state *state, const attention_args *args, attention_inputs *in,
                   attention_gradients *gradients)
{
    int result = -1;
    backward_inputs back = {0};
    const attn_problem *p = &in->problem;

    *in = (attention_inputs){0};
    *gradients = (attention_gradients){0};
    if (convert_inputs(args, NULL, in) < 0 || convert_backward_inputs(args, in, &back) < 0 ||
        make_gradients(in, gradients) < 0) {
        goto done;
    }
    if (p->B == 0 || p->M == 0 || p->N == 0) {
        zero_gradients(gradients);
        result = 0;
        goto done;
    }
    result = run_backward(state, in, &back, gradients);
done:
    backward_inputs_clear(&back);
    if (result < 0) {
        attention_inputs_clear(in);
        attention_gradients_clear(gradients);
    }
    return result;
}

/* ---- scores ----------------------------------------------------------------------------------- */

PyArrayObject *
attention_scores(attnext_state *state, const attention_args *args)
{
    int result = -1;
    attention_inputs in = {0};
    PyArrayObject *scores = NULL;
    npy_intp dims[PY_MAX_AXES];
    const attn_problem *p = &in.problem;
    py_run run;

    if (convert_inputs(args, NULL, &in) < 0) {
        goto done;
    }
    shape_of(&in, p->M, p->N, dims);
    scores = py_new_float32(in.ndim, dims);
    if (scores == NULL) {
        goto done;
    }
    if (is_empty(scores)) {
        result = 0;
        goto done;
    }
    py_plan(&run, state, forward_work(p));
    void *scratch = py_scratch(&run, attn_scores_workspace(p, run.run.threads));
    if (scratch == NULL) {
        goto done;
    }
    py_enter(&run);
    int rc = attn_scores(py_data(scores), py_data(in.queries), py_data(in.keys), p, scratch,
                         &run.run);
    result = py_leave(&run, rc);
done:
    attention_inputs_clear(&in);
    if (result < 0) {
        Py_CLEAR(scores);
    }
    return scores;
}

/* ---- giving up ---------------------------------------------------------------------------------- */

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

void
attention_outputs_clear(attention_outputs *outputs)
{
    Py_CLEAR(outputs->output);
    Py_CLEAR(outputs->weights);
    Py_CLEAR(outputs->lse);
}

void
attention_gradients_clear(attention_gradients *d)
{
    Py_CLEAR(d->queries);
    Py_CLEAR(d->keys);
    Py_CLEAR(d->values);
    Py_CLEAR(d->W_q);
    Py_CLEAR(d->W_k);
    Py_CLEAR(d->w_v);
    Py_CLEAR(d->b_h);
}
