/*
 * py_options.c -- a call and its options, from plain objects to numbers, flags and words:
 * each by its kind in py_options.def, and those that depend on one another.
 */
#include "py_call.h"

#include <stddef.h>
#include <string.h>

/* ---- options --------------------------------------------------------------------- */

/* Those that say what the one number of the score is, if there is one, and how many heads. */
static int
read_score_options(py_call *call)
{
    PyObject *const *given = call->given;
    py_options *o = &call->options;
    PyObject *scale = py_given_scale(call), *w = given[ARG_W],
             *sigma = given[ARG_SIGMA];
    PyObject *heads = given[ARG_NUM_HEADS], *kv_heads = given[ARG_NUM_KV_HEADS];
    if (scale != NULL) {
        o->has_scale = !PyArray_Check(scale); /* an array is an input */
        o->scale = o->has_scale ? (float)py_number(scale) : 0.0f;
    }
    if (py_is_given(w) && py_is_given(sigma)) {
        return py_wrong("both", "(sss)", "w", "sigma", ": w = 1 / sigma");
    }
    if (py_is_given(w) || py_is_given(sigma)) {
        o->has_scale = true;
        o->scale = (float)(py_is_given(w) ? py_number(w) : 1.0 / py_number(sigma));
    }
    if (heads != NULL) {
        o->num_heads = PyNumber_AsSsize_t(heads, NULL); /* NULL: clipped if too large */
    }
    if (py_is_given(kv_heads)) {
        o->num_kv_heads = PyNumber_AsSsize_t(kv_heads, NULL);
    }
    if (given[ARG_EPS] != NULL) { /* > 0, or a vector of zeros would score NaN */
        o->eps = (float)py_number(given[ARG_EPS]);
    }
    return 0;
}

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

static py_window
window_of(PyObject *pair)
{
    PyObject *const *ends = PySequence_Fast_ITEMS(pair);
    return (py_window){true, py_clip_int(ends[0], -1, PY_FAR),
                       py_clip_int(ends[1], -1, PY_FAR)};
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
#define TAKE(ID, KIND, FIELD)                  \
    if (py_is_given(given[ARG_##ID])) {        \
        o->FIELD = AS_##KIND(given[ARG_##ID]); \
    }
#define OPTION(ID, NAME, DEFAULT, TAKEN_BY, KIND, FIELD) TAKE(ID, KIND, FIELD)
#include "py_options.def"
    TAKE(RETURN_KEPT, flag, return_kept)
    TAKE(NEED_WEIGHTS, flag, return_weights)
    return read_score_options(call) < 0 || check_dropout(call) < 0 ? -1 : 0;
}

/* ---- the call -------------------------------------------------------------------- */

void
py_begin(py_call *call, const py_score *score, py_form form)
{
    /* Not a constant, of which gcc makes instructions that stall what reads next: 30 ns. */
    static const volatile size_t size = offsetof(py_call, leading);
    memset(call, 0, size);
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
    py_made_clear(&call->made);
    Py_XDECREF(call->plain);
}
