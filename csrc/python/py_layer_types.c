/*
 * py_layer_types.c -- the types of the layers: a row of a table each. What they have from
 * Python, attnext/_layers.py puts into them (py_module.c).
 */
#include "py_layer.h"

#include <string.h>
#include <structmember.h>

/* ---- what a constructor is given ------------------------------------------------- */

enum { ARGUMENTS = 9 }; /* at most */

typedef struct {
    py_score_number number;
    const char *name, *signature, *format;
    char *names[ARGUMENTS + 1];
    int sizes; /* members before them are every layer's */
} layer_row;

static const layer_row rows[] = {
    {
        .number = SCORE_additive,
        .name = "attnext.AdditiveAttention",
        .signature =
            "AdditiveAttention(key_size, query_size, num_hiddens, dropout=0.0, "
            "*, bias=False, rng=None)\n--\n\n",
        .format = "OOO|O$OO:AdditiveAttention",
        .names = {"key_size", "query_size", "num_hiddens", "dropout", "bias", "rng"},
        .sizes = 3,
    },
    {
        .number = SCORE_dot,
        .name = "attnext.DotProductAttention",
        .signature =
            "DotProductAttention(dropout=0.0, *, scale=None, rng=None)\n--\n\n",
        .format = "|O$OO:DotProductAttention",
        .names = {"dropout", "scale", "rng"},
    },
    {
        .number = SCORE_multi_head,
        .name = "attnext.MultiHeadAttention",
        .signature =
            "MultiHeadAttention(key_size, query_size, value_size, num_hiddens, "
            "num_heads, dropout=0.0, *, bias=False, num_kv_heads=None, "
            "rng=None)\n--\n\n",
        .format = "OOOOO|O$OOO:MultiHeadAttention",
        .names = {"key_size", "query_size", "value_size", "num_hiddens", "num_heads",
                  "dropout", "bias", "num_kv_heads", "rng"},
        .sizes = 6,
    },
};
enum { TYPES = Py_ARRAY_LENGTH(rows) };

/* That of a type, or of the one it is a subclass of. */
static const layer_row *
row_of(PyTypeObject *type)
{
    const attnext_state *state = py_state_of_type(type);
    const layer_row *row = rows;
    while (!PyType_IsSubtype(type, state->layers[row->number])) {
        row++;
    }
    return row;
}

static PyObject *
new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    layer_object *layer = (layer_object *)type->tp_alloc(type, 0); /* all zero */
    if (layer != NULL) {
        layer->vectorcall = layer_vectorcall;
        layer->core.score = &py_state_of_type(type)->scores[row_of(type)->number];
        layer->core.training = true;
        layer->revision = 1; /* that of a memory which has not looked is 0 */
    }
    return (PyObject *)layer;
}

static int
init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    const layer_row *row = row_of(Py_TYPE(self));
    PyObject *g[ARGUMENTS], *done = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, row->format, (char **)row->names,
                                     &g[0], &g[1], &g[2], &g[3], &g[4], &g[5], &g[6],
                                     &g[7], &g[8])) {
        return -1; /* with the class in the message: that is all that it is for */
    }
    PyObject *made = py_ask("attnext._constructors", "make", "(sOO)",
                            ((layer_object *)self)->core.score->about->name, args,
                            kwargs == NULL ? Py_None : kwargs);
    if (made != NULL) {
        done = layer_install(self, made);
        Py_DECREF(made);
    }
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* ---- what the types have --------------------------------------------------------- */

#define MEMBER(NAME, TYPE, FIELD) \
    {NAME, TYPE, offsetof(layer_object, FIELD), READONLY, NULL}
#define SIZE(NAME) MEMBER(#NAME, T_PYSSIZET, core.NAME)

/* Of all, then of those that have sizes. */
enum { MEMBERS_OF_ALL = 5 };
static const PyMemberDef members[] = {
    MEMBER("__vectorcalloffset__", T_PYSSIZET, vectorcall),
    MEMBER("__weaklistoffset__", T_PYSSIZET, weakrefs),
    MEMBER("dropout", T_DOUBLE, core.dropout),
    MEMBER("training", T_BOOL, core.training),
    MEMBER("_bias", T_BOOL, core.has_bias),
    SIZE(key_size),
    SIZE(query_size),
    SIZE(num_hiddens),
    SIZE(value_size),
    SIZE(num_heads),
    SIZE(num_kv_heads),
};

/* The layer's own, and the parameters of its score. */
enum { PROPERTIES = 16 };
static void
fill_properties(const py_score *score, PyGetSetDef *to)
{
    if (to->name != NULL) {
        return; /* imported before in this process */
    }
    for (const PyGetSetDef *p = layer_properties; p->name != NULL; p++) {
        *to++ = *p;
    }
    if (score->parameters == 0) {
        *to++ = (PyGetSetDef){"scale", layer_get_scale, NULL, NULL, NULL};
    }
    for (int i = 0; i < score->parameters; i++) {
        *to++ = (PyGetSetDef){score->about->parameters[i].name, layer_get_parameter,
                              layer_set_parameter, NULL, (void *)(intptr_t)i};
    }
}

/* Those that are in C, and behind them those whose signatures are made at import: where
 * they are listed as methods, METH_COEXIST puts them in the place of what Python would make
 * from slots, of __call__. */
enum { METHODS = 16 };
static int
fill_methods(const attnext_state *state, py_score *score, PyMethodDef *to)
{
    const py_function functions[] = {
        {&layer_train_signature, PY_FASTCALL(layer_train)},
        {&layer_memory_signature, PY_FASTCALL(layer_memory)},
        {&score->signatures[OF_LAYER], PY_FASTCALL(layer_call)},
        {&score->signatures[OF_LAYER_BACKWARD], PY_FASTCALL(layer_backward)},
        {0},
    };
    for (const PyMethodDef *method = layer_methods; method->ml_name; method++, to++) {
        *to = to->ml_name == NULL ? *method : *to;
    }
    return py_fill_methods(state, functions, METH_COEXIST, to);
}

/* *type = the type of this spec, which becomes an attribute of the module */
static int
add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

static int
add_layer(PyObject *module, attnext_state *state, const layer_row *row,
          PyMethodDef *methods, PyGetSetDef *properties)
{
    py_score *score = &state->scores[row->number];
    PyMemberDef own[Py_ARRAY_LENGTH(members) + 1] = {{0}};
    memcpy(own, members, (size_t)(MEMBERS_OF_ALL + row->sizes) * sizeof *own);
    fill_properties(score, properties);
    if (fill_methods(state, score, methods) < 0) {
        return -1;
    }
    PyType_Slot slots[] = {
        {Py_tp_doc, (void *)row->signature},
        {Py_tp_new, new},
        {Py_tp_init, init},
        {Py_tp_traverse, layer_traverse},
        {Py_tp_clear, layer_clear},
        {Py_tp_dealloc, layer_dealloc},
        {Py_tp_call, PyVectorcall_Call},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_tp_members, own},
        {0},
    };
    PyType_Spec spec = {
        .name = row->name,
        .basicsize = sizeof(layer_object),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                 Py_TPFLAGS_HAVE_VECTORCALL,
        .slots = slots,
    };
    return add_type(module, &spec, &state->layers[row->number]);
}

int
py_layers_exec(PyObject *module, attnext_state *state)
{
    static PyMethodDef methods[TYPES][METHODS]; /* methods point there */
    static PyGetSetDef properties[TYPES][PROPERTIES];
    if (py_fill_methods(state, memory_functions, 0, memory_methods) < 0 ||
        add_type(module, &layer_context_spec, &state->Context) < 0 ||
        add_type(module, &layer_memory_spec, &state->Memory) < 0) {
        return -1;
    }
    for (int i = 0; i < TYPES; i++) {
        if (add_layer(module, state, &rows[i], methods[i], properties[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

void
py_layers_seal(const attnext_state *state)
{
    PyTypeObject *types[TYPES + 2] = {state->Context, state->Memory};
    for (int i = 0; i < TYPES; i++) {
        types[i + 2] = state->layers[rows[i].number];
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++) {
        types[i]->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
        PyType_Modified(types[i]);
    }
}
