/*
 * py_layer_copies.c -- what pickle, copy and deepcopy take from a layer, and how they
 * make another of it; and what repr() shows. The rest is in attnext/_layers.py.
 */
#include "py_layer.h"

/* What a multi-head layer has besides. */
static int
put_heads(const layer_core *core, PyObject *saved)
{
    PyObject *heads = Py_BuildValue("{s:n, s:n, s:n}", "value_size", core->value_size,
                                    "num_heads", core->num_heads, "num_kv_heads",
                                    core->num_kv_heads);
    int result = heads == NULL ? -1 : PyDict_Update(saved, heads);
    Py_XDECREF(heads);
    return result;
}

static PyObject *
pack_core(const attnext_state *state, const layer_core *core)
{
    PyObject *parameters = NULL, *grads = NULL, *scale = NULL, *result = NULL;

    parameters = layer_parameter_dict(state, core);
    if (parameters == NULL) {
        goto done;
    }
    grads = layer_gradient_dict(state, core);
    if (grads == NULL) {
        goto done;
    }
    scale = core->has_scale ? PyFloat_FromDouble(core->scale) : Py_NewRef(Py_None);
    if (scale == NULL) {
        goto done;
    }
    result = Py_BuildValue(
        "{s:n, s:n, s:n, s:O, s:d, s:O, s:O, s:O, s:O, s:O}", "key_size",
        core->key_size, "query_size", core->query_size, "num_hiddens",
        core->num_hiddens, "bias", layer_has_bias(core) ? Py_True : Py_False, "dropout",
        core->dropout, "scale", scale, "training", core->training ? Py_True : Py_False,
        "rng", core->rng, "parameters", parameters, "grads", grads);
    if (result != NULL && core->num_heads > 0 && put_heads(core, result) < 0) {
        Py_CLEAR(result);
    }
done:
    Py_XDECREF(scale);
    Py_XDECREF(grads);
    Py_XDECREF(parameters);
    return result;
}

PyObject *
layer_saved(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *saved = NULL;
    layer_core held;
    if (layer_hold((layer_object *)self, &held) < 0) {
        return NULL;
    }
    if (layer_check_parameters(&held) == 0) {
        saved = pack_core(py_state_of_type(Py_TYPE(self)), &held);
    }
    layer_core_clear(&held);
    return saved;
}

/* dict[name] = value, whose reference is taken over; or dict is given up. */
static PyObject *
with_item(PyObject *dict, const char *name, PyObject *value)
{
    if (dict != NULL &&
        (value == NULL || PyDict_SetItemString(dict, name, value) < 0)) {
        Py_CLEAR(dict);
    }
    Py_XDECREF(value);
    return dict;
}

PyObject *
layer_shown(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const layer_core *core = &((layer_object *)self)->core;
    const bool heads = core->score->about->has_heads;
    if (core->score->parameters == 0) {
        PyObject *shown = Py_BuildValue("{s:d}", "dropout", core->dropout);
        return core->has_scale
                   ? with_item(shown, "scale", PyFloat_FromDouble(core->scale))
                   : shown;
    }
    PyObject *shown = Py_BuildValue("{s:n, s:n}", "key_size", core->key_size,
                                    "query_size", core->query_size);
    if (heads) {
        shown = with_item(shown, "value_size", PyLong_FromSsize_t(core->value_size));
    }
    shown = with_item(shown, "num_hiddens", PyLong_FromSsize_t(core->num_hiddens));
    if (heads) {
        shown = with_item(shown, "num_heads", PyLong_FromSsize_t(core->num_heads));
    }
    shown = with_item(shown, "dropout", PyFloat_FromDouble(core->dropout));
    shown = with_item(shown, "bias", PyBool_FromLong(layer_has_bias(core)));
    return core->num_kv_heads == core->num_heads
               ? shown
               : with_item(shown, "num_kv_heads",
                           PyLong_FromSsize_t(core->num_kv_heads));
}

/* ---- the way back ---------------------------------------------------------------- */

/* The entries of `saved`, borrowed. */
typedef struct {
    PyObject *key_size, *query_size, *num_hiddens, *dropout, *scale, *rng;
    PyObject *parameters, *grads;
    PyObject *value_size, *num_heads, *num_kv_heads; /* multi-head */
    int bias, training;
} saved_entries;

static int
read_entries(PyObject *saved, bool heads, saved_entries *entries)
{
    static char *names[] = {"key_size",     "query_size", "num_hiddens", "bias",
                            "dropout",      "scale",      "training",    "rng",
                            "parameters",   "grads",      "value_size",  "num_heads",
                            "num_kv_heads", NULL};
    static char *fewer[] = {"key_size",   "query_size", "num_hiddens", "bias",
                            "dropout",    "scale",      "training",    "rng",
                            "parameters", "grads",      NULL};
    PyObject *nothing = PyTuple_New(0);
    if (nothing == NULL) {
        return -1;
    }
    int ok = PyArg_ParseTupleAndKeywords(
        nothing, saved, heads ? "$OOOpOOpOO!O!OOO:_rebuild" : "$OOOpOOpOO!O!:_rebuild",
        heads ? names : fewer, &entries->key_size, &entries->query_size,
        &entries->num_hiddens, &entries->bias, &entries->dropout, &entries->scale,
        &entries->training, &entries->rng, &PyDict_Type, &entries->parameters,
        &PyDict_Type, &entries->grads, &entries->value_size, &entries->num_heads,
        &entries->num_kv_heads);
    Py_DECREF(nothing);
    return ok ? 0 : -1;
}

/* A Generator comes back as itself; what comes back as another was not saved here. */
static int
read_rng(PyObject *object, layer_core *core)
{
    core->rng = layer_rng(object);
    if (core->rng == NULL) {
        return -1;
    }
    if (core->rng != object) {
        PyErr_Format(PyExc_TypeError,
                     "rng must be a numpy.random.Generator, got %.200s",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    return 0;
}

/* dict[name] as float32 in the shape of the parameter; `entry` is for messages. */
static PyArrayObject *
array_of_dict(PyObject *dict, const layer_core *core, int which, const char *entry)
{
    npy_intp dims[PY_PARAMETER_AXES];
    int ndim = layer_shape(core, which, dims);
    PyObject *item = PyMapping_GetItemString(dict, layer_text(core, which));
    if (item == NULL) {
        return NULL;
    }
    PyArrayObject *array = py_float32_shaped(item, entry, ndim, dims);
    Py_DECREF(item);
    return array;
}

static int
unpack_parameter(layer_core *core, int which, const saved_entries *entries)
{
    int result = -1;
    char entry[LAYER_TEXT];
    PyArrayObject *values = NULL, *gradient = NULL, *copy = NULL;

    values = array_of_dict(entries->parameters, core, which, layer_text(core, which));
    if (values == NULL) {
        goto done;
    }
    core->parameters[which] = layer_new_live(values);
    if (core->parameters[which] == NULL) {
        goto done;
    }
    PyOS_snprintf(entry, sizeof entry, "grads['%s']", layer_text(core, which));
    gradient = array_of_dict(entries->grads, core, which, entry);
    if (gradient == NULL) {
        goto done;
    }
    copy = (PyArrayObject *)PyArray_NewCopy(gradient, NPY_CORDER);
    if (copy != NULL) {
        result = PyDict_SetItemString(core->grads, layer_text(core, which),
                                      (PyObject *)copy);
    }
done:
    Py_XDECREF(copy);
    Py_XDECREF(gradient);
    Py_XDECREF(values);
    return result;
}

/* A new core from what was saved. On failure the caller clears what there is of it. */
static int
unpack_core(PyObject *saved, layer_core *core)
{
    saved_entries entries;
    const bool heads = core->score->about->has_heads;
    if (read_entries(saved, heads, &entries) < 0 ||
        layer_read_options(core, entries.dropout, entries.scale) < 0 ||
        read_rng(entries.rng, core) < 0) {
        return -1;
    }
    core->training = entries.training != 0;
    core->grads = PyDict_New();
    if (core->grads == NULL) {
        return -1;
    }
    if (core->score->parameters == 0) {
        return 0;
    }
    if (layer_read_sizes(core, entries.key_size, entries.query_size,
                         entries.num_hiddens) < 0 ||
        (heads && layer_read_heads(core, entries.value_size, entries.num_heads,
                                   entries.num_kv_heads) < 0)) {
        return -1;
    }
    for (int i = 0; i < core->score->parameters; i++) {
        bool wanted = entries.bias || !core->score->about->parameters[i].optional;
        if (wanted && unpack_parameter(core, i, &entries) < 0) {
            return -1;
        }
    }
    return 0;
}

PyObject *
layer_rebuild(PyObject *type, PyObject *saved)
{
    layer_core core = {0};
    PyObject *self = NULL;

    if (!PyDict_Check(saved)) {
        PyErr_Format(PyExc_TypeError, "saved must be a dict, got %.200s",
                     Py_TYPE(saved)->tp_name);
        return NULL;
    }
    saved = PyDict_Copy(saved); /* its entries are borrowed while they are read */
    if (saved == NULL) {
        return NULL;
    }
    self = layer_new((PyTypeObject *)type);
    if (self != NULL) {
        core.score = ((layer_object *)self)->core.score;
        if (unpack_core(saved, &core) < 0 ||
            layer_install((layer_object *)self, &core) < 0) {
            Py_CLEAR(self);
        }
    }
    layer_core_clear(&core);
    Py_DECREF(saved);
    return self;
}
