/*
 * py_options.c -- a call and its options, from plain objects to numbers, flags and words:
 * each by its kind in py_options.def, and those that depend on one another.
 */
#include "py_call.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* ---- one of each kind ------------------------------------------------------------ */

int
py_number(PyObject *object, const char *name, double *number)
{
    *number = PyFloat_Check(object) ? PyFloat_AS_DOUBLE(object)
                                    : PyLong_AsDouble(object);
    if (*number == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return py_wrong("too_large", "(s)", name);
    }
    return 0;
}

/* One that is finite as float32. */
static int
read_finite(PyObject *object, const char *name, float *number)
{
    double value;
    if (py_number(object, name, &value) < 0) {
        return -1;
    }
    *number = (float)value;
    return isfinite(*number) ? 0
                             : py_value_error(object, name, "a finite float32 number");
}

/* One that is finite and > 0 as float32. */
static int
read_above_zero(PyObject *object, const char *name, float *number)
{
    if (read_finite(object, name, number) < 0) {
        return -1;
    }
    return *number > 0.0f ? 0 : py_value_error(object, name, "{name} > 0 in float32");
}

/* None, or such a number. */
static int
py_read_positive(PyObject *object, const char *name, float *number)
{
    return object == Py_None ? 0 : read_above_zero(object, name, number);
}

static int
py_read_probability(PyObject *object, const char *name, float *p)
{
    double value;
    if (py_number(object, name, &value) < 0) {
        return -1;
    }
    *p = (float)value;
    if (value >= 0.0 && *p < 1.0f) {
        return 0;
    }
    bool rounded = value >= 0.0 && value < 1.0; /* up to 1 */
    return py_value_error(object, name,
                          rounded ? "0 <= {name} < 1 in float32" : "0 <= {name} < 1");
}

int
py_read_seed(PyObject *object, const char *name, py_seed *seed)
{
    if (object == Py_None) {
        return 0;
    }
    PyObject *index = py_read(READ_INDEX, object, name);
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

/* ---- those of the score ---------------------------------------------------------- */

/* w or sigma = 1 / w; one of them at most. */
static int
read_bandwidth(PyObject *w, PyObject *sigma, float *scale)
{
    if (py_is_given(w) && py_is_given(sigma)) {
        return py_wrong("both", "(sss)", "w", "sigma", ": w = 1 / sigma");
    }
    if (py_is_given(w)) {
        return read_finite(w, "w", scale);
    }
    double bandwidth;
    if (py_number(sigma, "sigma", &bandwidth) < 0) {
        return -1;
    }
    *scale = (float)(1.0 / bandwidth);
    bool fits = bandwidth > 0.0 && isfinite(bandwidth) && isfinite(*scale);
    return fits ? 0
                : py_value_error(sigma, "sigma",
                                 "a finite sigma > 0 with a finite 1 / sigma");
}

static int
read_heads(PyObject *object, const char *name, Py_ssize_t *heads)
{
    *heads = PyNumber_AsSsize_t(object, NULL); /* NULL: clipped if too large */
    return *heads >= 1 ? 0 : py_value_error(object, name, "{name} >= 1");
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
    if (number && read_finite(scale, "scale", &o->scale) < 0) {
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
    return given[ARG_EPS] == NULL ? 0 : read_above_zero(given[ARG_EPS], "eps", &o->eps);
}

/* ---- all of them ----------------------------------------------------------------- */

/* Dropout needs the seed or the mask, and not both. */
static int
check_dropout(const py_call *call)
{
    const py_options *o = &call->options;
    bool mask = py_is_given(call->given[ARG_DROPOUT_MASK]);
    if (mask && o->seed.given) {
        return py_wrong("both", "(sss)", "dropout_mask", "seed", "");
    }
    if (o->dropout_p > 0.0f && !mask && !o->seed.given) {
        return py_wrong("no_seed", "(O)", call->given[ARG_DROPOUT_P]);
    }
    return 0;
}

static int
read_options(py_call *call)
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
    READ(flag, ARG_RETURN_KEPT, "return_kept", return_kept)
    READ(flag, ARG_NEED_WEIGHTS, "need_weights", return_weights)
    return check_dropout(call);
}

/* ---- the call -------------------------------------------------------------------- */

void
py_begin(py_call *call, const py_score *score, py_form form)
{
    /* In a table, for of constant sizes gcc makes instructions that stall what reads next:
     * 30 ns. */
    static const size_t sizes[] = {offsetof(py_call, gradients),
                                   offsetof(py_call, leading)};
    memset(call, 0, sizes[py_is_backward(form)]);
    call->score = score;
    call->form = form;
    call->end = ARG_VALID_LENS + 1;
}

int
py_read_call(const attnext_state *state, py_call *call, PyObject *kwnames)
{
    const py_signature *signature = &call->score->signatures[call->form];
    return py_make_plain(state, signature, call->given, &call->plain) < 0 ||
                   (kwnames != NULL && read_options(call) < 0) /* all are keywords */
               ? -1
               : 0;
}

void
py_end(py_call *call)
{
    py_clear_inputs(call);
    py_outputs_clear(&call->outputs);
    if (py_is_backward(call->form)) {
        py_gradients_clear(&call->gradients);
    }
    Py_XDECREF(call->plain);
}
