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

#include <math.h>
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

PyArrayObject *
layer_new_live(PyArrayObject *values)
{
    PyArrayObject *live = NULL;
    PyArrayObject *copy = (PyArrayObject *)PyArray_NewCopy(values, NPY_CORDER);
    if (copy != NULL) {
        live = (PyArrayObject *)PyArray_View(copy, NULL, NULL);
        Py_DECREF(copy);
    }
    return live;
}

/* ---- drawing them ---------------------------------------------------------------- */

/* An int >= least. */
static int
read_size(PyObject *object, const char *name, Py_ssize_t least, Py_ssize_t *size)
{
    if (py_size(object, name, size) < 0) {
        return -1;
    }
    if (*size < least) {
        char expected[100];
        PyOS_snprintf(expected, sizeof expected, "%s >= %zd", name, least);
        return py_value_error(object, name, expected);
    }
    return 0;
}

int
layer_read_sizes(layer_core *core, PyObject *key_size, PyObject *query_size,
                 PyObject *num_hiddens)
{
    if (read_size(key_size, "key_size", 0, &core->key_size) < 0 ||
        read_size(query_size, "query_size", 0, &core->query_size) < 0 ||
        read_size(num_hiddens, "num_hiddens", 1, &core->num_hiddens) < 0) {
        return -1;
    }
    Py_ssize_t widest = Py_MAX(Py_MAX(core->key_size, core->query_size), 1);
    Py_ssize_t most = PY_SSIZE_T_MAX / 8; /* numbers are drawn as float64 */
    if (core->num_hiddens > most / widest) {
        PyObject *texts[] = {py_repr(key_size), py_repr(query_size),
                             py_repr(num_hiddens)};
        PyErr_Format(PyExc_ValueError,
                     "key_size is %V, query_size %V and num_hiddens %V, expected sizes "
                     "whose products do not overflow",
                     texts[0], "?", texts[1], "?", texts[2], "?");
        for (int i = 0; i < 3; i++) {
            Py_XDECREF(texts[i]);
        }
        return -1;
    }
    return 0;
}

/* A number of heads that divides `of`, the number called of_name. */
static int
read_heads(PyObject *object, const char *name, Py_ssize_t of, const char *of_name,
           Py_ssize_t *heads)
{
    if (read_size(object, name, 1, heads) < 0) {
        return -1;
    }
    if (of % *heads != 0) {
        char expected[100];
        PyOS_snprintf(expected, sizeof expected, "a divisor of %s, %zd", of_name, of);
        return py_value_error(object, name, expected);
    }
    return 0;
}

int
layer_read_heads(layer_core *core, PyObject *value_size, PyObject *num_heads,
                 PyObject *num_kv_heads)
{
    if (read_size(value_size, "value_size", 0, &core->value_size) < 0 ||
        read_heads(num_heads, "num_heads", core->num_hiddens, "num_hiddens",
                   &core->num_heads) < 0) {
        return -1;
    }
    const Py_ssize_t widest = Py_MAX(core->value_size, core->num_hiddens);
    if (core->num_hiddens > PY_SSIZE_T_MAX / 8 / Py_MAX(widest, 1)) {
        PyErr_Format(PyExc_ValueError,
                     "value_size is %zd and num_hiddens %zd, expected sizes whose "
                     "products do not overflow",
                     core->value_size, core->num_hiddens);
        return -1;
    }
    core->num_kv_heads = core->num_heads;
    return py_is_given(num_kv_heads)
               ? read_heads(num_kv_heads, "num_kv_heads", core->num_heads, "num_heads",
                            &core->num_kv_heads)
               : 0;
}

/* rng.uniform(-bound, bound, shape) as float32, bound = 1 / sqrt(fan_in). */
static PyArrayObject *
draw(const layer_core *core, int which)
{
    npy_intp dims[PY_PARAMETER_AXES];
    int ndim = layer_shape(core, which, dims);
    npy_intp sizes[PY_LETTERS];
    sizes_of(core, sizes);
    npy_intp fan_in = sizes[info(core, which)->fan_in - 'A'];
    double bound = fan_in > 0 ? 1.0 / sqrt((double)fan_in) : 0.0;
    PyArrayObject *live = NULL, *values = NULL;
    PyObject *shape = PyArray_IntTupleFromIntp(ndim, dims), *drawn = NULL;
    if (shape != NULL) {
        drawn = PyObject_CallMethod(core->rng, "uniform", "ddO", -bound, bound, shape);
        Py_DECREF(shape);
    }
    if (drawn != NULL) {
        values = py_float32_shaped(drawn, layer_text(core, which), ndim, dims);
        Py_DECREF(drawn);
    }
    if (values != NULL) {
        live = layer_new_live(values);
        Py_DECREF(values);
    }
    return live;
}

int
layer_draw_parameters(const attnext_state *state, layer_core *core, bool bias)
{
    core->grads = PyDict_New();
    if (core->grads == NULL) {
        return -1;
    }
    for (int i = 0; i < core->score->parameters; i++) {
        if (info(core, i)->optional && !bias) {
            continue;
        }
        core->parameters[i] = draw(core, i);
        if (core->parameters[i] == NULL || layer_put_zeros(state, core, i) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- the live arrays ------------------------------------------------------------- */

static int
check_live(const layer_core *core, int which)
{
    PyArrayObject *live = core->parameters[which];
    const char *name = layer_text(core, which);
    npy_intp dims[PY_PARAMETER_AXES];
    int ndim = layer_shape(core, which, dims);

    if (PyArray_TYPE(live) != NPY_FLOAT32 || PyArray_ISBYTESWAPPED(live)) {
        PyErr_Format(PyExc_TypeError, "%s has dtype %S, expected float32", name,
                     PyArray_DESCR(live));
        return -1;
    }
    if (py_check_shape(live, name, ndim, dims) < 0) {
        return -1;
    }
    if (!PyArray_ISCARRAY_RO(live)) {
        PyErr_Format(PyExc_ValueError, "%s is no longer C-contiguous", name);
        return -1;
    }
    return 0;
}

int
layer_check_parameters(const layer_core *core)
{
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        if (core->parameters[i] != NULL && check_live(core, i) < 0) {
            return -1;
        }
    }
    return 0;
}

int
layer_check_writable(const layer_core *core, int which)
{
    if (check_live(core, which) < 0) {
        return -1;
    }
    if (!PyArray_ISWRITEABLE(core->parameters[which])) {
        PyErr_Format(PyExc_ValueError, "%s is read-only: its flags.writeable is False",
                     layer_text(core, which));
        return -1;
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

/* The new numbers of a parameter; w_v may come as (1, H) too. */
static PyArrayObject *
new_values(const layer_core *core, int which, PyObject *value)
{
    npy_intp sizes[PY_LETTERS];
    sizes_of(core, sizes);
    return py_parameter(value, layer_text(core, which), info(core, which)->shape,
                        sizes);
}

int
layer_set_parameter(PyObject *self, PyObject *value, void *closure)
{
    int which = (int)(intptr_t)closure, result = -1;
    PyArrayObject *values = NULL;
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
    values = new_values(&held, which, value);
    if (values == NULL || layer_check_writable(&held, which) < 0) {
        goto done;
    }
    memmove(PyArray_DATA(live), PyArray_DATA(values), (size_t)PyArray_NBYTES(live));
    result = 0;
done:
    Py_XDECREF(values);
    layer_core_clear(&held);
    return result;
}

PyObject *
layer_parameter_dict(const attnext_state *state, const layer_core *core)
{
    PyObject *dict = PyDict_New();
    for (int i = 0; dict != NULL && i < ATTN_PARAMETERS; i++) {
        PyObject *live = (PyObject *)core->parameters[i];
        if (live != NULL &&
            PyDict_SetItem(dict, layer_name(state, core, i), live) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

PyObject *
layer_parameters(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    layer_core held;
    if (layer_hold((layer_object *)self, &held) < 0) {
        return NULL;
    }
    PyObject *dict = layer_parameter_dict(py_state_of_type(Py_TYPE(self)), &held);
    layer_core_clear(&held);
    return dict;
}

/* ---- for attnext/_layers.py ------------------------------------------------------ */

PyObject *
layer_live(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *dict = NULL;
    layer_core held;
    if (layer_hold((layer_object *)self, &held) < 0) {
        return NULL;
    }
    if (layer_check_parameters(&held) == 0) {
        dict = layer_parameter_dict(py_state_of_type(Py_TYPE(self)), &held);
    }
    layer_core_clear(&held);
    return dict;
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
    return !plain || layer_check_writable(core, which) < 0 ? NULL
                                                           : (PyArrayObject *)value;
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
        py_kind_error(values, "values", "a dict");
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
