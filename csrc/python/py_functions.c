/*
 * py_functions.c -- what the exposed attention functions share: from the arguments of a
 * call to attention_args, and from the arrays that come back to what the caller gets.
 */
#include "py_attnext.h"

#include <math.h>

/* w or sigma = 1 / w; one of them at most, 1 without either. */
static int
read_bandwidth(PyObject *w, PyObject *sigma, float *scale)
{
    *scale = 1.0f;
    if (py_is_given(w) && py_is_given(sigma)) {
        PyErr_SetString(
            PyExc_ValueError,
            "w and sigma are both given, expected one of them: w = 1 / sigma");
        return -1;
    }
    if (py_is_given(w)) {
        return py_finite(w, "w", true, scale);
    }
    if (!py_is_given(sigma)) {
        return 0;
    }
    double bandwidth;
    if (py_number(sigma, "sigma", true, &bandwidth) < 0) {
        return -1;
    }
    *scale = (float)(1.0 / bandwidth);
    if (!(bandwidth > 0.0 && isfinite(bandwidth) && isfinite(*scale))) {
        PyErr_Format(PyExc_ValueError,
                     "sigma is %R, expected a finite sigma > 0 with a finite "
                     "1 / sigma",
                     sigma);
        return -1;
    }
    return 0;
}

static int
read_score_options(PyObject *const *given, attention_args *args)
{
    if (args->score == ATTN_GAUSSIAN) {
        return read_bandwidth(given[ARG_W], given[ARG_SIGMA], &args->scale);
    }
    if (args->score == ATTN_DOT && py_is_given(given[ARG_SCALE])) {
        args->has_scale = true;
        return py_finite(given[ARG_SCALE], "scale", false, &args->scale);
    }
    return 0;
}

static int
read_dropout(PyObject *const *given, attention_args *args)
{
    if (given[ARG_DROPOUT_P] != NULL &&
        py_dropout(given[ARG_DROPOUT_P], "dropout_p", &args->dropout_p) < 0) {
        return -1;
    }
    if (py_is_given(given[ARG_SEED])) {
        return py_seed(given[ARG_SEED], "seed", &args->seed);
    }
    if (args->dropout_p > 0.0f) {
        PyErr_Format(
            PyExc_ValueError,
            "seed is not given, expected an int 0 <= seed < 2**64 because dropout_p is "
            "%R",
            given[ARG_DROPOUT_P]);
        return -1;
    }
    return 0;
}

static int
read_arguments(attn_score_kind score, PyObject *const *given, attention_args *args)
{
    *args = (attention_args){
        .score = score,
        .queries = given[ARG_QUERIES],
        .keys = given[ARG_KEYS],
        .values = given[ARG_VALUES],
        .valid_lens = given[ARG_VALID_LENS],
        .W_q = given[ARG_W_Q],
        .W_k = given[ARG_W_K],
        .w_v = given[ARG_W_V],
        .b_h = given[ARG_B_H],
        .out = given[ARG_OUT],
        .grad_output = given[ARG_GRAD_OUTPUT],
        .grad_weights = given[ARG_GRAD_WEIGHTS],
        .grad_lse = given[ARG_GRAD_LSE],
        .output = given[ARG_OUTPUT],
        .lse = given[ARG_LSE],
    };
    if (read_score_options(given, args) < 0 || read_dropout(given, args) < 0 ||
        py_empty_rows(given[ARG_EMPTY_ROWS], &args->empty_rows) < 0 ||
        py_flag(given[ARG_RETURN_WEIGHTS], &args->want_weights) < 0 ||
        py_flag(given[ARG_RETURN_LSE], &args->want_lse) < 0) {
        return -1;
    }
    return 0;
}

/* output, (output, weights), (output, lse) or (output, weights, lse) */
static PyObject *
pack_outputs(const attention_outputs *outputs)
{
    PyObject *output = (PyObject *)outputs->output;
    PyObject *weights = (PyObject *)outputs->weights, *lse = (PyObject *)outputs->lse;

    if (weights != NULL && lse != NULL) {
        return PyTuple_Pack(3, output, weights, lse);
    }
    if (weights != NULL || lse != NULL) {
        return PyTuple_Pack(2, output, weights != NULL ? weights : lse);
    }
    return Py_NewRef(output);
}

PyObject *
py_call_forward(PyObject *module, attn_score_kind score, const py_signature *signature,
                PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT], *result;
    attention_args call;
    attention_inputs in;
    attention_outputs outputs;

    if (py_parse(state, signature, args, nargs, kwnames, given) < 0 ||
        read_arguments(score, given, &call) < 0 ||
        attention_forward(state, &call, &in, &outputs) < 0) {
        return NULL;
    }
    result = pack_outputs(&outputs);
    attention_inputs_clear(&in);
    attention_outputs_clear(&outputs);
    return result;
}

int
py_call_backward(PyObject *module, attn_score_kind score, const py_signature *signature,
                 PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                 attention_gradients *gradients)
{
    attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT];
    attention_args call;
    attention_inputs in;

    if (py_parse(state, signature, args, nargs, kwnames, given) < 0 ||
        read_arguments(score, given, &call) < 0 ||
        attention_backward(state, &call, &in, gradients) < 0) {
        return -1;
    }
    attention_inputs_clear(&in);
    return 0;
}

PyObject *
py_call_scores(PyObject *module, attn_score_kind score, const py_signature *signature,
               PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT];
    attention_args call;

    if (py_parse(state, signature, args, nargs, kwnames, given) < 0 ||
        read_arguments(score, given, &call) < 0) {
        return NULL;
    }
    return (PyObject *)attention_scores(state, &call);
}
