/*
 * py_layer_multi_head.c -- the type MultiHeadAttention: its constructor and its face.
 */
#include "py_layer.h"

#include <structmember.h>

static PyObject *
multi_head_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
               PyObject *Py_UNUSED(kwargs))
{
    return layer_new(type, SCORE_multi_head);
}

/* What a constructor is given, borrowed. */
typedef struct {
    PyObject *key_size, *query_size, *value_size, *num_hiddens, *num_heads;
    PyObject *dropout, *bias, *num_kv_heads, *rng;
} multi_head_arguments;

static int
parse(PyObject *args, PyObject *kwargs, multi_head_arguments *given)
{
    static char *names[] = {"key_size",  "query_size", "value_size", "num_hiddens",
                            "num_heads", "dropout",    "bias",       "num_kv_heads",
                            "rng",       NULL};
    *given = (multi_head_arguments){.bias = Py_False};
    return PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO|O$OOO:MultiHeadAttention",
                                       names, &given->key_size, &given->query_size,
                                       &given->value_size, &given->num_hiddens,
                                       &given->num_heads, &given->dropout, &given->bias,
                                       &given->num_kv_heads, &given->rng)
               ? 0
               : -1;
}

static int
multi_head_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    multi_head_arguments given;
    bool bias;
    int result = -1;
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    layer_core core = {.score = ((layer_object *)self)->core.score, .training = true};

    if (parse(args, kwargs, &given) < 0 ||
        layer_read_sizes(&core, given.key_size, given.query_size, given.num_hiddens) <
            0 ||
        layer_read_heads(&core, given.value_size, given.num_heads, given.num_kv_heads) <
            0 ||
        layer_read_options(&core, given.dropout, NULL) < 0 ||
        py_read_flag(given.bias, "bias", &bias) < 0) {
        return -1;
    }
    core.rng = layer_rng(given.rng);
    if (core.rng != NULL && layer_draw_parameters(state, &core, bias) == 0) {
        result = layer_install((layer_object *)self, &core);
    }
    layer_core_clear(&core);
    return result;
}

static PyObject *
multi_head_repr(PyObject *self)
{
    const layer_core *core = &((layer_object *)self)->core;
    const char *bias = layer_has_bias(core) ? "True" : "False";
    PyObject *name = PyType_GetName(Py_TYPE(self)), *result = NULL;
    PyObject *dropout = PyFloat_FromDouble(core->dropout);
    char kv[48] = "";

    if (core->num_kv_heads != core->num_heads) {
        PyOS_snprintf(kv, sizeof kv, ", num_kv_heads=%zd", core->num_kv_heads);
    }
    if (name != NULL && dropout != NULL) {
        result = PyUnicode_FromFormat(
            "%U(key_size=%zd, query_size=%zd, value_size=%zd, num_hiddens=%zd, "
            "num_heads=%zd, dropout=%R, bias=%s%s)",
            name, core->key_size, core->query_size, core->value_size, core->num_hiddens,
            core->num_heads, dropout, bias, kv);
    }
    Py_XDECREF(dropout);
    Py_XDECREF(name);
    return result;
}

PyGetSetDef layer_multi_head_properties[LAYER_PROPERTIES];

PyMethodDef layer_multi_head_methods[LAYER_METHODS];

#define SIZE(NAME) \
    {#NAME, T_PYSSIZET, offsetof(layer_object, core.NAME), READONLY, NULL}

static PyMemberDef multi_head_members[] = {
    LAYER_MEMBERS,     SIZE(key_size),  SIZE(query_size),   SIZE(value_size),
    SIZE(num_hiddens), SIZE(num_heads), SIZE(num_kv_heads), {0},
};

static PyType_Slot multi_head_slots[] = {
    LAYER_SLOTS,
    {Py_tp_doc,
     "MultiHeadAttention(key_size, query_size, value_size, num_hiddens, num_heads, "
     "dropout=0.0, *, bias=False, num_kv_heads=None, rng=None)\n--\n\n"},
    {Py_tp_new, multi_head_new},
    {Py_tp_init, multi_head_init},
    {Py_tp_repr, multi_head_repr},
    {Py_tp_methods, layer_multi_head_methods},
    {Py_tp_getset, layer_multi_head_properties},
    {Py_tp_members, multi_head_members},
    {0},
};

PyType_Spec layer_multi_head_spec = {
    .name = "attnext.MultiHeadAttention",
    .basicsize = sizeof(layer_object),
    .flags = LAYER_FLAGS,
    .slots = multi_head_slots,
};
