/*
 * py_layer.c -- the types of the layers, a row of a table each, and the life of a layer: how
 * it is made, held during a call, visited by the garbage collector, freed. What they have
 * from Python, attnext/_layers.py puts into them (py_module.c).
 */
#include "py_layer.h"

#include <string.h>
#include <structmember.h>

/* ---- the core -------------------------------------------------------------------- */

/* The identity goes first: what goes may run code that looks at the layer, which without
 * one is refused as one whose __init__ has not run. */
void
layer_core_clear(layer_core *core)
{
    for (int i = CORE_OBJECTS; i-- > 0;) {
        Py_CLEAR(core->objects[i]);
    }
}

int
layer_hold(layer_object *layer, bool to_read, layer_core *held)
{
    Py_BEGIN_CRITICAL_SECTION(layer);
    if (!to_read) {
        layer->revision++;
    }
    *held = layer->core;
    for (int i = 0; i < CORE_OBJECTS; i++) {
        Py_XINCREF(held->objects[i]);
    }
    Py_END_CRITICAL_SECTION();
    if (held->identity != NULL) {
        return 0;
    }
    layer_core_clear(held);
    return py_wrong("not_made", "(s)", Py_TYPE(layer)->tp_name);
}

layer_core
layer_sizes(const layer_core *core)
{
    layer_core sizes = *core;
    memset(sizes.objects, 0, sizeof sizes.objects);
    return sizes;
}

/* ---- what attnext/_layers.py makes of it ----------------------------------------- */

/* core->parameters = the arrays of core->live as the layer's own: views, which NumPy refuses to
 * resize. */
static int
take_live(const attnext_state *state, layer_core *core)
{
    int result = layer_take_parameters(state, core, core->live);
    for (int i = 0; result == 0 && i < ATTN_PARAMETERS; i++) {
        PyArrayObject *a = core->parameters[i];
        if (a != NULL) {
            core->parameters[i] = (PyArrayObject *)PyArray_View(a, NULL, NULL);
            Py_DECREF(a);
            result = core->objects[i] == NULL
                         ? -1
                         : PyDict_SetItem(core->live, layer_name(state, core, i),
                                          core->objects[i]);
        }
    }
    return result;
}

/* ValueError unless sizes and dropout are those of a layer with this score: whoever calls _install
 * by hand may give any, and calls divide by them and allocate with them. */
static int
check_sizes(const layer_core *core)
{
    const bool has_heads = core->score->about->has_heads;
    const Py_ssize_t H = core->num_hiddens, heads = core->num_heads,
                     kv_heads = core->num_kv_heads;
    bool fits = core->dropout >= 0.0 && (float)core->dropout < 1.0f &&
                core->key_size >= 0 && core->query_size >= 0 && core->value_size >= 0 &&
                H >= (core->score->parameters > 0);
    if (has_heads) {
        fits = fits && heads > 0 && kv_heads > 0 && H % heads == 0 &&
               heads % kv_heads == 0;
    } else {
        fits = fits && heads == 0 && kv_heads == 0;
    }
    return fits ? 0 : py_wrong("sentence", "(s)", "other_sizes");
}

/* _install(): the layer becomes what a constructor or a copy has read, with an identity
 * of its own; what it was before, its last forward included, is given up. On failure it
 * is as it was. */
static PyObject *
install(PyObject *self, PyObject *args)
{
    layer_object *layer = (layer_object *)self;
    layer_core core = {.score = layer->core.score};
    PyObject *scale, *result = NULL;
    int training;

    if (!PyArg_ParseTuple(args, "(nnnnnn)dOpOO!O!:_install", &core.key_size,
                          &core.query_size, &core.value_size, &core.num_hiddens,
                          &core.num_heads, &core.num_kv_heads, &core.dropout, &scale,
                          &training, &core.rng, &PyDict_Type, &core.live, &PyDict_Type,
                          &core.grads)) {
        return NULL;
    }
    if (check_sizes(&core) < 0) {
        return NULL;
    }
    Py_INCREF(core.rng);
    Py_INCREF(core.live);
    Py_INCREF(core.grads);
    core.training = training != 0;
    core.scale = scale == Py_None ? NULL : PyNumber_Float(scale);
    if (!PyErr_Occurred() && take_live(py_state_of_type(Py_TYPE(self)), &core) == 0) {
        core.identity = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    }
    if (core.identity != NULL) {
        Py_BEGIN_CRITICAL_SECTION(layer);
        const layer_core old = layer->core;
        layer->core = core;
        core = old;
        Py_END_CRITICAL_SECTION();
        result = Py_NewRef(Py_None);
    }
    layer_core_clear(&core);
    return result;
}

/* ---- the object ------------------------------------------------------------------ */

/* What is not visited leads nowhere: arrays of numbers, a Context of such. */
static int
traverse(PyObject *self, visitproc visit, void *arg)
{
    layer_object *layer = (layer_object *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(layer->core.rng);
    Py_VISIT(layer->core.grads);
    return 0;
}

static int
clear(PyObject *self)
{
    layer_core_clear(&((layer_object *)self)->core);
    return 0;
}

static void
dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (((layer_object *)self)->weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- what every layer has -------------------------------------------------------- */

/* An attribute, by its number in the core; parameters and gradients are there once __init__ has
 * run. Whoever gets a parameter may write into it. */
static PyObject *
get_object(PyObject *self, void *which)
{
    layer_object *layer = (layer_object *)self;
    const intptr_t i = (intptr_t)which;
    PyObject *object;
    bool made;
    Py_BEGIN_CRITICAL_SECTION(self);
    layer->revision += i <= CORE_LIVE;
    made = layer->core.identity != NULL;
    object = layer->core.objects[i];
    object = Py_NewRef(object == NULL ? Py_None : object);
    Py_END_CRITICAL_SECTION();
    if (!made && i <= CORE_GRADS) {
        py_wrong("not_made", "(s)", Py_TYPE(self)->tp_name);
        Py_CLEAR(object);
    }
    return object;
}

static int
set_parameter(PyObject *self, PyObject *value, void *which)
{
    const char *name = layer_text(&((layer_object *)self)->core, (int)(intptr_t)which);
    return py_told(py_ask("attnext._layers", "_set", value == NULL ? "(Os)" : "(OsO)",
                          self, name, value));
}

static const PyMethodDef methods_of_all[] = {
    {"zero_grad", layer_zero_grad, METH_NOARGS, "zero_grad($self)\n--\n\n"},
    /* For attnext/_layers.py. */
    {"_write", layer_write, METH_O, "_write($self, values, /)\n--\n\n"},
    {"_read", layer_read, METH_VARARGS | METH_STATIC,
     "_read(value, name, shape, /)\n--\n\n"},
    {"_install", install, METH_VARARGS,
     "_install($self, sizes, dropout, scale, training, rng, live, grads, "
     "/)\n--\n\n"},
};

/* ---- what a constructor is given ------------------------------------------------- */

typedef struct {
    py_score_number number;
    const char *name, *signature;
    int sizes; /* members before them are every layer's */
} layer_row;

static const layer_row rows[] = {
    {
        .number = SCORE_additive,
        .name = "attnext.AdditiveAttention",
        .signature =
            "AdditiveAttention(key_size, query_size, num_hiddens, dropout=0.0, "
            "*, bias=False, rng=None)\n--\n\n",
        .sizes = 3,
    },
    {
        .number = SCORE_dot,
        .name = "attnext.DotProductAttention",
        .signature =
            "DotProductAttention(dropout=0.0, *, scale=None, rng=None)\n--\n\n",
    },
    {
        .number = SCORE_multi_head,
        .name = "attnext.MultiHeadAttention",
        .signature =
            "MultiHeadAttention(key_size, query_size, value_size, num_hiddens, "
            "num_heads, dropout=0.0, *, bias=False, num_kv_heads=None, "
            "rng=None)\n--\n\n",
        .sizes = 6,
    },
};
enum { TYPES = Py_ARRAY_LENGTH(rows) };

static PyObject *
new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    const attnext_state *state = py_state_of_type(type);
    const layer_row *row = rows; /* that of the type, or of one it is a subclass of */
    while (!PyType_IsSubtype(type, state->layers[row->number])) {
        row++;
    }
    layer_object *layer = (layer_object *)type->tp_alloc(type, 0); /* all zero */
    if (layer != NULL) {
        layer->vectorcall = layer_vectorcall;
        layer->core.score = &state->scores[row->number];
        layer->core.training = true;
        layer->revision = 1; /* that of a memory which has not looked is 0 */
    }
    return (PyObject *)layer;
}

static int
init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    const py_score *score = ((layer_object *)self)->core.score;
    PyObject *made = py_ask("attnext._constructors", "make", "(OOO)",
                            state->layers[score - state->scores], args,
                            kwargs == NULL ? Py_None : kwargs);
    PyObject *done = made == NULL ? NULL : install(self, made);
    Py_XDECREF(made);
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
    {"_training", T_BOOL, offsetof(layer_object, core.training), 0, NULL},
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
    *to++ = (PyGetSetDef){"context", get_object, .closure = (void *)CORE_CONTEXT};
    *to++ = (PyGetSetDef){"attention_weights", get_object,
                          .closure = (void *)CORE_WEIGHTS};
    *to++ = (PyGetSetDef){"_rng", get_object, .closure = (void *)CORE_RNG};
    *to++ = (PyGetSetDef){"_live", get_object, .closure = (void *)CORE_LIVE};
    if (score->parameters == 0) {
        *to++ = (PyGetSetDef){"scale", get_object, .closure = (void *)CORE_SCALE};
    }
    *to++ = (PyGetSetDef){"grads", get_object, .closure = (void *)CORE_GRADS};
    for (int i = 0; i < score->parameters; i++) {
        *to++ = (PyGetSetDef){score->about->parameters[i].name, get_object,
                              set_parameter, NULL, (void *)(intptr_t)i};
    }
}

/* First those whose signatures are made at import: METH_COEXIST puts them in the place of
 * what Python would make from slots, of __call__. */
enum { METHODS = 16 };
static int
fill_methods(const attnext_state *state, py_score *score, PyMethodDef *to)
{
    const py_function functions[] = {
        {&layer_memory_signature, PY_FASTCALL(layer_memory)},
        {&score->signatures[OF_LAYER], PY_FASTCALL(layer_call)},
        {&score->signatures[OF_LAYER_BACKWARD], PY_FASTCALL(layer_backward)},
    };
    int result = 0;
    for (size_t i = 0; result == 0 && i < Py_ARRAY_LENGTH(functions); i++) {
        result = py_fill_method(state, &functions[i], METH_COEXIST, to++);
    }
    if (to->ml_name == NULL) { /* else imported before in this process */
        memcpy(to, methods_of_all, sizeof methods_of_all);
    }
    return result;
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
        {Py_tp_traverse, traverse},
        {Py_tp_clear, clear},
        {Py_tp_dealloc, dealloc},
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
    if (layer_memory_fill(state) < 0 ||
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
