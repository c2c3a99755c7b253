/*
 * py_arrays.c -- from Python objects to float32 arrays of known shape; and to integers as
 * int64 that are nobody else's, lengths above all: they decide which memory is read, so
 * nobody else may change them during a call.
 *
 * The common case, an exact float32 C-contiguous array, is recognised by looking at its
 * header and used as it is. Other dtypes and layouts are converted here; what is no plain
 * array was made one before (py_read.c).
 */
#include "py_attnext.h"

#include <string.h>

/* ---- shapes --------------------------------------------------------------------- */

bool
py_dims_fit(int own, const npy_intp *came, int ndim, const npy_intp *dims)
{
    bool fits = own == ndim;
    for (int i = 0; fits && i < ndim; i++) {
        fits = dims[i] < 0 || came[i] == dims[i];
    }
    return fits;
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

/* a as a plain array of this dtype: itself or a new one. */
static PyArrayObject *
as_dtype(PyArrayObject *a, int dtype)
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
    PyArrayObject *wide = as_dtype(source, dtype), *result = NULL;
    if (wide == NULL) {
        return NULL;
    }
    result = py_new_float32(PyArray_NDIM(wide), PyArray_DIMS(wide));
    if (result != NULL) {
        const void *from = PyArray_DATA(wide);
        float *to = py_data(result);
        for (npy_intp i = 0, n = PyArray_SIZE(wide); i < n; i++) {
            to[i] = dtype == NPY_DOUBLE ? (float)((const double *)from)[i]
                                        : (float)((const npy_longdouble *)from)[i];
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
    PyArrayObject *source = (PyArrayObject *)py_read_real(object, name);
    PyArrayObject *result = NULL;
    if (source == NULL) {
        return NULL;
    }
    int dtype = PyArray_TYPE(source);
    result = dtype == NPY_DOUBLE || dtype == NPY_LONGDOUBLE
                 ? narrow(source)
                 : as_dtype(source, NPY_FLOAT32);
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

/* ---- integers ----------------------------------------------------------------------- */

static inline int64_t
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

/* The shape that plain integers come in: an array's, a list's or tuple's, or that of an int. */
static int
shape_of(PyObject *object, npy_intp dims[PY_MAX_AXES])
{
    if (PyArray_CheckExact(object)) {
        return py_note_shape((PyArrayObject *)object, dims);
    }
    dims[0] = PyLong_Check(object) ? 1 : PySequence_Fast_GET_SIZE(object);
    return PyLong_Check(object) ? 0 : 1;
}

/* n integers of an array, clipped. Each is read once and judged by its copy, for the
 * original may be changing. */
static int
copy_array(int64_t *to, PyArrayObject *a, npy_intp n, int64_t low, int64_t high)
{
    const bool is_unsigned = PyArray_ISUNSIGNED(a);
    PyArrayObject *wide = as_dtype(a, is_unsigned ? NPY_UINT64 : NPY_INT64);
    if (wide == NULL) {
        return -1;
    }
    memcpy(to, PyArray_DATA(wide), (size_t)n * sizeof *to);
    for (npy_intp i = 0; i < n; i++) {
        to[i] = is_unsigned && to[i] < 0 ? high : clip(to[i], low, high);
    }
    Py_DECREF(wide);
    return 0;
}

/* n plain integers, clipped. */
static int
copy_clipped(int64_t *to, PyObject *object, npy_intp n, int64_t low, int64_t high)
{
    if (PyArray_CheckExact(object)) {
        return copy_array(to, (PyArrayObject *)object, n, low, high);
    }
    PyObject *const *items = PyLong_Check(object) ? &object
                                                  : PySequence_Fast_ITEMS(object);
    for (npy_intp i = 0; i < n; i++) {
        to[i] = py_clip_int(items[i], low, high);
    }
    return 0;
}

/* A query that stands at key i attends to keys i - left to i + right; the three may be any
 * Python ints. The core adds them in int64: what comes out of here is so small that it can.
 * A window with an end further than that has an offset that goes with it (near,
 * attnext/reference/band.py). */
PyArrayObject *
py_offsets(PyObject *object, int ndim, const npy_intp *rows, attn_band *band)
{
    npy_intp dims[PY_MAX_AXES];
    const int own = shape_of(object, dims);
    if (own > 0 && (own > 1 || ndim < 2 || dims[0] != rows[0])) {
        py_wrong("offset", "(sON)", py_argument_rows[ARG_CAUSAL_OFFSET].name, object,
                 py_dims(ndim, rows));
        return NULL;
    }
    PyArrayObject *a = (PyArrayObject *)PyArray_SimpleNew(own, dims, NPY_INT64);
    if (a != NULL && copy_clipped(PyArray_DATA(a), object, PyArray_SIZE(a), -2 * PY_FAR,
                                  2 * PY_FAR) < 0) {
        Py_CLEAR(a);
    }
    if (a != NULL) {
        band->offset = PyArray_DATA(a);
        band->heads = own > 0 ? attn_sharers(ndim, rows) : INT64_MAX; /* one for all */
    }
    return a;
}

/* ---- lengths --------------------------------------------------------------------- */

/* n lengths in 0..N; ValueError if one is negative. */
static int
copy_lens(int64_t *to, PyObject *object, npy_intp n, npy_intp N, const char *name)
{
    if (copy_clipped(to, object, n, INT64_MIN, N) < 0) {
        return -1;
    }
    for (npy_intp i = 0; i < n; i++) {
        if (to[i] < 0) {
            return py_wrong("negative_length", "(sOL)", name, object, (long long)to[i]);
        }
    }
    return 0;
}

int
py_valid_lens(PyObject *object, const char *name, int ndim, const npy_intp *rows,
              npy_intp N, attn_valid_lens *valid, PyArrayObject **lens, int64_t *few)
{
    *valid = (attn_valid_lens){.heads = 1};
    *lens = NULL;
    if (!py_is_given(object)) {
        return 0;
    }
    npy_intp dims[PY_MAX_AXES];
    const int own = shape_of(object, dims);
    if (!attn_share_lens(valid, own, dims, ndim, rows)) {
        return py_wrong("lengths", "(sON)", name, object, py_dims(ndim, rows));
    }
    npy_intp n = own == 1 ? dims[0] : PyArray_MultiplyList(dims, own);
    if (few == NULL || n > PY_FEW_LENS) {
        *lens = (PyArrayObject *)PyArray_SimpleNew(own, dims, NPY_INT64);
        few = *lens == NULL ? NULL : PyArray_DATA(*lens);
    }
    valid->lens = few;
    return few == NULL ? -1 : copy_lens(few, object, n, N, name);
}
