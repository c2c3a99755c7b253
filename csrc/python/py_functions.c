/*
 * py_functions.c -- what the exposed attention functions share: from the arguments of a
 * call to attention_args, and from the arrays that come back to what the caller gets.
 */
#include "py_attention.h"

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

/* eps > 0, or a vector of zeros would score NaN. */
static int
read_eps(PyObject *object, float *eps)
{
    *eps = 1e-8f;
    if (object == NULL) {
        return 0;
    }
    if (py_finite(object, "eps", false, eps) < 0) {
        return -1;
    }
    if (*eps <= 0.0f) {
        PyErr_Format(PyExc_ValueError, "eps is %R, expected eps > 0 in float32",
                     object);
        return -1;
    }
    return 0;
}

static int
read_score_options(PyObject *const *given, attention_args *args)
{
    PyObject *scale = given[ARG_SCALE];
    float *to = &args->parameters.scale;

    if (args->score == &attn_score_gaussian) {
        return read_bandwidth(given[ARG_W], given[ARG_SIGMA], to);
    }
    if (args->score == &attn_score_dot && py_is_given(scale)) {
        args->parameters.has_scale = true;
        return py_finite(scale, "scale", false, to);
    }
    if (args->score == &attn_score_cosine) {
        *to = 1.0f;
        if (scale != NULL && py_finite(scale, "scale", false, to) < 0) {
            return -1;
        }
        return read_eps(given[ARG_EPS], &args->parameters.eps);
    }
    return 0;
}

/* dropout_p, and seed or dropout_mask */
static int
read_dropout(PyObject *const *given, attention_args *args)
{
    PyObject *mask = given[ARG_DROPOUT_MASK], *seed = given[ARG_SEED];

    if (given[ARG_DROPOUT_P] != NULL &&
        py_dropout(given[ARG_DROPOUT_P], "dropout_p", &args->dropout.p) < 0) {
        return -1;
    }
    if (py_is_given(mask) && py_is_given(seed)) {
        PyErr_SetString(PyExc_ValueError, "dropout_mask and seed are both given, "
                                          "expected one of them");
        return -1;
    }
    args->dropout.mask = mask;
    if (py_is_given(seed)) {
        return py_seed(seed, "seed", &args->dropout.seed);
    }
    if (args->dropout.p > 0.0f && !py_is_given(mask)) {
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
read_flags(PyObject *const *given, attention_args *args)
{
    if (py_flag(given[ARG_CAUSAL], &args->masks.causal) < 0 ||
        py_flag(given[ARG_ENABLE_GQA], &args->enable_gqa) < 0 ||
        py_flag(given[ARG_RETURN_WEIGHTS], &args->want_weights) < 0 ||
        py_flag(given[ARG_RETURN_LSE], &args->want_lse) < 0 ||
        py_flag(given[ARG_RETURN_GRAD_BIAS], &args->want_grad_bias) < 0) {
        return -1;
    }
    return 0;
}

static int
read_arguments(const attn_score *score, PyObject *const *given, attention_args *args)
{
    *args = (attention_args){
        .score = score,
        .queries = given[ARG_QUERIES],
        .keys = given[ARG_KEYS],
        .values = given[ARG_VALUES],
        .parameters = {.W_q = given[ARG_W_Q],
                       .W_k = given[ARG_W_K],
                       .w_v = given[ARG_W_V],
                       .b_h = given[ARG_B_H]},
        .masks = {.valid_lens = given[ARG_VALID_LENS],
                  .mask = given[ARG_MASK],
                  .bias = given[ARG_BIAS],
                  .causal_offset = given[ARG_CAUSAL_OFFSET],
                  .window = given[ARG_WINDOW]},
        .out = given[ARG_OUT],
        .grad = {.output = given[ARG_GRAD_OUTPUT],
                 .weights = given[ARG_GRAD_WEIGHTS],
                 .lse = given[ARG_GRAD_LSE]},
        .saved = {.output = given[ARG_OUTPUT],
                  .weights = given[ARG_WEIGHTS],
                  .lse = given[ARG_LSE]},
    };
    if (read_score_options(given, args) < 0 || read_dropout(given, args) < 0 ||
        py_empty_rows(given[ARG_EMPTY_ROWS], &args->empty_rows) < 0) {
        return -1;
    }
    return read_flags(given, args);
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
py_call_forward(PyObject *module, const attn_score *score,
                const py_signature *signature, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames)
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
py_call_backward(PyObject *module, const attn_score *score,
                 const py_signature *signature, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames, attention_gradients *gradients)
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
py_pack_gradients(attention_gradients *d, PyObject *more)
{
    PyObject *parts[5] = {(PyObject *)d->queries, (PyObject *)d->keys,
                          (PyObject *)d->values};
    int count = 3;
    if (more != NULL) {
        parts[count++] = more;
    }
    if (d->want_bias) {
        parts[count++] = py_or_none(d->bias);
    }
    PyObject *result = PyTuple_New(count);
    for (int i = 0; result != NULL && i < count; i++) {
        PyTuple_SET_ITEM(result, i, Py_NewRef(parts[i]));
    }
    attention_gradients_clear(d);
    return result;
}

PyObject *
py_call_scores(PyObject *module, const attn_score *score, const py_signature *signature,
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
