/*
 * py_layer_additive.c -- the type AdditiveAttention: its constructor and its face.
 */
#include "py_layer.h"

#include <structmember.h>

static PyObject *
additive_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    return layer_new(type, SCORE_additive);
}

static int
additive_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key_size", "query_size", "num_hiddens", "dropout",
                            "bias",     "rng",        NULL};
    PyObject *key_size, *query_size, *num_hiddens;
    PyObject *dropout = NULL, *has_bias = Py_False, *rng = NULL;
    bool bias;
    int result = -1;
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    layer_core core = {.score = ((layer_object *)self)->core.score, .training = true};

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|O$OO:AdditiveAttention", names,
                                     &key_size, &query_size, &num_hiddens, &dropout,
                                     &has_bias, &rng)) {
        return -1;
    }
    if (layer_read_sizes(&core, key_size, query_size, num_hiddens) < 0 ||
        layer_read_options(&core, dropout, NULL) < 0 ||
        py_read_flag(has_bias, "bias", &bias) < 0) {
        return -1;
    }
    core.rng = layer_rng(rng);
    if (core.rng != NULL && layer_draw_parameters(state, &core, bias) == 0) {
        result = layer_install((layer_object *)self, &core);
    }
    layer_core_clear(&core);
    return result;
}

static PyObject *
additive_repr(PyObject *self)
{
    const layer_core *core = &((layer_object *)self)->core;
    const char *bias = layer_has_bias(core) ? "True" : "False";
    PyObject *name = PyType_GetName(Py_TYPE(self)), *result = NULL;
    PyObject *dropout = PyFloat_FromDouble(core->dropout);

    if (name != NULL && dropout != NULL) {
        result = PyUnicode_FromFormat(
            "%U(key_size=%zd, query_size=%zd, num_hiddens=%zd, dropout=%R, bias=%s)",
            name, core->key_size, core->query_size, core->num_hiddens, dropout, bias);
    }
    Py_XDECREF(dropout);
    Py_XDECREF(name);
    return result;
}

PyGetSetDef layer_additive_properties[LAYER_PROPERTIES];

PyMethodDef layer_additive_methods[LAYER_METHODS];

static PyMemberDef additive_members[] = {
    LAYER_MEMBERS,
    {"key_size", T_PYSSIZET, offsetof(layer_object, core.key_size), READONLY, NULL},
    {"query_size", T_PYSSIZET, offsetof(layer_object, core.query_size), READONLY, NULL},
    {"num_hiddens", T_PYSSIZET, offsetof(layer_object, core.num_hiddens), READONLY,
     NULL},
    {0},
};

static PyType_Slot additive_slots[] = {
    LAYER_SLOTS,
    {Py_tp_doc, "AdditiveAttention(key_size, query_size, num_hiddens, dropout=0.0, *, "
                "bias=False, rng=None)\n--\n\n"},
    {Py_tp_new, additive_new},
    {Py_tp_init, additive_init},
    {Py_tp_repr, additive_repr},
    {Py_tp_methods, layer_additive_methods},
    {Py_tp_getset, layer_additive_properties},
    {Py_tp_members, additive_members},
    {0},
};

PyType_Spec layer_additive_spec = {
    .name = "attnext.AdditiveAttention",
    .basicsize = sizeof(layer_object),
    .flags = LAYER_FLAGS,
    .slots = additive_slots,
};
