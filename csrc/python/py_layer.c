/*
 * py_layer.c -- the life of a layer: how it is made, held during a call, visited by
 * the garbage collector, freed, and switched between training and evaluation.
 */
#include "py_layer.h"

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
layer_hold_to_read(layer_object *layer, layer_core *held)
{
    Py_BEGIN_CRITICAL_SECTION(layer);
    *held = layer->core;
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        Py_XINCREF(held->parameters[i]);
    }
    Py_XINCREF(held->grads);
    Py_XINCREF(held->rng);
    Py_XINCREF(held->identity);
    Py_END_CRITICAL_SECTION();
    if (held->identity != NULL) {
        return 0;
    }
    PyErr_Format(PyExc_RuntimeError, "%.200s.__init__() has not been called",
                 Py_TYPE(layer)->tp_name);
    layer_core_clear(held);
    return -1;
}

PyObject *
layer_member(PyObject *self, size_t offset)
{
    PyObject *member;
    Py_BEGIN_CRITICAL_SECTION(self);
    member = Py_XNewRef(*(PyObject **)((char *)self + offset));
    Py_END_CRITICAL_SECTION();
    return member;
}

/* ---- what attnext/_layers.py makes of it ----------------------------------------- */

int
layer_check_sizes(const layer_core *core)
{
    const bool heads = core->score->about->has_heads;
    bool fit = core->num_hiddens > 0 || (core->score->parameters == 0 && !heads);
    if (!heads) {
        fit = fit && core->num_heads == 0 && core->num_kv_heads == 0;
    } else {
        fit = fit && core->num_heads > 0 && core->num_hiddens % core->num_heads == 0 &&
              core->num_kv_heads > 0 && core->num_heads % core->num_kv_heads == 0;
    }
    if (!fit) {
        PyErr_SetString(PyExc_ValueError, "sizes are not those of such an object");
    }
    return fit ? 0 : -1;
}

/* The layer gets the core, which is then what it was before; its last forward is given
 * up. */
static void
exchange(layer_object *layer, layer_core *core)
{
    PyObject *context, *weights;
    Py_BEGIN_CRITICAL_SECTION(layer);
    layer_core old = layer->core;
    layer->core = *core;
    *core = old;
    context = layer->context;
    weights = layer->weights;
    layer->context = NULL;
    layer->weights = NULL;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(context);
    Py_XDECREF(weights);
}

PyObject *
layer_install(PyObject *self, PyObject *args)
{
    layer_object *layer = (layer_object *)self;
    layer_core core = {.score = layer->core.score};
    PyObject *scale, *parameters, *result = NULL;
    int training;

    if (!PyArg_ParseTuple(args, "(nnnnnn)dOpOO!O!:_install", &core.key_size,
                          &core.query_size, &core.value_size, &core.num_hiddens,
                          &core.num_heads, &core.num_kv_heads, &core.dropout, &scale,
                          &training, &core.rng, &PyDict_Type, &parameters, &PyDict_Type,
                          &core.grads)) {
        return NULL;
    }
    Py_INCREF(core.rng);
    Py_INCREF(core.grads);
    core.training = training != 0;
    core.has_scale = scale != Py_None;
    core.scale = core.has_scale ? PyFloat_AsDouble(scale) : 0.0;
    if (!PyErr_Occurred() && layer_check_sizes(&core) == 0 &&
        layer_take_parameters(py_state_of_type(Py_TYPE(self)), &core, parameters,
                              true) == 0) {
        core.identity = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    }
    if (core.identity != NULL) {
        exchange(layer, &core);
        result = Py_NewRef(Py_None);
    }
    layer_core_clear(&core);
    return result;
}

/* ---- the object ------------------------------------------------------------------ */

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

const py_signature layer_train_signature = {
    .function = "train",
    .required = 0,
    .positional = 1,
    .args = {ARG_TRAINING},
    .method = true,
};

PyObject *
layer_train(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    attnext_state *state = py_state_of_type(Py_TYPE(self));
    PyObject *given[ARG_COUNT] = {NULL};
    bool mode = true;

    if (py_parse(state, &layer_train_signature, args, nargs, kwnames, given) < 0 ||
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

/* ---- what every layer has -------------------------------------------------------- */

static PyObject *
get_member(PyObject *self, void *offset)
{
    PyObject *member = layer_member(self, (size_t)offset);
    return member == NULL ? Py_NewRef(Py_None) : member;
}

#define MEMBER(NAME, FIELD) \
    {NAME, get_member, NULL, NULL, (void *)offsetof(layer_object, FIELD)}

const PyGetSetDef layer_properties[] = {
    {"grads", layer_get_grads, NULL, NULL, NULL},
    MEMBER("attention_weights", weights),
    MEMBER("context", context),
    MEMBER("_rng", core.rng),
    {0},
};

PyObject *
layer_get_scale(PyObject *self, void *Py_UNUSED(closure))
{
    const layer_core *core = &((layer_object *)self)->core;
    return core->has_scale ? PyFloat_FromDouble(core->scale) : Py_NewRef(Py_None);
}

const PyMethodDef layer_methods[] = {
    {"eval", eval, METH_NOARGS, "eval($self)\n--\n\n"},
    {"parameters", layer_parameters, METH_NOARGS, "parameters($self)\n--\n\n"},
    {"zero_grad", layer_zero_grad, METH_NOARGS, "zero_grad($self)\n--\n\n"},
    /* For attnext/_layers.py. */
    {"_live", layer_live, METH_NOARGS, "_live($self)\n--\n\n"},
    {"_write", layer_write, METH_O, "_write($self, values, /)\n--\n\n"},
    {"_read", layer_read, METH_VARARGS | METH_STATIC,
     "_read(value, name, shape, /)\n--\n\n"},
    {"_install", layer_install, METH_VARARGS,
     "_install($self, sizes, dropout, scale, training, rng, parameters, grads, "
     "/)\n--\n\n"},
    {0},
};
