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

bool
py_is_number(PyObject *object)
{
    return PyFloat_Check(object) || (PyLong_Check(object) && !PyBool_Check(object));
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

/* TypeError unless object is an int, or can stand for one; bool cannot. */
static int
check_int(PyObject *object, const char *name)
{
    if (!PyBool_Check(object) && PyIndex_Check(object)) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "%s must be an int, got %.200s", name,
                 Py_TYPE(object)->tp_name);
    return -1;
}

int
py_size(PyObject *object, const char *name, Py_ssize_t *size)
{
    if (check_int(object, name) < 0) {
        return -1;
    }
    *size = PyNumber_AsSsize_t(object, NULL); /* NULL: clipped if too large */
    return *size == -1 && PyErr_Occurred() ? -1 : 0;
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
    if (check_int(object, name) < 0) {
        return -1;
    }
    PyObject *index = PyNumber_Index(object);
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

/* One end of a window: an int >= -1, of any size. */
static int
read_window_end(PyObject *object, const char *name, int64_t *end)
{
    if (check_int(object, name) < 0) {
        return -1;
    }
    PyObject *index = PyNumber_Index(object);
    if (index == NULL) {
        return -1;
    }
    int overflow;
    *end = PyLong_AsLongLongAndOverflow(index, &overflow);
    Py_DECREF(index);
    if (overflow < 0 || (overflow == 0 && *end < -1)) {
        PyErr_Format(PyExc_ValueError,
                     "%s is %R, expected 0 or more, or -1 for no bound", name, object);
        return -1;
    }
    *end = overflow > 0 ? INT64_MAX : *end;
    return 0;
}

int
py_read_window(PyObject *object, const char *name, py_window *window)
{
    if (object == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(object) && !PyList_Check(object)) {
        PyErr_Format(PyExc_TypeError,
                     "%s must be a pair of ints (left, right), got %.200s", name,
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    PyObject *pair = PySequence_Tuple(object); /* a list may change while it is read */
    if (pair == NULL) {
        return -1;
    }
    int result = -1;
    if (PyTuple_GET_SIZE(pair) != 2) {
        PyErr_Format(PyExc_ValueError,
                     "%s has %zd entries, expected two: (left, right)", name,
                     PyTuple_GET_SIZE(pair));
    } else if (read_window_end(PyTuple_GET_ITEM(pair, 0), "window[0]", &window->left) ==
               0) {
        result = read_window_end(PyTuple_GET_ITEM(pair, 1), "window[1]",
                                 &window->right);
    }
    window->given = true;
    Py_DECREF(pair);
    return result;
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
