/*
 * py_results.c -- the arrays that a call returns, made through NumPy before the core
 * fills them: the outputs of a forward, the gradients of a backward.
 */
#include "py_call.h" /* Python.h is the first header of all */

#include "../core/arena.h"

#include <string.h>

/* ---- outputs --------------------------------------------------------------------- */

/* output (..., M, Dv): out or new; weights (..., M, N) and lse (..., M) if wanted. */
static int
new_outputs(const py_options *o, const py_inputs *in, PyArrayObject *out,
            py_outputs *outputs)
{
    const attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];

    py_query_shape(in, p->M, py_output_width(in), dims);
    if (out == NULL) {
        outputs->output = py_new_float32(in->ndim, dims);
    } else if (py_check_shape(out, "out", in->ndim, dims) == 0) {
        outputs->output = (PyArrayObject *)Py_NewRef(out);
    }
    if (outputs->output == NULL) {
        return -1;
    }
    py_pair_shape(in, p->M, p->N, dims);
    if (o->return_weights &&
        (outputs->weights = py_new_float32(in->pair_ndim, dims)) == NULL) {
        return -1;
    }
    if (o->return_lse &&
        (outputs->lse = py_new_float32(in->pair_ndim - 1, dims)) == NULL) {
        return -1;
    }
    return 0;
}

npy_intp
py_kept_size(const py_inputs *in)
{
    return (npy_intp)(attn_multi_head_kept(&in->problem) / sizeof(float));
}

/* Aligned, as a view: of rows that are not, multi-head attention takes 4 to 8 % longer. */
static int
make_kept(const py_inputs *in, py_outputs *outputs)
{
    const npy_intp spare = ATTN_ALIGN / sizeof(float);
    npy_intp size = py_kept_size(in), room = size + spare;
    if (size > PY_SSIZE_T_MAX / (npy_intp)sizeof(float) - spare) {
        PyErr_SetString(PyExc_ValueError,
                        "the arrays are too large: the memory that the projections "
                        "need has a size that overflows");
        return -1;
    }
    PyArrayObject *memory = py_new_float32(1, &room);
    if (memory == NULL) {
        return -1;
    }
    npy_intp skip = (npy_intp)(-(uintptr_t)PyArray_DATA(memory) % ATTN_ALIGN);
    skip /= (npy_intp)sizeof(float);
    PyObject *kept = PyArray_New(&PyArray_Type, 1, &size, NPY_FLOAT32, NULL,
                                 py_data(memory) + skip, 0, NPY_ARRAY_CARRAY, NULL);
    if (kept == NULL) {
        Py_DECREF(memory);
        return -1;
    }
    outputs->kept = (PyArrayObject *)kept;
    return PyArray_SetBaseObject(outputs->kept, (PyObject *)memory);
}

int
py_make_outputs(const py_call *call, const py_inputs *in, PyArrayObject *out,
                py_outputs *outputs)
{
    if (new_outputs(&call->options, in, out, outputs) < 0) {
        return -1;
    }
    return call->options.return_kept ? make_kept(in, outputs) : 0;
}

void
py_outputs_clear(py_outputs *outputs)
{
    Py_CLEAR(outputs->output);
    Py_CLEAR(outputs->weights);
    Py_CLEAR(outputs->lse);
    Py_CLEAR(outputs->kept);
}

/* ---- gradients ------------------------------------------------------------------- */

/* The parameters' gradients, each in the shape in which the parameter came. */
static int
make_parameter_gradients(const py_call *call, const py_inputs *in, py_gradients *d)
{
    const py_score *score = call->score;
    for (int i = 0; i < score->parameters; i++) {
        PyArrayObject *parameter = in->arrays[ARG_PARAMETER_0 + i];
        npy_intp dims[PY_PARAMETER_AXES];
        if (parameter == NULL || (call->memory != NULL && py_projects_keys(score, i))) {
            continue;
        }
        const char *letters = score->about->parameters[i].shape;
        int ndim = py_letter_shape(letters, in->sizes, dims);
        int missing = letters[0] == '1' && PyArray_NDIM(parameter) < ndim;
        d->parameters[i] = py_new_float32(ndim - missing, dims + missing);
        if (d->parameters[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

/* A new array of shape (..., rows, columns) with the leading axes of keys. Key heads
 * that no query has (enable_gqa with 0 query heads) get their zeros here: the core does
 * not know of them. */
static PyArrayObject *
make_key_gradient(const py_inputs *in, npy_intp rows, npy_intp columns)
{
    npy_intp dims[PY_MAX_AXES];
    py_key_shape(in, rows, columns, dims);
    PyArrayObject *gradient = py_new_float32(in->ndim, dims);
    if (gradient != NULL && in->problem.B == 0) {
        memset(PyArray_DATA(gradient), 0, (size_t)PyArray_NBYTES(gradient));
    }
    return gradient;
}

/* Those of the keys; of a memory's, as far as one call takes them. */
static int
make_key_gradients(const py_call *call, const py_inputs *in, py_gradients *d)
{
    const attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];
    if (call->memory == NULL) {
        d->keys = make_key_gradient(in, p->N, p->Dk);
        return d->keys == NULL ? -1 : 0;
    }
    if (d->key_use == NULL) { /* there are no spare arrays */
        d->projected = make_key_gradient(in, p->N, py_key_width(p));
        py_key_shape(in, p->N, 1, dims);
        d->key_use = (PyArrayObject *)PyArray_SimpleNew(in->ndim, dims, NPY_UINT8);
    }
    if (d->projected == NULL || d->key_use == NULL) {
        return -1;
    }
    memset(PyArray_DATA(d->key_use), ATTN_UNUSED, (size_t)PyArray_NBYTES(d->key_use));
    return 0;
}

int
py_make_gradients(const py_call *call, const py_inputs *in, py_gradients *d)
{
    const attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];
    py_query_shape(in, p->M, p->Dq, dims);

    if (call->memory != NULL && p->B > 0) {
        py_memory_spare(call->memory, d);
    }
    d->queries = py_new_float32(in->ndim, dims);
    if (d->values == NULL && !py_is_of_scores(in)) {
        npy_intp width = call->memory != NULL ? py_value_width(p) : p->Dv;
        d->values = make_key_gradient(in, p->N, width);
    }
    if (d->queries == NULL || (d->values == NULL && !py_is_of_scores(in)) ||
        make_key_gradients(call, in, d) < 0) {
        return -1;
    }
    if (call->options.return_grad_bias && in->arrays[ARG_BIAS] != NULL &&
        (d->bias = py_new_float32(in->bias_ndim, in->bias_dims)) == NULL) {
        return -1;
    }
    if (call->options.return_grad_sink && in->arrays[ARG_SINK] != NULL &&
        (d->sink = py_new_float32(in->sink_ndim, in->sink_dims)) == NULL) {
        return -1;
    }
    if (call->options.return_grad_scale && in->arrays[ARG_SCALE] != NULL &&
        (d->scales = py_new_float32(in->scale_ndim, in->scale_dims)) == NULL) {
        return -1;
    }
    return make_parameter_gradients(call, in, d);
}

void
py_gradients_clear(py_gradients *d)
{
    Py_CLEAR(d->queries);
    Py_CLEAR(d->keys);
    Py_CLEAR(d->values);
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        Py_CLEAR(d->parameters[i]);
    }
    Py_CLEAR(d->bias);
    Py_CLEAR(d->sink);
    Py_CLEAR(d->scales);
    Py_CLEAR(d->projected);
    Py_CLEAR(d->key_use);
}
