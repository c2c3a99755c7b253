/*
 * py_arrays.c -- from Python objects to float32 and integer arrays of known shape.
 *
 * The common case, an exact float32 C-contiguous array, is recognised by looking at its
 * header and used as it is. Everything else takes the long road: read as an array, with
 * what has no business here refused (py_read.c), convert.
 */
#include "py_attnext.h"

#include <stdio.h>
#include <string.h>

/* ---- shapes in words ------------------------------------------------------------- */

static const char *
dim_letter(npy_intp dim)
{
    static const char *const letters[] = {"",   "M",  "N",  "H",    "D",
                                          "Dq", "Dk", "Dv", "heads"};
    return letters[-dim];
}

const char *
py_shape_text(char text[PY_SHAPE_TEXT], int ndim, const npy_intp *dims)
{
    int used = snprintf(text, PY_SHAPE_TEXT, "(");
    for (int i = 0; i < ndim; i++) {
        const char *comma = i == 0 ? "" : ", ";
        if (dims[i] < 0) {
            used += snprintf(text + used, (size_t)(PY_SHAPE_TEXT - used), "%s%s", comma,
                             dim_letter(dims[i]));
        } else {
            used += snprintf(text + used, (size_t)(PY_SHAPE_TEXT - used), "%s%lld",
                             comma, (long long)dims[i]);
        }
    }
    snprintf(text + used, (size_t)(PY_SHAPE_TEXT - used), ndim == 1 ? ",)" : ")");
    return text;
}

bool
py_shape_fits(PyArrayObject *a, int ndim, const npy_intp *dims)
{
    if (PyArray_NDIM(a) != ndim) {
        return false;
    }
    for (int i = 0; i < ndim; i++) {
        if (dims[i] >= 0 && PyArray_DIM(a, i) != dims[i]) {
            return false;
        }
    }
    return true;
}

int
py_shape_error(PyArrayObject *a, const char *name, const char *expected)
{
    char came[PY_SHAPE_TEXT];
    py_shape_text(came, PyArray_NDIM(a), PyArray_DIMS(a));
    PyErr_Format(PyExc_ValueError, "%s has shape %s, expected %s", name, came,
                 expected);
    return -1;
}

int
py_check_shape(PyArrayObject *a, const char *name, int ndim, const npy_intp *dims)
{
    if (py_shape_fits(a, ndim, dims)) {
        return 0;
    }
    char expected[PY_SHAPE_TEXT];
    return py_shape_error(a, name, py_shape_text(expected, ndim, dims));
}

/* ---- float32 arrays -------------------------------------------------------------- */

PyArrayObject *
py_new_float32(int ndim, const npy_intp *dims)
{
    return (PyArrayObject *)PyArray_SimpleNew(ndim, (npy_intp *)dims, NPY_FLOAT32);
}

/* Is object what the core reads: an array of this dtype, C-contiguous and native? */
static bool
is_plain(PyObject *object, int dtype)
{
    return PyArray_CheckExact(object) &&
           PyArray_TYPE((PyArrayObject *)object) == dtype &&
           PyArray_ISCARRAY_RO((PyArrayObject *)object);
}

/* a as a plain array of this dtype: itself or a new one. */
static PyArrayObject *
as_dtype(PyArrayObject *a, int dtype)
{
    if (is_plain((PyObject *)a, dtype)) {
        return (PyArrayObject *)Py_NewRef(a);
    }
    int flags = NPY_ARRAY_CARRAY_RO | NPY_ARRAY_ENSUREARRAY | NPY_ARRAY_FORCECAST;
    return (PyArrayObject *)PyArray_FromArray(a, PyArray_DescrFromType(dtype), flags);
}

/* float64 or long double to float32. Done here because NumPy's cast warns, or raises if
 * the user's np.errstate says so, where a number overflows to inf. */
static PyArrayObject *
narrow(PyArrayObject *source)
{
    int dtype = PyArray_TYPE(source);
    PyArrayObject *wide = as_dtype(source, dtype), *result = NULL;
    if (wide == NULL) {
        return NULL;
    }
    result = py_new_float32(PyArray_NDIM(wide), PyArray_DIMS(wide));
    if (result != NULL) {
        npy_intp n = PyArray_SIZE(wide);
        float *to = py_data(result);
        if (dtype == NPY_DOUBLE) {
            const double *from = PyArray_DATA(wide);
            for (npy_intp i = 0; i < n; i++) {
                to[i] = (float)from[i];
            }
        } else {
            const npy_longdouble *from = PyArray_DATA(wide);
            for (npy_intp i = 0; i < n; i++) {
                to[i] = (float)from[i];
            }
        }
    }
    Py_DECREF(wide);
    return result;
}

PyArrayObject *
py_float32(PyObject *object, const char *name, PyArrayObject *out)
{
    PyArrayObject *source = NULL, *result = NULL;

    if (out == NULL && is_plain(object, NPY_FLOAT32)) {
        return (PyArrayObject *)Py_NewRef(object);
    }
    source = py_read_array(object, name);
    if (source == NULL) {
        goto done;
    }
    int dtype = PyArray_TYPE(source);
    if (!PyTypeNum_ISINTEGER(dtype) && !PyTypeNum_ISFLOAT(dtype)) {
        py_dtype_error(object, source, name,
                       "real numbers (any float or integer dtype)");
        goto done;
    }
    if (out != NULL && py_refuse_overlap(out, source, name) < 0) {
        goto done;
    }
    if (dtype == NPY_DOUBLE || dtype == NPY_LONGDOUBLE) {
        result = narrow(source);
    } else {
        result = as_dtype(source, NPY_FLOAT32);
    }
done:
    Py_XDECREF(source);
    return result;
}

PyArrayObject *
py_float32_shaped(PyObject *object, const char *name, PyArrayObject *out, int ndim,
                  const npy_intp *dims)
{
    PyArrayObject *a = py_float32(object, name, out);
    if (a != NULL && py_check_shape(a, name, ndim, dims) < 0) {
        Py_CLEAR(a);
    }
    return a;
}

PyArrayObject *
py_float32_w_v(PyObject *object, PyArrayObject *out, npy_intp H)
{
    const npy_intp row[2] = {1, H};
    PyArrayObject *a = py_float32(object, "w_v", out);
    if (a != NULL && !py_shape_fits(a, 1, row + 1) && !py_shape_fits(a, 2, row)) {
        char expected[64];
        snprintf(expected, sizeof expected, "(%lld,) or (1, %lld)", (long long)H,
                 (long long)H);
        py_shape_error(a, "w_v", expected);
        Py_CLEAR(a);
    }
    return a;
}

int
py_out(PyObject *object, PyArrayObject **out)
{
    *out = NULL;
    if (!py_is_given(object)) {
        return 0;
    }
    if (!PyArray_Check(object)) {
        PyErr_Format(PyExc_TypeError, "out must be a numpy.ndarray, got %.200s",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    PyArrayObject *a = (PyArrayObject *)object;
    if (py_refuse_subclass(a, "out") < 0) {
        return -1;
    }
    if (PyArray_TYPE(a) != NPY_FLOAT32 || PyArray_ISBYTESWAPPED(a)) {
        PyErr_Format(PyExc_TypeError, "out has dtype %S, expected float32",
                     PyArray_DESCR(a));
        return -1;
    }
    if (!PyArray_ISCARRAY(a)) {
        PyErr_Format(PyExc_ValueError,
                     "out is %s, expected a writable C-contiguous array",
                     !PyArray_ISWRITEABLE(a) ? "read-only"
                     : !PyArray_ISALIGNED(a) ? "unaligned"
                                             : "not C-contiguous");
        return -1;
    }
    *out = (PyArrayObject *)Py_NewRef(object);
    return 0;
}

/* ---- integers -------------------------------------------------------------------- */

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
        py_dtype_error(object, source, name,
                       "integers: .astype(int), if these are whole numbers");
    } else if (PyTypeNum_ISBOOL(dtype)) {
        py_dtype_error(object, source, name, not_bools);
    } else if (!PyTypeNum_ISINTEGER(dtype) && !empty_list) {
        py_dtype_error(object, source, name, "integers");
    } else if (out == NULL || py_refuse_overlap(out, source, name) == 0) {
        result = as_dtype(source, PyTypeNum_ISUNSIGNED(dtype) ? NPY_UINT64 : NPY_INT64);
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

/* A Python int of any size, clipped. */
static PyArrayObject *
copy_clipped_int(PyObject *object, int64_t low, int64_t high)
{
    int overflow;
    int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
    PyArrayObject *copy = (PyArrayObject *)PyArray_SimpleNew(0, NULL, NPY_INT64);
    if (copy != NULL) {
        value = overflow > 0 || value > high ? high : value;
        *(int64_t *)PyArray_DATA(copy) = overflow < 0 || value < low ? low : value;
    }
    return copy;
}

static int64_t
clip(int64_t value, int64_t low, int64_t high)
{
    return value > high ? high : value < low ? low : value;
}

/* n Python ints; false: not all of them are ints, or fit. */
static bool
copy_ints_of_list(PyObject *list, npy_intp n, int64_t low, int64_t high, int64_t *to)
{
    for (npy_intp i = 0; i < n; i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        int overflow = 1;
        int64_t value = PyLong_CheckExact(item)
                            ? PyLong_AsLongLongAndOverflow(item, &overflow)
                            : 0;
        if (overflow != 0) {
            return false;
        }
        to[i] = clip(value, low, high);
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
    if (!is_plain(object, NPY_INT64) || !py_shape_fits(a, 1, &n)) {
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
        return copy_clipped_int(object, low, high);
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

/* ---- bools and floats ------------------------------------------------------------ */

const char *const py_mask_names[] = {
    [PY_MASK] = "mask",
    [PY_DROPOUT_MASK] = "dropout_mask",
};

/* What a mask must be, for someone who came with numbers. */
static const char *
not_numbers(py_mask_name which, int dtype)
{
    if (which == PY_DROPOUT_MASK) {
        return "bools: True = keep";
    }
    return PyTypeNum_ISINTEGER(dtype)
               ? "bools: True = attend"
               : "bools: floats to be added to the scores are the argument bias";
}

/* a, whose last axis has a stride of its own, as a C-contiguous array. An axis along
 * which it only repeats itself (np.broadcast_to) comes out with size 1. */
static PyArrayObject *
copy_without_repeats(PyArrayObject *a)
{
    npy_intp dims[PY_MAX_AXES];
    int ndim = PyArray_NDIM(a);
    for (int i = 0; i < ndim; i++) {
        bool repeats = PyArray_DIM(a, i) > 1 && PyArray_STRIDE(a, i) == 0;
        dims[i] = repeats ? 1 : PyArray_DIM(a, i);
    }
    PyObject *once = PyArray_New(&PyArray_Type, ndim, dims, PyArray_TYPE(a),
                                 PyArray_STRIDES(a), PyArray_DATA(a), 0, 0, NULL);
    if (once == NULL) {
        return NULL;
    }
    PyObject *copy = PyArray_NewCopy((PyArrayObject *)once, NPY_CORDER);
    Py_DECREF(once);
    return (PyArrayObject *)copy;
}

/* May a, an array of bools, be read where it lies? */
static bool
is_readable(PyArrayObject *a)
{
    int last = PyArray_NDIM(a) - 1;
    return last < 0 || PyArray_DIM(a, last) == 1 || PyArray_STRIDE(a, last) == 0 ||
           PyArray_STRIDE(a, last) == PyArray_ITEMSIZE(a);
}

PyArrayObject *
py_bools(PyObject *object, py_mask_name which, PyArrayObject *out)
{
    const char *name = py_mask_names[which];
    PyArrayObject *source = py_read_array(object, name), *result = NULL;
    if (source == NULL) {
        return NULL;
    }
    int dtype = PyArray_TYPE(source);
    bool numbers = PyTypeNum_ISINTEGER(dtype) || PyTypeNum_ISFLOAT(dtype);
    if (dtype != NPY_BOOL && !py_is_empty_list(object, source)) {
        py_dtype_error(object, source, name,
                       numbers ? not_numbers(which, dtype) : "bools");
    } else if (out != NULL && py_refuse_overlap(out, source, name) < 0) {
        result = NULL;
    } else if (dtype != NPY_BOOL) {
        result = as_dtype(source, NPY_BOOL);
    } else if (is_readable(source)) {
        result = (PyArrayObject *)Py_NewRef(source);
    } else {
        result = copy_without_repeats(source);
    }
    Py_DECREF(source);
    return result;
}

PyArrayObject *
py_floats(PyObject *object, const char *name, PyArrayObject *out)
{
    PyArrayObject *source = py_read_array(object, name), *result = NULL;
    if (source == NULL) {
        return NULL;
    }
    int dtype = PyArray_TYPE(source);
    if (PyTypeNum_ISFLOAT(dtype)) {
        result = py_float32((PyObject *)source, name, out);
    } else {
        py_dtype_error(object, source, name,
                       PyTypeNum_ISBOOL(dtype)
                           ? "floats: a bool mask is the argument mask"
                           : "floats");
    }
    Py_DECREF(source);
    return result;
}
