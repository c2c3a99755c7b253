/*
 * py_layer_memory.c -- the type Memory: keys and values that stay while queries come step
 * by step, as if it were Python:
 *
 *     class Memory: # layer.memory(keys, values, valid_lens) makes one, by appending
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
 *
 * A type in C, because a decoder appends in each step: in Python over a function that
 * projects keys the rest of an append alone took 2.1 us, where all of it takes 0.5; and
 * what two threads append at once could not be one after another without a lock.
 */
#include "py_layer.h"

#include <string.h>
#include <structmember.h>

/* ---- what makes a memory --------------------------------------------------------- */

/* A memory without keys, of the sizes of the core and with those of its parameters that
 * project keys, of a layer, unless that is NULL, with copies. */
static memory_object *
new_memory(const attnext_state *state, const layer_core *core, PyObject *layer)
{
    PyTypeObject *type = state->Memory;
    memory_object *memory = (memory_object *)type->tp_alloc(type, 0); /* all zero */
    if (memory == NULL) {
        return NULL;
    }
    memory->core = layer_sizes(core);
    memory->core.identity = Py_XNewRef(core->identity);
    memory->widths[MEMORY_KEYS] = PY_DK;
    memory->widths[MEMORY_VALUES] = PY_DV;
    bool made = layer == NULL ||
                (memory->layer = PyWeakref_NewRef(layer, NULL)) != NULL;
    for (int i = 0; made && i < core->score->parameters; i++) {
        PyArrayObject *own = core->parameters[i];
        if (own != NULL && py_keys_of(core->score)->has(core->score->score, i)) {
            PyObject *kept = layer == NULL ? Py_NewRef(own)
                                           : PyArray_NewCopy(own, NPY_CORDER);
            memory->core.parameters[i] = (PyArrayObject *)kept;
            made = kept != NULL;
        }
    }
    if (!made) {
        Py_CLEAR(memory);
    }
    return memory;
}

const py_signature layer_memory_signature = {
    .function = "memory",
    .required = 2,
    .positional = 3,
    .args = {ARG_KEYS, ARG_VALUES, ARG_VALID_LENS, ARG_MASK},
    .method = true,
};

/* More keys, from the arguments of a call: all or nothing. */
static int
fill(const attnext_state *state, memory_object *memory, const py_signature *signature,
     PyObject **given)
{
    PyObject *owned = NULL;
    int result = py_make_plain(state, signature, given, &owned);
    Py_BEGIN_CRITICAL_SECTION(memory);
    if (result == 0) {
        result = layer_memory_add_keys(state, memory, given);
    }
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(owned);
    return result;
}

/* A layer without a generator is of no constructor (Memory._of), and what it makes is of no
 * layer: for attnext.torch, whose layers are its own, and sums autograd's. Objects are made,
 * which may start the collector, before anything is read. */
PyObject *
layer_memory(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    PyObject *given[ARG_COUNT] = {NULL};
    memory_object *memory = NULL;
    layer_core held;

    if (layer_hold((layer_object *)self, true, &held) < 0) {
        return NULL;
    }
    PyObject *layer = held.rng == Py_None ? NULL : self;
    if ((layer == NULL || layer_check_parameters(&held, NULL) == 0) &&
        py_parse(state, &layer_memory_signature, args, nargs, kwnames, given) == 0) {
        memory = new_memory(state, &held, layer);
    }
    if (memory != NULL && fill(state, memory, &layer_memory_signature, given) < 0) {
        Py_CLEAR(memory);
    }
    layer_core_clear(&held);
    return (PyObject *)memory;
}

/* The memory as it is now, for functions; nothing is appended to it. Its shape has been the same
 * since the first keys came. */
static PyObject *
memory_now(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    memory_object *memory = (memory_object *)self;
    memory_object *fixed = new_memory(py_state_of_type(Py_TYPE(self)), &memory->core,
                                      NULL);
    if (fixed != NULL) {
        layer_memory_hold(memory, &fixed->now);
        fixed->ndim = memory->ndim;
        memcpy(fixed->leading, memory->leading, sizeof fixed->leading);
        fixed->lens = (PyArrayObject *)Py_XNewRef(memory->lens);
        fixed->fixed = true;
    }
    return (PyObject *)fixed;
}

/* ---- memory.append() ------------------------------------------------------------- */

static const py_signature append_signature = {
    .function = "append",
    .required = 2,
    .positional = 3,
    .args = {ARG_KEYS, ARG_VALUES, ARG_MASK},
    .method = true,
};

static PyObject *
memory_append(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    memory_object *memory = (memory_object *)self;
    PyObject *given[ARG_COUNT] = {NULL};

    if (py_parse(state, &append_signature, args, nargs, kwnames, given) < 0 ||
        (memory->fixed && py_wrong("sentence", "(s)", "fixed_memory") < 0)) {
        return NULL;
    }
    return fill(state, memory, &append_signature, given) < 0 ? NULL
                                                             : Py_NewRef(Py_None);
}

/* ---- the type -------------------------------------------------------------------- */

/* Of a memory as it is now, which stays as long as the array: keys, values or mask with all their
 * room, to be read; None where there is none. */
static PyObject *
part(const memory_object *fixed, void *data, npy_intp width, int type)
{
    npy_intp dims[PY_MAX_AXES];
    const int ndim = py_memory_shape((PyObject *)fixed, fixed->now.kv->p.N, width,
                                     dims);
    PyObject *a = data == NULL ? Py_NewRef(Py_None)
                               : PyArray_New(&PyArray_Type, ndim, dims, type, NULL,
                                             data, 0, NPY_ARRAY_CARRAY_RO, NULL);
    if (data != NULL && a != NULL &&
        PyArray_SetBaseObject((PyArrayObject *)a, Py_NewRef(fixed)) < 0) {
        Py_CLEAR(a);
    }
    return a;
}

/* For attnext/_layers.py: what the memory has, and how many keys these are; where it is to be of
 * use, its layer's parameters are those that projected them. */
static PyObject *
memory_parts(PyObject *self, PyObject *of_use)
{
    memory_object *fixed = (memory_object *)memory_now(self, NULL);
    if (fixed == NULL ||
        (of_use == Py_True && layer_memory_check_own((memory_object *)self) < 0)) {
        Py_XDECREF(fixed);
        return NULL;
    }
    const attn_kv *kv = fixed->now.kv;
    PyObject *parts = Py_BuildValue(
        "(NNONn)", part(fixed, kv->keys, kv->p.Dk, NPY_FLOAT32),
        part(fixed, kv->values, kv->p.Dv, NPY_FLOAT32), py_or_none(fixed->lens),
        part(fixed, kv->mask, 1, NPY_BOOL), fixed->now.N);
    Py_DECREF(fixed);
    return parts;
}

static PyObject *
memory_new(PyTypeObject *Py_UNUSED(type), PyObject *Py_UNUSED(args),
           PyObject *Py_UNUSED(kwargs))
{
    py_wrong("sentence", "(s)", "made_memory");
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
    Py_XDECREF(memory->lens);
    py_memory_clear(&memory->now);
    py_made_clear(&memory->sums, PY_MADE);
    py_made_clear(&memory->spare, PY_MADE);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t
memory_length(PyObject *self)
{
    Py_ssize_t N;
    Py_BEGIN_CRITICAL_SECTION(self);
    N = ((memory_object *)self)->now.N;
    Py_END_CRITICAL_SECTION();
    return N;
}

static PyMethodDef memory_methods[] = {
    {0}, /* append */
    {"backward", layer_memory_backward, METH_NOARGS, "backward($self)\n--\n\n"},
    {"_parts", memory_parts, METH_O, "_parts($self, of_use, /)\n--\n\n"},
    {"_now", memory_now, METH_NOARGS, "_now($self)\n--\n\n"},
    {0},
};

int
layer_memory_fill(const attnext_state *state)
{
    const py_function append = {&append_signature, PY_FASTCALL(memory_append)};
    return py_fill_method(state, &append, 0, &memory_methods[0]);
}

static PyMemberDef memory_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(memory_object, weakrefs), READONLY,
     NULL},
    {"_layer", T_OBJECT, offsetof(memory_object, layer), READONLY, NULL},
    {0},
};

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, "Memory()\n--\n\n"},
    {Py_tp_new, memory_new},
    {Py_tp_dealloc, memory_dealloc},
    {Py_sq_length, memory_length},
    {Py_tp_methods, memory_methods},
    {Py_tp_members, memory_members},
    {0},
};

/* Not known to the garbage collector: nothing it has leads anywhere. */
PyType_Spec layer_memory_spec = {
    .name = "attnext.Memory",
    .basicsize = sizeof(memory_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = memory_slots,
};
