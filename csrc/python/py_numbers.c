/*
 * py_numbers.c -- numbers, flags and words among the arguments of a call.
 */
#include "py_attnext.h"

#include <math.h>

/* ---- what is wrong with them ----------------------------------------------------- */

PyObject *
py_repr(PyObject *object)
{
    PyObject *text = PyObject_Repr(object);
    if (text == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        text = PyUnicode_FromFormat(PyLong_Check(object) ? "a huge %.200s"
                                                         : "an object of type %.200s",
                                    Py_TYPE(object)->tp_name);
    }
    return text;
}

int
py_value_error(PyObject *object, const char *name, const char *expected)
{
    PyObject *text = py_repr(object);
    if (text != NULL) {
        PyErr_Format(PyExc_ValueError, "%s is %U, expected %s", name, text, expected);
        Py_DECREF(text);
    }
    return -1;
}

int
py_kind_error(PyObject *object, const char *name, const char *expected)
{
    PyErr_Format(PyExc_TypeError, "%s must be %s, got %.200s", name, expected,
                 Py_TYPE(object)->tp_name);
    return -1;
}

/* ---- numbers --------------------------------------------------------------------- */

int
py_number(PyObject *object, const char *name, bool one_element, double *number)
{
    if (!py_is_number(object)) {
        PyObject *plain = py_read(one_element ? READ_ONE_NUMBER : READ_NUMBER, object,
                                  name);
        *number = plain == NULL ? 0.0 : PyFloat_AsDouble(plain);
        Py_XDECREF(plain);
        return plain == NULL ? -1 : 0;
    }
    *number = PyFloat_Check(object) ? PyFloat_AS_DOUBLE(object)
                                    : PyLong_AsDouble(object);
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
        return py_value_error(object, name, "a finite float32 number");
    }
    return 0;
}

int
py_positive(PyObject *object, const char *name, float *number)
{
    char expected[64];
    if (py_finite(object, name, false, number) < 0) {
        return -1;
    }
    if (*number <= 0.0f) {
        PyOS_snprintf(expected, sizeof expected, "%s > 0 in float32", name);
        return py_value_error(object, name, expected);
    }
    return 0;
}

/* ---- integers -------------------------------------------------------------------- */

PyObject *
py_index(PyObject *object, const char *name)
{
    return py_fits(READ_INDEX, object) ? Py_NewRef(object)
                                       : py_read(READ_INDEX, object, name);
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
py_read_flag(PyObject *object, const char *name, bool *flag)
{
    if (PyBool_Check(object)) {
        *flag = object == Py_True;
        return 0;
    }
    if (PyArray_IsScalar(object, Bool)) {
        *flag = PyArrayScalar_VAL(object, Bool) != 0;
        return 0;
    }
    PyArrayObject *a = (PyArrayObject *)object;
    if (PyArray_Check(object) && PyArray_NDIM(a) == 0 && PyArray_ISBOOL(a)) {
        *flag = *(const npy_bool *)PyArray_DATA(a) != 0;
        return 0;
    }
    return py_kind_error(object, name, "a bool");
}

int
py_read_probability(PyObject *object, const char *name, float *p)
{
    double value;
    char expected[100];
    if (py_number(object, name, false, &value) < 0) {
        return -1;
    }
    *p = (float)value;
    if (value >= 0.0 && *p < 1.0f) {
        return 0;
    }
    bool rounded = value >= 0.0 && value < 1.0; /* up to 1 */
    PyOS_snprintf(expected, sizeof expected, "0 <= %s < 1%s", name,
                  rounded ? " in float32" : "");
    return py_value_error(object, name, expected);
}

int
py_read_positive(PyObject *object, const char *name, float *number)
{
    return object == Py_None ? 0 : py_positive(object, name, number);
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
        PyErr_Clear();
        return py_value_error(object, name, "0 <= seed < 2**64");
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
        return py_kind_error(object, name, "a str");
    }
    for (int i = 0; i < 3; i++) {
        if (PyUnicode_CompareWithASCIIString(object, names[i]) == 0) {
            *rule = (attn_empty_rows)i;
            return 0;
        }
    }
    return py_value_error(object, name, "'uniform', 'zero' or 'nan'");
}
