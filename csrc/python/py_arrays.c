/*
 * py_arrays.c -- from Python objects to float32 and integer arrays of known shape.
 *
 * The common case, an exact float32 C-contiguous array, is recognised by looking at its
 * header and used as it is. Everything else takes the long road: read as an array,
 * refuse what has no business here by a message that names the argument, convert.
 */
#include "py_attnext.h"

#include <stdio.h>
#include <string.h>

/* ---- shapes in words ------------------------------------------------------------- */

static const char *
dim_letter(npy_intp dim)
{
    static const char *const letters[] = {"", "M", "N", "H", "D", "Dq", "Dk", "Dv"};
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

static bool
shape_fits(PyArrayObject *a, int ndim, const npy_intp *dims)
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
    if (shape_fits(a, ndim, dims)) {
        return 0;
    }
    char expected[PY_SHAPE_TEXT];
    return py_shape_error(a, name, py_shape_text(expected, ndim, dims));
}

/* ---- what is refused ------------------------------------------------------------- */

/* Is object an instance of module.type? A module nobody imported has no instances, so
 * this imports nothing. */
static int
is_instance_of(PyObject *object, const char *module, const char *type)
{
    int result = -1;
    PyObject *name = NULL, *mod = NULL, *cls = NULL;

    name = PyUnicode_FromString(module);
    if (name == NULL) {
        goto done;
    }
    mod = PyImport_GetModule(name);
    if (mod == NULL) {
        result = PyErr_Occurred() ? -1 : 0;
        goto done;
    }
    cls = PyObject_GetAttrString(mod, type);
    if (cls != NULL) {
        result = PyObject_IsInstance(object, cls);
    }
done:
    Py_XDECREF(cls);
    Py_XDECREF(mod);
    Py_XDECREF(name);
    return result;
}

/* Subclasses of ndarray whose meaning would be lost: a masked array's mask, the rules
 * of np.matrix. Others (memmap, a user's own) are read as plain arrays. */
static int
refuse_subclass(PyArrayObject *a, const char *name)
{
    if (PyArray_CheckExact(a)) {
        return 0;
    }
    int masked = is_instance_of((PyObject *)a, "numpy.ma", "MaskedArray");
    int matrix = masked ? 0
                        : is_instance_of((PyObject *)a, "numpy.matrixlib", "matrix");
    if (masked == 1) {
        PyErr_Format(
            PyExc_TypeError,
            "%s is a numpy.ma.MaskedArray, whose mask would be lost; expected a plain "
            "array (for padding, use valid_lens)",
            name);
    } else if (matrix == 1) {
        PyErr_Format(PyExc_TypeError,
                     "%s is a numpy.matrix, expected a plain array "
                     "(numpy.asarray of it)",
                     name);
    }
    return masked == 0 && matrix == 0 ? 0 : -1;
}

/* A torch tensor that wants gradients cannot have them from here. */
static int
refuse_requires_grad(PyObject *object, const char *name)
{
    PyObject *requires_grad = PyObject_GetAttrString(object, "requires_grad");
    if (requires_grad == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    bool refused = requires_grad == Py_True;
    Py_DECREF(requires_grad);
    if (refused) {
        PyErr_Format(
            PyExc_TypeError,
            "%s is a tensor that requires grad, which a NumPy function cannot give it: "
            "use the function of the same name in attnext.torch, or pass %s.detach()",
            name, name);
    }
    return refused ? -1 : 0;
}

/* NumPy could not read the object: say which argument it was. */
static void
name_the_argument(const char *name)
{
    PyObject *kind = PyErr_ExceptionMatches(PyExc_ValueError)     ? PyExc_ValueError
                     : PyErr_ExceptionMatches(PyExc_TypeError)    ? PyExc_TypeError
                     : PyErr_ExceptionMatches(PyExc_RuntimeError) ? PyExc_TypeError
                                                                  : NULL;
    if (kind == NULL) {
        return; /* MemoryError, KeyboardInterrupt, ...: not about the argument */
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_Format(kind, "%s cannot be read as an array: %S", name,
                 value ? value : Py_None);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

/* object as an array of whatever dtype it has. */
static PyArrayObject *
read_array(PyObject *object, const char *name)
{
    PyArrayObject *a;
    if (PyArray_Check(object)) {
        a = (PyArrayObject *)Py_NewRef(object);
    } else {
        if (!PyList_CheckExact(object) && refuse_requires_grad(object, name) < 0) {
            return NULL;
        }
        a = (PyArrayObject *)PyArray_FROM_O(object);
        if (a == NULL) {
            name_the_argument(name);
            return NULL;
        }
    }
    if (refuse_subclass(a, name) < 0) {
        Py_CLEAR(a);
    }
    return a;
}

static int
dtype_error(PyObject *object, PyArrayObject *a, const char *name, const char *expected)
{
    bool no_array_at_all = PyArray_TYPE(a) == NPY_OBJECT && PyArray_NDIM(a) == 0;
    if (object == Py_None) {
        PyErr_Format(PyExc_TypeError, "%s is None, expected %s", name, expected);
    } else if (no_array_at_all) {
        PyErr_Format(PyExc_TypeError, "%s is of type %.200s, expected %s", name,
                     Py_TYPE(object)->tp_name, expected);
    } else {
        PyErr_Format(PyExc_TypeError, "%s has dtype %S, expected %s", name,
                     PyArray_DESCR(a), expected);
    }
    return -1;
}

/* ---- memory in common ------------------------------------------------------------ */

/* The bytes between *low and *high hold every element of a (none if a is empty). */
static void
extent(PyArrayObject *a, const char **low, const char **high)
{
    *low = *high = PyArray_BYTES(a);
    if (PyArray_SIZE(a) == 0) {
        return;
    }
    for (int i = 0; i < PyArray_NDIM(a); i++) {
        npy_intp reach = (PyArray_DIM(a, i) - 1) * PyArray_STRIDE(a, i);
        *(reach < 0 ? low : high) += reach;
    }
    *high += PyArray_ITEMSIZE(a);
}

/* ValueError if any element of `input` lies in out. Extents that cross need not share
 * an element (the even rows of an array and its third row): those NumPy decides. */
static int
refuse_overlap(PyArrayObject *out, PyArrayObject *input, const char *name)
{
    const char *low, *high, *out_low, *out_high;
    extent(input, &low, &high);
    extent(out, &out_low, &out_high);
    if (low >= out_high || out_low >= high || low == high || out_low == out_high) {
        return 0;
    }
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (numpy == NULL) {
        return -1;
    }
    PyObject *answer = PyObject_CallMethod(numpy, "shares_memory", "OOi",
                                           (PyObject *)out, (PyObject *)input, 100000);
    Py_DECREF(numpy);
    bool shared = answer == Py_True;
    if (answer == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) {
            return -1;
        }
        PyErr_Clear(); /* TooHardError: undecided counts as shared */
        shared = true;
    }
    Py_XDECREF(answer);
    if (shared) {
        PyErr_Format(PyExc_ValueError,
                     "out shares memory with %s, expected memory of its own", name);
    }
    return shared ? -1 : 0;
}

/* ---- float32 arrays -------------------------------------------------------------- */

PyArrayObject *
py_new_float32(int ndim, const npy_intp *dims)
{
    return (PyArrayObject *)PyArray_SimpleNew(ndim, (npy_intp *)dims, NPY_FLOAT32);
}

/* Is object what the core reads: an array of this dtype, contiguous, aligned, native? */
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
    source = read_array(object, name);
    if (source == NULL) {
        goto done;
    }
    int dtype = PyArray_TYPE(source);
    if (!PyTypeNum_ISINTEGER(dtype) && !PyTypeNum_ISFLOAT(dtype)) {
        dtype_error(object, source, name, "real numbers (any float or integer dtype)");
        goto done;
    }
    if (out != NULL && refuse_overlap(out, source, name) < 0) {
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
    if (a != NULL && !shape_fits(a, 1, row + 1) && !shape_fits(a, 2, row)) {
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
    if (refuse_subclass(a, "out") < 0) {
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

PyArrayObject *
py_integers(PyObject *object, const char *name, PyArrayObject *out)
{
    PyArrayObject *source = read_array(object, name), *result = NULL;
    if (source == NULL) {
        return NULL;
    }
    int dtype = PyArray_TYPE(source);
    bool empty_list = PyArray_SIZE(source) == 0 &&
                      (PyList_Check(object) || PyTuple_Check(object));
    if (PyTypeNum_ISFLOAT(dtype) && !empty_list) {
        dtype_error(object, source, name,
                    "integers: .astype(int), if these are whole numbers");
    } else if (PyTypeNum_ISBOOL(dtype)) {
        dtype_error(object, source, name,
                    "integers: how many keys take part, not which");
    } else if (!PyTypeNum_ISINTEGER(dtype) && !empty_list) {
        dtype_error(object, source, name, "integers");
    } else if (out == NULL || refuse_overlap(out, source, name) == 0) {
        result = as_dtype(source, PyTypeNum_ISUNSIGNED(dtype) ? NPY_UINT64 : NPY_INT64);
    }
    Py_DECREF(source);
    return result;
}
