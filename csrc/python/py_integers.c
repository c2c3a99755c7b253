/*
 * py_integers.c -- integers as int64 that are nobody else's, lengths above all: they decide
 * which memory is read, so nobody else may change them during a call.
 */
#include "py_attnext.h"

#include <string.h>

/* ---- int64 ----------------------------------------------------------------------- */

static int64_t
clip(int64_t value, int64_t low, int64_t high)
{
    return value > high ? high : value < low ? low : value;
}

int64_t
py_clip_int(PyObject *integer, int64_t low, int64_t high)
{
    int overflow;
    int64_t value = PyLong_AsLongLongAndOverflow(integer, &overflow);
    return overflow > 0 ? high : overflow < 0 ? low : clip(value, low, high);
}

/* n integers of an array, int64 or, if so, uint64, clipped. Each is read once and judged by
 * its copy, for the original may be changing. */
static inline void
copy_clipped(int64_t *to, const void *from, bool is_unsigned, npy_intp n, int64_t low,
             int64_t high)
{
    memcpy(to, from, (size_t)n * sizeof *to);
    for (npy_intp i = 0; i < n; i++) {
        if (is_unsigned && to[i] < 0) {
            to[i] = high;
        } else if (to[i] > high) {
            to[i] = high;
        } else if (to[i] < low) {
            to[i] = low;
        }
    }
}

/* Of a list of n ints. */
static inline void
copy_list(int64_t *to, PyObject *list, npy_intp n, int64_t low, int64_t high)
{
    for (npy_intp i = 0; i < n; i++) {
        to[i] = py_clip_int(PyList_GET_ITEM(list, i), low, high);
    }
}

PyArrayObject *
py_int64_copy(PyObject *object, const char *name, int64_t low, int64_t high)
{
    PyObject *from = py_read(READ_INTEGERS, object, name);
    PyArrayObject *copy = NULL;
    npy_intp dims[PY_MAX_AXES];
    int ndim = 0;
    if (from != NULL && PyArray_Check(from)) {
        PyArrayObject *a = (PyArrayObject *)from;
        int dtype = PyArray_ISUNSIGNED(a) ? NPY_UINT64 : NPY_INT64;
        bool there = py_check_memory(a, name) == 0;
        ndim = py_note_shape(a, dims);
        Py_SETREF(from, there ? (PyObject *)py_as_dtype(a, dtype) : NULL);
    } else if (from != NULL && PyList_Check(from)) {
        ndim = 1;
        dims[0] = PyList_GET_SIZE(from);
    }
    if (from != NULL &&
        (copy = (PyArrayObject *)PyArray_SimpleNew(ndim, dims, NPY_INT64)) != NULL) {
        int64_t *to = PyArray_DATA(copy);
        if (PyArray_Check(from)) {
            PyArrayObject *a = (PyArrayObject *)from;
            copy_clipped(to, PyArray_DATA(a), PyArray_ISUNSIGNED(a), PyArray_SIZE(copy),
                         low, high);
        } else if (PyList_Check(from)) {
            copy_list(to, from, *dims, low, high);
        } else {
            *to = py_clip_int(from, low, high);
        }
    }
    Py_XDECREF(from);
    return copy;
}

/* ---- lengths --------------------------------------------------------------------- */

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
        py_wrong("negative_length", "(sOL)", name, object, length);
        Py_DECREF(copy);
        return NULL;
    }
    return copy;
}

npy_intp
py_heads(int ndim, const npy_intp *rows)
{
    npy_intp heads = ndim > 2 ? PyArray_MultiplyList(rows + 1, ndim - 2) : 1;
    return heads > 0 ? heads : 1; /* without entries any number but 0 does */
}

/* One length per entry of the first axis, as they mostly come: a list of as many ints, or a
 * plain int64 array; false: they come in another way, or one is negative. */
static bool
read_few(PyObject *object, int ndim, const npy_intp *rows, npy_intp N,
         attn_valid_lens *valid, int64_t *few)
{
    PyArrayObject *a = (PyArrayObject *)object;
    if (ndim < 2 || rows[0] > PY_FEW_LENS) {
        return false;
    }
    if (PyList_CheckExact(object) && PyList_GET_SIZE(object) == rows[0]) {
        copy_list(few, object, rows[0], -1, N);
    } else if (py_is_plain(object, NPY_INT64) && PyArray_BASE(a) == NULL &&
               py_shape_fits(a, 1, rows)) {
        copy_clipped(few, PyArray_DATA(a), false, rows[0], -1, N);
    } else {
        return false;
    }
    for (npy_intp i = 0; i < rows[0]; i++) {
        if (few[i] < 0) {
            return false;
        }
    }
    *valid = (attn_valid_lens){few, py_heads(ndim, rows), 1, 0};
    return true;
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

    if (py_shape_fits(a, ndim, rows)) {
        valid->stride_b = M;
        valid->stride_m = 1;
    } else if (ndim > 1 && py_shape_fits(a, 1, rows)) {
        valid->heads = py_heads(ndim, rows);
        valid->stride_b = 1;
    } else if (ndim > 1 && py_shape_fits(a, 2, first_and_last)) {
        valid->heads = py_heads(ndim, rows);
        valid->stride_b = M;
        valid->stride_m = 1;
    } else if (PyArray_NDIM(a) != 0) { /* one length for all leaves both strides 0 */
        py_wrong("lengths", "(ON)", a, py_dims(ndim, rows));
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
