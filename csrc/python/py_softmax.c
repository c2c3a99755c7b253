/*
 * py_softmax.c -- masked_softmax, its backward, and sequence_mask.
 */
#include "py_attnext.h"
#include "py_run.h"

#include <stddef.h>
#include <string.h>

/* ---- masked_softmax -------------------------------------------------------------- */

/* A call of masked_softmax, or of its backward, where X are the weights. All arrays are
 * owned. */
typedef struct {
    PyArrayObject *X, *grad, *result; /* all of one shape; grad: backward */
    PyArrayObject *lens, *mask;
    attn_masks masks; /* points into the arrays above and below */
    attn_empty_rows empty_rows;
    int ndim;
    npy_intp B, M, N; /* of X (..., M, N); 1 for an axis that is not there */

    npy_intp dims[PY_MAX_AXES]; /* not set to zero first */
    int64_t few_lens[PY_FEW_LENS];
} softmax_call;

static int
read_scores(softmax_call *c, PyObject *object, const char *name)
{
    c->X = py_float32(object, name);
    if (c->X == NULL) {
        return -1;
    }
    c->ndim = py_note_shape(c->X, c->dims);
    if (c->ndim == 0) {
        return py_shape_error(c->X, name, "one axis or more: (..., M, N)");
    }
    c->N = c->dims[c->ndim - 1];
    c->M = c->ndim > 1 ? c->dims[c->ndim - 2] : 1;
    c->B = c->ndim > 2 ? PyArray_MultiplyList(c->dims, c->ndim - 2) : 1;
    return 0;
}

/* valid_lens and mask, in the shapes they may have for these scores. */
static int
read_masks(softmax_call *c, PyObject *const *given)
{
    if (py_valid_lens(given[ARG_VALID_LENS], "valid_lens", c->ndim - 1, c->dims, c->N,
                      &c->masks.valid, &c->lens, c->few_lens) < 0) {
        return -1;
    }
    if (!py_is_given(given[ARG_MASK])) {
        return 0;
    }
    c->mask = py_pairs(given[ARG_MASK], ARG_MASK, false, c->ndim, c->dims,
                       &c->masks.mask);
    return c->mask == NULL ? -1 : 0;
}

static int
call_core(const void *context, void *Py_UNUSED(scratch), attn_run *run)
{
    const softmax_call *c = context;
    float *result = py_data(c->result);
    return c->grad == NULL
               ? attn_masked_softmax(result, py_data(c->X), c->B, c->M, c->N, &c->masks,
                                     c->empty_rows, run)
               : attn_masked_softmax_backward(result, py_data(c->grad), py_data(c->X),
                                              c->B, c->M, c->N, &c->masks,
                                              c->empty_rows, run);
}

/* Either function; the backward has a grad_output. */
static PyObject *
softmax(attnext_state *state, PyObject *const *given)
{
    /* multiply-adds that one element counts as, its share of an exp included */
    static const double work = 8.0;
    PyObject *rule = given[ARG_EMPTY_ROWS], *grad = given[ARG_GRAD_OUTPUT];
    PyObject *out = given[ARG_OUT];
    softmax_call c;
    int result = -1;

    memset(&c, 0, offsetof(softmax_call, dims));
    c.empty_rows = rule == NULL ? ATTN_EMPTY_UNIFORM : (attn_empty_rows)py_rule(rule);
    if ((grad == NULL ? read_scores(&c, given[ARG_X], "X")
                      : read_scores(&c, given[ARG_WEIGHTS], "weights")) < 0 ||
        (grad != NULL &&
         (c.grad = py_float32_shaped(grad, "grad_output", c.ndim, c.dims)) == NULL) ||
        read_masks(&c, given) < 0) {
        goto done;
    }
    c.result = py_is_given(out) ? py_out(out, c.ndim, c.dims)
                                : py_new_float32(c.ndim, c.dims);
    if (c.result == NULL) {
        goto done;
    }
    const double size = (double)PyArray_SIZE(c.result);
    result = size == 0.0 ? 0 : py_run(state, work * size, true, call_core, &c);
done:
    py_view_clear(&c.masks.mask);
    Py_XDECREF(c.mask);
    Py_XDECREF(c.lens);
    Py_XDECREF(c.grad);
    Py_XDECREF(c.X);
    if (result < 0) {
        Py_CLEAR(c.result);
    }
    return (PyObject *)c.result;
}

PY_EXPOSED(masked_softmax, softmax, 1, 2, ARG_X, ARG_VALID_LENS, ARG_MASK,
           ARG_EMPTY_ROWS, ARG_OUT)

PY_EXPOSED(masked_softmax_backward, softmax, 2, 3, ARG_GRAD_OUTPUT, ARG_WEIGHTS,
           ARG_VALID_LENS, ARG_MASK, ARG_EMPTY_ROWS)

/* ---- sequence_mask --------------------------------------------------------------- */

typedef struct {
    PyArrayObject *copy, *X, *lens;
    attn_valid_lens valid;
    float value;
    npy_intp B, T, inner;
} sequence_context;

static int
call_sequence_mask(const void *context, void *Py_UNUSED(scratch), attn_run *run)
{
    const sequence_context *c = context;
    return attn_sequence_mask(py_data(c->copy), py_data(c->X), &c->valid, c->value,
                              c->B, c->T, c->inner, run);
}

static PyObject *
mask_sequences(attnext_state *state, PyObject *const *given)
{
    sequence_context c = {0};
    npy_intp dims[PY_MAX_AXES];
    PyObject *value = given[ARG_VALUE];
    int result = -1;

    if ((c.X = py_float32(given[ARG_X], "X")) == NULL) {
        return NULL;
    }
    const int ndim = py_note_shape(c.X, dims);
    const double size = (double)PyArray_SIZE(c.X);
    if (ndim < 2) {
        py_shape_error(c.X, "X", "two axes or more: (B, T, ...)");
        goto done;
    }
    c.value = value == NULL ? 0.0f : (float)py_number(value);
    c.B = dims[0];
    c.T = dims[1];
    c.inner = PyArray_MultiplyList(dims + 2, ndim - 2);
    if (py_valid_lens(given[ARG_VALID_LEN], "valid_len", 1, dims, c.T, &c.valid,
                      &c.lens, NULL) == 0 &&
        (c.copy = py_new_float32(ndim, dims)) != NULL) {
        result = size == 0.0 ? 0 : py_run(state, size, true, call_sequence_mask, &c);
    }
done:
    Py_XDECREF(c.lens);
    Py_XDECREF(c.X);
    if (result < 0) {
        Py_CLEAR(c.copy);
    }
    return (PyObject *)c.copy;
}

PY_EXPOSED(sequence_mask, mask_sequences, 2, 3, ARG_X, ARG_VALID_LEN, ARG_VALUE)
