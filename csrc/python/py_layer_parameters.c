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

int
layer_take_parameters(const attnext_state *state, layer_core *core, PyObject *dict)
{
    npy_intp sizes[PY_LETTERS];
    sizes_of(core, sizes);
    for (int i = 0; i < core->score->parameters; i++) {
        PyObject *given = py_item(dict, layer_name(state, core, i));
        if (given != NULL) {
            core->parameters[i] = py_parameter(given, layer_text(core, i),
                                               info(core, i)->shape, sizes);
            Py_DECREF(given);
        }
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

/* ---- the live arrays ------------------------------------------------------------- */

int
layer_check_parameters(const layer_core *core, const layer_core *values)
{
    for (int i = 0; i < core->score->parameters; i++) {
        PyArrayObject *live = core->parameters[i];
        npy_intp dims[PY_PARAMETER_AXES];
        if (live == NULL && values == NULL && !info(core, i)->optional) {
            return py_wrong("no_parameter", "(s)", layer_text(core, i));
        }
        if (live == NULL || (values != NULL && values->parameters[i] == NULL)) {
            continue;
        }
        int ndim = layer_shape(core, i, dims);
        if (!py_is_plain((PyObject *)live, NPY_FLOAT32) ||
            !py_shape_fits(live, ndim, dims) ||
            (values != NULL && !PyArray_ISWRITEABLE(live))) {
            return py_wrong("live", "(sON)", layer_text(core, i), live,
                            py_dims(ndim, dims));
        }
    }
    return 0;
}

/* ---- for attnext/_layers.py ------------------------------------------------------ */

/* Copies values into those live arrays that are there: into all or none. Nothing of Python runs
 * between the look at them and the last one. None: that all are what they were is all. */
PyObject *
layer_write(PyObject *self, PyObject *dict)
{
    layer_core held;
    if (dict != Py_None && !PyDict_CheckExact(dict)) {
        py_wrong("kind", "(sOs)", "values", dict, "a dict");
        return NULL;
    }
    if (layer_hold((layer_object *)self, false, &held) < 0) {
        return NULL;
    }
    layer_core values = layer_sizes(&held);
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    const bool fit = dict == Py_None
                         ? layer_check_parameters(&held, NULL) == 0
                         : layer_take_parameters(state, &values, dict) == 0 &&
                               layer_check_parameters(&held, &values) == 0;
    Py_BEGIN_CRITICAL_SECTION(self);
    for (int i = 0; fit && i < ATTN_PARAMETERS; i++) {
        PyArrayObject *live = held.parameters[i], *from = values.parameters[i];
        if (live != NULL && from != NULL) { /* of one size, but for code that ran */
            memmove(PyArray_DATA(live), PyArray_DATA(from),
                    (size_t)Py_MIN(PyArray_NBYTES(live), PyArray_NBYTES(from)));
        }
    }
    Py_END_CRITICAL_SECTION();
    layer_core_clear(&values);
    layer_core_clear(&held);
    return fit ? Py_NewRef(Py_None) : NULL;
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

/* ---- their gradients ------------------------------------------------------------- */

/* attn.grads is a dict the user may write into (gradient clipping, an optimiser that wants
 * None). So an entry is looked at each time it is used: one that can be added to as it is,
 * a plain, writable float32 array of the shape, is; another is replaced by one that can. */

/* grads[name], fit to be added to: the entry itself, or a new array, which is the entry
 * from then on: of what the old one stands for, or afresh. */
static PyArrayObject *
accumulator(const attnext_state *state, const layer_core *core, int which, bool afresh)
{
    PyObject *name = layer_name(state, core, which);
    npy_intp dims[PY_PARAMETER_AXES];
    int ndim = layer_shape(core, which, dims);

    PyObject *entry = py_item(core->grads, name);
    PyArrayObject *sum = (PyArrayObject *)entry;
    if (entry == NULL && PyErr_Occurred()) {
        return NULL;
    }
    if (entry != NULL && py_is_plain(entry, NPY_FLOAT32) && PyArray_ISWRITEABLE(sum) &&
        py_shape_fits(sum, ndim, dims)) {
        return sum;
    }
    Py_XDECREF(entry);
    return (PyArrayObject *)py_ask("attnext._layers", "_accumulator", "(OONi)",
                                   core->grads, name, py_dims(ndim, dims), afresh);
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
        if (to[i] != NULL) { /* of one size, but for code that ran */
            attn_add(py_data(to[i]), py_data(from[i]),
                     Py_MIN(PyArray_SIZE(to[i]), PyArray_SIZE(from[i])));
        }
    }
    Py_END_CRITICAL_SECTION();
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        Py_XDECREF(to[i]);
    }
    return result;
}

PyObject *
layer_zero_grad(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    int result = 0;
    layer_core held;
    if (layer_hold((layer_object *)self, true, &held) < 0) {
        return NULL;
    }
    Py_BEGIN_CRITICAL_SECTION(held.grads);
    for (int i = 0; result == 0 && i < held.score->parameters; i++) {
        if (held.parameters[i] != NULL) {
            PyArrayObject *sum = accumulator(state, &held, i, true);
            result = sum == NULL ? -1 : 0;
            if (sum != NULL) {
                memset(PyArray_DATA(sum), 0, (size_t)PyArray_NBYTES(sum));
            }
            Py_XDECREF(sum);
        }
    }
    Py_END_CRITICAL_SECTION();
    layer_core_clear(&held);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}
