/*
 * py_parameters.c -- the parameters of a layer:
 *
 *     name   shape     fan_in        in a state dict
 *     W_q    (H, Dq)   query_size    W_q.weight
 *     W_k    (H, Dk)   key_size      W_k.weight
 *     w_v    (H,)      num_hiddens   w_v.weight, there (1, H)
 *     b_h    (H,)      query_size    b_h
 *
 * A DotProductAttention has none of them; its dicts are empty.
 *
 * The arrays are live: parameters() hands out the arrays themselves, and they stay the
 * same objects for as long as the layer lives, so an optimiser may keep them. They are
 * views, so NumPy refuses to resize them and a call can read them without the GIL.
 */
#include "py_modules.h"

#include <math.h>
#include <string.h>

const layer_parameter_info layer_infos[LAYER_PARAMETERS] = {
    [LAYER_W_Q] = {ARG_W_Q, "W_q", "W_q.weight", "grads['W_q']",
                   "state_dict['W_q.weight']"},
    [LAYER_W_K] = {ARG_W_K, "W_k", "W_k.weight", "grads['W_k']",
                   "state_dict['W_k.weight']"},
    [LAYER_W_V] = {ARG_W_V, "w_v", "w_v.weight", "grads['w_v']",
                   "state_dict['w_v.weight']"},
    [LAYER_B_H] = {ARG_B_H, "b_h", "b_h", "grads['b_h']", "state_dict['b_h']"},
};

int
layer_shape(const layer_core *core, int which, npy_intp dims[2])
{
    dims[0] = core->num_hiddens;
    dims[1] = which == LAYER_W_Q ? core->query_size : core->key_size;
    return which == LAYER_W_Q || which == LAYER_W_K ? 2 : 1;
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
    if (PyBool_Check(object) || !PyIndex_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be an int, got %.200s", name,
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    *size = PyNumber_AsSsize_t(object, NULL); /* NULL: clipped if too large */
    if (*size == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (*size < least) {
        PyErr_Format(PyExc_ValueError, "%s is %R, expected %s >= %zd", name, object,
                     name, least);
        return -1;
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
        PyErr_Format(PyExc_ValueError,
                     "key_size is %R, query_size %R and num_hiddens %R, expected sizes "
                     "whose products do not overflow",
                     key_size, query_size, num_hiddens);
        return -1;
    }
    return 0;
}

/* rng.uniform(-bound, bound, shape) as float32, bound = 1 / sqrt(fan_in). */
static PyArrayObject *
draw(const layer_core *core, int which)
{
    npy_intp dims[2];
    int ndim = layer_shape(core, which, dims);
    Py_ssize_t fan_in = which == LAYER_W_V   ? core->num_hiddens
                        : which == LAYER_W_K ? core->key_size
                                             : core->query_size;
    double bound = fan_in > 0 ? 1.0 / sqrt((double)fan_in) : 0.0;
    PyArrayObject *live = NULL, *values = NULL;
    PyObject *drawn = PyObject_CallMethod(core->rng, "uniform",
                                          ndim == 2 ? "dd(nn)" : "ddn", -bound, bound,
                                          dims[0], dims[1]);
    if (drawn != NULL) {
        values = py_float32_shaped(drawn, layer_infos[which].name, NULL, ndim, dims);
        Py_DECREF(drawn);
    }
    if (values != NULL) {
        live = layer_new_live(values);
        Py_DECREF(values);
    }
    return live;
}

int
layer_draw_parameters(attnext_state *state, layer_core *core, bool bias)
{
    core->grads = PyDict_New();
    if (core->grads == NULL) {
        return -1;
    }
    for (int i = 0; i < (bias ? LAYER_PARAMETERS : LAYER_B_H); i++) {
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
    const char *name = layer_infos[which].name;
    npy_intp dims[2];
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
    for (int i = 0; i < LAYER_PARAMETERS; i++) {
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
                     layer_infos[which].name);
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

/* The new numbers of a parameter, in its shape; w_v may come as (1, H) too. */
static PyArrayObject *
new_values(const layer_core *core, int which, PyObject *value)
{
    npy_intp dims[2];
    int ndim = layer_shape(core, which, dims);
    if (which == LAYER_W_V) {
        return py_float32_w_v(value, NULL, core->num_hiddens);
    }
    return py_float32_shaped(value, layer_infos[which].name, NULL, ndim, dims);
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
                     layer_infos[which].name);
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
layer_parameter_dict(attnext_state *state, const layer_core *core)
{
    PyObject *dict = PyDict_New();
    for (int i = 0; dict != NULL && i < LAYER_PARAMETERS; i++) {
        PyObject *live = (PyObject *)core->parameters[i];
        if (live != NULL &&
            PyDict_SetItem(dict, state->names[layer_infos[i].arg], live) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

const char layer_parameters_doc[] = PyDoc_STR(
"parameters($self)\n"
"--\n\n"
"The parameters by name, as the live arrays.\n"
"\n"
"Returns\n"
"-------\n"
"parameters : dict\n"
"    Of float32 arrays. AdditiveAttention: ``W_q`` (H, Dq), ``W_k`` (H, Dk), ``w_v``\n"
"    (H,) and, with a bias, ``b_h`` (H,). DotProductAttention: empty.\n"
"\n"
"See Also\n"
"--------\n"
"state_dict : Copies, under torch's names.\n"
"\n"
"Notes\n"
"-----\n"
"The arrays are the object's own, the same ones every time: what is written into them\n"
"is what the next call uses. They cannot be resized.\n"
"\n"
"Examples\n"
"--------\n"
"A step of gradient descent:\n"
"\n"
">>> import numpy as np\n"
">>> from attnext import AdditiveAttention\n"
">>> attn = AdditiveAttention(key_size=2, query_size=3, num_hiddens=4, rng=0)\n"
">>> output = attn(np.eye(3), np.eye(2), np.eye(2))\n"
">>> dq, dk, dv = attn.backward(output)\n"
">>> for name, p in attn.parameters().items():\n"
"...     p -= 0.1 * attn.grads[name]\n");

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
