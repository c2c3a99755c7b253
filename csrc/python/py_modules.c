/*
 * py_modules.c -- the life of a layer: how it is made, held during a call, visited by
 * the garbage collector, freed, and switched between training and evaluation; and how
 * its types get into the module.
 */
#include "py_modules.h"

/* ---- the core -------------------------------------------------------------------- */

void
layer_core_clear(layer_core *core)
{
    Py_CLEAR(core->identity); /* first: without it nobody gets to see the rest go */
    for (int i = 0; i < LAYER_PARAMETERS; i++) {
        Py_CLEAR(core->parameters[i]);
    }
    Py_CLEAR(core->grads);
    Py_CLEAR(core->rng);
}

int
layer_hold(const layer_object *layer, layer_core *held)
{
    *held = layer->core;
    if (held->identity == NULL) {
        PyErr_Format(PyExc_RuntimeError, "%.200s.__init__() has not been called",
                     Py_TYPE(layer)->tp_name);
        return -1;
    }
    for (int i = 0; i < LAYER_PARAMETERS; i++) {
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
    PyObject *kind = PyErr_ExceptionMatches(PyExc_TypeError)    ? PyExc_TypeError
                     : PyErr_ExceptionMatches(PyExc_ValueError) ? PyExc_ValueError
                                                                : NULL;
    if (kind == NULL) {
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_Format(kind, "rng is not what numpy.random.default_rng takes: %S",
                 value != NULL ? value : Py_None);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
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
        result = number == NULL ? -1 : py_dropout(number, "dropout", &as_float32);
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
layer_new(PyTypeObject *type, const attn_score *score)
{
    layer_object *layer = (layer_object *)type->tp_alloc(type, 0); /* all zero */
    if (layer != NULL) {
        layer->vectorcall = layer_vectorcall;
        layer->score = score;
        layer->core.training = true;
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

const char layer_training_doc[] = PyDoc_STR(
"bool: does dropout act? True at first; `train` and `eval` change it.");

PyObject *
layer_get_training(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((layer_object *)self)->core.training);
}

static const py_signature train_signature = {
    .function = "train",
    .required = 0,
    .positional = 1,
    .args = {ARG_MODE},
};

const char layer_train_doc[] = PyDoc_STR(
"train($self, mode=True)\n"
"--\n\n"
"Switch dropout on, or off.\n"
"\n"
"Parameters\n"
"----------\n"
"mode : bool, optional\n"
"    Whether dropout acts in the calls that follow.\n"
"\n"
"Returns\n"
"-------\n"
"self : AdditiveAttention or DotProductAttention\n"
"    The object itself.\n"
"\n"
"See Also\n"
"--------\n"
"eval : The same as ``train(False)``.\n"
"\n"
"Examples\n"
"--------\n"
">>> from attnext import DotProductAttention\n"
">>> DotProductAttention(dropout=0.5).train(False).training\n"
"False\n");

PyObject *
layer_train(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    attnext_state *state = py_state_of_type(Py_TYPE(self));
    PyObject *given[ARG_COUNT];
    bool mode = true;

    if (py_parse(state, &train_signature, args, nargs, kwnames, given) < 0 ||
        (given[ARG_MODE] != NULL && py_flag(given[ARG_MODE], &mode) < 0)) {
        return NULL;
    }
    ((layer_object *)self)->core.training = mode;
    return Py_NewRef(self);
}

const char layer_eval_doc[] = PyDoc_STR(
"eval($self)\n"
"--\n\n"
"Switch dropout off.\n"
"\n"
"Returns\n"
"-------\n"
"self : AdditiveAttention or DotProductAttention\n"
"    The object itself.\n"
"\n"
"See Also\n"
"--------\n"
"train : Switch it on again.\n"
"\n"
"Examples\n"
"--------\n"
">>> from attnext import DotProductAttention\n"
">>> DotProductAttention(dropout=0.5).eval().training\n"
"False\n");

PyObject *
layer_eval(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ((layer_object *)self)->core.training = false;
    return Py_NewRef(self);
}

/* ---- the module ------------------------------------------------------------------ */

/* *type = the type of this spec, which becomes an attribute of the module */
static int
add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

int
py_modules_exec(PyObject *module, attnext_state *state)
{
    if (add_type(module, &py_context_spec, &state->Context) < 0 ||
        add_type(module, &py_additive_module_spec, &state->AdditiveAttention) < 0 ||
        add_type(module, &py_dot_module_spec, &state->DotProductAttention) < 0) {
        return -1;
    }
    return 0;
}
