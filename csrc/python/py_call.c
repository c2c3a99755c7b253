/*
 * py_call.c -- a call and its options, from plain objects to numbers, flags and words, each by
 * its kind in py_options.def, and those that depend on one another; and the one path from a
 * call that was read to attn_forward, attn_backward, attn_scores, attn_scores_backward and
 * those of multi-head attention.
 */
#include "py_call.h"
#include "py_run.h"

#include <stddef.h>
#include <string.h>

/* ---- options --------------------------------------------------------------------- */

/* A bandwidth is w or sigma, not both; dropout needs the seed or the mask, and not both. */
static int
check_options(const py_call *call)
{
    PyObject *const *given = call->given;
    const py_options *o = &call->options;
    const bool mask = py_is_given(given[ARG_DROPOUT_MASK]);
    if (py_is_given(given[ARG_W]) && py_is_given(given[ARG_SIGMA])) {
        return py_wrong("both", "(sss)", "w", "sigma", " because w = 1 / sigma");
    }
    if (mask && o->seed.given) {
        return py_wrong("both", "(sss)", "dropout_mask", "seed", "");
    }
    if (o->dropout_p > 0.0f && !mask && !o->seed.given) {
        return py_wrong("no_seed", "(O)", given[ARG_DROPOUT_P]);
    }
    return 0;
}

/* An array is an input. */
static py_scale
scale_of(PyObject *object)
{
    return PyArray_Check(object) ? (py_scale){0}
                                 : (py_scale){true, (float)py_number(object)};
}

/* (left, right), -1 for no bound on that side. */
static attn_band
window_of(PyObject *pair)
{
    PyObject *const *ends = PySequence_Fast_ITEMS(pair);
    const int64_t left = py_clip_int(ends[0], -1, PY_FAR);
    const int64_t right = py_clip_int(ends[1], -1, PY_FAR);
    return (attn_band){
        .has_left = left >= 0, .has_right = right >= 0, .left = left, .right = right};
}

static int
read_options(py_call *call)
{
    PyObject *const *given = call->given;
    py_options *o = &call->options;
/* What an object is, by the kind of the option; arrays are inputs. */
#define AS_flag(OBJECT) ((OBJECT) == Py_True)
#define AS_rule(OBJECT) (attn_empty_rows) py_rule(OBJECT)
#define AS_positive(OBJECT) (float)py_number(OBJECT)
#define AS_probability(OBJECT) (float)py_number(OBJECT)
#define AS_seed(OBJECT) ((py_seed){true, PyLong_AsUnsignedLongLong(OBJECT)})
#define AS_window(OBJECT) window_of(OBJECT)
#define AS_scale(OBJECT) scale_of(OBJECT)
#define AS_w(OBJECT) scale_of(OBJECT)
#define AS_sigma(OBJECT) ((py_scale){true, (float)(1.0 / py_number(OBJECT))})
#define AS_heads(OBJECT) \
    PyNumber_AsSsize_t(OBJECT, NULL) /* NULL: clipped if too large */
#define TAKE(ID, KIND, FIELD)                  \
    if (py_is_given(given[ARG_##ID])) {        \
        o->FIELD = AS_##KIND(given[ARG_##ID]); \
    }
#define OPTION(ID, NAME, DEFAULT, TAKEN_BY, KIND, FIELD) TAKE(ID, KIND, FIELD)
#define OWN(...) OPTION(__VA_ARGS__)
#include "py_options.def"
    return check_options(call);
}

/* ---- shapes ---------------------------------------------------------------------- */

int
py_shape(const py_call *call, py_shape_of of, npy_intp rows, npy_intp columns,
         npy_intp dims[PY_MAX_AXES])
{
    const int ndim = of == OF_PAIRS ? call->pair_ndim : call->ndim;
    memcpy(dims, call->leading, (size_t)(ndim - 2) * sizeof *dims);
    if (of == OF_KEYS && ndim > 2) {
        dims[ndim - 3] = call->key_heads;
    }
    dims[ndim - 2] = rows;
    dims[ndim - 1] = columns;
    return ndim;
}

/* ---- the call -------------------------------------------------------------------- */

void
py_begin(py_call *call, const py_score *score, py_form form)
{
    /* In a table, for of constant sizes gcc makes instructions that stall what reads next:
     * 30 ns. */
    static const size_t sizes[] = {offsetof(py_call, made.all[PY_OUTPUTS]),
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
    py_memory_clear(&call->memory);
    py_made_clear(&call->made, py_is_backward(call->form) ? PY_MADE : PY_OUTPUTS);
    Py_XDECREF(call->plain);
}

/* ---- a call, as the core has it -------------------------------------------------- */

static bool
is_empty(PyArrayObject *a)
{
    return a == NULL || PyArray_SIZE(a) == 0;
}

static attn_inputs
inputs_of(const py_call *call)
{
    const attn_kv *kv = call->memory.kv;
    return (attn_inputs){
        .queries = call->queries.operand,
        .keys = kv != NULL ? kv->in.keys : call->keys.operand,
        .values = kv != NULL ? kv->in.values : call->values.operand,
    };
}

static attn_grad_outputs
flows_of(const py_call *call)
{
    return (attn_grad_outputs){.output = py_data(call->arrays[ARG_GRAD_OUTPUT]),
                               .weights = py_data(call->arrays[ARG_GRAD_WEIGHTS]),
                               .lse = py_data(call->arrays[ARG_GRAD_LSE])};
}

static attn_gradients
gradients_of(const py_call *call)
{
    const py_made *d = &call->made;
    attn_gradients to = {
        .queries = py_data(d->queries),
        .keys = py_data(d->keys),
        .values = py_data(d->values),
        .scale = d->scale != NULL      ? &PyArrayScalar_VAL(d->scale, Float)
                 : is_empty(d->scales) ? NULL
                                       : py_data(d->scales),
        .projected = py_data(d->projected),
        .key_use = d->key_use == NULL ? NULL : PyArray_DATA(d->key_use),
        .bias = is_empty(d->bias) ? NULL : py_data(d->bias),
        .sink = is_empty(d->sink) ? NULL : py_data(d->sink),
    };
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        to.parameters[i] = py_data(d->parameters[i]);
    }
    return to;
}

/* ---- forward --------------------------------------------------------------------- */

static double
work_of(const py_call *call)
{
    const attn_problem *p = &call->problem;
    const bool backward = py_is_backward(call->form);
    return py_has_heads(call) ? attn_multi_head_work(p, backward)
           : backward         ? attn_backward_work(p)
                              : attn_forward_work(p);
}

static int
call_forward(const void *context, void *scratch, attn_run *run)
{
    const py_call *call = context;
    const attn_problem *p = &call->problem;
    const attn_inputs in = inputs_of(call);
    const py_made *to = &call->made;
    float *output = py_data(to->output), *weights = py_data(to->weights);
    float *lse = py_data(to->lse);
    return py_is_of_scores(call) ? attn_scores(output, &in, p, scratch, run)
           : py_has_heads(call)
               ? attn_multi_head_forward(output, weights, lse, py_data(to->kept), &in,
                                         p, scratch, run)
               : attn_forward(output, weights, lse, &in, p, scratch, run);
}

/* ---- backward -------------------------------------------------------------------- */

static int
call_backward(const void *context, void *scratch, attn_run *run)
{
    const py_call *call = context;
    const attn_problem *p = &call->problem;
    const attn_inputs in = inputs_of(call);
    const attn_gradients d = gradients_of(call);
    const attn_grad_outputs from = flows_of(call);
    const attn_saved saved = {.output = py_data(call->arrays[ARG_OUTPUT]),
                              .weights = py_data(call->arrays[ARG_WEIGHTS]),
                              .lse = py_data(call->arrays[ARG_LSE])};
    return py_is_of_scores(call)
               ? attn_scores_backward(&d, from.output, &in, p, scratch, run)
           : py_has_heads(call)
               ? attn_multi_head_backward(&d, &from, &saved,
                                          py_data(call->arrays[ARG_KEPT]), &in, p,
                                          scratch, run)
               : attn_backward(&d, &from, &saved, &in, p, scratch, run);
}

/* ---- either ---------------------------------------------------------------------- */

int
py_attend(const attnext_state *state, py_call *call)
{
    if (py_is_backward(call->form)) {
        return py_read_inputs(call) < 0 || py_make_gradients(call) < 0 ||
                       py_place_inputs(call) < 0
                   ? -1
                   : py_run(state, work_of(call), true, call_backward, call);
    }
    const py_made *to = &call->made;
    if (py_read_inputs(call) < 0 || py_make_outputs(call) < 0) {
        return -1;
    }
    if (is_empty(to->output) && is_empty(to->weights) && is_empty(to->lse)) {
        return 0; /* nothing to write, however large the other sizes */
    }
    return py_place_inputs(call) < 0
               ? -1
               : py_run(state, work_of(call), true, call_forward, call);
}
