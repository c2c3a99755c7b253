/*
 * py_tables.c -- the table of arguments, of py_options.def, and that of the scores, of which
 * attnext/_tables.py is told, which makes of them what Python sees. And what help() shows:
 * signatures, made of the table of arguments; and behind them, when the module is imported,
 * the words of attnext/_docs.
 */
#include "py_attnext.h"

#include <structmember.h>

const py_argument_row py_argument_rows[ARG_COUNT] = {
#define ARGUMENT(ID, NAME, DEFAULT, TAKEN_BY, ...) \
    [ARG_##ID] = {NAME, DEFAULT, TAKEN_BY, false},
#define ARRAY(ID, NAME, DEFAULT, TAKEN_BY, ...) \
    [ARG_##ID] = {NAME, DEFAULT, TAKEN_BY, true},
#define OPTION(...) ARRAY(__VA_ARGS__)
#include "py_options.def"
};

/* What attentions share, one by one; and of each attention its parameters, and then it. */
int
py_fill_tables(PyObject *module, attnext_state *state)
{
    static const char TABLES[] = "attnext._tables";
    for (int i = 0; i < ARG_COUNT; i++) {
        const py_argument_row *row = &py_argument_rows[i];
        if (row->shared &&
            py_told(py_ask(TABLES, "add_option", "(Ossi)", module, row->name,
                           row->standard, row->taken_by & TAKERS)) < 0) {
            return -1;
        }
    }
    for (int i = 0; i < SCORE_COUNT; i++) {
        const py_score *score = &state->scores[i];
        const char *name = score->about->name;
        for (int j = 0; j < score->parameters; j++) {
            const attn_parameter *p = &score->about->parameters[j];
            if (py_told(py_ask(TABLES, "add_parameter", "(OsssiC)", module, name,
                               p->name, p->shape, p->optional, p->fan_in)) < 0) {
                return -1;
            }
        }
        state->gradients[i] = py_ask(TABLES, "add_attention", "(Os)", module, name);
        if (state->gradients[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

/* ---- signatures ------------------------------------------------------------------ */

int
py_fill_method(const attnext_state *state, const py_function *function, int flags,
               PyMethodDef *method)
{
    if (method->ml_doc != NULL) {
        return 0; /* imported before in this process */
    }
    PyObject *text = py_signature_text(state, function->signature);
    PyObject *shown = text == NULL ? NULL : PyUnicode_FromFormat("%U)\n--\n\n", text);
    *method = (PyMethodDef){function->signature->function, function->function,
                            METH_FASTCALL | METH_KEYWORDS | flags,
                            shown == NULL ? NULL : PyUnicode_AsUTF8(shown)};
    Py_XDECREF(text);
    return method->ml_doc == NULL ? -1 : 0; /* shown stays for good */
}

/* ---- words ----------------------------------------------------------------------- */

/* Where an object has its docstring; NULL: nowhere that can be written. */
static const char **
place_of(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    return type == &PyCFunction_Type ? &((PyCFunctionObject *)object)->m_ml->ml_doc
           : type == &PyMethodDescr_Type
               ? &((PyMethodDescrObject *)object)->d_method->ml_doc
           : type == &PyGetSetDescr_Type
               ? &((PyGetSetDescrObject *)object)->d_getset->doc
           : type == &PyMemberDescr_Type
               ? &((PyMemberDescrObject *)object)->d_member->doc
               : NULL;
}

/* add(object, text): the docstring of what is compiled, its signature included, for good. False:
 * it is not, as a type or a function of attnext/_layers.py. */
static PyObject *
add(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *object, *text;
    if (!PyArg_ParseTuple(args, "OU", &object, &text)) {
        return NULL;
    }
    const char **place = place_of(object), *doc = PyUnicode_AsUTF8(text);
    if (place != NULL && doc != NULL) {
        Py_INCREF(text);
        *place = doc;
    }
    return doc == NULL ? NULL : PyBool_FromLong(place != NULL);
}

int
py_join_docs(PyObject *module)
{
    static PyMethodDef method = {"add", add, METH_VARARGS, NULL};
    PyObject *function = PyCFunction_New(&method, NULL);
    return py_told(py_ask("attnext._docs", "join", "(ON)", module, function));
}
