/*
 * py_signature.c -- from the arguments of a call to named slots; and the signatures of
 * what each score is exposed as.
 *
 * One parser serves every function: a py_signature says which names a function takes,
 * and the call is sorted into given[], indexed by name. Names of keywords are almost
 * always interned, so a keyword is found by comparing pointers; comparing text is the
 * fallback.
 */
#include "py_attnext.h"

#include <string.h>

int
py_intern_names(attnext_state *state)
{
    static const char *const names[ARG_COUNT] = {
#define ARGUMENT(ID, NAME, ...) [ARG_##ID] = NAME,
#include "py_options.def"
    };
    for (int i = 0; i < ARG_COUNT; i++) {
        if (names[i] != NULL &&
            (state->names[i] = PyUnicode_InternFromString(names[i])) == NULL) {
            return -1;
        }
    }
    return 0;
}

PyObject *
py_argument_name(const attnext_state *state, const py_signature *signature, py_arg arg)
{
    bool parameter = arg >= ARG_PARAMETER_0 && arg < ARG_PARAMETER_0 + ATTN_PARAMETERS;
    return parameter ? state->parameter_names[signature->score][arg - ARG_PARAMETER_0]
                     : state->names[arg];
}

/* The argument of this signature called `keyword`, or -1. */
static int
find_argument(const attnext_state *state, const py_signature *signature,
              PyObject *keyword)
{
    for (const unsigned char *arg = signature->args; *arg != ARG_END; arg++) {
        if (py_argument_name(state, signature, *arg) == keyword) {
            return *arg;
        }
    }
    for (const unsigned char *arg = signature->args; *arg != ARG_END; arg++) {
        if (PyUnicode_Compare(py_argument_name(state, signature, *arg), keyword) == 0) {
            return *arg;
        }
    }
    return -1;
}

/* What is wrong with the call, Python says. */
PY_COLD static int
refuse(const attnext_state *state, const py_signature *signature, Py_ssize_t nargs,
       PyObject *kwnames)
{
    PyObject *names = PyList_New(0), *keyword = Py_None;
    for (const unsigned char *arg = signature->args; *arg != ARG_END; arg++) {
        PyObject *name = py_argument_name(state, signature, *arg);
        if (names != NULL && PyList_Append(names, name) < 0) {
            Py_CLEAR(names);
        }
    }
    if (signature->keyword != ARG_END) {
        keyword = py_argument_name(state, signature, signature->keyword);
    }
    return py_wrong("call", kwnames == NULL ? "(sNiiOn())" : "(sNiiOnO)",
                    signature->function, names, signature->required,
                    signature->positional, keyword, nargs, kwnames);
}

int
py_parse(const attnext_state *state, const py_signature *signature,
         PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **given)
{
    const Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    bool fits = nargs <= signature->positional;
    for (Py_ssize_t i = 0; fits && i < nargs; i++) {
        given[signature->args[i]] = args[i];
    }
    for (Py_ssize_t i = 0; fits && i < keywords; i++) {
        int arg = find_argument(state, signature, PyTuple_GET_ITEM(kwnames, i));
        fits = arg >= 0 && given[arg] == NULL;
        if (fits) {
            given[arg] = args[nargs + i];
        }
    }
    for (int i = 0; fits && i < signature->required; i++) {
        fits = given[signature->args[i]] != NULL;
    }
    fits = fits && (signature->keyword == ARG_END || given[signature->keyword] != NULL);
    return fits ? 0 : refuse(state, signature, nargs, kwnames);
}

PyObject *
py_call_body(PyObject *module, const py_signature *signature, py_body *body,
             PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT] = {NULL}, *owned = NULL, *result = NULL;
    if (py_parse_plain(state, signature, args, nargs, kwnames, given, &owned) == 0) {
        result = body(state, given);
    }
    if (result == NULL) {
        py_notice_swapped(state, signature, given);
    }
    Py_XDECREF(owned);
    return result;
}

/* ---- what a score is exposed as -------------------------------------------------- */

/* takes: for whom the table has what it takes; of a layer's options those that forwards have
 * are the call's, the others the backward's. */
static const struct {
    const char *name;
    int takes;
    py_arg last; /* behind all options; or ARG_END */
} forms[PY_FORMS] = {
    [OF_ATTENTION] = {"%s_attention", FORWARD, ARG_END},
    [OF_ATTENTION_BACKWARD] = {"%s_attention_backward", BACKWARD, ARG_END},
    [OF_SCORES] = {"%s_scores", SCORES, ARG_END},
    [OF_SCORES_BACKWARD] = {"%s_scores_backward", SCORES, ARG_END},
    [OF_KEEPING] = {"_%s_attention", FORWARD, ARG_RETURN_KEPT},
    [OF_KEEPING_BACKWARD] = {"_%s_attention_backward", BACKWARD, ARG_KEPT},
    [OF_LAYER] = {"__call__", LAYER, ARG_NEED_WEIGHTS},
    [OF_LAYER_BACKWARD] = {"backward", LAYER, ARG_CONTEXT},
};

static unsigned char *
add_parameters(unsigned char *arg, const py_score *score, bool optional)
{
    for (int i = 0; i < score->parameters; i++) {
        if (score->about->parameters[i].optional == optional) {
            *arg++ = (unsigned char)(ARG_PARAMETER_0 + i);
        }
    }
    return arg;
}

/* Is the option one of this form? Heads inside of an attention share keys by num_kv_heads,
 * and not by enable_gqa. */
static bool
takes(const py_score *score, py_form form, py_arg arg, int taken_by)
{
    const attn_score_info *about = score->about;
    const bool factor = about->scale == ATTN_SCALE_ROOT ||
                        about->scale == ATTN_SCALE_ONE;
    const bool heads_inside = arg == ARG_ENABLE_GQA && about->has_heads;
    int who = forms[form].takes | (factor && py_is_backward(form) ? SCALED : 0);
    if ((who & LAYER) && ((taken_by & FORWARD) != 0) == py_is_backward(form)) {
        return false;
    }
    return (who & taken_by) != 0 && !heads_inside;
}

/* What the arguments are apart from options: those of a layer's backward are in its
 * context, parameters in the layer, which may have a memory in the place of values. */
static unsigned char *
add_inputs(py_signature *signature, const py_score *score, py_form form)
{
    const int who = forms[form].takes;
    unsigned char *arg = signature->args;
    if (py_is_backward(form)) {
        *arg++ = ARG_GRAD_OUTPUT;
    }
    if (form != OF_LAYER_BACKWARD) {
        *arg++ = ARG_QUERIES;
        *arg++ = ARG_KEYS;
        signature->required = 2;
        if (who != SCORES) {
            *arg++ = ARG_VALUES;
        }
    }
    if (who != LAYER) {
        arg = add_parameters(arg, score, false);
    }
    if (form != OF_LAYER) {
        signature->required = (int)(arg - signature->args);
    }
    if (who != SCORES && form != OF_LAYER_BACKWARD) {
        *arg++ = ARG_VALID_LENS;
    }
    signature->positional = (int)(arg - signature->args);
    return arg;
}

static void
write_signature(py_signature *signature, const py_score *score, py_form form)
{
    const attn_score_info *about = score->about;
    const bool layer = forms[form].takes == LAYER;
    unsigned char *arg = add_inputs(signature, score, form);
    signature->method = layer;
    signature->keyword = about->has_heads && !layer ? ARG_NUM_HEADS : ARG_END;
#define SCORE_OPTION(ID, NAME, DEFAULT, TAKEN_BY, IF, PLAIN)                     \
    if ((forms[form].takes & (TAKEN_BY)) && form != OF_LAYER_BACKWARD && (IF)) { \
        *arg++ = ARG_##ID;                                                       \
    }
#include "py_options.def"
    arg = layer ? arg : add_parameters(arg, score, true);
#define OPTION(ID, NAME, DEFAULT, TAKEN_BY, ...)  \
    if (takes(score, form, ARG_##ID, TAKEN_BY)) { \
        *arg++ = ARG_##ID;                        \
    }
#include "py_options.def"
    *arg = (unsigned char)(about->has_heads || layer ? forms[form].last : ARG_END);
}

void
py_write_signatures(py_score *score, py_score_number number)
{
    static char names[SCORE_COUNT][PY_FORMS][48]; /* functions point there */
    for (int form = 0; form < PY_FORMS; form++) {
        char *name = names[number][form];
        PyOS_snprintf(name, sizeof names[number][form], forms[form].name,
                      score->about->name);
        score->signatures[form] = (py_signature){.function = name, .score = number};
        write_signature(&score->signatures[form], score, (py_form)form);
    }
}
