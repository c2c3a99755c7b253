/*
 * py_arrays.c -- from Python objects to float32 arrays and bools of known shape.
 *
 * The common case, an exact float32 C-contiguous array, is recognised by looking at its
 * header and used as it is. Other dtypes and layouts are converted here; what is no plain
 * array was made one before (py_read.c).
 */
#include "py_attnext.h"

#include <string.h>

/* ---- shapes --------------------------------------------------------------------- */

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
py_check_shape(PyArrayObject *a, const char *name, int ndim, const npy_intp *dims)
{
    if (py_shape_fits(a, ndim, dims)) {
        return 0;
    }
    return py_wrong("shape", "(sON)", name, a, py_dims(ndim, dims));
}

/* ---- float32 arrays -------------------------------------------------------------- */

bool
py_is_plain(PyObject *object, int dtype)
{
    return PyArray_CheckExact(object) &&
           PyArray_TYPE((PyArrayObject *)object) == dtype &&
           PyArray_ISCARRAY_RO((PyArrayObject *)object);
}

PyArrayObject *
py_as_dtype(PyArrayObject *a, int dtype)
{
    if (py_is_plain((PyObject *)a, dtype)) {
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
    PyArrayObject *wide = py_as_dtype(source, dtype), *result = NULL;
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
py_float32(PyObject *object, const char *name)
{
    if (py_is_plain(object, NPY_FLOAT32) &&
        PyArray_BASE((PyArrayObject *)object) == NULL) {
        return (PyArrayObject *)Py_NewRef(object);
    }
    PyArrayObject *source = (PyArrayObject *)py_read(READ_real, object, name);
    PyArrayObject *result = NULL;
    if (source == NULL) {
        return NULL;
    }
    int dtype = PyArray_TYPE(source);
    result = dtype == NPY_DOUBLE || dtype == NPY_LONGDOUBLE
                 ? narrow(source)
                 : py_as_dtype(source, NPY_FLOAT32);
    Py_DECREF(source);
    return result;
}

PyArrayObject *
py_float32_shaped(PyObject *object, const char *name, int ndim, const npy_intp *dims)
{
    PyArrayObject *a = py_float32(object, name);
    if (a != NULL && py_check_shape(a, name, ndim, dims) < 0) {
        Py_CLEAR(a);
    }
    return a;
}

int
py_letter_shape(const char *letters, const npy_intp sizes[PY_LETTERS],
                npy_intp dims[PY_PARAMETER_AXES])
{
    int ndim = (int)strlen(letters);
    for (int i = 0; i < ndim; i++) {
        dims[i] = letters[i] == '1' ? 1 : sizes[letters[i] - 'A'];
    }
    return ndim;
}

PyArrayObject *
py_parameter(PyObject *object, const char *name, const char *letters,
             npy_intp sizes[PY_LETTERS])
{
    PyArrayObject *a = py_float32(object, name);
    if (a == NULL) {
        return NULL;
    }
    npy_intp dims[PY_PARAMETER_AXES];
    const int ndim = py_letter_shape(letters, sizes, dims);
    const int skip = letters[0] == '1' && PyArray_NDIM(a) == ndim - 1;
    if (!py_shape_fits(a, ndim - skip, dims + skip)) {
        py_wrong("parameter", "(sON)", name, a, py_dims(ndim, dims));
        Py_DECREF(a);
        return NULL;
    }
    for (int i = 0; i < PyArray_NDIM(a); i++) {
        if (letters[skip + i] != '1') {
            sizes[letters[skip + i] - 'A'] = PyArray_DIM(a, i);
        }
    }
    return a;
}

PyArrayObject *
py_out(PyObject *out, int ndim, const npy_intp *dims)
{
    PyArrayObject *a = (PyArrayObject *)out;
    return py_check_shape(a, "out", ndim, dims) < 0 ? NULL
                                                    : (PyArrayObject *)Py_NewRef(a);
}

/* ---- bools ----------------------------------------------------------------------- */

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
py_bools(PyArrayObject *a)
{
    return is_readable(a) ? (PyArrayObject *)Py_NewRef(a) : copy_without_repeats(a);
}
