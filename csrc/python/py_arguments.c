/*
 * py_arguments.c -- from the arguments of a call to named slots, numbers and options.
 *
 * One parser serves every function: a py_signature says which names a function takes,
 * and the call is sorted into given[], indexed by name. Names of keywords are almost
 * always interned, so a keyword is found by comparing pointers; comparing text is the
 * fallback.
 */
#include "py_attnext.h"

#include <math.h>
#include <string.h>

/* ---- sorting a call into slots --------------------------------------------------- */

int
py_intern_names(attnext_state *state)
{
    static const char *const names[ARG_COUNT] = {
        [ARG_X] = "X",
        [ARG_QUERIES] = "queries",
        [ARG_KEYS] = "keys",
        [ARG_VALUES] = "values",
        [ARG_VALID_LENS] = "valid_lens",
        [ARG_VALID_LEN] = "valid_len",
        [ARG_VALUE] = "value",
        [ARG_W_Q] = "W_q",
        [ARG_W_K] = "W_k",
        [ARG_W_V] = "w_v",
        [ARG_B_H] = "b_h",
        [ARG_SCALE] = "scale",
        [ARG_W] = "w",
        [ARG_SIGMA] = "sigma",
        [ARG_EPS] = "eps",
        [ARG_MASK] = "mask",
        [ARG_BIAS] = "bias",
        [ARG_CAUSAL] = "causal",
        [ARG_CAUSAL_OFFSET] = "causal_offset",
        [ARG_WINDOW] = "window",
        [ARG_ENABLE_GQA] = "enable_gqa",
        [ARG_DROPOUT_P] = "dropout_p",
        [ARG_SEED] = "seed",
        [ARG_DROPOUT_MASK] = "dropout_mask",
        [ARG_EMPTY_ROWS] = "empty_rows",
        [ARG_RETURN_WEIGHTS] = "return_weights",
        [ARG_RETURN_LSE] = "return_lse",
        [ARG_OUT] = "out",
        [ARG_GRAD_OUTPUT] = "grad_output",
        [ARG_GRAD_WEIGHTS] = "grad_weights",
        [ARG_GRAD_LSE] = "grad_lse",
        [ARG_WEIGHTS] = "weights",
        [ARG_OUTPUT] = "output",
        [ARG_LSE] = "lse",
        [ARG_RETURN_GRAD_BIAS] = "return_grad_bias",
        [ARG_OUTPUTS] = "outputs",
        [ARG_LSES] = "lses",
        [ARG_N] = "n",
        [ARG_MODE] = "mode",
        [ARG_NEED_WEIGHTS] = "need_weights",
        [ARG_CONTEXT] = "context",
    };
    for (int i = ARG_END + 1; i < ARG_COUNT; i++) {
        state->names[i] = PyUnicode_InternFromString(names[i]);
        if (state->names[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

/* The argument of this signature called `keyword`, or -1. */
static int
find_argument(const attnext_state *state, const py_signature *signature,
              PyObject *keyword)
{
    for (const unsigned char *arg = signature->args; *arg != ARG_END; arg++) {
        if (state->names[*arg] == keyword) {
            return *arg;
        }
    }
    for (const unsigned char *arg = signature->args; *arg != ARG_END; arg++) {
        if (PyUnicode_Compare(state->names[*arg], keyword) == 0) {
            return *arg;
        }
    }
    return -1;
}

int
py_parse(const attnext_state *state, const py_signature *signature,
         PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **given)
{
    memset(given, 0, ARG_COUNT * sizeof *given);
    if (nargs > signature->positional) {
        PyErr_Format(PyExc_TypeError,
                     "%s() takes at most %d positional argument%s, got %zd",
                     signature->function, signature->positional,
                     signature->positional == 1 ? "" : "s", nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        given[signature->args[i]] = args[i];
    }
    Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t i = 0; i < keywords; i++) {
        PyObject *keyword = PyTuple_GET_ITEM(kwnames, i);
        int arg = find_argument(state, signature, keyword);
        if (arg < 0) {
            PyErr_Format(PyExc_TypeError,
                         "%s() got an unexpected keyword argument '%U'",
                         signature->function, keyword);
            return -1;
        }
        if (given[arg] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'",
                         signature->function, keyword);
            return -1;
        }
        given[arg] = args[nargs + i];
    }
    for (int i = 0; i < signature->required; i++) {
        if (given[signature->args[i]] == NULL) {
            PyErr_Format(PyExc_TypeError,
                         "%s() missing required argument '%U' (position %d)",
                         signature->function, state->names[signature->args[i]], i + 1);
            return -1;
        }
    }
    return 0;
}

/* ---- numbers and options --------------------------------------------------------- */

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

int
py_dropout(PyObject *object, const char *name, float *p)
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
py_seed(PyObject *object, const char *name, uint64_t *seed)
{
    if (PyBool_Check(object) || !PyIndex_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be an int, got %.200s", name,
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    PyObject *index = PyNumber_Index(object);
    if (index == NULL) {
        return -1;
    }
    *seed = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    if (*seed == UINT64_MAX && PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "%s is %R, expected 0 <= %s < 2**64", name,
                     object, name);
        return -1;
    }
    return 0;
}

int
py_empty_rows(PyObject *object, attn_empty_rows *rule)
{
    static const char *const names[] = {
        [ATTN_EMPTY_UNIFORM] = "uniform",
        [ATTN_EMPTY_ZERO] = "zero",
        [ATTN_EMPTY_NAN] = "nan",
    };
    *rule = ATTN_EMPTY_UNIFORM;
    if (object == NULL) {
        return 0;
    }
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "empty_rows must be a str, got %.200s",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    for (int i = 0; i < 3; i++) {
        if (PyUnicode_CompareWithASCIIString(object, names[i]) == 0) {
            *rule = (attn_empty_rows)i;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "empty_rows is %R, expected 'uniform', 'zero' or 'nan'", object);
    return -1;
}
