/*
 * py_tables.c -- the table of arguments, of py_options.def, and that of the scores, as rows
 * for attnext/_tables.py, which makes of them what Python sees.
 */
#include "py_attnext.h"

const py_argument_row py_argument_rows[ARG_COUNT] = {
#define ARGUMENT(ID, NAME, DEFAULT, TAKEN_BY, ...) \
    [ARG_##ID] = {NAME, DEFAULT, TAKEN_BY, false},
#define ARRAY(ID, NAME, DEFAULT, TAKEN_BY, ...) \
    [ARG_##ID] = {NAME, DEFAULT, TAKEN_BY, true},
#define OPTION(...) ARRAY(__VA_ARGS__)
#include "py_options.def"
};

/* list.append(item), whose reference is taken over; both may be NULL. */
static int
append(PyObject *list, PyObject *item)
{
    int result = list == NULL || item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return result;
}

/* [(name, default, takers), ...] of what attentions share. */
static PyObject *
option_rows(void)
{
    PyObject *rows = PyList_New(0);
    for (int i = 0; rows != NULL && i < ARG_COUNT; i++) {
        const py_argument_row *row = &py_argument_rows[i];
        if (row->shared && append(rows, Py_BuildValue("ssi", row->name, row->standard,
                                                      row->taken_by & TAKERS)) < 0) {
            Py_CLEAR(rows);
        }
    }
    return rows;
}

/* [(name, shape in letters, is it optional?, letter of its fan-in), ...] */
static PyObject *
parameter_rows(const py_score *score)
{
    PyObject *rows = PyList_New(0);
    for (int i = 0; rows != NULL && i < score->parameters; i++) {
        const attn_parameter *p = &score->about->parameters[i];
        if (append(rows, Py_BuildValue("ssOC", p->name, p->shape,
                                       p->optional ? Py_True : Py_False, p->fan_in)) <
            0) {
            Py_CLEAR(rows);
        }
    }
    return rows;
}

/* The named tuples that attnext._tables.fill() returns, one of each attention or None. */
static int
take_types(attnext_state *state, PyObject *types)
{
    for (int i = 0; types != NULL && i < SCORE_COUNT; i++) {
        PyObject *type = PyList_GetItem(types, i);
        if (py_is_given(type)) {
            state->scores[i].Gradients = Py_NewRef(type);
        }
    }
    return types == NULL ? -1 : 0;
}

int
py_fill_tables(PyObject *module, attnext_state *state)
{
    PyObject *attentions = PyList_New(0);
    for (int i = 0; attentions != NULL && i < SCORE_COUNT; i++) {
        const py_score *score = &state->scores[i];
        if (append(attentions, Py_BuildValue("sN", score->about->name,
                                             parameter_rows(score))) < 0) {
            Py_CLEAR(attentions);
        }
    }
    PyObject *types = py_ask("attnext._tables", "fill", "(ONN)", module, option_rows(),
                             attentions);
    int result = take_types(state, types);
    Py_XDECREF(types);
    return result;
}
