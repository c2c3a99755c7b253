/*
 * py_integers.c -- from Python objects to int64 arrays that are nobody else's: what a
 * length or an offset says decides which memory is read.
 */
#include "py_attnext.h"

#include <string.h>

/* What floats that should be integers are told: how they become some. */
static const char *
not_floats(PyObject *object)
{
    return PyObject_HasAttrString(object, "long")
               ? "integers: .long(), if these are whole numbers" /* a tensor of torch */
           : PyArray_Check(object)
               ? "integers: .astype(int), if these are whole numbers"
               : "integers";
}

/* object as int64, or as uint64 if its dtype is unsigned; C-contiguous. */
static PyArrayObject *
read_integers(PyObject *object, const char *name, const char *not_bools,
              PyArrayObject *out)
{
    PyArrayObject *source = py_read_array(object, name), *result = NULL;
    if (source == NULL) {
        return NULL;
    }
    int dtype = PyArray_TYPE(source);
    bool empty_list = py_is_empty_list(object, source);
    if (PyTypeNum_ISFLOAT(dtype) && !empty_list) {
        py_dtype_error(object, source, name, not_floats(object));
    } else if (PyTypeNum_ISBOOL(dtype)) {
        py_dtype_error(object, source, name, not_bools);
    } else if (!PyTypeNum_ISINTEGER(dtype) && !empty_list) {
        py_dtype_error(object, source, name, "integers");
    } else if (out == NULL || py_refuse_overlap(out, source, name) == 0) {
        result = py_as_dtype(source,
                             PyTypeNum_ISUNSIGNED(dtype) ? NPY_UINT64 : NPY_INT64);
    }
    Py_DECREF(source);
    return result;
}

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

/* A Python int of any size, clipped. */
static int64_t
clip_int(PyObject *integer, int64_t low, int64_t high)
{
    int overflow;
    int64_t value = PyLong_AsLongLongAndOverflow(integer, &overflow);
    return overflow > 0 ? high : overflow < 0 ? low : clip(value, low, high);
}

/* n Python ints; false: not all of them are ints. */
static bool
copy_ints_of_list(PyObject *list, npy_intp n, int64_t low, int64_t high, int64_t *to)
{
    for (npy_intp i = 0; i < n; i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        if (!PyLong_CheckExact(item)) {
            return false;
        }
        to[i] = clip_int(item, low, high);
    }
    return true;
}

bool
py_usual_integers(PyObject *object, npy_intp n, int64_t low, int64_t high, int64_t *to)
{
    if (PyList_CheckExact(object) && PyList_GET_SIZE(object) == n) {
        return copy_ints_of_list(object, n, low, high, to);
    }
    PyArrayObject *a = (PyArrayObject *)object;
    if (!py_is_plain(object, NPY_INT64) || !py_shape_fits(a, 1, &n)) {
        return false;
    }
    for (npy_intp i = 0; i < n; i++) {
        to[i] = clip(((const int64_t *)PyArray_DATA(a))[i], low, high);
    }
    return true;
}

/* A list, if it is one of ints. NumPy, for which it could hold anything, takes twice as
 * long. NULL, maybe without an exception: that is not what it is. */
static PyArrayObject *
copy_clipped_list(PyObject *list, int64_t low, int64_t high)
{
    npy_intp n = PyList_GET_SIZE(list);
    PyArrayObject *copy = NULL;
    if (n > 0 && PyLong_CheckExact(PyList_GET_ITEM(list, 0))) {
        copy = (PyArrayObject *)PyArray_SimpleNew(1, &n, NPY_INT64);
    }
    if (copy != NULL && !py_usual_integers(list, n, low, high, PyArray_DATA(copy))) {
        Py_CLEAR(copy);
    }
    return copy;
}

PyArrayObject *
py_int64_copy(PyObject *object, const char *name, const char *not_bools, int64_t low,
              int64_t high, PyArrayObject *out)
{
    if (PyLong_Check(object) && !PyBool_Check(object)) {
        PyArrayObject *copy = (PyArrayObject *)PyArray_SimpleNew(0, NULL, NPY_INT64);
        if (copy != NULL) {
            *(int64_t *)PyArray_DATA(copy) = clip_int(object, low, high);
        }
        return copy;
    }
    if (PyList_CheckExact(object)) {
        PyArrayObject *copy = copy_clipped_list(object, low, high);
        if (copy != NULL || PyErr_Occurred()) {
            return copy;
        }
    }
    PyArrayObject *given = read_integers(object, name, not_bools, out);
    if (given == NULL) {
        return NULL;
    }
    PyArrayObject *copy = (PyArrayObject *)PyArray_SimpleNew(
        PyArray_NDIM(given), PyArray_DIMS(given), NPY_INT64);
    if (copy != NULL) {
        copy_clipped(PyArray_DATA(copy), PyArray_DATA(given), PyArray_ISUNSIGNED(given),
                     PyArray_SIZE(given), low, high);
    }
    Py_DECREF(given);
    return copy;
}

/* Is object a Python int, or a list of Python ints? */
static bool
holds_python_ints(PyObject *object)
{
    if (!PyList_CheckExact(object)) {
        return PyLong_Check(object) && !PyBool_Check(object);
    }
    bool all = true;
    for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(object); i++) {
        all = PyLong_CheckExact(PyList_GET_ITEM(object, i));
    }
    return all;
}

PyArrayObject *
py_exact_integers(PyObject *object, const char *name, const char *not_bools,
                  PyArrayObject *out)
{
    if (holds_python_ints(object)) { /* of any size: NumPy has no dtype for them */
        return (PyArrayObject *)PyArray_FROM_OT(object, NPY_OBJECT);
    }
    PyArrayObject *given = read_integers(object, name, not_bools, out);
    PyArrayObject *exact = given == NULL
                               ? NULL
                               : (PyArrayObject *)PyArray_Cast(given, NPY_OBJECT);
    Py_XDECREF(given);
    return exact;
}
