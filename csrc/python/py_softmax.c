/*
 * py_softmax.c -- masked_softmax, its backward, and sequence_mask.
 */
#include "py_attnext.h"
#include "py_run.h"

#include <stddef.h>
#include <string.h>

/* A call of masked_softmax, of its backward, where X are the weights, or of sequence_mask. All
 * arrays are owned. */
typedef struct {
    PyArrayObject *X, *grad, *result; /* all of one shape; grad: backward */
    PyArrayObject *lens, *mask;
    attn_masks masks; /* points into the arrays above and below */
    attn_empty_rows empty_rows;
    float value; /* of sequence_mask */
    int ndim;
    npy_intp B, M,
        N; /* of X (..., M, N), or (B, M, ...); 1 for an axis that is not there */

    npy_intp dims[PY_MAX_AXES]; /* not set to zero first */
    int64_t few_lens[PY_FEW_LENS];
} softmax_call;

/* The arrays that are left, the result but where the call failed. */
static PyObject *
end_call(softmax_call *c, int result)
{
    py_view_clear(&c->masks.mask);
    Py_XDECREF(c->mask);
    Py_XDECREF(c->lens);
    Py_XDECREF(c->grad);
    Py_XDECREF(c->X);
    if (result < 0) {
        Py_CLEAR(c->result);
    }
    return (PyObject *)c->result;
}

/* X, or weights, of so many axes at least. */
static int
begin_call(softmax_call *c, PyObject *object, const char *name, int axes,
           const char *expected)
{
    memset(c, 0, offsetof(softmax_call, dims));
    c->X = py_float32(object, name);
    if (c->X == NULL) {
        return -1;
    }
    c->ndim = py_note_shape(c->X, c->dims);
    return c->ndim < axes ? py_shape_error(c->X, name, expected) : 0;
}

/* Makes the result, unless there is an out for it, and fills it: `work` multiply-adds for each
 * element. */
static int
fill(const attnext_state *state, softmax_call *c, PyObject *out, double work,
     py_core_call *call_core)
{
    c->result = py_is_given(out) ? py_out(out, c->ndim, c->dims)
                                 : py_new_float32(c->ndim, c->dims);
    if (c->result == NULL) {
        return -1;
    }
    const double size = (double)PyArray_SIZE(c->result);
    return size == 0.0 ? 0 : py_run(state, work * size, true, call_core, c);
}

/* ---- masked_softmax -------------------------------------------------------------- */

/* valid_lens and mask, in the shapes they may have for these scores. */
static int
read_masks(softmax_call *c, PyObject *const *given)
{
    c->N = c->dims[c->ndim - 1];
    c->M = c->ndim > 1 ? c->dims[c->ndim - 2] : 1;
    c->B = c->ndim > 2 ? PyArray_MultiplyList(c->dims, c->ndim - 2) : 1;
    if (py_valid_lens(given[ARG_VALID_LENS], "valid_lens", c->ndim - 1, c->dims, c->N,
                      &c->masks.valid, &c->lens, c->few_lens) < 0) {
        return -1;
    }
    if (!py_is_given(given[ARG_MASK])) {
        return 0;
    }
    c->mask = py_pairs(given[ARG_MASK], ARG_MASK, false, false, c->ndim, c->dims,
                       &c->masks.mask);
    return c->mask == NULL ? -1 : 0;
}

static int
call_softmax(const void *context, void *Py_UNUSED(scratch), attn_run *run)
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
    const py_arg which = grad == NULL ? ARG_X : ARG_WEIGHTS;
    softmax_call c;
    int result = begin_call(&c, given[which], py_argument_rows[which].name, 1,
                            "one axis or more: (..., M, N)");
    c.empty_rows = rule == NULL ? ATTN_EMPTY_UNIFORM : (attn_empty_rows)py_rule(rule);
    if (result == 0 && grad != NULL) {
        c.grad = py_float32_shaped(grad, "grad_output", c.ndim, c.dims);
        result = c.grad == NULL ? -1 : 0;
    }
    if (result == 0 && (result = read_masks(&c, given)) == 0) {
        result = fill(state, &c, given[ARG_OUT], work, call_softmax);
    }
    return end_call(&c, result);
}

PY_EXPOSED(masked_softmax, softmax, 1, 2, ARG_X, ARG_VALID_LENS, ARG_MASK,
           ARG_EMPTY_ROWS, ARG_OUT)

PY_EXPOSED(masked_softmax_backward, softmax, 2, 3, ARG_GRAD_OUTPUT, ARG_WEIGHTS,
           ARG_VALID_LENS, ARG_MASK, ARG_EMPTY_ROWS)

/* ---- sequence_mask --------------------------------------------------------------- */

static int
call_sequence_mask(const void *context, void *Py_UNUSED(scratch), attn_run *run)
{
    const softmax_call *c = context;
    return attn_sequence_mask(py_data(c->result), py_data(c->X), &c->masks.valid,
                              c->value, c->B, c->M, c->N, run);
}

static PyObject *
mask_sequences(attnext_state *state, PyObject *const *given)
{
    PyObject *value = given[ARG_VALUE];
    softmax_call c;
    int result = begin_call(&c, given[ARG_X], "X", 2, "two axes or more: (B, T, ...)");
    if (result == 0) {
        c.value = value == NULL ? 0.0f : (float)py_number(value);
        c.B = c.dims[0];
        c.M = c.dims[1];
        c.N = PyArray_MultiplyList(c.dims + 2, c.ndim - 2);
        result = py_valid_lens(given[ARG_VALID_LEN], "valid_len", 1, c.dims, c.M,
                               &c.masks.valid, &c.lens, c.few_lens);
    }
    if (result == 0) {
        result = fill(state, &c, NULL, 1.0, call_sequence_mask);
    }
    return end_call(&c, result);
}

PY_EXPOSED(sequence_mask, mask_sequences, 2, 3, ARG_X, ARG_VALID_LEN, ARG_VALUE)
