/*
 * py_numbers.c -- numbers, flags and words among the arguments of a call.
 */
#include "py_attnext.h"

#include <math.h>

/* ---- numbers --------------------------------------------------------------------- */

/* A number that is neither a Python float nor a Python int: let NumPy read it. */
static int
number_from_array(PyObject *object, const char *name, bool one_element, double *number)
{
    PyArrayObject *a = py_float32(object, name, NULL);
    if (a == NULL) {
        return -1;
    }
    int result = -1;
    if (PyArray_NDIM(a) == 0 || (one_element && PyArray_SIZE(a) == 1)) {
        *number = *py_data(a);
        result = 0;
    } else {
        py_shape_error(
            a, name, one_element ? "a number or an array of one element" : "a number");
    }
    Py_DECREF(a);
    return result;
}

int
py_number(PyObject *object, const char *name, bool one_element, double *number)
{
    if (PyFloat_Check(object)) {
        *number = PyFloat_AS_DOUBLE(object);
        return 0;
    }
    if (!PyLong_Check(object) || PyBool_Check(object)) {
        return number_from_array(object, name, one_element, number);
    }
    *number = PyLong_AsDouble(object);
    if (*number == -1.0 && PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "%s is an int too large for a float", name);
        return -1;
    }
    return 0;
}

int
py_finite(PyObject *object, const char *name, bool one_element, float *number)
{
    double value;
    if (py_number(object, name, one_element, &value) < 0) {
        return -1;
    }
    *number = (float)value;
    if (!isfinite(*number)) {
        PyErr_Format(PyExc_ValueError, "%s is %R, expected a finite float32 number",
                     name, object);
        return -1;
    }
    return 0;
}

PyObject *
py_index(PyObject *object, const char *name)
{
    if (!PyBool_Check(object) && PyIndex_Check(object)) {
        return PyNumber_Index(object);
    }
    PyErr_Format(PyExc_TypeError, "%s must be an int, got %.200s", name,
                 Py_TYPE(object)->tp_name);
    return NULL;
}

int
py_size(PyObject *object, const char *name, Py_ssize_t *size)
{
    PyObject *index = py_index(object, name);
    if (index == NULL) {
        return -1;
    }
    *size = PyNumber_AsSsize_t(index, NULL); /* NULL: clipped if too large */
    Py_DECREF(index);
    return 0;
}

/* ---- options --------------------------------------------------------------------- */

int
py_read_flag(PyObject *object, const char *Py_UNUSED(name), bool *flag)
{
    int truth = PyObject_IsTrue(object);
    *flag = truth == 1;
    return truth < 0 ? -1 : 0;
}

int
py_read_probability(PyObject *object, const char *name, float *p)
{
    double value;
    if (py_number(object, name, false, &value) < 0) {
        return -1;
    }
    *p = (float)value;
    if (!(value >= 0.0 && *p < 1.0f)) {
        PyErr_Format(PyExc_ValueError, "%s is %R, expected 0 <= %s < 1 in float32",
                     name, object, name);
        return -1;
    }
    return 0;
}

int
py_read_seed(PyObject *object, const char *name, py_seed *seed)
{
    if (object == Py_None) {
        return 0;
    }
    PyObject *index = py_index(object, name);
    if (index == NULL) {
        return -1;
    }
    seed->given = true;
    seed->value = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    if (seed->value == UINT64_MAX && PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "%s is %R, expected 0 <= %s < 2**64", name,
                     object, name);
        return -1;
    }
    return 0;
}

int
py_read_rule(PyObject *object, const char *name, attn_empty_rows *rule)
{
    static const char *const names[] = {
        [ATTN_EMPTY_UNIFORM] = "uniform",
        [ATTN_EMPTY_ZERO] = "zero",
        [ATTN_EMPTY_NAN] = "nan",
    };
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be a str, got %.200s", name,
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    for (int i = 0; i < 3; i++) {
        if (PyUnicode_CompareWithASCIIString(object, names[i]) == 0) {
            *rule = (attn_empty_rows)i;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "%s is %R, expected 'uniform', 'zero' or 'nan'",
                 name, object);
    return -1;
}
