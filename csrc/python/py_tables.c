/*
 * py_tables.c -- the table of arguments, of py_options.def, and that of the scores, of which
 * attnext/_tables.py is told, which makes of them signatures and what Python sees. And what
 * help() shows: these signatures as text, and behind them the words of attnext/_docs.
 */
#include "py_attnext.h"

#include <string.h>
#include <structmember.h>

const py_argument_row py_argument_rows[ARG_COUNT] = {
#define ARGUMENT(ID, NAME, DEFAULT, TAKEN_BY, ...) \
    [ARG_##ID] = {NAME, DEFAULT, #TAKEN_BY, false},
#define ARRAY(ID, NAME, DEFAULT, TAKEN_BY, ...) \
    [ARG_##ID] = {NAME, DEFAULT, #TAKEN_BY, true},
#define OPTION(...) ARRAY(__VA_ARGS__)
#include "py_options.def"
};

static const char TABLES[] = "attnext._tables";

int
py_tell_arguments(PyObject *module)
{
    int result = 0;
    for (int i = ARG_END + 1; result == 0 && i < ARG_COUNT; i++) {
        const py_argument_row *row = &py_argument_rows[i];
        result = py_tell(TABLES, "add_argument", "(Oizzsi)", module, i, row->name,
                         row->standard, row->taken_by, row->shared);
    }
    return result;
}

/* A copy that stays for good: functions point to it. */
static char *
lasting(const char *before, const char *text)
{
    char *copy = PyMem_RawMalloc(strlen(before) + strlen(text) + 1);
    if (copy == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    return strcat(strcpy(copy, before), text);
}

/* Its parameters, and then it. */
int
py_tell_score(PyObject *module, py_score *score)
{
    const attn_score_info *about = score->about;
    for (int i = 0; i < score->parameters; i++) {
        const attn_parameter *p = &about->parameters[i];
        if (py_tell(TABLES, "add_parameter", "(OsssiC)", module, about->name, p->name,
                    p->shape, p->optional, p->fan_in) < 0) {
            return -1;
        }
    }
    score->Gradients = py_ask(TABLES, "add_attention", "(Osiii)", module, about->name,
                              about->scale, about->has_eps, about->has_heads);
    return score->Gradients == NULL ? -1 : 0;
}

/* ---- signatures ------------------------------------------------------------------ */

/* What is said of it: its name, its arguments, how many are required, how many may be given by
 * position, the keyword that is required. */
int
py_ask_signature(py_score *score, py_score_number number, py_form form)
{
    py_signature *signature = &score->signatures[form];
    const char *name, *args;
    Py_ssize_t count;
    PyObject *said = py_ask(TABLES, "signature", "(si)", score->about->name, form);
    *signature = (py_signature){.score = number, .method = form >= OF_LAYER};
    if (said != NULL &&
        PyArg_ParseTuple(said, "sy#iib", &name, &args, &count, &signature->required,
                         &signature->positional, &signature->keyword)) {
        memcpy(signature->args, args, (size_t)Py_MIN(count, ARG_COUNT));
        signature->function = lasting(name, "");
    }
    Py_XDECREF(said);
    return signature->function == NULL ? -1 : 0;
}

int
py_fill_method(const attnext_state *state, const py_function *function, int flags,
               PyMethodDef *method)
{
    if (method->ml_doc != NULL) {
        return 0; /* imported before in this process */
    }
    PyObject *text = py_signature_text(state, function->signature);
    const char *shown = text == NULL ? NULL : PyUnicode_AsUTF8(text);
    *method = (PyMethodDef){function->signature->function, function->function,
                            METH_FASTCALL | METH_KEYWORDS | flags,
                            shown == NULL ? NULL : lasting(shown, ")\n--\n\n")};
    Py_XDECREF(text);
    return method->ml_doc == NULL ? -1 : 0;
}

int
py_fill_methods(const attnext_state *state, const py_function *functions, int flags,
                PyMethodDef *methods)
{
    for (int i = 0; functions[i].signature != NULL; i++) {
        if (py_fill_method(state, &functions[i], flags, &methods[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- words ----------------------------------------------------------------------- */

/* Where an object has its docstring; NULL: nowhere that can be written. */
static const char **
place_of(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type == &PyCFunction_Type) {
        return &((PyCFunctionObject *)object)->m_ml->ml_doc;
    }
    if (type == &PyMethodDescr_Type || type == &PyClassMethodDescr_Type) {
        return &((PyMethodDescrObject *)object)->d_method->ml_doc;
    }
    if (type == &PyGetSetDescr_Type) {
        return &((PyGetSetDescrObject *)object)->d_getset->doc;
    }
    return type == &PyMemberDescr_Type ? &((PyMemberDescrObject *)object)->d_member->doc
                                       : NULL;
}

/* add(object, text): the docstring of what is compiled, behind its signature. */
static PyObject *
add(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *object;
    const char *text;
    if (!PyArg_ParseTuple(args, "Os", &object, &text)) {
        return NULL;
    }
    const char **place = place_of(object);
    if (place == NULL) { /* a type, or a function of attnext/_layers.py */
        return PyObject_SetAttrString(object, "__doc__", PyTuple_GET_ITEM(args, 1)) < 0
                   ? NULL
                   : Py_NewRef(Py_None);
    }
    const char *before = *place == NULL ? "" : *place;
    const char *end = strstr(before, "--\n\n");
    if (*before == '\0' || (end != NULL && end[4] == '\0')) { /* else imported before */
        char *doc = lasting(before, text);
        if (doc == NULL) {
            return NULL;
        }
        *place = doc;
    }
    Py_RETURN_NONE;
}

int
py_join_docs(PyObject *module)
{
    static PyMethodDef method = {"add", add, METH_VARARGS, NULL};
    PyObject *function = PyCFunction_New(&method, NULL);
    return py_tell("attnext._docs", "join", "(ON)", module, function);
}
