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
        Py_XDECREF(parts->read[i].array);
    }
    PyMem_Free(parts->read);
    parts->read = NULL;
}

/* Array i is a, owned; -1 if that is NULL. */
static int
keep_part(merge_parts *parts, Py_ssize_t i, PyArrayObject *a)
{
    parts->read[i].array = a;
    if (a == NULL) {
        return -1;
    }
    parts->read[i].place = py_place_of(a);
    return 0;
}

static int
merge_parts_check(const merge_parts *parts)
{
    for (Py_ssize_t i = 0; i < arrays_of(parts); i++) {
        const merge_part *part = &parts->read[i];
        if (py_check_place(part->array, &part->place, parts->name) < 0) {
            return -1;
        }
    }
    return 0;
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
        return py_float32_shaped(object, part_name, NULL, parts->ndim, parts->dims);
    }
    PyArrayObject *a = py_float32(object, part_name, NULL);
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
    int result = -1;
    PyObject *items = PySequence_Tuple(object); /* a list may change while it is read */
    if (items == NULL) {
        py_note_argument(name);
        return -1;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(items);
    if (expected && count != parts->count) {
        PyErr_Format(PyExc_ValueError, "%s has %zd parts, expected %zd, as outputs",
                     name, count, parts->count);
        goto done;
    }
    parts->read = PyMem_Calloc((size_t)count, sizeof *parts->read);
    if (parts->read == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    parts->count = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        if (keep_part(parts, i, read_part(parts, item, name, i, expected || i > 0)) <
            0) {
            goto done;
        }
    }
    result = 0;
done:
    Py_DECREF(items);
    return result;
}

/* One array of shape (parts, ...). */
static int
read_stacked(merge_parts *parts, PyObject *object, const char *name, bool expected)
{
    npy_intp dims[PY_MAX_AXES + 1];
    parts->stacked = true;
    parts->read = PyMem_Calloc(1, sizeof *parts->read);
    if (parts->read == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (expected) {
        dims[0] = parts->count;
        memcpy(dims + 1, parts->dims, (size_t)parts->ndim * sizeof *dims);
        return keep_part(parts, 0,
                         py_float32_shaped(object, name, NULL, parts->ndim + 1, dims));
    }
    PyArrayObject *a = py_float32(object, name, NULL);
    if (keep_part(parts, 0, a) < 0) {
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
        merge_point_into(pointers, parts->read->array, parts->count, size);
        return;
    }
    for (Py_ssize_t i = 0; i < parts->count; i++) {
        pointers[i] = py_data(parts->read[i].array);
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

int
merge_inputs_check(const merge_inputs *in)
{
    return merge_parts_check(&in->outputs) < 0 ? -1 : merge_parts_check(&in->lses);
}

void
merge_inputs_clear(merge_inputs *in)
{
    merge_parts_clear(&in->outputs);
    merge_parts_clear(&in->lses);
}
