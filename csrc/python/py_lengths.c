/*
 * py_lengths.c -- valid lengths, in every shape they may come.
 *
 * The lengths are always copied: they decide which memory is read, so nobody else may
 * change them during a call. The copy is int64, and every length lies in 0..N.
 */
#include "py_attnext.h"

#include <stdio.h>
#include <string.h>

/* object as a private int64 array in the shape given, every length clipped to 0..N. */
static PyArrayObject *
copy_lens(PyObject *object, npy_intp N, const char *name)
{
    PyArrayObject *copy = py_int64_copy(object, name, INT64_MIN, N);
    npy_intp n = copy == NULL ? 0 : PyArray_SIZE(copy);
    for (npy_intp i = 0; i < n; i++) {
        long long length = ((int64_t *)PyArray_DATA(copy))[i];
        if (length >= 0) {
            continue;
        }
        if (PyLong_Check(object)) {
            py_value_error(object, name, "a length of 0 or more");
        } else {
            PyErr_Format(PyExc_ValueError,
                         "%s contains %lld, expected lengths of 0 or more", name,
                         length);
        }
        Py_DECREF(copy);
        return NULL;
    }
    return copy;
}

static bool
same_shape(PyArrayObject *a, int ndim, const npy_intp *dims)
{
    return PyArray_NDIM(a) == ndim && PyArray_CompareLists(PyArray_DIMS(a), dims, ndim);
}

/* "valid_lens has shape (3,), expected (2,) or (2, 5)" for rows (2, 5). */
PY_COLD static int
lens_shape_error(PyArrayObject *lens, int ndim, const npy_intp *rows)
{
    char first[PY_SHAPE_TEXT], both[PY_SHAPE_TEXT], all[PY_SHAPE_TEXT];
    char expected[3 * PY_SHAPE_TEXT + 16];

    if (ndim == 0) {
        return py_shape_error(lens, "valid_lens", "an int");
    }
    const npy_intp first_and_last[2] = {rows[0], rows[ndim - 1]};
    py_shape_text(first, 1, rows);
    py_shape_text(both, 2, first_and_last);
    py_shape_text(all, ndim, rows);
    if (ndim == 1) {
        snprintf(expected, sizeof expected, "%s or an int", first);
    } else if (ndim == 2) {
        snprintf(expected, sizeof expected, "%s or %s", first, both);
    } else {
        snprintf(expected, sizeof expected, "%s, %s or %s", first, both, all);
    }
    return py_shape_error(lens, "valid_lens", expected);
}

npy_intp
py_heads(int ndim, const npy_intp *rows)
{
    npy_intp heads = ndim > 2 ? PyArray_MultiplyList(rows + 1, ndim - 2) : 1;
    return heads > 0 ? heads : 1; /* without entries any number but 0 does */
}

/* One length per entry of the first axis, as they mostly come; false: they come in
 * another way, or there is something wrong with them. */
static bool
read_few(PyObject *object, int ndim, const npy_intp *rows, npy_intp N,
         attn_valid_lens *valid, int64_t *few)
{
    bool fits = ndim > 1 && rows[0] <= PY_FEW_LENS &&
                py_usual_integers(object, rows[0], -1, N, few);
    for (npy_intp i = 0; fits && i < rows[0]; i++) {
        fits = few[i] >= 0;
    }
    if (fits) {
        *valid = (attn_valid_lens){few, py_heads(ndim, rows), 1, 0};
    }
    return fits;
}

int
py_valid_lens(PyObject *object, int ndim, const npy_intp *rows, npy_intp N,
              attn_valid_lens *valid, PyArrayObject **lens, int64_t *few)
{
    *valid = (attn_valid_lens){.heads = 1};
    *lens = NULL;
    if (!py_is_given(object)) {
        return 0;
    }
    if (few != NULL && read_few(object, ndim, rows, N, valid, few)) {
        return 0;
    }
    PyArrayObject *a = copy_lens(object, N, "valid_lens");
    if (a == NULL) {
        return -1;
    }
    npy_intp M = ndim > 0 ? rows[ndim - 1] : 1;
    const npy_intp first_and_last[2] = {ndim > 0 ? rows[0] : 1, M};

    if (same_shape(a, ndim, rows)) {
        valid->stride_b = M;
        valid->stride_m = 1;
    } else if (ndim > 1 && same_shape(a, 1, rows)) {
        valid->heads = py_heads(ndim, rows);
        valid->stride_b = 1;
    } else if (ndim > 1 && same_shape(a, 2, first_and_last)) {
        valid->heads = py_heads(ndim, rows);
        valid->stride_b = M;
        valid->stride_m = 1;
    } else if (PyArray_NDIM(a) != 0) { /* one length for all leaves both strides 0 */
        lens_shape_error(a, ndim, rows);
        Py_DECREF(a);
        return -1;
    }
    valid->lens = PyArray_DATA(a);
    *lens = a;
    return 0;
}

PyArrayObject *
py_lens_per_entry(PyObject *object, const char *name, npy_intp B, npy_intp N,
                  bool expand)
{
    PyArrayObject *a = copy_lens(object, N, name);
    if (a != NULL && PyArray_NDIM(a) != 0 && py_check_shape(a, name, 1, &B) < 0) {
        Py_CLEAR(a);
    }
    if (a == NULL || PyArray_NDIM(a) != 0 || !expand) {
        return a;
    }
    PyArrayObject *each = (PyArrayObject *)PyArray_SimpleNew(1, &B, NPY_INT64);
    if (each != NULL) {
        int64_t *to = PyArray_DATA(each), length = *(int64_t *)PyArray_DATA(a);
        for (npy_intp i = 0; i < B; i++) {
            to[i] = length;
        }
    }
    Py_DECREF(a);
    return each;
}
