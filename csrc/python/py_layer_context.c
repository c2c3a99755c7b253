/*
 * py_layer_context.c -- the type Context: what a forward keeps for its backward.
 *
 * The inputs are kept by reference, but for those whose memory an object owns that may
 * have attributes. The output, where the backward reads it, is copied, because the caller
 * got it and may write into it before (`error = attn(...); error -= y;
 * attn.backward(error)`). The
 * parameters are not kept: the layer has them, and a context is of use with its layer
 * only, which it knows by the layer's identity. So nothing here leads back to the layer,
 * and dropping the layer frees both at once, without the garbage collector.
 */
#include "py_layer.h"

#include <string.h>
#include <structmember.h>

typedef struct {
    PyObject ob_base;
    PyObject *identity;                    /* of the layer that made it */
    PyArrayObject *inputs[ARG_EMPTY_ROWS]; /* as the forward read them; no parameters */
    int end;                               /* the inputs from here on are NULL */
    py_options options;
    py_memory memory;            /* in the place of keys and values */
    PyArrayObject *output, *lse; /* NULL, both: of no use (attn_reads_saved) */
    PyArrayObject *kept; /* of multi-head attention, which then needs no output */
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

/* The array itself, in nearly every case; or one with the same numbers that keeps alive nothing
 * which may lead back to the layer, for the collector cannot see through an array. */
static PyArrayObject *
kept_input(PyArrayObject *a)
{
    PyObject *owner = (PyObject *)a;
    while (PyArray_CheckExact(owner) && PyArray_BASE((PyArrayObject *)owner) != NULL) {
        owner = PyArray_BASE((PyArrayObject *)owner);
    }
    return PyArray_CheckExact(owner)
               ? (PyArrayObject *)Py_NewRef(a)
               : (PyArrayObject *)py_ask("attnext._contexts", "kept", "(O)", a);
}

PyObject *
layer_context_new(const attnext_state *state, const layer_core *core,
                  const py_call *call)
{
    const py_made *made = &call->made;
    PyTypeObject *type = state->Context;
    context_object *context = (context_object *)type->tp_alloc(type, 0); /* all zero */
    if (context == NULL) {
        return NULL;
    }
    context->identity = Py_NewRef(core->identity);
    context->end = call->end; /* no more than inputs are */
    context->options = call->options;
    bool failed = false;
    for (int i = ARG_QUERIES; !failed && i < context->end; i++) {
        const bool kept = i < ARG_PARAMETER_0 || i >= ARG_VALID_LENS;
        failed = kept && call->arrays[i] != NULL &&
                 (context->inputs[i] = kept_input(call->arrays[i])) == NULL;
    }
    layer_memory_share(&context->memory, &call->memory);
    context->lse = (PyArrayObject *)Py_XNewRef(made->lse);
    context->kept = (PyArrayObject *)Py_XNewRef(made->kept);
    if (failed || (made->lse != NULL && made->kept == NULL &&
                   (context->output = copy_of(made->output)) == NULL)) {
        Py_CLEAR(context);
    }
    return (PyObject *)context;
}

int
layer_context_read(const attnext_state *state, const layer_core *core, py_call *call)
{
    PyObject *object = call->given[ARG_CONTEXT];
    object = py_is_given(object) ? object : core->context;
    if (object == NULL) {
        return py_wrong("sentence", "(s)", "no_forward");
    }
    if (!Py_IS_TYPE(object, state->Context)) {
        return py_wrong("kind", "(sOs)", "context", object,
                        "a Context (an attribute of the layer after a call)");
    }
    context_object *context = (context_object *)object;
    if (context->identity != core->identity) {
        return py_wrong("sentence", "(s)", "context_of_another");
    }
    for (int i = ARG_QUERIES; i < context->end; i++) {
        if (context->inputs[i] != NULL) {
            call->given[i] = (PyObject *)context->inputs[i];
        }
    }
    call->options = context->options;
    layer_memory_share(&call->memory, &context->memory);
    call->given[ARG_OUTPUT] = (PyObject *)context->output;
    call->given[ARG_LSE] = (PyObject *)context->lse;
    call->given[ARG_KEPT] = (PyObject *)context->kept;
    return 0;
}

/* ---- the type -------------------------------------------------------------------- */

static void
context_dealloc(PyObject *self)
{
    context_object *context = (context_object *)self;
    PyTypeObject *type = Py_TYPE(self);

    Py_XDECREF(context->identity);
    for (int i = ARG_QUERIES; i < context->end; i++) {
        Py_XDECREF(context->inputs[i]);
    }
    py_memory_clear(&context->memory);
    Py_XDECREF(context->output);
    Py_XDECREF(context->lse);
    Py_XDECREF(context->kept);
    type->tp_free(self);
    Py_DECREF(type);
}

/* For attnext/_layers.py, behind the first: None for what there is not. */
#define MEMBER(NAME, TYPE, FIELD) \
    {NAME, TYPE, offsetof(context_object, FIELD), READONLY, NULL}
static PyMemberDef context_members[] = {
    MEMBER("dropout_p", T_FLOAT, options.dropout_p),
    MEMBER("_seed", T_ULONGLONG, options.seed.value),
    MEMBER("_queries", T_OBJECT, inputs[ARG_QUERIES]),
    MEMBER("_keys", T_OBJECT, inputs[ARG_KEYS]),
    MEMBER("_values", T_OBJECT, inputs[ARG_VALUES]),
    MEMBER("_memory", T_OBJECT, memory.owner),
    MEMBER("_N", T_PYSSIZET, memory.N),
    {0},
};

static PyType_Slot context_slots[] = {
    {Py_tp_dealloc, context_dealloc},
    {Py_tp_members, context_members},
    {0},
};

/* Not known to the garbage collector: arrays of numbers lead nowhere. */
PyType_Spec layer_context_spec = {
    .name = "attnext._core.Context",
    .basicsize = sizeof(context_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = context_slots,
};
