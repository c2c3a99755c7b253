/*
 * py_tables.c -- the tables of options and scores: the rows of py_options.def, and what
 * Python sees of them and of the scores, OPTIONS, SCORES and ATTENTIONS.
 */
#include "py_attnext.h"

#include <string.h>

const py_argument_row py_argument_rows[ARG_COUNT] = {
#define ARGUMENT(ID, NAME, DEFAULT) [ARG_##ID] = {NAME, DEFAULT, 0},
#define OPTION(ID, NAME, DEFAULT, TAKEN_BY, ...) [ARG_##ID] = {NAME, DEFAULT, TAKEN_BY},
#include "py_options.def"
};

/* What the text of a default stands for: None, a bool, a word in quotes or a number;
 * Ellipsis without one. */
static PyObject *
default_value(const char *text)
{
    if (text == NULL) { /* it is required */
        return Py_NewRef(Py_Ellipsis);
    }
    if (strcmp(text, "None") == 0) {
        return Py_NewRef(Py_None);
    }
    if (text[0] == 'T' || text[0] == 'F') {
        return PyBool_FromLong(text[0] == 'T');
    }
    if (text[0] == '\'') {
        return PyUnicode_FromStringAndSize(text + 1, (Py_ssize_t)strlen(text) - 2);
    }
    bool whole = strspn(text, "0123456789") == strlen(text);
    return whole ? PyLong_FromString(text, NULL, 10)
                 : PyFloat_FromDouble(PyOS_string_to_double(text, NULL, NULL));
}

static PyObject *
takers(int taken_by)
{
    static const char *const names[] = {"forward", "backward", "layer", "scores",
                                        "scaled"};
    PyObject *list = PyList_New(0), *tuple;
    for (int i = 0; list != NULL && i < 5; i++) {
        PyObject *name = taken_by >> i & 1 ? PyUnicode_FromString(names[i]) : NULL;
        if (name != NULL && PyList_Append(list, name) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(name);
    }
    tuple = list == NULL ? NULL : PyList_AsTuple(list);
    Py_XDECREF(list);
    return tuple;
}

/* dict[key] = value, whose reference is taken over. */
static int
put_item(PyObject *dict, const char *key, PyObject *value)
{
    int result = value == NULL ? -1 : PyDict_SetItemString(dict, key, value);
    Py_XDECREF(value);
    return result;
}

PyObject *
py_options_dict(void)
{
    PyObject *dict = PyDict_New();
    for (int i = 0; dict != NULL && i < ARG_COUNT; i++) {
        const py_argument_row *row = &py_argument_rows[i];
        if (row->taken_by == 0) {
            continue;
        }
        PyObject *option = Py_BuildValue("NN", default_value(row->standard),
                                         takers(row->taken_by));
        if (put_item(dict, row->name, option) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

/* What a backward gives gradients of, but for the bias: ("queries", "keys", "values",
 * "W_q", ...), or only those from the parameters on. */
static PyObject *
gradient_names(const py_score *score, bool inputs)
{
    const char *names[3 + ATTN_PARAMETERS + 1] = {"queries", "keys", "values"};
    int count = inputs ? 3 : 0;
    for (int i = 0; i < score->parameters; i++) {
        names[count++] = score->about->parameters[i].name;
    }
    if (score->about->scale == ATTN_SCALE_BANDWIDTH) {
        names[count++] = "w";
    }
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++) {
        PyObject *name = PyUnicode_FromString(names[i]);
        if (name == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SET_ITEM(tuple, i, name);
        }
    }
    return tuple;
}

/* The keywords that are this score's own in the functions, by name, and their defaults. */
static PyObject *
own_options(const attn_score_info *about)
{
    PyObject *dict = PyDict_New();
    for (int i = 0; dict != NULL && i < ATTN_PARAMETERS; i++) {
        const attn_parameter *parameter = &about->parameters[i];
        if (parameter->optional &&
            put_item(dict, parameter->name, Py_NewRef(Py_None)) < 0) {
            Py_CLEAR(dict);
        }
    }
#define SCORE_OPTION(ID, NAME, DEFAULT, TAKEN_BY, IF)          \
    if (dict != NULL && ((TAKEN_BY) & FORWARD) != 0 && (IF) && \
        put_item(dict, NAME, default_value(DEFAULT)) < 0) {    \
        Py_CLEAR(dict);                                        \
    }
#include "py_options.def"
    return dict;
}

/* (name, shape in letters, is it optional?, letter of its fan-in) of each parameter. */
static PyObject *
parameters(const py_score *score)
{
    PyObject *tuple = PyTuple_New(score->parameters);
    for (int i = 0; tuple != NULL && i < score->parameters; i++) {
        const attn_parameter *p = &score->about->parameters[i];
        PyObject *row = Py_BuildValue("ssOC", p->name, p->shape,
                                      p->optional ? Py_True : Py_False, p->fan_in);
        if (row == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SET_ITEM(tuple, i, row);
        }
    }
    return tuple;
}

PyObject *
py_scores_dict(const attnext_state *state, bool attentions)
{
    PyObject *dict = PyDict_New();
    const int count = attentions ? SCORE_COUNT : SCORE_multi_head;
    for (int i = 0; dict != NULL && i < count; i++) {
        const py_score *score = &state->scores[i];
        PyObject *entry = Py_BuildValue("NNNN", gradient_names(score, false),
                                        gradient_names(score, true),
                                        own_options(score->about), parameters(score));
        if (put_item(dict, score->about->name, entry) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}
