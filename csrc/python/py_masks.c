/*
 * py_masks.c -- mask, bias and dropout_mask as the core reads them; likewise what rows
 * share, sink and scale.
 *
 * A mask is not expanded and, unless it must be, not copied: an attn_view says how the
 * core walks through the array in its own shape. What is in it is nobody's business
 * here, and another thread may change it during a call; the shape is noted once.
 */
#include "py_attnext.h"

/* ---- views ----------------------------------------------------------------------- */

/* a, of bools, if its last axis lies in one piece or repeats one element; else a copy, in which an
 * axis that only repeats itself (np.broadcast_to) has size 1. */
static PyArrayObject *
with_rows(PyArrayObject *a)
{
    npy_intp dims[PY_MAX_AXES];
    const int ndim = py_note_shape(a, dims), last = ndim - 1;
    if (last < 0 || dims[last] == 1 || PyArray_STRIDE(a, last) == 0 ||
        PyArray_STRIDE(a, last) == PyArray_ITEMSIZE(a)) {
        return (PyArrayObject *)Py_NewRef(a);
    }
    for (int i = 0; i < ndim; i++) {
        dims[i] = dims[i] > 1 && PyArray_STRIDE(a, i) == 0 ? 1 : dims[i];
    }
    PyObject *once = PyArray_New(&PyArray_Type, ndim, dims, NPY_BOOL,
                                 PyArray_STRIDES(a), PyArray_DATA(a), 0, 0, NULL);
    PyObject *copy = once == NULL ? NULL
                                  : PyArray_NewCopy((PyArrayObject *)once, NPY_CORDER);
    Py_XDECREF(once);
    return (PyArrayObject *)copy;
}

/* The view of a over pairs, or what they share, of shape dims: `lead` leading axes, then
 * M and N or M or neither. a's shape broadcasts to it. */
static int
fill_view(attn_view *view, PyArrayObject *a, int lead, int ndim, const npy_intp *dims)
{
    attn_axis *axes = NULL;
    if (lead > 0 && (axes = PyMem_New(attn_axis, lead)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    const attn_array array = py_array(a);
    attn_view_array(view, axes, &array, lead, ndim, dims);
    return 0;
}

void
py_view_clear(attn_view *view)
{
    PyMem_Free((void *)view->axes);
    view->axes = NULL;
}

/* ValueError unless a's shape broadcasts to dims. */
static int
check_broadcast(PyArrayObject *a, const char *name, int ndim, const npy_intp *dims)
{
    const attn_array array = py_array(a);
    return attn_broadcasts(&array, ndim, dims)
               ? 0
               : py_wrong("broadcast", "(sON)", name, a, py_dims(ndim, dims));
}

/* Where a layer makes the heads itself, dims is (..., heads, M, N), and its caller sees
 * (..., M, N): an array of (entries, M, N) would broadcast as one of (heads, M, N) as soon
 * as there are as many of both. So between M and N alone and all axes nothing is taken,
 * whatever the sizes; leading axes of 1 mean the same either way. */
static int
check_heads(PyArrayObject *a, const char *name, int ndim, const npy_intp *dims)
{
    int own = PyArray_NDIM(a);
    if (own <= 2 || own >= ndim ||
        PyArray_MultiplyList(PyArray_DIMS(a), own - 2) == 1) {
        return 0;
    }
    return py_wrong("pairs_of_heads", "(sON)", name, a, py_dims(ndim, dims));
}

/* ValueError unless the numbers are finite, or -inf where that is allowed. */
static int
check_numbers(PyArrayObject *a, const char *name, bool minus_inf)
{
    const float *x = attn_not_finite(py_data(a), PyArray_SIZE(a), minus_inf);
    return x == NULL ? 0
                     : py_wrong("contains", "(sds)", name, (double)*x,
                                minus_inf ? "finite float32 numbers or -inf"
                                          : "finite float32 numbers");
}

PyArrayObject *
py_pairs(PyObject *object, py_arg which, bool makes_heads, bool dense, int ndim,
         const npy_intp *dims, attn_view *view)
{
    const char *name = py_argument_rows[which].name;
    const int own = which == ARG_SINK ? ndim - 1 : which == ARG_SCALE ? ndim - 2 : ndim;
    PyArrayObject *a = which == ARG_BIAS && !dense ? py_floats_for_pairs(object, name)
                       : own < ndim || which == ARG_BIAS
                           ? py_float32(object, name)
                           : with_rows((PyArrayObject *)object);
    if (a != NULL &&
        ((makes_heads && own == ndim && check_heads(a, name, ndim, dims) < 0) ||
         check_broadcast(a, name, own, dims) < 0 ||
         (own < ndim && check_numbers(a, name, which == ARG_SINK) < 0) ||
         fill_view(view, a, ndim - 2, own, dims) < 0)) {
        Py_CLEAR(a);
    }
    return a;
}
