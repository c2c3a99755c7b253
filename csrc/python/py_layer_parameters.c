/*
 * py_layer_parameters.c -- the parameters of a layer: those of its score, as attn.h
 * declares them. An AdditiveAttention has
 *
 *     name   shape     fan_in        in a state dict
 *     W_q    (H, Dq)   query_size    W_q.weight
 *     W_k    (H, Dk)   key_size      W_k.weight
 *     w_v    (H,)      num_hiddens   w_v.weight, there (1, H)
 *     b_h    (H,)      query_size    b_h
 *
 * a MultiHeadAttention those of attn_multi_head, and a DotProductAttention none: its dicts
 * are empty.
 *
 * The arrays are live: parameters() hands out the arrays themselves, and they stay the
 * same objects for as long as the layer lives, so an optimiser may keep them. They are
 * views, so NumPy refuses to resize them and a call can read them without the GIL.
 */
#include "py_layer.h"

#include <string.h>

/* ---- what the score says of them ------------------------------------------------- */

static const attn_parameter *
info(const layer_core *core, int which)
{
    return &core->score->about->parameters[which];
}

const char *
layer_text(const layer_core *core, int which)
{
    return info(core, which)->name;
}

PyObject *
layer_name(const attnext_state *state, const layer_core *core, int which)
{
    return state->parameter_names[core->score - state->scores][which];
}

/* How large the axes are, by letter. */
static void
sizes_of(const layer_core *core, npy_intp sizes[PY_LETTERS])
{
    sizes['H' - 'A'] = core->num_hiddens;
    sizes['G' - 'A'] = core->num_heads == 0
                           ? 0
                           : core->num_hiddens / core->num_heads * core->num_kv_heads;
    sizes['Q' - 'A'] = core->query_size;
    sizes['K' - 'A'] = core->key_size;
    sizes['V' - 'A'] = core->value_size;
}

int
layer_state_shape(const layer_core *core, int which, npy_intp dims[PY_PARAMETER_AXES])
{
    npy_intp sizes[PY_LETTERS];
    sizes_of(core, sizes);
    return py_letter_shape(info(core, which)->shape, sizes, dims);
}

int
layer_shape(const layer_core *core, int which, npy_intp dims[PY_PARAMETER_AXES])
{
    int ndim = layer_state_shape(core, which, dims);
    if (info(core, which)->shape[0] != '1') {
        return ndim;
    }
    memmove(dims, dims + 1, (size_t)(ndim - 1) * sizeof *dims);
    return ndim - 1;
}

/* ---- given by name --------------------------------------------------------------- */

/* What a layer has of its own: a view, which NumPy refuses to resize, of a copy. */
static PyArrayObject *
made_live(PyArrayObject *values)
{
    PyArrayObject *copy = (PyArrayObject *)PyArray_NewCopy(values, NPY_CORDER);
    PyObject *live = copy == NULL ? NULL : PyArray_View(copy, NULL, NULL);
    Py_XDECREF(copy);
    return (PyArrayObject *)live;
}

static int
take(layer_core *core, int which, PyObject *given, bool live)
{
    npy_intp dims[PY_PARAMETER_AXES];
    int ndim = layer_shape(core, which, dims);
    PyArrayObject *values = py_float32_shaped(given, layer_text(core, which), ndim,
                                              dims);
    core->parameters[which] = values;
    if (values != NULL && live) {
        core->parameters[which] = made_live(values);
        Py_DECREF(values);
    }
    return core->parameters[which] == NULL ? -1 : 0;
}

int
layer_take_parameters(const attnext_state *state, layer_core *core, PyObject *dict,
                      bool live)
{
    int result = 0;
    core->has_bias = core->score->parameters > 0;
    for (int i = 0; result == 0 && i < core->score->parameters; i++) {
        PyObject *name = layer_name(state, core, i);
        PyObject *given = Py_XNewRef(PyDict_GetItemWithError(dict, name));
        core->has_bias = core->has_bias && given != NULL;
        if (given != NULL) {
            result = take(core, i, given, live);
        } else if (PyErr_Occurred()) {
            result = -1;
        } else if (live && !info(core, i)->optional) {
            PyErr_SetObject(PyExc_KeyError, name);
            result = -1;
        }
        Py_XDECREF(given);
    }
    return result;
}

/* ---- the live arrays ------------------------------------------------------------- */

static int
check_live(const layer_core *core, int which, bool to_write)
{
    PyArrayObject *live = core->parameters[which];
    npy_intp dims[PY_PARAMETER_AXES];
    int ndim = layer_shape(core, which, dims);
    if (py_is_plain((PyObject *)live, NPY_FLOAT32) && py_shape_fits(live, ndim, dims) &&
        (!to_write || PyArray_ISWRITEABLE(live))) {
        return 0;
    }
    return py_wrong("live", "(sON)", layer_text(core, which), live,
                    py_dims(ndim, dims));
}

int
layer_check_parameters(const layer_core *core)
{
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        if (core->parameters[i] != NULL && check_live(core, i, false) < 0) {
            return -1;
        }
    }
    return 0;
}

PyObject *
layer_get_parameter(PyObject *self, void *which)
{
    layer_core held;
    if (layer_hold((layer_object *)self, &held) < 0) {
        return NULL;
    }
    PyArrayObject *live = held.parameters[(intptr_t)which];
    PyObject *result = Py_NewRef(live == NULL ? Py_None : (PyObject *)live);
    layer_core_clear(&held);
    return result;
}

int
layer_set_parameter(PyObject *self, PyObject *value, void *closure)
{
    int which = (int)(intptr_t)closure, result = -1;
    PyArrayObject *values = NULL;
    npy_intp sizes[PY_LETTERS];
    layer_core held;

    if (layer_hold((layer_object *)self, &held) < 0) {
        return -1;
    }
    PyArrayObject *live = held.parameters[which];
    if (value == NULL || live == NULL) {
        PyErr_Format(PyExc_AttributeError,
                     value == NULL
                         ? "%s cannot be deleted"
                         : "%s cannot be set: this object was made with bias=False",
                     layer_text(&held, which));
        goto done;
    }
    sizes_of(&held, sizes); /* w_v may come as (1, H) too */
    values = py_parameter(value, layer_text(&held, which), info(&held, which)->shape,
                          sizes);
    if (values == NULL || check_live(&held, which, true) < 0) {
        goto done;
    }
    memmove(PyArray_DATA(live), PyArray_DATA(values), (size_t)PyArray_NBYTES(live));
    result = 0;
done:
    Py_XDECREF(values);
    layer_core_clear(&held);
    return result;
}

/* A new dict of the live arrays by name. */
static PyObject *
dict_of(PyObject *self, bool checked)
{
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    layer_core held;
    if (layer_hold((layer_object *)self, &held) < 0) {
        return NULL;
    }
    PyObject *dict = checked && layer_check_parameters(&held) < 0 ? NULL : PyDict_New();
    for (int i = 0; dict != NULL && i < ATTN_PARAMETERS; i++) {
        PyObject *live = (PyObject *)held.parameters[i];
        if (live != NULL &&
            PyDict_SetItem(dict, layer_name(state, &held, i), live) < 0) {
            Py_CLEAR(dict);
        }
    }
    layer_core_clear(&held);
    return dict;
}

PyObject *
layer_parameters(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return dict_of(self, false);
}

/* ---- for attnext/_layers.py ------------------------------------------------------ */

PyObject *
layer_live(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return dict_of(self, true);
}

PyObject *
layer_read(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *value;
    const char *name;
    PyArray_Dims shape = {NULL, 0};
    PyArrayObject *array = NULL;
    if (PyArg_ParseTuple(args, "OsO&:_read", &value, &name, PyArray_IntpConverter,
                         &shape)) {
        array = py_float32_shaped(value, name, shape.len, shape.ptr);
    }
    PyDimMem_FREE(shape.ptr);
    return (PyObject *)array;
}

/* The array that parameter `which` is to become, borrowed: of its own shape. */
static PyArrayObject *
value_of(const attnext_state *state, const layer_core *core, int which,
         PyObject *values)
{
    PyObject *value = PyDict_GetItemWithError(values, layer_name(state, core, which));
    bool plain = value != NULL && py_is_plain(value, NPY_FLOAT32) &&
                 PyArray_SAMESHAPE((PyArrayObject *)value, core->parameters[which]);
    if (!plain && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "there is no value for %s",
                     layer_text(core, which));
    }
    return !plain || check_live(core, which, true) < 0 ? NULL : (PyArrayObject *)value;
}

/* Nothing of Python runs between the first look and the last parameter. */
PyObject *
layer_write(PyObject *self, PyObject *values)
{
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    PyArrayObject *from[ATTN_PARAMETERS] = {0};
    PyObject *result = Py_None;
    layer_core held;

    if (!PyDict_CheckExact(values)) {
        py_wrong("kind", "(sOs)", "values", values, "a dict");
        return NULL;
    }
    if (layer_hold((layer_object *)self, &held) < 0) {
        return NULL;
    }
    for (int i = 0; result != NULL && i < held.score->parameters; i++) {
        bool there = held.parameters[i] != NULL;
        if (there && (from[i] = value_of(state, &held, i, values)) == NULL) {
            result = NULL;
        }
    }
    for (int i = 0; result != NULL && i < held.score->parameters; i++) {
        if (from[i] != NULL) {
            memmove(PyArray_DATA(held.parameters[i]), PyArray_DATA(from[i]),
                    (size_t)PyArray_NBYTES(from[i]));
        }
    }
    layer_core_clear(&held);
    return Py_XNewRef(result);
}
