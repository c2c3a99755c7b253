/*
 * py_attention.c -- the one path from Python objects to attn_forward, attn_backward and
 * attn_scores. The exposed functions (py_functions.c) and types (py_modules.c) take it:
 *
 *     convert and check the inputs
 *     allocate the outputs through NumPy
 *     call the core, without the GIL where the work is worth it
 *     one exit, which gives up what is not returned
 */
#include "py_attention.h"

#include <string.h>

static attn_inputs
core_inputs(const attention_inputs *in)
{
    const attn_problem *p = &in->problem;
    return (attn_inputs){
        attn_dense(py_data(in->queries), p->M, p->Dq),
        attn_dense(py_data(in->keys), p->N, p->Dk),
        attn_dense(py_data(in->values), p->N, p->Dv),
    };
}

/* ---- forward --------------------------------------------------------------------- */

/* output (..., M, Dv): out or new; weights (..., M, N) and lse (..., M) if wanted. */
static int
make_outputs(const attention_args *args, const attention_inputs *in, PyArrayObject *out,
             attention_outputs *outputs)
{
    const attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];

    attention_shape(in, p->M, p->Dv, dims);
    if (out == NULL) {
        outputs->output = py_new_float32(in->ndim, dims);
    } else if (py_check_shape(out, "out", in->ndim, dims) == 0) {
        outputs->output = (PyArrayObject *)Py_NewRef(out);
    }
    if (outputs->output == NULL) {
        return -1;
    }
    attention_shape(in, p->M, p->N, dims);
    if (args->want_weights &&
        (outputs->weights = py_new_float32(in->ndim, dims)) == NULL) {
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
attention_forward(attnext_state *state, const attention_args *args,
                  attention_inputs *in, attention_outputs *outputs)
{
    int result = -1;
    PyArrayObject *out = NULL;
    py_run run;
    const attn_problem *p = &in->problem;

    attention_inputs_init(in);
    *outputs = (attention_outputs){0};
    if (py_out(args->out, &out) < 0 || attention_inputs_read(in, args, out) < 0 ||
        make_outputs(args, in, out, outputs) < 0) {
        goto done;
    }
    if (is_empty(outputs->output) && is_empty(outputs->weights) &&
        is_empty(outputs->lse)) {
        result = 0; /* nothing to write, however large the other sizes */
        goto done;
    }
    py_plan(&run, state, attn_forward_work(p));
    void *scratch = py_scratch(&run, attn_forward_workspace(p, run.run.threads));
    if (scratch == NULL) {
        goto done;
    }
    const attn_inputs inputs = core_inputs(in);
    py_enter(&run);
    int rc = attn_forward(py_data(outputs->output), py_data(outputs->weights),
                          py_data(outputs->lse), &inputs, p, scratch, &run.run);
    result = py_leave(&run, rc);
done:
    Py_XDECREF(out);
    if (result < 0) {
        attention_inputs_clear(in);
        attention_outputs_clear(outputs);
    }
    return result;
}

/* ---- backward -------------------------------------------------------------------- */

/* The arrays of the backward that are of no use after it. */
typedef struct {
    PyArrayObject *grad_output, *grad_weights, *grad_lse, *output, *weights, *lse;
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

/* grad_output, output (..., M, Dv); grad_weights, weights (..., M, N); grad_lse, lse
 * (..., M) */
static int
convert_backward_inputs(const attention_args *args, const attention_inputs *in,
                        backward_inputs *back)
{
    const attn_problem *p = &in->problem;
    int ndim = in->ndim;
    npy_intp out_dims[PY_MAX_AXES], weights_dims[PY_MAX_AXES];
    attention_shape(in, p->M, p->Dv, out_dims);
    attention_shape(in, p->M, p->N, weights_dims);

    back->grad_output = py_float32_shaped(args->grad.output, "grad_output", NULL, ndim,
                                          out_dims);
    if (back->grad_output == NULL ||
        convert_optional(args->grad.weights, "grad_weights", ndim, weights_dims,
                         &back->grad_weights) < 0 ||
        convert_optional(args->grad.lse, "grad_lse", ndim - 1, weights_dims,
                         &back->grad_lse) < 0 ||
        convert_optional(args->saved.weights, "weights", ndim, weights_dims,
                         &back->weights) < 0 ||
        convert_optional(args->saved.output, "output", ndim, out_dims, &back->output) <
            0 ||
        convert_optional(args->saved.lse, "lse", ndim - 1, weights_dims, &back->lse) <
            0) {
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
    Py_CLEAR(back->weights);
    Py_CLEAR(back->lse);
}

/* The parameters' gradients; w_v's in the shape w_v came in. */
static int
make_parameter_gradients(const attention_inputs *in, attention_gradients *d)
{
    const attn_problem *p = &in->problem;
    const npy_intp W_q_dims[2] = {p->H, p->Dq}, W_k_dims[2] = {p->H, p->Dk},
                   row[2] = {1, p->H};
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

/* A new array of shape (..., rows, columns) with the leading axes of keys. Key heads
 * that no query has (enable_gqa with 0 query heads) get their zeros here: the core does
 * not know of them. */
static PyArrayObject *
make_key_gradient(const attention_inputs *in, npy_intp rows, npy_intp columns)
{
    npy_intp dims[PY_MAX_AXES];
    attention_key_shape(in, rows, columns, dims);
    PyArrayObject *gradient = py_new_float32(in->ndim, dims);
    if (gradient != NULL && in->problem.B == 0) {
        memset(PyArray_DATA(gradient), 0, (size_t)PyArray_NBYTES(gradient));
    }
    return gradient;
}

static int
make_gradients(const attention_args *args, const attention_inputs *in,
               attention_gradients *d)
{
    const attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];
    attention_shape(in, p->M, p->Dq, dims);

    d->queries = py_new_float32(in->ndim, dims);
    d->keys = make_key_gradient(in, p->N, p->Dk);
    d->values = make_key_gradient(in, p->N, p->Dv);
    if (d->queries == NULL || d->keys == NULL || d->values == NULL) {
        return -1;
    }
    d->want_bias = args->want_grad_bias;
    if (d->want_bias && in->bias != NULL &&
        (d->bias = py_new_float32(in->bias_ndim, in->bias_dims)) == NULL) {
        return -1;
    }
    return p->score == &attn_score_additive ? make_parameter_gradients(in, d) : 0;
}

/* Calls the core on inputs and gradients that are ready. */
static int
run_backward(attnext_state *state, const attention_inputs *in,
             const backward_inputs *back, attention_gradients *d)
{
    const attn_problem *p = &in->problem;
    const attn_gradients to = {
        .queries = py_data(d->queries),
        .keys = py_data(d->keys),
        .values = py_data(d->values),
        .parameters = {py_data(d->W_q), py_data(d->W_k), py_data(d->w_v),
                       py_data(d->b_h)},
        .scale = &d->w,
        .bias = is_empty(d->bias) ? NULL : py_data(d->bias), /* nothing to write */
    };
    const attn_grad_outputs from = {
        .output = py_data(back->grad_output),
        .weights = py_data(back->grad_weights),
        .lse = py_data(back->grad_lse),
    };
    const attn_saved saved = {
        .output = py_data(back->output),
        .weights = py_data(back->weights),
        .lse = py_data(back->lse),
    };
    py_run run;

    py_plan(&run, state, attn_backward_work(p));
    void *scratch = py_scratch(&run,
                               attn_backward_workspace(p, &to, &from, run.run.threads));
    if (scratch == NULL) {
        return -1;
    }
    const attn_inputs inputs = core_inputs(in);
    py_enter(&run);
    int rc = attn_backward(&to, &from, &saved, &inputs, p, scratch, &run.run);
    return py_leave(&run, rc);
}

int
attention_backward(attnext_state *state, const attention_args *args,
                   attention_inputs *in, attention_gradients *gradients)
{
    int result = -1;
    backward_inputs back = {0};

    attention_inputs_init(in);
    *gradients = (attention_gradients){0};
    if (attention_inputs_read(in, args, NULL) < 0 ||
        convert_backward_inputs(args, in, &back) < 0 ||
        make_gradients(args, in, gradients) < 0) {
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

/* ---- scores ---------------------------------------------------------------------- */

PyArrayObject *
attention_scores(attnext_state *state, const attention_args *args)
{
    int result = -1;
    attention_inputs in;
    PyArrayObject *scores = NULL;
    npy_intp dims[PY_MAX_AXES];
    const attn_problem *p = &in.problem;
    py_run run;

    attention_inputs_init(&in);
    if (attention_inputs_read(&in, args, NULL) < 0) {
        goto done;
    }
    attention_shape(&in, p->M, p->N, dims);
    scores = py_new_float32(in.ndim, dims);
    if (scores == NULL) {
        goto done;
    }
    if (is_empty(scores)) {
        result = 0;
        goto done;
    }
    py_plan(&run, state, attn_forward_work(p));
    void *scratch = py_scratch(&run, attn_scores_workspace(p, run.run.threads));
    if (scratch == NULL) {
        goto done;
    }
    const attn_inputs inputs = core_inputs(&in);
    py_enter(&run);
    int rc = attn_scores(py_data(scores), &inputs, p, scratch, &run.run);
    result = py_leave(&run, rc);
done:
    attention_inputs_clear(&in);
    if (result < 0) {
        Py_CLEAR(scores);
    }
    return scores;
}

/* ---- giving up ------------------------------------------------------------------- */

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
    Py_CLEAR(d->bias);
}
