/*
 * py_integers.c -- from Python objects to int64 arrays that are nobody else's: what a
 * length or an offset says decides which memory is read.
 */
#include "py_attnext.h"

#include <string.h>

/* Copies n integers to int64, clipped. from: int64, or uint64 if is_unsigned. Each is
 * read once and judged by its copy, for the original may be changing. */
static void
copy_clipped(int64_t *to, const void *from, bool is_unsigned, npy_intp n, int64_t low,
             int64_t high)
{
    memcpy(to, from, (size_t)n * sizeof *to);
    for (npy_intp i = 0; i < n; i++) {
        if (is_unsigned ? (uint64_t)to[i] > (uint64_t)high : to[i] > high) {
            to[i] = high;
        } else if (to[i] < low) {
            to[i] = low;
        }
    }
}

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

static void
copy_list(int64_t *to, PyObject *list, int64_t low, int64_t high)
{
    for (npy_intp i = 0; i < PyList_GET_SIZE(list); i++) {
        to[i] = py_clip_int(PyList_GET_ITEM(list, i), low, high);
    }
}

bool
py_usual_integers(PyObject *object, npy_intp n, int64_t low, int64_t high, int64_t *to)
{
    if (PyList_CheckExact(object)) {
        if (PyList_GET_SIZE(object) != n) {
            return false;
        }
        copy_list(to, object, low, high);
        return true;
    }
    PyArrayObject *a = (PyArrayObject *)object;
    if (!py_is_plain(object, NPY_INT64) || !py_shape_fits(a, 1, &n) ||
        PyArray_BASE(a) != NULL) {
        return false;
    }
    copy_clipped(to, PyArray_DATA(a), false, n, low, high);
    return true;
}

/* Integers in an array, or a list of them, as they are in an int64 array. */
static PyArrayObject *
copy_of_many(PyObject *many, int64_t low, int64_t high)
{
    PyArrayObject *array = NULL, *copy = NULL;
    npy_intp dims[PY_MAX_AXES];
    int ndim = 1;
    if (PyList_CheckExact(many)) {
        dims[0] = PyList_GET_SIZE(many);
    } else {
        int dtype = PyArray_ISUNSIGNED((PyArrayObject *)many) ? NPY_UINT64 : NPY_INT64;
        array = py_as_dtype((PyArrayObject *)many, dtype);
        if (array == NULL) {
            return NULL;
        }
        ndim = py_note_shape(array, dims);
    }
    copy = (PyArrayObject *)PyArray_SimpleNew(ndim, dims, NPY_INT64);
    if (copy != NULL && array == NULL) {
        copy_list(PyArray_DATA(copy), many, low, high);
    } else if (copy != NULL) {
        copy_clipped(PyArray_DATA(copy), PyArray_DATA(array), PyArray_ISUNSIGNED(array),
                     PyArray_SIZE(array), low, high);
    }
    Py_XDECREF(array);
    return copy;
}

PyArrayObject *
py_int64_copy(PyObject *object, const char *name, int64_t low, int64_t high)
{
    PyObject *given = py_fits(READ_INTEGERS, object)
                          ? Py_NewRef(object)
                          : py_read(READ_INTEGERS, object, name);
    PyArrayObject *copy = NULL;
    if (given != NULL && PyLong_Check(given)) {
        copy = (PyArrayObject *)PyArray_SimpleNew(0, NULL, NPY_INT64);
        if (copy != NULL) {
            *(int64_t *)PyArray_DATA(copy) = py_clip_int(given, low, high);
        }
    } else if (given != NULL && (!PyArray_Check(given) ||
                                 py_check_memory((PyArrayObject *)given, name) == 0)) {
        copy = copy_of_many(given, low, high);
    }
    Py_XDECREF(given);
    return copy;
}
