/*
 * py_layer_dot.c -- the type DotProductAttention: its constructor and its face.
 */
#include "py_layer.h"

#include <structmember.h>

static PyObject *
dot_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    return layer_new(type, SCORE_dot);
}

static int
dot_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"dropout", "scale", "rng", NULL};
    PyObject *dropout = NULL, *scale = NULL, *rng = NULL;
    int result = -1;
    layer_core core = {.score = ((layer_object *)self)->core.score, .training = true};

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$OO:DotProductAttention", names,
                                     &dropout, &scale, &rng)) {
        return -1;
    }
    if (layer_read_options(&core, dropout, scale) < 0) {
        return -1;
    }
    core.grads = PyDict_New();
    core.rng = core.grads == NULL ? NULL : layer_rng(rng);
    if (core.rng != NULL) {
        result = layer_install((layer_object *)self, &core);
    }
    layer_core_clear(&core);
    return result;
}

static PyObject *
dot_get_scale(PyObject *self, void *Py_UNUSED(closure))
{
    const layer_core *core = &((layer_object *)self)->core;
    return core->has_scale ? PyFloat_FromDouble(core->scale) : Py_NewRef(Py_None);
}

static PyObject *
dot_repr(PyObject *self)
{
    const layer_core *core = &((layer_object *)self)->core;
    PyObject *name = PyType_GetName(Py_TYPE(self)), *result = NULL;
    PyObject *dropout = PyFloat_FromDouble(core->dropout);
    PyObject *scale = dot_get_scale(self, NULL);

    if (name != NULL && dropout != NULL && scale != NULL) {
        result = core->has_scale
                     ? PyUnicode_FromFormat("%U(dropout=%R, scale=%R)", name, dropout,
                                            scale)
                     : PyUnicode_FromFormat("%U(dropout=%R)", name, dropout);
    }
    Py_XDECREF(scale);
    Py_XDECREF(dropout);
    Py_XDECREF(name);
    return result;
}

PyGetSetDef layer_dot_properties[LAYER_PROPERTIES] = {
    {"scale", dot_get_scale, NULL, NULL, NULL},
};

PyMethodDef layer_dot_methods[LAYER_METHODS];

static PyMemberDef dot_members[] = {
    LAYER_MEMBERS,
    {0},
};

static PyType_Slot dot_slots[] = {
    LAYER_SLOTS,
    {Py_tp_doc, "DotProductAttention(dropout=0.0, *, scale=None, rng=None)\n--\n\n"},
    {Py_tp_new, dot_new},
    {Py_tp_init, dot_init},
    {Py_tp_repr, dot_repr},
    {Py_tp_methods, layer_dot_methods},
    {Py_tp_getset, layer_dot_properties},
    {Py_tp_members, dot_members},
    {0},
};

PyType_Spec layer_dot_spec = {
    .name = "attnext.DotProductAttention",
    .basicsize = sizeof(layer_object),
    .flags = LAYER_FLAGS,
    .slots = dot_slots,
};
