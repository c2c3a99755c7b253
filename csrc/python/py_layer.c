/*
 * py_layer.c -- the life of a layer: how it is made, held during a call, visited by
 * the garbage collector, freed, and switched between training and evaluation; and how
 * its types get into the module.
 */
#include "py_layer.h"

#include <string.h>

/* ---- the core -------------------------------------------------------------------- */

void
layer_core_clear(layer_core *core)
{
    /* First: what goes may run code that looks at the layer, which without an identity
     * is refused as one whose __init__ has not run. */
    Py_CLEAR(core->identity);
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        Py_CLEAR(core->parameters[i]);
    }
    Py_CLEAR(core->grads);
    Py_CLEAR(core->rng);
}

int
layer_hold(layer_object *layer, layer_core *held)
{
    layer->revision++;
    return layer_hold_to_read(layer, held);
}

int
layer_hold_to_read(const layer_object *layer, layer_core *held)
{
    *held = layer->core;
    if (held->identity == NULL) {
        PyErr_Format(PyExc_RuntimeError, "%.200s.__init__() has not been called",
                     Py_TYPE(layer)->tp_name);
        return -1;
    }
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        Py_XINCREF(held->parameters[i]);
    }
    Py_INCREF(held->grads);
    Py_INCREF(held->rng);
    Py_INCREF(held->identity);
    return 0;
}

int
layer_install(layer_object *layer, layer_core *core)
{
    core->identity = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    if (core->identity == NULL) {
        return -1;
    }
    layer_core old = layer->core;
    layer->core = *core;
    *core = (layer_core){0};
    layer_core_clear(&old);
    Py_CLEAR(layer->context);
    Py_CLEAR(layer->weights);
    return 0;
}

/* ---- reading a constructor's arguments ------------------------------------------- */

/* TypeError and ValueError of default_rng say what was wrong with the seed, but not
 * which argument it was. */
static void
name_rng(void)
{
    PyObject *kind = PyErr_Occurred();
    if (kind == PyExc_TypeError || kind == PyExc_ValueError) {
        py_raise_from(kind, "%s is not what numpy.random.default_rng takes", "rng");
    } else {
        py_note_argument("rng");
    }
}

PyObject *
layer_rng(PyObject *seed)
{
    PyObject *numpy_random = PyImport_ImportModule("numpy.random");
    if (numpy_random == NULL) {
        return NULL;
    }
    PyObject *rng = PyObject_CallMethod(numpy_random, "default_rng", "(O)",
                                        seed == NULL ? Py_None : seed);
    Py_DECREF(numpy_random);
    if (rng == NULL) {
        name_rng();
    }
    return rng;
}

/* A number as a double, and as an object for the check that follows: reading the
 * argument itself twice might give two numbers. */
static PyObject *
read_number(PyObject *object, const char *name, double *number)
{
    return py_number(object, name, false, number) < 0 ? NULL
                                                      : PyFloat_FromDouble(*number);
}

int
layer_read_options(layer_core *core, PyObject *dropout, PyObject *scale)
{
    int result = 0;
    float as_float32;

    if (dropout != NULL) {
        PyObject *number = read_number(dropout, "dropout", &core->dropout);
        result = number == NULL ? -1
                                : py_read_probability(number, "dropout", &as_float32);
        Py_XDECREF(number);
    }
    core->has_scale = py_is_given(scale);
    if (result == 0 && core->has_scale) {
        PyObject *number = read_number(scale, "scale", &core->scale);
        result = number == NULL ? -1 : py_finite(number, "scale", false, &as_float32);
        Py_XDECREF(number);
    }
    return result;
}

/* ---- the object ------------------------------------------------------------------ */

PyObject *
layer_new(PyTypeObject *type, py_score_number score)
{
    layer_object *layer = (layer_object *)type->tp_alloc(type, 0); /* all zero */
    if (layer != NULL) {
        layer->vectorcall = layer_vectorcall;
        layer->core.score = &py_state_of_type(type)->scores[score];
        layer->core.training = true;
        layer->revision = 1; /* that of a memory which has not looked is 0 */
    }
    return (PyObject *)layer;
}

/* What is not visited leads nowhere: arrays of numbers, a Context of such. */
int
layer_traverse(PyObject *self, visitproc visit, void *arg)
{
    layer_object *layer = (layer_object *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(layer->core.rng);
    Py_VISIT(layer->core.grads);
    return 0;
}

int
layer_clear(PyObject *self)
{
    layer_object *layer = (layer_object *)self;
    layer_core_clear(&layer->core);
    Py_CLEAR(layer->context);
    Py_CLEAR(layer->weights);
    return 0;
}

void
layer_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (((layer_object *)self)->weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    layer_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- training or not ------------------------------------------------------------- */

static PyObject *
get_training(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((layer_object *)self)->core.training);
}

static const py_signature train_signature = {
    .function = "train",
    .required = 0,
    .positional = 1,
    .args = {ARG_TRAINING},
    .method = true,
};

static PyObject *
train(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    attnext_state *state = py_state_of_type(Py_TYPE(self));
    PyObject *given[ARG_COUNT];
    bool mode = true;

    if (py_parse(state, &train_signature, args, nargs, kwnames, given) < 0 ||
        (given[ARG_TRAINING] != NULL &&
         py_read_flag(given[ARG_TRAINING], "mode", &mode) < 0)) {
        return NULL;
    }
    ((layer_object *)self)->core.training = mode;
    return Py_NewRef(self);
}

static PyObject *
eval(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ((layer_object *)self)->core.training = false;
    return Py_NewRef(self);
}

/* ---- the types ------------------------------------------------------------------- */

static PyObject *
get_attention_weights(PyObject *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(py_or_none(((layer_object *)self)->weights));
}

static PyObject *
get_context(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *context = ((layer_object *)self)->context;
    return Py_NewRef(context == NULL ? Py_None : context);
}

static const PyGetSetDef properties[] = {
    {"attention_weights", get_attention_weights, NULL, NULL, NULL},
    {"context", get_context, NULL, NULL, NULL},
    {"grads", layer_get_grads, NULL, NULL, NULL},
    {"training", get_training, NULL, NULL, NULL},
    {0},
};

/* Appends what every layer has, and the parameters of its score. */
static void
add_properties(PyGetSetDef *to, const py_score *score)
{
    for (; to->name != NULL; to++) {
        if (to->get == get_training) {
            return; /* imported before in this process */
        }
    }
    for (const PyGetSetDef *p = properties; p->name != NULL; p++) {
        *to++ = *p;
    }
    for (int i = 0; i < score->parameters; i++) {
        *to++ = (PyGetSetDef){score->about->parameters[i].name, layer_get_parameter,
                              layer_set_parameter, NULL, (void *)(intptr_t)i};
    }
}

static const py_function train_function[] = {
    {&train_signature, PY_FASTCALL(train)},
    {0},
};

static const PyMethodDef methods[] = {
    {"eval", eval, METH_NOARGS, "eval($self)\n--\n\n"},
    {"parameters", layer_parameters, METH_NOARGS, "parameters($self)\n--\n\n"},
    {"zero_grad", layer_zero_grad, METH_NOARGS, "zero_grad($self)\n--\n\n"},
    {"load_state_dict", layer_load_state_dict, METH_O,
     "load_state_dict($self, state_dict, /)\n--\n\n"},
    {"__reduce__", layer_reduce, METH_NOARGS, "__reduce__($self)\n--\n\n"},
    {"_rebuild", layer_rebuild, METH_O | METH_CLASS,
     "_rebuild($type, saved, /)\n--\n\n"},
};

/* The methods above, and behind them those whose docstrings are made at import: train,
 * memory, state_dict, __call__ and backward. */
static int
add_methods(const attnext_state *state, PyMethodDef *to, py_score *score)
{
    memcpy(to, methods, sizeof methods);
    to += Py_ARRAY_LENGTH(methods);
    const py_function *state_dict = score->about->has_heads ? layer_layout_functions
                                                            : layer_state_functions;
    return py_fill_methods(state, train_function, 0, to) < 0 ||
                   py_fill_methods(state, layer_memory_functions, 0, to + 1) < 0 ||
                   py_fill_methods(state, state_dict, 0, to + 2) < 0 ||
                   layer_fill_calls(state, score, to + 3) < 0
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

int
py_layers_exec(PyObject *module, attnext_state *state)
{
    static const struct {
        py_score_number number;
        PyType_Spec *spec;
        PyMethodDef *methods;
        PyGetSetDef *properties;
    } layers[] = {
        {SCORE_additive, &layer_additive_spec, layer_additive_methods,
         layer_additive_properties},
        {SCORE_dot, &layer_dot_spec, layer_dot_methods, layer_dot_properties},
        {SCORE_multi_head, &layer_multi_head_spec, layer_multi_head_methods,
         layer_multi_head_properties},
    };
    if (py_fill_methods(state, memory_functions, 0, memory_methods) < 0 ||
        add_type(module, &layer_context_spec, &state->Context) < 0 ||
        add_type(module, &layer_memory_spec, &state->Memory) < 0) {
        return -1;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(layers); i++) {
        py_score *score = &state->scores[layers[i].number];
        add_properties(layers[i].properties, score);
        if (add_methods(state, layers[i].methods, score) < 0 ||
            add_type(module, layers[i].spec, &state->layers[layers[i].number]) < 0) {
            return -1;
        }
    }
    return 0;
}

void
py_layers_seal(const attnext_state *state)
{
    PyTypeObject *types[SCORE_COUNT + 2] = {state->Context, state->Memory};
    memcpy(types + 2, state->layers, sizeof state->layers);
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++) {
        if (types[i] != NULL) {
            types[i]->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
            PyType_Modified(types[i]);
        }
    }
}
