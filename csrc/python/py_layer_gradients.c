/*
 * py_layer_gradients.c -- the gradients of a layer's parameters: attn.grads, a dict the
 * user may write into (gradient clipping, an optimiser that wants None). So an entry is
 * looked at each time it is used: one that can be added to as it is, is; another is
 * replaced by one that can.
 */
#include "py_layer.h"

#include <string.h>

/* Is object a plain, writable float32 array of this shape, to be added to as it is? */
static bool
is_accumulator(PyObject *object, int ndim, const npy_intp *dims)
{
    PyArrayObject *a = (PyArrayObject *)object;
    return py_is_plain(object, NPY_FLOAT32) && PyArray_ISWRITEABLE(a) &&
           py_shape_fits(a, ndim, dims);
}

/* None as zeros, as in torch, and else the entry as float32, in a new array of this
 * shape. */
static PyArrayObject *
converted(PyObject *entry, PyObject *name, int ndim, npy_intp *dims)
{
    if (entry != Py_None) {
        Py_INCREF(entry); /* code that runs may take it out of the dict */
        return (PyArrayObject *)py_ask("attnext._layers", "_gradient", "(NON)", entry,
                                       name, py_dims(ndim, dims));
    }
    PyArrayObject *zeros = py_new_float32(ndim, dims);
    if (zeros != NULL) {
        memset(PyArray_DATA(zeros), 0, (size_t)PyArray_NBYTES(zeros));
    }
    return zeros;
}

/* grads[name], fit to be added to: the entry itself, or a new array, which is the entry
 * from then on. No entry counts as None; afresh: and so does all else. */
static PyArrayObject *
accumulator(const attnext_state *state, const layer_core *core, int which, bool afresh)
{
    PyObject *name = layer_name(state, core, which);
    npy_intp dims[PY_PARAMETER_AXES];
    int ndim = layer_shape(core, which, dims);

    PyObject *entry = PyDict_GetItemWithError(core->grads, name);
    if (entry == NULL && PyErr_Occurred()) {
        return NULL;
    }
    if (entry != NULL && is_accumulator(entry, ndim, dims)) {
        PyArrayObject *sum = (PyArrayObject *)Py_NewRef(entry);
        if (afresh) {
            memset(PyArray_DATA(sum), 0, (size_t)PyArray_NBYTES(sum));
        }
        return sum;
    }
    PyArrayObject *fresh = converted(entry == NULL || afresh ? Py_None : entry, name,
                                     ndim, dims);
    if (fresh != NULL && PyDict_SetItem(core->grads, name, (PyObject *)fresh) < 0) {
        Py_CLEAR(fresh);
    }
    return fresh;
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
                    const py_gradients *gradients)
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
