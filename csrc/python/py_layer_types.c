/*
 * py_layer_types.c -- the types of the layers: a row of a table each. What they have from
 * Python, attnext/_layers.py puts into them (py_module.c).
 */
#include "py_layer.h"

#include <string.h>
#include <structmember.h>

/* ---- what a constructor is given ------------------------------------------------- */

enum {
    KEY_SIZE,
    QUERY_SIZE,
    VALUE_SIZE,
    NUM_HIDDENS,
    NUM_HEADS,
    DROPOUT,
    SCALE,
    BIAS,
    NUM_KV_HEADS,
    RNG,
    NOT_TAKEN, /* where the arguments of those that do not take them all would go */
    ARGUMENTS
};

typedef struct {
    py_score_number number;
    const char *name, *signature, *format;
    char *names[ARGUMENTS];
    unsigned char arguments[9]; /* in this order */
    int sizes;                  /* members before them are every layer's */
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
        .arguments = {KEY_SIZE, QUERY_SIZE, NUM_HIDDENS, DROPOUT, BIAS, RNG, NOT_TAKEN,
                      NOT_TAKEN, NOT_TAKEN},
        .sizes = 3,
    },
    {
        .number = SCORE_dot,
        .name = "attnext.DotProductAttention",
        .signature =
            "DotProductAttention(dropout=0.0, *, scale=None, rng=None)\n--\n\n",
        .format = "|O$OO:DotProductAttention",
        .names = {"dropout", "scale", "rng"},
        .arguments = {DROPOUT, SCALE, RNG, NOT_TAKEN, NOT_TAKEN, NOT_TAKEN, NOT_TAKEN,
                      NOT_TAKEN, NOT_TAKEN},
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
        .arguments = {KEY_SIZE, QUERY_SIZE, VALUE_SIZE, NUM_HIDDENS, NUM_HEADS, DROPOUT,
                      BIAS, NUM_KV_HEADS, RNG},
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

PyObject *
layer_new(PyTypeObject *type)
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

static PyObject *
new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    return layer_new(type);
}

static int
parse(const layer_row *row, PyObject *args, PyObject *kwargs,
      PyObject *given[ARGUMENTS])
{
    const unsigned char *to = row->arguments;
    memset(given, 0, ARGUMENTS * sizeof *given);
    return PyArg_ParseTupleAndKeywords(args, kwargs, row->format, (char **)row->names,
                                       &given[to[0]], &given[to[1]], &given[to[2]],
                                       &given[to[3]], &given[to[4]], &given[to[5]],
                                       &given[to[6]], &given[to[7]], &given[to[8]])
               ? 0
               : -1;
}

static int
init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[ARGUMENTS];
    bool bias = false;
    int result = -1;
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    const layer_row *row = row_of(Py_TYPE(self));
    layer_core core = {.score = ((layer_object *)self)->core.score, .training = true};

    if (parse(row, args, kwargs, given) < 0 ||
        (row->sizes > 0 && layer_read_sizes(&core, given[KEY_SIZE], given[QUERY_SIZE],
                                            given[NUM_HIDDENS]) < 0) ||
        (core.score->about->has_heads &&
         layer_read_heads(&core, given[VALUE_SIZE], given[NUM_HEADS],
                          given[NUM_KV_HEADS]) < 0) ||
        layer_read_options(&core, given[DROPOUT], given[SCALE]) < 0 ||
        (given[BIAS] != NULL && py_read_flag(given[BIAS], "bias", &bias) < 0)) {
        return -1;
    }
    core.rng = layer_rng(given[RNG]);
    if (core.rng != NULL && layer_draw_parameters(state, &core, bias) == 0) {
        result = layer_install((layer_object *)self, &core);
    }
    layer_core_clear(&core);
    return result;
}

/* ---- what the types have --------------------------------------------------------- */

#define SIZE(NAME) \
    {#NAME, T_PYSSIZET, offsetof(layer_object, core.NAME), READONLY, NULL}

/* Of all, then of those that have sizes. */
enum { MEMBERS_OF_ALL = 3 };
static const PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(layer_object, vectorcall), READONLY,
     NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(layer_object, weakrefs), READONLY,
     NULL},
    {"dropout", T_DOUBLE, offsetof(layer_object, core.dropout), READONLY, NULL},
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

/* Those that are in C, and behind them those whose signatures are made at import. */
enum { METHODS = 16 };
static int
fill_methods(const attnext_state *state, py_score *score, PyMethodDef *to)
{
    for (const PyMethodDef *method = layer_methods; method->ml_name; method++, to++) {
        *to = to->ml_name == NULL ? *method : *to;
    }
    return py_fill_methods(state, layer_train_functions, 0, to) < 0 ||
                   py_fill_methods(state, layer_memory_functions, 0, to + 1) < 0 ||
                   layer_fill_calls(state, score, to + 2) < 0
               ? -1
               : 0;
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
