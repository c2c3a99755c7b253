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

PyObject *
layer_rng(PyObject *seed)
{
    return py_read(READ_RNG, seed == NULL ? Py_None : seed, "rng");
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

/* ---- what every layer has -------------------------------------------------------- */

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

const PyGetSetDef layer_properties[] = {
    {"attention_weights", get_attention_weights, NULL, NULL, NULL},
    {"context", get_context, NULL, NULL, NULL},
    {"grads", layer_get_grads, NULL, NULL, NULL},
    {"training", get_training, NULL, NULL, NULL},
    {0},
};

PyObject *
layer_get_scale(PyObject *self, void *Py_UNUSED(closure))
{
    const layer_core *core = &((layer_object *)self)->core;
    return core->has_scale ? PyFloat_FromDouble(core->scale) : Py_NewRef(Py_None);
}

const py_function layer_train_functions[] = {
    {&train_signature, PY_FASTCALL(train)},
    {0},
};

const PyMethodDef layer_methods[] = {
    {"eval", eval, METH_NOARGS, "eval($self)\n--\n\n"},
    {"parameters", layer_parameters, METH_NOARGS, "parameters($self)\n--\n\n"},
    {"zero_grad", layer_zero_grad, METH_NOARGS, "zero_grad($self)\n--\n\n"},
    {"_live", layer_live, METH_NOARGS, "_live($self)\n--\n\n"},
    {"_write", layer_write, METH_O, "_write($self, values, /)\n--\n\n"},
    {"_read", layer_read, METH_VARARGS, "_read($self, value, name, shape, /)\n--\n\n"},
    {"_saved", layer_saved, METH_NOARGS, "_saved($self)\n--\n\n"},
    {"_shown", layer_shown, METH_NOARGS, "_shown($self)\n--\n\n"},
    {"_rebuild", layer_rebuild, METH_O | METH_CLASS,
     "_rebuild($type, saved, /)\n--\n\n"},
    {0},
};
