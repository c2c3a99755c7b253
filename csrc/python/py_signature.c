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
    for (int i = 0; i < ARG_COUNT; i++) {
        const char *name = py_argument_rows[i].name;
        if (name != NULL &&
            (state->names[i] = PyUnicode_InternFromString(name)) == NULL) {
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

PyObject *
py_signature_text(const attnext_state *state, const py_signature *signature)
{
    PyObject *text = PyUnicode_FromFormat("%s(%s", signature->function,
                                          signature->method ? "$self" : "");
    const char *comma = signature->method ? ", " : "";
    for (int i = 0; text != NULL && signature->args[i] != ARG_END; i++, comma = ", ") {
        py_arg arg = signature->args[i];
        bool standard = i >= signature->required && arg != signature->keyword;
        Py_SETREF(text,
                  PyUnicode_FromFormat("%U%s%s%U%s%s", text, comma,
                                       i == signature->positional ? "*, " : "",
                                       py_argument_name(state, signature, arg),
                                       standard ? "=" : "",
                                       standard ? py_argument_rows[arg].standard : ""));
    }
    return text;
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
    PyObject *keys = given[ARG_KEYS];
    if (!fits && !signature->method && keys != NULL &&
        Py_IS_TYPE(keys, state->Memory)) {
        return py_wrong("sentence", "(s)", "memory_of_layer");
    }
    return fits ? 0
                : py_wrong("call", kwnames == NULL ? "(Nn())" : "(NnO)",
                           py_signature_text(state, signature), nargs, kwnames);
}

PyObject *
py_call_body(PyObject *module, const py_signature *signature, py_body *body,
             PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT] = {NULL}, *owned = NULL, *result = NULL;
    if (py_parse(state, signature, args, nargs, kwnames, given) == 0 &&
        py_make_plain(state, signature, given, &owned) == 0) {
        result = body(state, given);
    }
    Py_XDECREF(owned);
    return result;
}

/* ---- what a score is exposed as -------------------------------------------------- */

/* What of the table is for whom. */
static const struct {
    const char *name;
    int takes;
} forms[PY_FORMS] = {
    [OF_ATTENTION] = {"%s_attention", FORWARD | INPUTS | POOLED},
    [OF_ATTENTION_BACKWARD] = {"%s_attention_backward", BACKWARD | INPUTS | POOLED},
    [OF_SCORES] = {"%s_scores", SCORES | INPUTS},
    [OF_SCORES_BACKWARD] = {"%s_scores_backward", SCORES | INPUTS},
    [OF_KEEPING] = {"_%s_attention", FORWARD | INPUTS | POOLED | KEEPING},
    [OF_KEEPING_BACKWARD] = {"_%s_attention_backward",
                             BACKWARD | INPUTS | POOLED | KEEPING_BACKWARD},
    [OF_LAYER] = {"__call__", INPUTS | POOLED | LAYER_CALL},
    [OF_LAYER_BACKWARD] = {"backward", LAYER_BACKWARD},
};

/* Of the table, and of what the score has to do with it; `by`: who takes it. */
static bool
takes(const attn_score_info *about, py_form form, int by)
{
    static const int of_scale[] = {[ATTN_SCALE_ROOT] = IF_ROOT,
                                   [ATTN_SCALE_ONE] = IF_ONE,
                                   [ATTN_SCALE_BANDWIDTH] = IF_BANDWIDTH};
    const int ifs = (about->has_heads ? IF_HEADS : IF_WHOLE) |
                    (about->has_eps ? IF_EPS : 0) | of_scale[about->scale];
    const int scaled = ifs & (IF_ROOT | IF_ONE) ? SCALED : 0;
    const int who = forms[form].takes | (py_is_backward(form) ? BACKWARDS | scaled : 0);
    return (who & by) != 0 && (by & IFS & ~ifs) == 0;
}

static unsigned char *
add_parameters(unsigned char *to, const py_score *score, bool optional)
{
    for (int i = 0; i < score->parameters; i++) {
        if (score->about->parameters[i].optional == optional) {
            *to++ = (unsigned char)(ARG_PARAMETER_0 + i);
        }
    }
    return to;
}

/* A layer has parameters itself, and may have a memory in the place of values. */
static void
write_signature(py_signature *signature, const py_score *score, py_form form)
{
    const bool layer = py_is_of_layer(form);
    unsigned char *to = signature->args;
    for (int arg = ARG_END + 1; arg < ARG_COUNT; arg++) {
        if (arg == ARG_VALID_LENS) { /* behind them all is optional */
            to = layer ? to : add_parameters(to, score, false);
            signature->required = (int)(to - signature->args) - (form == OF_LAYER);
        } else if (arg == ARG_VALID_LENS + 1) { /* ... and by keyword */
            signature->positional = (int)(to - signature->args);
        } else if (arg == ARG_SOFTCAP && !layer) {
            to = add_parameters(to, score, true);
        }
        if (takes(score->about, form, py_argument_rows[arg].taken_by)) {
            *to++ = (unsigned char)arg;
        }
    }
    signature->method = layer;
    signature->keyword = score->about->has_heads && !layer ? ARG_NUM_HEADS : ARG_END;
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
