/*
 * py_masks.c -- who takes part, apart from the lengths: mask, bias and dropout_mask as
 * the core reads them, and the band of causal, causal_offset and window; likewise what
 * rows share, sink and scale.
 *
 * A mask is not expanded and, unless it must be, not copied: an attn_view says how the
 * core walks through the array in its own shape. What is in it is nobody's business
 * here, and another thread may change it during a call; the shape is noted once.
 */
#include "py_attnext.h"

#include <math.h>

/* ---- views ----------------------------------------------------------------------- */

/* a's stride along axis i of dims, in elements: 0 if a has no such axis, or one of size
 * 1, which stands for every size, or if dims has none. */
static int64_t
view_stride(PyArrayObject *a, int ndim, int i)
{
    int own = i - (ndim - PyArray_NDIM(a));
    return i >= ndim || own < 0 || PyArray_DIM(a, own) == 1
               ? 0
               : PyArray_STRIDE(a, own) / PyArray_ITEMSIZE(a);
}

/* Appends an axis outside of the others, or makes the outermost longer where the two
 * are laid out as one: shared by all (both strides 0), or without a gap. */
static void
add_axis(attn_view *view, attn_axis *axes, int64_t size, int64_t stride)
{
    if (size == 1) {
        return;
    }
    if (view->axis_count > 0) {
        attn_axis *outermost = &axes[view->axis_count - 1];
        if (stride == outermost->size * outermost->stride) {
            outermost->size *= size;
            return;
        }
    }
    axes[view->axis_count++] = (attn_axis){size, stride};
}

/* The view of a over pairs, or what they share, of shape dims: `lead` leading axes, then
 * M and N or M or neither. a's shape broadcasts to it. An empty array keeps the strides
 * 0, for nothing is read from it. */
static void
fill_view(attn_view *view, attn_axis *axes, PyArrayObject *a, int lead, int ndim,
          const npy_intp *dims)
{
    *view = (attn_view){.data = PyArray_DATA(a), .axes = axes};
    if (PyArray_SIZE(a) == 0) {
        return;
    }
    view->stride_j = view_stride(a, ndim, lead + 1);
    view->stride_m = view_stride(a, ndim, lead);
    for (int i = lead - 1; i >= 0; i--) {
        add_axis(view, axes, dims[i], view_stride(a, ndim, i));
    }
    while (view->axis_count > 0 && axes[view->axis_count - 1].stride == 0) {
        view->axis_count--; /* nothing varies along the outermost */
    }
}

/* ValueError unless a's shape broadcasts to dims. */
static int
check_broadcast(PyArrayObject *a, const char *name, int ndim, const npy_intp *dims)
{
    int missing = ndim - PyArray_NDIM(a);
    bool fits = missing >= 0;
    for (int i = 0; fits && i < PyArray_NDIM(a); i++) {
        fits = PyArray_DIM(a, i) == 1 || PyArray_DIM(a, i) == dims[missing + i];
    }
    if (fits) {
        return 0;
    }
    char shape[PY_SHAPE_TEXT], expected[PY_SHAPE_TEXT + 40];
    PyOS_snprintf(expected, sizeof expected, "a shape that broadcasts to %s",
                  py_shape_text(shape, ndim, dims));
    return py_shape_error(a, name, expected);
}

PyArrayObject *
py_pairs(PyObject *object, py_arg which, int ndim, const npy_intp *dims,
         PyArrayObject *out, attn_view *view, attn_axis axes[PY_MAX_AXES])
{
    PyArrayObject *a = which == ARG_BIAS ? py_floats(object, "bias", out)
                                         : py_bools(object, which, out);
    const char *name = which == ARG_BIAS   ? "bias"
                       : which == ARG_MASK ? "mask"
                                           : "dropout_mask";
    if (a != NULL && check_broadcast(a, name, ndim, dims) < 0) {
        Py_CLEAR(a);
    }
    if (a != NULL) {
        fill_view(view, axes, a, ndim - 2, ndim, dims);
    }
    return a;
}

/* ValueError unless the numbers are finite, or -inf where that is allowed. */
static int
check_numbers(PyArrayObject *a, const char *name, bool minus_inf)
{
    const float *x = py_data(a);
    for (npy_intp i = 0, n = PyArray_SIZE(a); i < n; i++) {
        if (!isfinite(x[i]) && !(minus_inf && x[i] == -INFINITY)) {
            PyErr_Format(PyExc_ValueError, "%s contains %s, expected %s", name,
                         isnan(x[i]) ? "nan"
                         : x[i] > 0  ? "inf"
                                     : "-inf",
                         minus_inf ? "finite float32 numbers, or -inf for none"
                                   : "finite float32 numbers");
            return -1;
        }
    }
    return 0;
}

PyArrayObject *
py_shared(PyObject *object, const char *name, bool minus_inf, int lead, int ndim,
          const npy_intp *dims, PyArrayObject *out, attn_view *view,
          attn_axis axes[PY_MAX_AXES])
{
    PyArrayObject *a = py_float32(object, name, out);
    if (a != NULL && (check_broadcast(a, name, ndim, dims) < 0 ||
                      check_numbers(a, name, minus_inf) < 0)) {
        Py_CLEAR(a);
    }
    if (a != NULL) {
        fill_view(view, axes, a, lead, ndim, dims);
    }
    return a;
}

/* ---- the band -------------------------------------------------------------------- */

/* Further than any key is from any query, and so small that sums of three do not
 * overflow. */
static const int64_t far_away = (int64_t)1 << 61;

/* The offsets, an int or integers of shape rows[:1]. */
static PyArrayObject *
read_offset(PyObject *object, int ndim, const npy_intp *rows, PyArrayObject *out,
            attn_band *band)
{
    PyArrayObject *a = py_int64_copy(object, "causal_offset", "integers", -far_away,
                                     far_away, out);
    band->heads = INT64_MAX; /* one for all */
    if (a == NULL || PyArray_NDIM(a) == 0) {
        return a;
    }
    if (ndim < 2 || PyArray_NDIM(a) != 1 || PyArray_DIM(a, 0) != rows[0]) {
        char shape[PY_SHAPE_TEXT], expected[PY_SHAPE_TEXT + 16];
        PyOS_snprintf(expected, sizeof expected, "an int or %s",
                      py_shape_text(shape, 1, rows));
        py_shape_error(a, "causal_offset", ndim < 2 ? "an int" : expected);
        Py_DECREF(a);
        return NULL;
    }
    band->heads = py_heads(ndim, rows);
    return a;
}

int
py_band(const py_window *window, bool causal, PyObject *offset, int ndim,
        const npy_intp *rows, PyArrayObject *out, attn_band *band,
        PyArrayObject **offsets)
{
    *band = (attn_band){0};
    if (offset != NULL) {
        *offsets = read_offset(offset, ndim, rows, out, band);
        if (*offsets == NULL) {
            return -1;
        }
        band->offset = PyArray_DATA(*offsets);
    }
    if (window->given) {
        band->has_left = window->left >= 0;
        band->left = Py_MIN(window->left, far_away);
        band->has_right = window->right >= 0;
        band->right = Py_MIN(window->right, far_away);
    }
    if (causal) {
        band->has_right = true;
        band->right = 0;
    }
    return 0;
}
