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
            return py_unknown_keyword(state, signature, keyword);
        }
        if (given[arg] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'",
                         signature->function, keyword);
            return -1;
        }
        given[arg] = args[nargs + i];
    }
    if (signature->keyword != ARG_END && given[signature->keyword] == NULL) {
        PyErr_Format(PyExc_TypeError,
                     "%s() missing required keyword-only argument '%U'",
                     signature->function,
                     py_argument_name(state, signature, signature->keyword));
        return -1;
    }
    for (int i = 0; i < signature->required; i++) {
        if (given[signature->args[i]] == NULL) {
            PyErr_Format(PyExc_TypeError,
                         "%s() missing required argument '%U' (position %d)",
                         signature->function,
                         py_argument_name(state, signature, signature->args[i]), i + 1);
            return -1;
        }
    }
    return 0;
}
