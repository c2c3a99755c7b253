/*
 * py_context.c -- the type Context: what a forward keeps for its backward.
 *
 * The inputs are kept by reference. The output is copied, because the caller got it and
 * may write into it before the backward (`error = attn(...); error -= y;
 * attn.backward(error)`). The parameters are not kept: the layer has them, and a
 * context is of use with its layer only, which it knows by the layer's identity. So
 * nothing here leads back to the layer, and dropping the layer frees both at once,
 * without the garbage collector.
 */
#include "py_modules.h"

#include <string.h>
#include <structmember.h>

typedef struct {
    PyObject ob_base;
    PyObject *identity;                     /* of the layer that made it */
    PyArrayObject *queries, *keys, *values; /* as the forward read them */
    PyArrayObject *lens;                    /* NULL: every key */
    PyArrayObject *mask;                    /* NULL: none */
    bool causal;
    PyArrayObject *output, *lse;
    float dropout_p;
    uint64_t seed; /* if dropout_p > 0 */
} context_object;

static PyArrayObject *
copy_of(PyArrayObject *a)
{
    PyArrayObject *copy = py_new_float32(PyArray_NDIM(a), PyArray_DIMS(a));
    if (copy != NULL) {
        memcpy(PyArray_DATA(copy), PyArray_DATA(a), (size_t)PyArray_NBYTES(copy));
    }
    return copy;
}

PyObject *
py_context_new(attnext_state *state, PyObject *identity, const attention_inputs *in,
               const attention_outputs *outputs)
{
    PyTypeObject *type = state->Context;
    context_object *context = (context_object *)type->tp_alloc(type, 0); /* all zero */
    if (context == NULL) {
        return NULL;
    }
    context->identity = Py_NewRef(identity);
    context->queries = (PyArrayObject *)Py_NewRef(in->queries);
    context->keys = (PyArrayObject *)Py_NewRef(in->keys);
    context->values = (PyArrayObject *)Py_NewRef(in->values);
    context->lens = (PyArrayObject *)Py_XNewRef(in->lens);
    context->mask = (PyArrayObject *)Py_XNewRef(in->mask);
    context->causal = in->problem.masks.band.has_right; /* no layer has a window */
    context->output = copy_of(outputs->output);
    context->lse = (PyArrayObject *)Py_NewRef(outputs->lse);
    context->dropout_p = in->problem.dropout.p;
    context->seed = in->problem.dropout.seed;
    if (context->output == NULL) {
        Py_CLEAR(context);
    }
    return (PyObject *)context;
}

int
py_context_read(attnext_state *state, PyObject *object, PyObject *identity,
                attention_args *args)
{
    if (!Py_IS_TYPE(object, state->Context)) {
        PyErr_Format(
            PyExc_TypeError,
            "context must be what .context returned after a forward, got %.200s",
            Py_TYPE(object)->tp_name);
        return -1;
    }
    context_object *context = (context_object *)object;
    if (context->identity != identity) {
        PyErr_SetString(PyExc_ValueError,
                        "context was saved by another object, expected one "
                        "of this object's own forwards");
        return -1;
    }
    args->queries = (PyObject *)context->queries;
    args->keys = (PyObject *)context->keys;
    args->values = (PyObject *)context->values;
    args->masks.valid_lens = (PyObject *)context->lens;
    args->masks.mask = (PyObject *)context->mask;
    args->masks.causal = context->causal;
    args->saved.output = (PyObject *)context->output;
    args->saved.lse = (PyObject *)context->lse;
    args->dropout.p = context->dropout_p;
    args->dropout.seed = context->seed;
    return 0;
}

/* ---- the type -------------------------------------------------------------------- */

static void
context_dealloc(PyObject *self)
{
    context_object *context = (context_object *)self;
    PyTypeObject *type = Py_TYPE(self);

    Py_XDECREF(context->identity);
    Py_XDECREF(context->queries);
    Py_XDECREF(context->keys);
    Py_XDECREF(context->values);
    Py_XDECREF(context->lens);
    Py_XDECREF(context->mask);
    Py_XDECREF(context->output);
    Py_XDECREF(context->lse);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
context_repr(PyObject *self)
{
    context_object *context = (context_object *)self;
    PyArrayObject *q = context->queries, *k = context->keys, *v = context->values;
    char queries[PY_SHAPE_TEXT], keys[PY_SHAPE_TEXT], values[PY_SHAPE_TEXT];

    return PyUnicode_FromFormat(
        "<Context: queries %s, keys %s, values %s>",
        py_shape_text(queries, PyArray_NDIM(q), PyArray_DIMS(q)),
        py_shape_text(keys, PyArray_NDIM(k), PyArray_DIMS(k)),
        py_shape_text(values, PyArray_NDIM(v), PyArray_DIMS(v)));
}

PyDoc_STRVAR(seed_doc,
"int or None: the seed of the dropout this forward used; None if it dropped nothing.");

static PyObject *
context_get_seed(PyObject *self, void *Py_UNUSED(closure))
{
    context_object *context = (context_object *)self;
    if (context->dropout_p > 0.0f) {
        return PyLong_FromUnsignedLongLong(context->seed);
    }
    Py_RETURN_NONE;
}

static PyGetSetDef context_properties[] = {
    {"seed", context_get_seed, NULL, seed_doc, NULL},
    {0},
};

static PyMemberDef context_members[] = {
    {"dropout_p", T_FLOAT, offsetof(context_object, dropout_p), READONLY,
     "float: the probability of dropout in this forward, as float32; 0 outside "
     "training."},
    {0},
};

PyDoc_STRVAR(context_doc,
"What a forward saved for its backward.\n"
"\n"
"Attributes\n"
"----------\n"
"dropout_p : float\n"
"    The probability of dropout in this forward; 0 outside training.\n"
"seed : int or None\n"
"    The seed of that dropout; None if nothing was dropped.\n"
"\n"
"See Also\n"
"--------\n"
"AdditiveAttention : Its `context` is one of these, and its `backward` takes one.\n"
"DotProductAttention : Likewise.\n"
"\n"
"Notes\n"
"-----\n"
"It holds references to the queries, keys, values and mask, which must not be changed\n"
"before the backward, and copies of the output and the log-sum-exp. The parameters\n"
"are those the object has when `backward` is called. It cannot be made, copied or\n"
"pickled.\n"
"\n"
"Examples\n"
"--------\n"
"A decoder calls one object once for each time step, and runs backward in reverse\n"
"order:\n"
"\n"
">>> import numpy as np\n"
">>> from attnext import DotProductAttention\n"
">>> attn = DotProductAttention()\n"
">>> contexts, outputs, states = [], [], np.eye(3)\n"
">>> for t in range(2):\n"
"...     outputs.append(attn(states[t : t + 1], states, states))\n"
"...     contexts.append(attn.context)\n"
">>> for output, context in zip(reversed(outputs), reversed(contexts)):\n"
"...     dq, dk, dv = attn.backward(np.ones_like(output), context=context)\n"
">>> contexts[0]\n"
"<Context: queries (1, 3), keys (3, 3), values (3, 3)>\n");

static PyType_Slot context_slots[] = {
    {Py_tp_doc, (void *)context_doc}, {Py_tp_dealloc, context_dealloc},
    {Py_tp_repr, context_repr},       {Py_tp_getset, context_properties},
    {Py_tp_members, context_members}, {0},
};

/* Not known to the garbage collector: arrays of numbers lead nowhere. */
PyType_Spec py_context_spec = {
    .name = "attnext._core.Context",
    .basicsize = sizeof(context_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = context_slots,
};
