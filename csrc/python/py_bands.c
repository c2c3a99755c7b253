/*
 * py_bands.c -- the band of causal, causal_offset and window.
 *
 * A query that stands at key i attends to keys i - left to i + right; the three may be
 * any Python ints. The core adds them in int64: what comes out of here is so small that
 * it can.
 */
#include "py_attnext.h"

/* Further than any key is from any query; half of PY_FAR. */
static const int64_t out_of_reach = (int64_t)1 << 60;

/* ---- windows --------------------------------------------------------------------- */

/* (left, right) as a tuple of two Python ints, each >= -1. */
static PyObject *
read_ends(PyObject *object)
{
    static const char *const names[] = {"window[0]", "window[1]"};
    PyObject *pair = PySequence_Tuple(object); /* a list may change while it is read */
    if (pair == NULL) {
        py_note_argument("window");
        return NULL;
    }
    PyObject *ends[2] = {NULL, NULL}, *result = NULL, *least = PyLong_FromLong(-1);
    int below = least == NULL ? -1 : 0;
    if (PyTuple_GET_SIZE(pair) != 2) {
        PyErr_Format(PyExc_ValueError,
                     "window has %zd entries, expected two: (left, right)",
                     PyTuple_GET_SIZE(pair));
        below = -1;
    }
    for (int i = 0; below == 0 && i < 2; i++) {
        PyObject *end = PyTuple_GET_ITEM(pair, i);
        ends[i] = py_index(end, names[i]);
        below = ends[i] == NULL ? -1 : PyObject_RichCompareBool(ends[i], least, Py_LT);
        if (below == 1) {
            py_value_error(end, names[i], "0 or more, or -1 for no bound");
        }
    }
    if (below == 0) {
        result = PyTuple_Pack(2, ends[0], ends[1]);
    }
    Py_XDECREF(least);
    Py_XDECREF(ends[1]);
    Py_XDECREF(ends[0]);
    Py_DECREF(pair);
    return result;
}

/* An end as the core takes it. */
static int64_t
clip_end(PyObject *end, bool *clipped)
{
    int overflow;
    int64_t value = PyLong_AsLongLongAndOverflow(end, &overflow);
    bool far = overflow != 0 || value > PY_FAR;
    *clipped = *clipped || far;
    return far ? PY_FAR : value;
}

int
py_read_window(PyObject *object, const char *name, py_window *window)
{
    if (object == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(object) && !PyList_Check(object)) {
        return py_kind_error(object, name, "a pair of ints (left, right)");
    }
    PyObject *ends = read_ends(object);
    if (ends == NULL) {
        return -1;
    }
    window->given = true;
    window->left = clip_end(PyTuple_GET_ITEM(ends, 0), &window->clipped);
    window->right = clip_end(PyTuple_GET_ITEM(ends, 1), &window->clipped);
    Py_DECREF(ends);
    return 0;
}

/* ---- the offsets of a window that was clipped ------------------------------------ */

/* *sum = offset + by, or offset - by, moved to the ends of what is in reach. */
static int
shift_into_reach(PyObject *offset, binaryfunc plus_or_minus, PyObject *by, int64_t *sum)
{
    PyObject *exact = plus_or_minus(offset, by);
    int overflow = 0;
    *sum = exact == NULL ? -1 : PyLong_AsLongLongAndOverflow(exact, &overflow);
    Py_XDECREF(exact);
    if (*sum == -1 && PyErr_Occurred()) {
        return -1;
    }
    *sum = overflow != 0 ? overflow * out_of_reach : *sum;
    *sum = Py_MAX(-out_of_reach, Py_MIN(*sum, out_of_reach));
    return 0;
}

/* An offset for the band as it was clipped that gives it the place of the one that was
 * given, from offset - left to offset + right (0 if it is causal). A clipped band is so
 * wide that no query sees both of its ends: the one in reach is put where it belongs,
 * and the other is then out of reach. */
static int
move_offset(PyObject *offset, const attn_band *band, PyObject *ends, int64_t *moved)
{
    int64_t first = -out_of_reach, last = out_of_reach;
    PyObject *zero = PyLong_FromLong(0);
    PyObject *left = PyTuple_GET_ITEM(ends, 0), *right = PyTuple_GET_ITEM(ends, 1);
    int result = -1;
    if (zero != NULL &&
        (!band->has_left ||
         shift_into_reach(offset, PyNumber_Subtract, left, &first) == 0) &&
        (!band->has_right ||
         shift_into_reach(offset, PyNumber_Add, band->right == 0 ? zero : right,
                          &last) == 0)) {
        bool by_last = last < out_of_reach || !band->has_left;
        *moved = by_last ? last - band->right : first + band->left;
        result = 0;
    }
    Py_XDECREF(zero);
    return result;
}

/* The offsets, so moved. */
static PyArrayObject *
moved_offsets(PyObject *object, const attn_band *band, PyObject *ends,
              PyArrayObject *out)
{
    PyArrayObject *exact = py_exact_integers(object, "causal_offset", "integers", out);
    PyArrayObject *moved = NULL;
    if (exact == NULL) {
        return NULL;
    }
    moved = (PyArrayObject *)PyArray_SimpleNew(PyArray_NDIM(exact), PyArray_DIMS(exact),
                                               NPY_INT64);
    npy_intp n = moved == NULL ? 0 : PyArray_SIZE(moved);
    for (npy_intp i = 0; i < n; i++) {
        PyObject *offset = ((PyObject **)PyArray_DATA(exact))[i];
        int64_t *to = (int64_t *)PyArray_DATA(moved) + i;
        if (move_offset(offset, band, ends, to) < 0) {
            Py_CLEAR(moved);
            break;
        }
    }
    Py_DECREF(exact);
    return moved;
}

/* ---- the band -------------------------------------------------------------------- */

PY_COLD static void
offset_shape_error(PyArrayObject *a, int ndim, const npy_intp *rows)
{
    char shape[PY_SHAPE_TEXT], expected[PY_SHAPE_TEXT + 16];
    PyOS_snprintf(expected, sizeof expected, "an int or %s",
                  py_shape_text(shape, 1, rows));
    py_shape_error(a, "causal_offset", ndim < 2 ? "an int" : expected);
}

/* The offsets, an int or integers of shape rows[:1]; ends: those of a window that was
 * clipped, else NULL. */
static PyArrayObject *
read_offset(PyObject *object, PyObject *ends, int ndim, const npy_intp *rows,
            PyArrayObject *out, attn_band *band)
{
    PyArrayObject *a = ends != NULL ? moved_offsets(object, band, ends, out)
                                    : py_int64_copy(object, "causal_offset", "integers",
                                                    -2 * PY_FAR, 2 * PY_FAR, out);
    band->heads = INT64_MAX; /* one for all */
    if (a == NULL || PyArray_NDIM(a) == 0) {
        return a;
    }
    if (ndim < 2 || PyArray_NDIM(a) != 1 || PyArray_DIM(a, 0) != rows[0]) {
        offset_shape_error(a, ndim, rows);
        Py_DECREF(a);
        return NULL;
    }
    band->heads = py_heads(ndim, rows);
    return a;
}

int
py_band(const py_window *window, PyObject *as_given, bool causal, PyObject *offset,
        int ndim, const npy_intp *rows, PyArrayObject *out, attn_band *band,
        PyArrayObject **offsets)
{
    *band = (attn_band){0};
    if (window->given) {
        band->has_left = window->left >= 0;
        band->left = window->left;
        band->has_right = window->right >= 0;
        band->right = window->right;
    }
    if (causal) {
        band->has_right = true;
        band->right = 0;
    }
    if (offset == NULL) {
        return 0;
    }
    PyObject *ends = NULL;
    if (window->clipped && as_given != NULL && (ends = read_ends(as_given)) == NULL) {
        return -1;
    }
    *offsets = read_offset(offset, ends, ndim, rows, out, band);
    Py_XDECREF(ends);
    if (*offsets == NULL) {
        return -1;
    }
    band->offset = PyArray_DATA(*offsets);
    return 0;
}
