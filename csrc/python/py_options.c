/*
 * py_options.c -- the options of a call, from Python objects to numbers, checked: each by
 * its kind in py_options.def, and those that depend on one another.
 */
#include "py_call.h"

#include <math.h>

/* w or sigma = 1 / w; one of them at most. */
static int
read_bandwidth(PyObject *w, PyObject *sigma, float *scale)
{
    if (py_is_given(w) && py_is_given(sigma)) {
        PyErr_SetString(
            PyExc_ValueError,
            "w and sigma are both given, expected one of them: w = 1 / sigma");
        return -1;
    }
    if (py_is_given(w)) {
        return py_finite(w, "w", true, scale);
    }
    double bandwidth;
    if (py_number(sigma, "sigma", true, &bandwidth) < 0) {
        return -1;
    }
    *scale = (float)(1.0 / bandwidth);
    if (!(bandwidth > 0.0 && isfinite(bandwidth) && isfinite(*scale))) {
        return py_value_error(sigma, "sigma",
                              "a finite sigma > 0 with a finite 1 / sigma");
    }
    return 0;
}

static int
read_heads(PyObject *object, const char *name, Py_ssize_t *heads)
{
    if (py_size(object, name, heads) < 0) {
        return -1;
    }
    char expected[40];
    PyOS_snprintf(expected, sizeof expected, "%s >= 1", name);
    return *heads >= 1 ? 0 : py_value_error(object, name, expected);
}

static int
read_score_options(py_call *call)
{
    PyObject *const *given = call->given;
    py_options *o = &call->options;
    PyObject *scale = py_given_scale(call);
    bool number = scale != NULL && !PyArray_Check(scale); /* an array is an input */
    bool bandwidth = py_is_given(given[ARG_W]) || py_is_given(given[ARG_SIGMA]);
    o->has_scale = number || bandwidth || (scale == NULL && o->has_scale);
    if (number && py_finite(scale, "scale", false, &o->scale) < 0) {
        return -1;
    }
    if (bandwidth && read_bandwidth(given[ARG_W], given[ARG_SIGMA], &o->scale) < 0) {
        return -1;
    }
    PyObject *heads = given[ARG_NUM_HEADS], *kv_heads = given[ARG_NUM_KV_HEADS];
    if ((heads != NULL && read_heads(heads, "num_heads", &o->num_heads) < 0) ||
        (py_is_given(kv_heads) &&
         read_heads(kv_heads, "num_kv_heads", &o->num_kv_heads) < 0)) {
        return -1;
    }
    /* eps > 0, or a vector of zeros would score NaN */
    return given[ARG_EPS] == NULL ? 0 : py_positive(given[ARG_EPS], "eps", &o->eps);
}

/* Dropout needs the seed or the mask, and not both. */
static int
check_dropout(const py_call *call)
{
    const py_options *o = &call->options;
    bool mask = py_is_given(call->given[ARG_DROPOUT_MASK]);
    if (mask && o->seed.given) {
        PyErr_SetString(PyExc_ValueError, "dropout_mask and seed are both given, "
                                          "expected one of them");
        return -1;
    }
    if (o->dropout_p > 0.0f && !mask && !o->seed.given) {
        PyErr_Format(
            PyExc_ValueError,
            "seed is not given, expected an int 0 <= seed < 2**64 because dropout_p is "
            "%R",
            call->given[ARG_DROPOUT_P]);
        return -1;
    }
    return 0;
}

int
py_read_options(py_call *call)
{
    PyObject *const *given = call->given;
    py_options *o = &call->options;
    if (read_score_options(call) < 0) {
        return -1;
    }
#define READ_array(ARG, NAME, FIELD)
#define READ(KIND, ARG, NAME, FIELD)                                             \
    if (given[ARG] != NULL && py_read_##KIND(given[ARG], NAME, &o->FIELD) < 0) { \
        return -1;                                                               \
    }
#define READ_flag(...) READ(flag, __VA_ARGS__)
#define READ_positive(...) READ(positive, __VA_ARGS__)
#define READ_probability(...) READ(probability, __VA_ARGS__)
#define READ_rule(...) READ(rule, __VA_ARGS__)
#define READ_seed(...) READ(seed, __VA_ARGS__)
#define READ_window(...) READ(window, __VA_ARGS__)
#define OPTION(ID, NAME, DEFAULT, TAKEN_BY, KIND, FIELD, ...) \
    READ_##KIND(ARG_##ID, NAME, FIELD)
#include "py_options.def"
    return check_dropout(call);
}
