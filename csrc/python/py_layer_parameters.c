/*
 * py_layer_parameters.c -- the parameters of a layer, those of its score, as attn.h
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
layer_shape(const layer_core *core, int which, npy_intp dims[PY_PARAMETER_AXES])
{
    const char *letters = info(core, which)->shape;
    npy_intp sizes[PY_LETTERS];
    sizes_of(core, sizes);
    return py_letter_shape(letters[0] == '1' ? letters + 1 : letters, sizes, dims);
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
        PyObject *given = py_item(dict, name);
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
    Py_BEGIN_CRITICAL_SECTION(self);
    memmove(PyArray_DATA(live), PyArray_DATA(values), (size_t)PyArray_NBYTES(live));
    Py_END_CRITICAL_SECTION();
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

/* The array that parameter `which` is to become: of its own shape. */
static PyArrayObject *
value_of(const attnext_state *state, const layer_core *core, int which,
         PyObject *values)
{
    PyObject *value = py_item(values, layer_name(state, core, which));
    bool plain = value != NULL && py_is_plain(value, NPY_FLOAT32) &&
                 PyArray_SAMESHAPE((PyArrayObject *)value, core->parameters[which]);
    if (!plain && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "there is no value for %s",
                     layer_text(core, which));
    }
    if (!plain || check_live(core, which, true) < 0) {
        Py_CLEAR(value);
    }
    return (PyArrayObject *)value;
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
    Py_BEGIN_CRITICAL_SECTION(self);
    for (int i = 0; result != NULL && i < held.score->parameters; i++) {
        if (from[i] != NULL) {
            memmove(PyArray_DATA(held.parameters[i]), PyArray_DATA(from[i]),
                    (size_t)PyArray_NBYTES(from[i]));
        }
    }
    Py_END_CRITICAL_SECTION();
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        Py_XDECREF(from[i]);
    }
    layer_core_clear(&held);
    return Py_XNewRef(result);
}

/* ---- their gradients ------------------------------------------------------------- */

/* attn.grads is a dict the user may write into (gradient clipping, an optimiser that wants
 * None). So an entry is looked at each time it is used: one that can be added to as it is,
 * is; another is replaced by one that can. */

/* Is object a plain, writable float32 array of this shape, to be added to as it is? */
static bool
is_accumulator(PyObject *object, int ndim, const npy_intp *dims)
{
    PyArrayObject *a = (PyArrayObject *)object;
    return py_is_plain(object, NPY_FLOAT32) && PyArray_ISWRITEABLE(a) &&
           py_shape_fits(a, ndim, dims);
}

/* grads[name], fit to be added to: the entry itself, or a new array, which is the entry
 * from then on. No entry counts as None; afresh: and so does all else. */
static PyArrayObject *
accumulator(const attnext_state *state, const layer_core *core, int which, bool afresh)
{
    PyObject *name = layer_name(state, core, which);
    npy_intp dims[PY_PARAMETER_AXES];
    int ndim = layer_shape(core, which, dims);

    PyObject *entry = py_item(core->grads, name);
    if (entry == NULL && PyErr_Occurred()) {
        return NULL;
    }
    if (entry != NULL && is_accumulator(entry, ndim, dims)) {
        PyArrayObject *sum = (PyArrayObject *)entry;
        if (afresh) {
            memset(PyArray_DATA(sum), 0, (size_t)PyArray_NBYTES(sum));
        }
        return sum;
    }
    Py_XDECREF(entry);
    return (PyArrayObject *)py_ask("attnext._layers", "_accumulator", "(OONO)",
                                   core->grads, name, py_dims(ndim, dims),
                                   afresh ? Py_True : Py_False);
}

/* sum += gradient, where threads add one after another. */
static void
add(PyArrayObject *sum, PyArrayObject *gradient)
{
    /* The shapes are equal, unless reading another entry ran code that resized this. */
    npy_intp count = Py_MIN(PyArray_SIZE(sum), PyArray_SIZE(gradient));
    float *to = py_data(sum);
    const float *from = py_data(gradient);
    for (npy_intp i = 0; i < count; i++) {
        to[i] += from[i];
    }
}

int
layer_add_gradients(const attnext_state *state, const layer_core *core,
                    const py_made *gradients)
{
    PyArrayObject *const *from = gradients->parameters;
    PyArrayObject *to[ATTN_PARAMETERS] = {0};
    int result = 0;

    Py_BEGIN_CRITICAL_SECTION(core->grads);
    for (int i = 0; result == 0 && i < ATTN_PARAMETERS; i++) {
        if (from[i] != NULL) {
            to[i] = accumulator(state, core, i, false);
            result = to[i] == NULL ? -1 : 0;
        }
    }
    for (int i = 0; result == 0 && i < ATTN_PARAMETERS; i++) {
        if (to[i] != NULL) {
            add(to[i], from[i]);
        }
    }
    Py_END_CRITICAL_SECTION();
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        Py_XDECREF(to[i]);
    }
    return result;
}

PyObject *
layer_get_grads(PyObject *self, void *Py_UNUSED(closure))
{
    layer_core held;
    if (layer_hold((layer_object *)self, &held) < 0) {
        return NULL;
    }
    PyObject *grads = Py_NewRef(held.grads);
    layer_core_clear(&held);
    return grads;
}

PyObject *
layer_zero_grad(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    layer_core held;
    int result = 0;

    if (layer_hold((layer_object *)self, &held) < 0) {
        return NULL;
    }
    Py_BEGIN_CRITICAL_SECTION(held.grads);
    for (int i = 0; result == 0 && i < ATTN_PARAMETERS; i++) {
        if (held.parameters[i] != NULL) {
            PyArrayObject *zeros = accumulator(state, &held, i, true);
            result = zeros == NULL ? -1 : 0;
            Py_XDECREF(zeros);
        }
    }
    Py_END_CRITICAL_SECTION();
    layer_core_clear(&held);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}
