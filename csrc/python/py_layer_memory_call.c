/*
 * py_layer_memory_call.c -- what makes a memory, appends to it, and calls with it.
 */
#include "py_layer.h"

#include <string.h>

/* ---- who it belongs to ----------------------------------------------------------- */

PY_COLD int
layer_memory_of_another(void)
{
    PyErr_SetString(PyExc_ValueError,
                    "the memory was made by another object, expected one that memory() "
                    "of this object returned");
    return -1;
}

/* Could nobody but so many write into it? A reference that is no more than weak may become
 * one at any time. */
static bool
is_nobody_elses(PyArrayObject *a, Py_ssize_t references)
{
    const char *object = (const char *)a;
    PyObject *const *weak = (PyObject *const *)(object + Py_TYPE(a)->tp_weaklistoffset);
    return Py_REFCNT(a) == references && *weak == NULL;
}

/* The layer and who holds its core have the live array, and that has its memory
 * (layer_new_live), as whatever is made of it in NumPy, a view, say, does or has itself. */
static bool
is_the_layers(PyArrayObject *live)
{
    PyObject *memory = PyArray_BASE(live);
    return is_nobody_elses(live, 2) && memory != NULL && PyArray_CheckExact(memory) &&
           is_nobody_elses((PyArrayObject *)memory, 1);
}

/* Is it what the copy is? */
static bool
has_copy(const memory_object *memory, const layer_core *core, int which)
{
    PyArrayObject *copy = memory->made_with[which];
    return copy == NULL ||
           memcmp(PyArray_DATA(copy), PyArray_DATA(core->parameters[which]),
                  (size_t)PyArray_NBYTES(copy)) == 0;
}

/* Parameters that nobody else could write into since the last look are not compared: of a
 * decoding step that would be up to the half. */
int
layer_memory_check(const layer_object *layer, const layer_core *core,
                   memory_object *memory)
{
    if (memory->identity != core->identity) {
        return layer_memory_of_another();
    }
    if (layer_check_parameters(core) < 0) {
        return -1;
    }
    bool nobody_elses = true;
    for (int i = 0; i < core->score->parameters; i++) {
        nobody_elses = nobody_elses && (memory->made_with[i] == NULL ||
                                        is_the_layers(core->parameters[i]));
    }
    if (nobody_elses && memory->revision == layer->revision) {
        return 0;
    }
    for (int i = 0; i < core->score->parameters; i++) {
        if (!has_copy(memory, core, i)) {
            PyErr_Format(PyExc_RuntimeError,
                         "%s has changed since the memory projected its keys with it: "
                         "make a new memory",
                         layer_text(core, i));
            return -1;
        }
    }
    if (nobody_elses) {
        memory->revision = layer->revision;
    }
    return 0;
}

void
layer_memory_use_copies(const memory_object *memory, layer_core *held)
{
    for (int i = 0; i < held->score->parameters; i++) {
        if (memory->made_with[i] != NULL) {
            Py_SETREF(held->parameters[i],
                      (PyArrayObject *)Py_NewRef(memory->made_with[i]));
        }
    }
}

int
layer_memory_read(const layer_object *layer, const layer_core *core, PyObject *object,
                  py_call *call, py_memory *held)
{
    memory_object *memory = (memory_object *)object;
    const char *own = py_is_given(call->given[ARG_VALUES])       ? "values"
                      : py_is_given(call->given[ARG_VALID_LENS]) ? "valid_lens"
                                                                 : NULL;
    if (own != NULL) {
        PyErr_Format(PyExc_TypeError,
                     "%s is given beside a memory, expected none: it has its own", own);
        return -1;
    }
    if (layer_memory_check(layer, core, memory) < 0) {
        return -1;
    }
    layer_memory_share(held, &memory->now);
    held->owner = Py_NewRef(object);
    call->given[ARG_VALID_LENS] = (PyObject *)held->lens;
    call->memory = held;
    return 0;
}

PyObject *
layer_memory_hold(memory_object *memory, layer_core *held)
{
    PyObject *layer = PyObject_CallNoArgs(memory->layer);
    if (layer == Py_None) {
        PyErr_SetString(PyExc_RuntimeError,
                        "the object that made this memory is gone, and its parameters "
                        "with it");
        Py_CLEAR(layer);
    }
    if (layer != NULL && layer_hold_to_read((layer_object *)layer, held) < 0) {
        Py_CLEAR(layer);
    }
    return layer;
}

/* ---- reading keys and values ----------------------------------------------------- */

static void
rows_init(memory_rows *rows)
{
    rows->keys = rows->values = rows->mask = rows->lens = NULL;
}

static void
clear_rows(memory_rows *rows)
{
    Py_CLEAR(rows->keys);
    Py_CLEAR(rows->values);
    Py_CLEAR(rows->mask);
    Py_CLEAR(rows->lens);
}

/* A mask that broadcasts to (..., 1, n), as (..., n, 1): a copy. */
static PyArrayObject *
read_mask(PyObject *object, int ndim, npy_intp *dims)
{
    attn_view view = {0};
    PyArrayObject *copy = NULL;
    PyArrayObject *mask = py_pairs(object, ARG_MASK, false, ndim, dims, NULL, &view);
    py_view_clear(&view);
    if (mask != NULL) {
        copy = (PyArrayObject *)PyArray_SimpleNew(ndim, dims, NPY_BOOL);
    }
    if (copy != NULL && PyArray_CopyInto(copy, mask) == 0) {
        npy_intp n = dims[ndim - 1];
        dims[ndim - 1] = 1;
        dims[ndim - 2] = n;
        PyArray_Dims rows = {dims, ndim};
        Py_SETREF(copy, (PyArrayObject *)PyArray_Newshape(copy, &rows, NPY_CORDER));
    } else {
        Py_CLEAR(copy);
    }
    Py_XDECREF(mask);
    return copy;
}

/* Lengths for all queries alike: an int, or one for each entry of the first axis. */
static PyArrayObject *
read_lens(PyObject *object, int ndim, const npy_intp *dims)
{
    const bool entries = ndim > 2;
    PyArrayObject *lens = py_lens_per_entry(object, "valid_lens", entries ? dims[0] : 1,
                                            PY_SSIZE_T_MAX, false);
    if (lens != NULL && !entries && PyArray_NDIM(lens) > 0) {
        py_shape_error(lens, "valid_lens", "an int");
        Py_CLEAR(lens);
    }
    return lens;
}

/* Their shapes too; of the values Dv is a letter if it is free. */
static int
read_keys_and_values(const layer_core *core, PyObject *const *given,
                     const py_memory *like, memory_rows *rows)
{
    npy_intp *key_dims = rows->key_dims, *value_dims = rows->value_dims;
    rows->keys = core->score->parameters > 0
                     ? layer_read_features(given[ARG_KEYS], "keys", 'N', "key_size",
                                           core->key_size)
                     : py_float32(given[ARG_KEYS], "keys", NULL);
    if (rows->keys == NULL) {
        return -1;
    }
    rows->key_place = py_place_of(rows->keys);
    if (like == NULL && PyArray_NDIM(rows->keys) < 2) {
        return py_shape_error(rows->keys, "keys", "two axes or more: (..., N, D)");
    }
    const int ndim = py_note_shape(like != NULL ? like->keys : rows->keys, key_dims);
    rows->ndim = ndim;
    key_dims[ndim - 2] = PY_N;
    if (py_check_shape(rows->keys, "keys", ndim, key_dims) < 0) {
        return -1;
    }
    key_dims[ndim - 2] = PyArray_DIM(rows->keys, ndim - 2);
    memcpy(value_dims, key_dims, (size_t)ndim * sizeof *value_dims);
    value_dims[ndim - 1] = like != NULL ? PyArray_DIM(like->values, ndim - 1) : PY_DV;
    rows->values = core->score->about->has_heads
                       ? layer_read_features(given[ARG_VALUES], "values", 'N',
                                             "value_size", core->value_size)
                       : py_float32(given[ARG_VALUES], "values", NULL);
    if (rows->values == NULL ||
        py_check_shape(rows->values, "values", ndim, value_dims) < 0) {
        return -1;
    }
    rows->value_place = py_place_of(rows->values);
    return 0;
}

/* What a call was given. like: what the memory has, or NULL: it is new. */
static int
read_rows(const layer_core *core, PyObject *const *given, const py_memory *like,
          memory_rows *rows)
{
    npy_intp dims[PY_MAX_AXES];
    if (read_keys_and_values(core, given, like, rows) < 0) {
        return -1;
    }
    const int ndim = rows->ndim;
    if (py_is_given(given[ARG_MASK])) {
        memcpy(dims, rows->key_dims, (size_t)ndim * sizeof *dims);
        dims[ndim - 1] = dims[ndim - 2];
        dims[ndim - 2] = 1;
        if ((rows->mask = read_mask(given[ARG_MASK], ndim, dims)) == NULL) {
            return -1;
        }
    }
    if (py_is_given(given[ARG_VALID_LENS])) {
        rows->lens = read_lens(given[ARG_VALID_LENS], ndim, rows->key_dims);
        if (rows->lens == NULL) {
            return -1;
        }
    }
    return 0;
}

/* Reading what came behind them may have run code that reshaped them in place. */
int
layer_memory_check_rows(const memory_rows *rows)
{
    if (!py_shape_fits(rows->keys, rows->ndim, rows->key_dims) ||
        !py_shape_fits(rows->values, rows->ndim, rows->value_dims)) {
        PyErr_SetString(PyExc_ValueError, "keys or values changed shape in the call");
        return -1;
    }
    return py_check_place(rows->keys, &rows->key_place, "keys") < 0
               ? -1
               : py_check_place(rows->values, &rows->value_place, "values");
}

/* ---- layer.memory() -------------------------------------------------------------- */

static const py_signature memory_signature = {
    .function = "memory",
    .required = 2,
    .positional = 3,
    .args = {ARG_KEYS, ARG_VALUES, ARG_VALID_LENS, ARG_MASK},
    .method = true,
};

/* Copies of the parameters that project keys. */
static int
copy_parameters(const layer_core *core, memory_object *memory)
{
    for (int i = 0; i < core->score->parameters; i++) {
        if (core->parameters[i] != NULL && py_projects_keys(core->score, i)) {
            memory->made_with[i] = (PyArrayObject *)PyArray_NewCopy(core->parameters[i],
                                                                    NPY_CORDER);
            if (memory->made_with[i] == NULL) {
                return -1;
            }
        }
    }
    return 0;
}

/* What it has at first: no keys, but arrays that know the shape of them. */
static int
start_memory(memory_object *memory, const memory_rows *rows)
{
    py_memory *now = &memory->now;
    now->keys = layer_memory_grow(rows->keys, 0, 0, 0);
    now->values = layer_memory_grow(rows->values, 0, 0, 0);
    now->lens = (PyArrayObject *)Py_XNewRef(rows->lens);
    return now->keys == NULL || now->values == NULL ? -1 : 0;
}

static PyObject *
new_memory(const attnext_state *state, PyObject *layer, layer_core *core)
{
    PyTypeObject *type = state->Memory;
    memory_object *memory = (memory_object *)type->tp_alloc(type, 0); /* all zero */
    if (memory == NULL) {
        return NULL;
    }
    memory->identity = Py_NewRef(core->identity);
    memory->layer = PyWeakref_NewRef(layer, NULL);
    if (memory->layer == NULL || layer_check_parameters(core) < 0 ||
        copy_parameters(core, memory) < 0) {
        Py_CLEAR(memory);
        return NULL;
    }
    layer_memory_use_copies(memory, core);
    return (PyObject *)memory;
}

static PyObject *
layer_memory(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    PyObject *given[ARG_COUNT], *result = NULL;
    memory_rows rows;
    layer_core held;

    if (layer_hold_to_read((layer_object *)self, &held) < 0) {
        return NULL;
    }
    rows_init(&rows);
    if (py_parse(state, &memory_signature, args, nargs, kwnames, given) == 0 &&
        read_rows(&held, given, NULL, &rows) == 0) {
        result = new_memory(state, self, &held);
    }
    memory_object *memory = (memory_object *)result;
    if (memory != NULL &&
        (start_memory(memory, &rows) < 0 ||
         layer_memory_extend(state, &held, &memory->now, &rows, true) < 0)) {
        Py_CLEAR(result);
    }
    clear_rows(&rows);
    layer_core_clear(&held);
    return result;
}

const py_function layer_memory_functions[] = {
    {&memory_signature, PY_FASTCALL(layer_memory)},
    {0},
};

/* ---- memory.append() --------------------------------------- */

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
    PyObject *given[ARG_COUNT];
    memory_rows rows;
    layer_core held;
    int result = -1;

    if (py_parse(state, &append_signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    PyObject *layer = layer_memory_hold(memory, &held);
    if (layer == NULL) {
        return NULL;
    }
    rows_init(&rows);
    if (read_rows(&held, given, &memory->now, &rows) == 0 &&
        layer_memory_check((layer_object *)layer, &held, memory) == 0) {
        layer_memory_use_copies(memory, &held);
        result = layer_memory_extend(state, &held, &memory->now, &rows, false);
    }
    clear_rows(&rows);
    layer_core_clear(&held);
    Py_DECREF(layer);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

const py_function memory_functions[] = {
    {&append_signature, PY_FASTCALL(memory_append)},
    {0},
};
