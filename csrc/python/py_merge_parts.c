/*
 * py_merge_parts.c -- see py_merge.h.
 */
#include "py_merge.h"

#include <string.h>

/* ---- the parts ------------------------------------------------------------------- */

static Py_ssize_t
arrays_of(const merge_parts *parts)
{
    return parts->read == NULL ? 0 : parts->stacked ? 1 : parts->count;
}

static void
merge_parts_clear(merge_parts *parts)
{
    for (Py_ssize_t i = 0; i < arrays_of(parts); i++) {
        Py_XDECREF(parts->read[i]);
    }
    PyMem_Free(parts->read);
    parts->read = NULL;
}

/* Part i as float32 of the shape of the parts, or of any shape if `expected` is false,
 * which then becomes the shape of the parts. */
static PyArrayObject *
read_part(merge_parts *parts, PyObject *object, const char *name, Py_ssize_t i,
          bool expected)
{
    char part_name[40];
    PyOS_snprintf(part_name, sizeof part_name, "%s[%zd]", name, i);
    if (expected) {
        return py_float32_shaped(object, part_name, parts->ndim, parts->dims);
    }
    PyArrayObject *a = py_float32(object, part_name);
    if (a != NULL) {
        parts->ndim = py_note_shape(a, parts->dims);
    }
    if (a != NULL && parts->ndim < 2) {
        py_shape_error(a, part_name, "two axes or more: (..., M, Dv)");
        Py_CLEAR(a);
    }
    return a;
}

/* A list or tuple of parts. */
static int
read_sequence(merge_parts *parts, PyObject *object, const char *name, bool expected)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(object);
    if (expected && count != parts->count) {
        PyErr_Format(PyExc_ValueError, "%s has %zd parts, expected %zd, as outputs",
                     name, count, parts->count);
        return -1;
    }
    parts->read = PyMem_Calloc((size_t)count, sizeof(PyArrayObject *));
    if (parts->read == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    parts->count = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        parts->read[i] = read_part(parts, PySequence_Fast_GET_ITEM(object, i), name, i,
                                   expected || i > 0);
        if (parts->read[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

/* One array of shape (parts, ...). */
static int
read_stacked(merge_parts *parts, PyObject *object, const char *name, bool expected)
{
    npy_intp dims[PY_MAX_AXES + 1];
    parts->stacked = true;
    parts->read = PyMem_Calloc(1, sizeof(PyArrayObject *));
    if (parts->read == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (expected) {
        dims[0] = parts->count;
        memcpy(dims + 1, parts->dims, (size_t)parts->ndim * sizeof *dims);
        *parts->read = py_float32_shaped(object, name, parts->ndim + 1, dims);
        return *parts->read == NULL ? -1 : 0;
    }
    PyArrayObject *a = *parts->read = py_float32(object, name);
    if (a == NULL) {
        return -1;
    }
    parts->ndim = PyArray_NDIM(a) - 1;
    if (parts->ndim < 2) {
        return py_shape_error(a, name, "three axes or more: (parts, ..., M, Dv)");
    }
    parts->count = PyArray_DIM(a, 0);
    memcpy(parts->dims, PyArray_DIMS(a) + 1, (size_t)parts->ndim * sizeof *parts->dims);
    return 0;
}

static int
read_parts(merge_parts *parts, PyObject *object, const char *name, bool expected)
{
    parts->name = name;
    return PyList_Check(object) || PyTuple_Check(object)
               ? read_sequence(parts, object, name, expected)
               : read_stacked(parts, object, name, expected);
}

void
merge_point_into(float **pointers, PyArrayObject *stacked, Py_ssize_t count,
                 npy_intp size)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        pointers[i] = py_data(stacked) + i * size;
    }
}

void
merge_point_to_parts(float **pointers, const merge_parts *parts, npy_intp size)
{
    if (parts->stacked) {
        merge_point_into(pointers, *parts->read, parts->count, size);
        return;
    }
    for (Py_ssize_t i = 0; i < parts->count; i++) {
        pointers[i] = py_data(parts->read[i]);
    }
}

/* ---- the inputs of both functions ------------------------------------------------ */

void
merge_inputs_init(merge_inputs *in)
{
    in->outputs.read = in->lses.read = NULL;
    in->outputs.stacked = in->lses.stacked = false;
}

int
merge_inputs_read(merge_inputs *in, PyObject *outputs, PyObject *lses)
{
    merge_parts *o = &in->outputs, *l = &in->lses;
    if (read_parts(o, outputs, "outputs", false) < 0) {
        return -1;
    }
    if (o->count == 0) {
        PyErr_SetString(PyExc_ValueError, "outputs has no parts, expected one or more");
        return -1;
    }
    in->rows = PyArray_MultiplyList(o->dims, o->ndim - 1);
    in->Dv = o->dims[o->ndim - 1];
    l->count = o->count;
    l->ndim = o->ndim - 1;
    memcpy(l->dims, o->dims, (size_t)l->ndim * sizeof *l->dims);
    return read_parts(l, lses, "lses", true);
}

void
merge_inputs_clear(merge_inputs *in)
{
    merge_parts_clear(&in->outputs);
    merge_parts_clear(&in->lses);
}
