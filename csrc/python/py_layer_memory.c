/*
 * py_layer_memory.c -- the type Memory: keys and values that stay while queries come step
 * by step, as if it were Python:
 *
 *     class Layer:
 *         def memory(self, keys, values, valid_lens=None, *, mask=None):
 *             return Memory(self, ...)
 *
 *     class Memory:
 *         def append(self, keys, values, mask=None):
 *             self.keys += keys; self.values += values; self.mask += mask
 *             self.projected += keys @ W_k.T
 *
 *         def backward(self):
 *             dkeys, layer.grads["W_k"] += through the projection, of self.sums
 *             return dkeys, dvalues
 *
 * layer(queries, memory) is layer(queries, keys, values, valid_lens) with what the memory
 * has (layer_memory_read), and its backward adds to the sums (py_layer_memory_back.c).
 */
#include "py_layer.h"

#include <structmember.h>

/* ---- memory.backward() ----------------------------------------------------------- */

static PyObject *
memory_backward(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    memory_object *memory = (memory_object *)self;
    layer_core held;
    PyObject *layer = layer_memory_hold(memory, &held);
    if (layer == NULL) {
        return NULL;
    }
    PyObject *result = NULL;
    if (layer_memory_check((layer_object *)layer, &held, memory) == 0) {
        result = layer_memory_backward(state, &held, memory);
    }
    layer_core_clear(&held);
    Py_DECREF(layer);
    return result;
}

/* (..., N, width) */
static PyObject *
copy_rows(const py_memory *now, PyArrayObject *rows)
{
    return rows == NULL ? Py_NewRef(Py_None)
                        : (PyObject *)layer_memory_grow(rows, now->N, now->N, 0);
}

/* For attnext.explain, which computes what the layer would. */
static PyObject *
memory_given_to(PyObject *self, PyObject *layer)
{
    memory_object *memory = (memory_object *)self;
    if (memory->layer != NULL) {
        PyObject *own = PyObject_CallNoArgs(memory->layer); /* or None */
        if (own != NULL && (own != layer || layer == Py_None)) {
            layer_memory_of_another();
        }
        Py_XDECREF(own);
    }
    if (PyErr_Occurred() || layer_memory_check_own(memory) < 0) {
        return NULL;
    }
    py_memory now;
    layer_memory_share(&now, &memory->now);
    PyObject *lens = now.lens == NULL ? Py_NewRef(Py_None)
                                      : PyArray_NewCopy(now.lens, NPY_CORDER);
    PyObject *given = Py_BuildValue("(NNNN)", copy_rows(&now, now.keys),
                                    copy_rows(&now, now.values), lens,
                                    copy_rows(&now, now.mask));
    layer_memory_release(&now);
    return given;
}

/* ---- the type -------------------------------------------------------------------- */

static PyObject *
memory_new(PyTypeObject *Py_UNUSED(type), PyObject *Py_UNUSED(args),
           PyObject *Py_UNUSED(kwargs))
{
    PyErr_SetString(PyExc_TypeError,
                    "a Memory is made by an object that reads it: attn.memory(keys, "
                    "values)");
    return NULL;
}

static PyObject *
memory_reduce(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    PyErr_SetString(PyExc_TypeError,
                    "a Memory cannot be copied or pickled, because it belongs to the "
                    "object that made it: make another from the keys and values");
    return NULL;
}

static void
memory_dealloc(PyObject *self)
{
    memory_object *memory = (memory_object *)self;
    PyTypeObject *type = Py_TYPE(self);

    if (memory->weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    Py_XDECREF(memory->layer);
    layer_core_clear(&memory->core);
    layer_memory_release(&memory->now);
    layer_memory_clear_sums(&memory->sums);
    layer_memory_clear_sums(&memory->spare);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t
memory_length(PyObject *self)
{
    return ((memory_object *)self)->now.N;
}

static PyObject *
memory_repr(PyObject *self)
{
    const py_memory *now = &((memory_object *)self)->now;
    char keys[PY_SHAPE_TEXT], values[PY_SHAPE_TEXT];
    npy_intp dims[PY_MAX_AXES];
    int ndim = py_note_shape(now->keys, dims);

    dims[ndim - 2] = now->N;
    py_shape_text(keys, ndim, dims);
    dims[ndim - 1] = PyArray_DIM(now->values, ndim - 1);
    return PyUnicode_FromFormat("<Memory: keys %s, values %s>", keys,
                                py_shape_text(values, ndim, dims));
}

PyMethodDef memory_methods[MEMORY_METHODS] = {
    {0}, /* append: its docstring is made at import */
    {"backward", memory_backward, METH_NOARGS, "backward($self)\n--\n\n"},
    {"__reduce__", memory_reduce, METH_NOARGS, "__reduce__($self)\n--\n\n"},
    {"_given_to", memory_given_to, METH_O, "_given_to($self, layer, /)\n--\n\n"},
    /* For attnext.torch, whose layers are its own, and sums autograd's. */
    {"_of", layer_memory_of, METH_VARARGS | METH_CLASS,
     "_of($type, score, sizes, parameters, keys, values, valid_lens, mask, /)\n--\n\n"},
    {"_check", layer_memory_check_given, METH_O,
     "_check($self, parameters, /)\n--\n\n"},
    {"_now", layer_memory_now, METH_NOARGS, "_now($self)\n--\n\n"},
    {0},
};

static PyMemberDef memory_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(memory_object, weakrefs), READONLY,
     NULL},
    {0},
};

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, "Memory()\n--\n\n"}, {Py_tp_new, memory_new},
    {Py_tp_dealloc, memory_dealloc}, {Py_tp_repr, memory_repr},
    {Py_sq_length, memory_length},   {Py_tp_methods, memory_methods},
    {Py_tp_members, memory_members}, {0},
};

/* Not known to the garbage collector: nothing it has leads anywhere. */
PyType_Spec layer_memory_spec = {
    .name = "attnext.Memory",
    .basicsize = sizeof(memory_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = memory_slots,
};
