/*
 * py_bands.c -- the band of causal, its offset, and window.
 *
 * A query that stands at key i attends to keys i - left to i + right; the three may be
 * any Python ints. The core adds them in int64: what comes out of here is so small that
 * it can. A window with an end further than that has an offset that goes with it
 * (near_offset, attnext/_reading.py).
 */
#include "py_attnext.h"

int
py_read_window(PyObject *object, const char *Py_UNUSED(name), py_window *window)
{
    static const char *const names[] = {"window[0]", "window[1]"};
    int64_t *const ends[] = {&window->left, &window->right};
    if (object == Py_None) {
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        PyObject *end = PySequence_Fast_GET_ITEM(object, i);
        *ends[i] = py_clip_int(end, -2, PY_FAR);
        if (*ends[i] < -1) {
            return py_value_error(end, names[i], "0 or more, or -1 for no bound");
        }
    }
    window->given = true;
    return 0;
}

/* ---- the band -------------------------------------------------------------------- */

/* The offsets, an int or integers of shape rows[:1]. */
static PyArrayObject *
read_offset(PyObject *object, int ndim, const npy_intp *rows, attn_band *band)
{
    const char *name = py_argument_rows[ARG_CAUSAL_OFFSET].name;
    PyArrayObject *a = py_int64_copy(object, name, -2 * PY_FAR, 2 * PY_FAR);
    band->heads = INT64_MAX; /* one for all */
    if (a == NULL || PyArray_NDIM(a) == 0) {
        return a;
    }
    if (ndim < 2 || PyArray_NDIM(a) != 1 || PyArray_DIM(a, 0) != rows[0]) {
        py_wrong("offset", "(sON)", name, a, py_dims(ndim, rows));
        Py_DECREF(a);
        return NULL;
    }
    band->heads = py_heads(ndim, rows);
    return a;
}

int
py_band(const py_window *window, bool causal, PyObject *offset, int ndim,
        const npy_intp *rows, attn_band *band, PyArrayObject **offsets)
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
    *offsets = read_offset(offset, ndim, rows, band);
    if (*offsets == NULL) {
        return -1;
    }
    band->offset = PyArray_DATA(*offsets);
    return 0;
}
