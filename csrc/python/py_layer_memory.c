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

/* ---- reading keys and values ----------------------------------------------------- */

/* Keys or values, (..., rows->N, width), of the width that they have in the memory; the first
 * of all say which axes there are. */
static int
read_side(memory_object *memory, py_arg arg, PyObject *given, py_memory *rows)
{
    const int which = arg == ARG_KEYS ? MEMORY_KEYS : MEMORY_VALUES;
    const char *name = py_argument_rows[arg].name;
    npy_intp dims[PY_MAX_AXES];
    PyArrayObject *a = rows->arrays[which] = py_float32(given, name);
    if (a == NULL || layer_check_features(&memory->core, arg, (PyObject *)a) < 0) {
        return -1;
    }
    if (memory->ndim == 0 && PyArray_NDIM(a) < 2) {
        return py_shape_error(a, name, "two axes or more: (..., N, D)");
    }
    if (memory->ndim == 0) {
        memory->ndim = py_note_shape(a, memory->leading);
        memory->entries = PyArray_MultiplyList(memory->leading, memory->ndim - 2);
    }
    const int ndim = layer_memory_shape(memory, rows->N, memory->widths[which], dims);
    if (py_check_shape(a, name, ndim, dims) < 0) {
        return -1;
    }
    memory->widths[which] = layer_width_of(a);
    rows->N = layer_rows_of(a);
    return 0;
}

/* A mask that broadcasts to (..., 1, n), in this shape: a copy. */
static PyArrayObject *
read_mask(const memory_object *memory, PyObject *object, npy_intp n)
{
    npy_intp dims[PY_MAX_AXES];
    const int ndim = layer_memory_shape(memory, 1, n, dims);
    attn_view view = {0};
    PyArrayObject *mask = py_pairs(object, ARG_MASK, false, ndim, dims, &view);
    PyArrayObject *copy = NULL;
    py_view_clear(&view);
    if (mask != NULL) {
        copy = (PyArrayObject *)PyArray_SimpleNew(ndim, dims, NPY_BOOL);
    }
    if (copy != NULL && PyArray_CopyInto(copy, mask) < 0) {
        Py_CLEAR(copy);
    }
    Py_XDECREF(mask);
    return copy;
}

/* *rows = what a call was given. While something is converted others may append, and the
 * arrays change: what is put (layer_memory_extend) is looked at again. */
static int
read_rows(memory_object *memory, PyObject *const *given, py_memory *rows)
{
    PyObject *mask = given[ARG_MASK], *lens = given[ARG_VALID_LENS];
    *rows = (py_memory){.N = PY_N};
    if (read_side(memory, ARG_KEYS, given[ARG_KEYS], rows) < 0 ||
        read_side(memory, ARG_VALUES, given[ARG_VALUES], rows) < 0) {
        return -1;
    }
    if (py_is_given(mask) &&
        (rows->arrays[MEMORY_MASK] = read_mask(memory, mask, rows->N)) == NULL) {
        return -1;
    }
    /* Of all queries alike: one, or one for each entry of the first axis. */
    attn_valid_lens valid;
    return py_valid_lens(lens, "valid_lens", memory->ndim > 2, memory->leading,
                         PY_SSIZE_T_MAX, &valid, &rows->arrays[MEMORY_LENS], NULL);
}

/* The first keys of a memory, with their lengths, or more: all or nothing. */
static int
add(const attnext_state *state, memory_object *memory, PyObject *const *given)
{
    const bool first = memory->ndim == 0;
    py_memory rows;
    int result = read_rows(memory, given, &rows);
    if (result == 0 && !first) {
        result = layer_memory_check_own(memory);
    }
    if (result == 0) {
        result = layer_memory_extend(state, memory, &rows);
    }
    layer_memory_release(&rows);
    return result;
}

/* ---- what makes a memory --------------------------------------------------------- */

static const npy_intp any_widths[MEMORY_ROWS] = {PY_DK, PY_DV, 1};

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
    memcpy(memory->widths, any_widths, sizeof any_widths);
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
        result = add(state, memory, given);
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

/* The memory as it is now, for functions; nothing is appended to it. */
static PyObject *
memory_now(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    memory_object *memory = (memory_object *)self;
    memory_object *fixed = new_memory(py_state_of_type(Py_TYPE(self)), &memory->core,
                                      NULL);
    if (fixed != NULL) {
        layer_memory_hold(memory, &fixed->now);
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

    if (py_parse(state, &append_signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    if (memory->fixed) {
        py_wrong("sentence", "(s)", "fixed_memory");
        return NULL;
    }
    return fill(state, memory, &append_signature, given) < 0 ? NULL
                                                             : Py_NewRef(Py_None);
}

/* ---- the type -------------------------------------------------------------------- */

/* For attnext/_layers.py, as what follows. */
static PyObject *
memory_check(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return layer_memory_check_own((memory_object *)self) < 0 ? NULL
                                                             : Py_NewRef(Py_None);
}

/* What the memory has, keys, values and mask with all their room,
 * and how many keys these are. */
static PyObject *
memory_parts(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    py_memory now;
    layer_memory_hold((memory_object *)self, &now);
    PyObject *parts = Py_BuildValue("(OOOOn)", now.arrays[MEMORY_KEYS],
                                    now.arrays[MEMORY_VALUES],
                                    py_or_none(now.arrays[MEMORY_LENS]),
                                    py_or_none(now.arrays[MEMORY_MASK]), now.N);
    layer_memory_release(&now);
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
    layer_memory_release(&memory->now);
    layer_memory_release(&memory->sums);
    layer_memory_release(&memory->spare);
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
    {"_parts", memory_parts, METH_NOARGS, "_parts($self)\n--\n\n"},
    {"_check", memory_check, METH_NOARGS, "_check($self)\n--\n\n"},
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
