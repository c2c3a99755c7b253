/*
 * py_signature.c -- from the arguments of a call to named slots.
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
