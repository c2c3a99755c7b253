/*
 * py_rows.c -- queries, keys and values as the core reads them: rows of contiguous floats at any
 * distance. What np.broadcast_to repeats is neither copied out nor prepared more than once: the
 * distinct data alone is converted, and the core is told which batch elements share it.
 */
#include "py_call.h" /* Python.h is the first header of all */
#include "py_run.h"

/* ---- arrays ---------------------------------------------------------------------- */

static inline bool
is_repeated(PyArrayObject *a, int axis)
{
    return PyArray_DIM(a, axis) > 1 && PyArray_STRIDE(a, axis) == 0;
}

/* Return a view of `a` in which the first `axes` axes, where they only repeat, have size 1. */
static PyArrayObject *
without_repeats(PyArrayObject *a, int axes)
{
    npy_intp dims[PY_MAX_AXES];
    const int ndim = py_note_shape(a, dims);
    for (int i = 0; i < axes; i++) {
        dims[i] = is_repeated(a, i) ? 1 : dims[i];
    }
    PyArray_Descr *dtype = (PyArray_Descr *)Py_NewRef(PyArray_DESCR(a));
    PyObject *view = PyArray_NewFromDescr(&PyArray_Type, dtype, ndim, dims,
                                          PyArray_STRIDES(a), PyArray_DATA(a), 0, NULL);
    if (view != NULL &&
        PyArray_SetBaseObject((PyArrayObject *)view, Py_NewRef(a)) < 0) {
        Py_CLEAR(view);
    }
    return (PyArrayObject *)view;
}

/* Return a view of `distinct` in the shape of `a`, whose repeats it has not. */
static PyArrayObject *
with_repeats(PyArrayObject *distinct, PyArrayObject *a)
{
    npy_intp dims[PY_MAX_AXES], strides[PY_MAX_AXES];
    const int ndim = py_note_shape(a, dims);
    for (int i = 0; i < ndim; i++) {
        const bool repeats = PyArray_DIM(distinct, i) != dims[i];
        strides[i] = repeats ? 0 : PyArray_STRIDE(distinct, i);
    }
    PyObject *view = PyArray_New(&PyArray_Type, ndim, dims, NPY_FLOAT32, strides,
                                 PyArray_DATA(distinct), 0, 0, NULL);
    if (view != NULL &&
        PyArray_SetBaseObject((PyArrayObject *)view, Py_NewRef(distinct)) < 0) {
        Py_CLEAR(view);
    }
    return (PyArrayObject *)view;
}

/* Return `a` as float32 in its own shape, of which the first `axes` axes still repeat what they
 * repeat: the copy is no larger than the distinct data. */
static PyArrayObject *
convert(PyArrayObject *a, const char *name, int axes)
{
    bool repeats = false;
    for (int i = 0; i < axes; i++) {
        repeats = repeats || is_repeated(a, i);
    }
    if (!repeats || PyArray_SIZE(a) == 0) {
        return py_float32((PyObject *)a, name);
    }
    PyArrayObject *once = without_repeats(a, axes), *result = NULL;
    PyArrayObject *distinct = once == NULL ? NULL : py_float32((PyObject *)once, name);
    if (distinct != NULL) {
        result = with_repeats(distinct, a);
    }
    Py_XDECREF(distinct);
    Py_XDECREF(once);
    return result;
}

/* True if the array is of floats the core can read, at distances it can count. */
static bool
has_floats(PyArrayObject *a)
{
    bool whole = PyArray_TYPE(a) == NPY_FLOAT32 && PyArray_ISBEHAVED_RO(a);
    for (int i = 0; whole && i < PyArray_NDIM(a); i++) {
        whole = PyArray_STRIDE(a, i) % (npy_intp)sizeof(float) == 0;
    }
    return whole;
}

PyArrayObject *
py_floats_for_pairs(PyObject *object, const char *name)
{
    PyArrayObject *a = (PyArrayObject *)py_read_real(object, name), *result = NULL;
    if (a == NULL) {
        return NULL;
    }
    const int last = PyArray_NDIM(a) - 1;
    const bool whole = last < 0 || PyArray_DIM(a, last) <= 1 ||
                       PyArray_STRIDE(a, last) == 0 ||
                       PyArray_STRIDE(a, last) == sizeof(float);
    result = whole && has_floats(a) ? (PyArrayObject *)Py_NewRef(a)
                                    : convert(a, name, last + 1);
    Py_DECREF(a);
    return result;
}

/* ---- batch elements -------------------------------------------------------------- */

/* The leading axes of an array, but for those of size 1: those that repeat, and the others as at
 * most two, of sizes `size` and at distances `stride` in floats. */
typedef struct {
    bool repeats;
    int count; /* 3: more than two */
    npy_intp size[2], stride[2];
} batch_axes;

static batch_axes
axes_of(PyArrayObject *a)
{
    batch_axes found = {0};
    for (int i = 0; i < PyArray_NDIM(a) - 2; i++) {
        const npy_intp size = PyArray_DIM(a, i);
        const npy_intp stride = PyArray_STRIDE(a, i) / (npy_intp)sizeof(float);
        const int last = found.count - 1;
        if (size == 1 || stride == 0) {
            found.repeats = found.repeats || size != 1;
        } else if (last >= 0 && last < 2 && found.stride[last] == size * stride) {
            found.size[last] *= size;
            found.stride[last] = stride;
        } else if (last < 1) {
            found.size[last + 1] = size;
            found.stride[last + 1] = stride;
            found.count++;
        } else {
            found.count = 3;
        }
    }
    return found;
}

/* True if the core reads the array where it is stored. */
static bool
is_readable(PyArrayObject *a)
{
    const int ndim = PyArray_NDIM(a);
    if (ndim < 2 || !has_floats(a) ||
        (PyArray_DIM(a, ndim - 1) > 1 &&
         PyArray_STRIDE(a, ndim - 1) != sizeof(float))) {
        return false;
    }
    for (int i = 0; i < ndim - 1; i++) {
        if (PyArray_STRIDE(a, i) < 0) {
            return false;
        }
    }
    const batch_axes axes = axes_of(a);
    return axes.count <= (axes.repeats ? 1 : 2);
}

PyArrayObject *
py_read_rows(PyObject *object, const char *name)
{
    if (py_is_plain(object, NPY_FLOAT32) &&
        PyArray_BASE((PyArrayObject *)object) == NULL) {
        return (PyArrayObject *)Py_NewRef(object);
    }
    PyArrayObject *a = (PyArrayObject *)py_read_real(object, name), *result = NULL;
    if (a != NULL) {
        result = is_readable(a) ? (PyArrayObject *)Py_NewRef(a)
                                : convert(a, name, PyArray_NDIM(a) - 1);
        Py_DECREF(a);
    }
    return result;
}

/* ---- as the core has them -------------------------------------------------------- */

/* of[] = for each batch element of `a`, from axis on, the distinct one whose rows it has, which
 * is `base` where the axes before have led to. Returns where the next element goes. */
static int64_t *
fill_of(PyArrayObject *a, int axis, int64_t base, int64_t *of)
{
    if (axis == PyArray_NDIM(a) - 2) {
        *of = base;
        return of + 1;
    }
    const npy_intp size = PyArray_DIM(a, axis);
    const bool repeats = is_repeated(a, axis);
    for (npy_intp i = 0; i < size; i++) {
        of = fill_of(a, axis + 1, repeats ? base : base * size + i, of);
    }
    return of;
}

/* Fills to->sharing of an array that has `entries` batch elements, `distinct` of them distinct. */
static int
share(py_operand *to, PyArrayObject *a, int64_t entries, int64_t distinct)
{
    to->tables = PyMem_New(int64_t, entries * 2);
    if (to->tables == NULL) {
        return py_refuse(0, "the tables of rows");
    }
    int64_t *of = to->tables, *users = of + entries;
    const int64_t each = entries / distinct;
    fill_of(a, 0, 0, of);
    /* The place behind the users of k that are known is counted in the last of them. */
    for (int64_t k = 0; k < distinct; k++) {
        users[k * each + each - 1] = 0;
    }
    for (int64_t e = 0; e < entries; e++) {
        int64_t *of_k = users + of[e] * each;
        const int64_t known = of_k[each - 1];
        of_k[each - 1] = known + 1;
        of_k[known] = e;
    }
    to->sharing = (attn_sharing){distinct, each, of, users};
    to->operand.shared = &to->sharing;
    return 0;
}

bool
py_repeat_alike(PyArrayObject *a, PyArrayObject *b)
{
    bool any = false, alike = true;
    for (int i = 0; i < PyArray_NDIM(a) - 2; i++) {
        any = any || is_repeated(a, i);
        alike = alike && is_repeated(a, i) == is_repeated(b, i);
    }
    return any && alike;
}

int
py_place_rows(py_operand *to, PyArrayObject *a, bool is_read, const py_operand *alike)
{
    const int ndim = PyArray_NDIM(a);
    const npy_intp *dims = PyArray_DIMS(a);
    if (PyArray_IS_C_CONTIGUOUS(a)) {
        to->operand = attn_dense(py_data(a), dims[ndim - 2], dims[ndim - 1]);
        return 0;
    }
    const batch_axes axes = axes_of(a);
    const bool two = axes.count == 2;
    to->operand = (attn_operand){
        .data = py_data(a),
        .heads = two       ? axes.size[1]
                 : is_read ? 1
                           : INT64_MAX,
        .head = two ? axes.stride[1] : 0,
        .entry = axes.stride[0],
        .row = PyArray_STRIDE(a, ndim - 2) / (npy_intp)sizeof(float),
    };
    if (!axes.repeats || !is_read) { /* all elements are then the first */
        return 0;
    }
    if (alike != NULL) {
        to->operand.shared = alike->operand.shared;
        return 0;
    }
    return share(to, a, PyArray_MultiplyList(dims, ndim - 2),
                 axes.count == 0 ? 1 : axes.size[0]);
}
