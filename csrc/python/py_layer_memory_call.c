/*
 * py_layer_memory_call.c -- what makes a memory and appends to it.
 */
#include "py_layer.h"

#include <string.h>

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
    PyArrayObject *mask = py_pairs(object, ARG_MASK, false, ndim, dims, &view);
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

/* Their shapes too, as they were when they were read. */
static int
read_keys_and_values(const layer_core *core, PyObject *const *given,
                     const py_memory *like, memory_rows *rows)
{
    npy_intp *key_dims = rows->key_dims, *value_dims = rows->value_dims;
    rows->keys = core->score->parameters > 0
                     ? layer_read_features(given[ARG_KEYS], "keys", 'N', "key_size",
                                           core->key_size)
                     : py_float32(given[ARG_KEYS], "keys");
    if (rows->keys == NULL) {
        return -1;
    }
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
                       : py_float32(given[ARG_VALUES], "values");
    if (rows->values == NULL ||
        py_check_shape(rows->values, "values", ndim, value_dims) < 0) {
        return -1;
    }
    value_dims[ndim - 1] = PyArray_DIM(rows->values, ndim - 1);
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
    return 0;
}

/* ---- layer.memory() -------------------------------------------------------------- */

static const py_signature memory_signature = {
    .function = "memory",
    .required = 2,
    .positional = 3,
    .args = {ARG_KEYS, ARG_VALUES, ARG_VALID_LENS, ARG_MASK},
    .method = true,
};

/* A memory without keys, of the sizes of the core. */
static memory_object *
new_memory(const attnext_state *state, const layer_core *core)
{
    PyTypeObject *type = state->Memory;
    memory_object *memory = (memory_object *)type->tp_alloc(type, 0); /* all zero */
    if (memory != NULL) {
        memory->core = *core;
        memory->core.rng = memory->core.grads = NULL;
        memset(memory->core.parameters, 0, sizeof memory->core.parameters);
        Py_XINCREF(memory->core.identity);
    }
    return memory;
}

/* Copies of the parameters that project keys. */
static int
copy_parameters(memory_object *memory, const layer_core *core)
{
    for (int i = 0; i < core->score->parameters; i++) {
        if (core->parameters[i] != NULL && py_projects_keys(core->score, i)) {
            memory->core.parameters[i] = (PyArrayObject *)PyArray_NewCopy(
                core->parameters[i], NPY_CORDER);
            if (memory->core.parameters[i] == NULL) {
                return -1;
            }
        }
    }
    return 0;
}

/* An array without rows, of a shape that was noted: reading other arguments may have
 * reshaped the array that had it. */
static PyArrayObject *
new_without_rows(int ndim, const npy_intp *noted)
{
    npy_intp dims[PY_MAX_AXES];
    memcpy(dims, noted, (size_t)ndim * sizeof *dims);
    dims[ndim - 2] = 0;
    return py_new_float32(ndim, dims);
}

/* The first keys, behind none. */
static int
start_memory(const attnext_state *state, memory_object *memory, const memory_rows *rows)
{
    py_memory *now = &memory->now;
    now->keys = new_without_rows(rows->ndim, rows->key_dims);
    now->values = new_without_rows(rows->ndim, rows->value_dims);
    now->lens = (PyArrayObject *)Py_XNewRef(rows->lens);
    return now->keys == NULL || now->values == NULL
               ? -1
               : layer_memory_extend(state, &memory->core, now, rows);
}

static PyObject *
layer_memory(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    PyObject *given[ARG_COUNT], *owned = NULL;
    memory_object *memory = NULL;
    memory_rows rows;
    layer_core held;

    if (layer_hold_to_read((layer_object *)self, &held) < 0) {
        return NULL;
    }
    rows_init(&rows);
    if (py_parse_plain(state, &memory_signature, args, nargs, kwnames, given, &owned) ==
            0 &&
        read_rows(&held, given, NULL, &rows) == 0 &&
        layer_check_parameters(&held) == 0) {
        memory = new_memory(state, &held);
    }
    if (memory != NULL && ((memory->layer = PyWeakref_NewRef(self, NULL)) == NULL ||
                           copy_parameters(memory, &held) < 0 ||
                           start_memory(state, memory, &rows) < 0)) {
        Py_CLEAR(memory);
    }
    clear_rows(&rows);
    Py_XDECREF(owned);
    layer_core_clear(&held);
    return (PyObject *)memory;
}

const py_function layer_memory_functions[] = {
    {&memory_signature, PY_FASTCALL(layer_memory)},
    {0},
};

/* ---- memories of no layer -------------------------------------------------------- */

static const py_score *
find_score(const attnext_state *state, const char *name)
{
    for (int i = 0; i < SCORE_COUNT; i++) {
        if (strcmp(state->scores[i].about->name, name) == 0) {
            return &state->scores[i];
        }
    }
    PyErr_Format(PyExc_ValueError, "score is '%s', expected the name of one", name);
    return NULL;
}

/* The parameters of the dict, by name, which go into the memory. */
static int
take_parameters(const attnext_state *state, memory_object *memory, PyObject *dict)
{
    layer_core *core = &memory->core;
    for (int i = 0; i < core->score->parameters; i++) {
        const char *name = layer_text(core, i);
        PyObject *given = PyDict_GetItemWithError(dict, layer_name(state, core, i));
        if (PyErr_Occurred()) {
            return -1;
        }
        npy_intp dims[PY_PARAMETER_AXES];
        int ndim = layer_shape(core, i, dims);
        if (given != NULL && (core->parameters[i] = py_float32_shaped(given, name, ndim,
                                                                      dims)) == NULL) {
            return -1;
        }
    }
    return 0;
}

PyObject *
layer_memory_of(PyObject *type, PyObject *args)
{
    const attnext_state *state = py_state_of_type((PyTypeObject *)type);
    PyObject *given[ARG_COUNT] = {NULL}, *parameters;
    layer_core core = {0};
    const char *score;
    memory_rows rows;

    if (!PyArg_ParseTuple(args, "s(nnnnn)O!OOOO:_of", &score, &core.num_hiddens,
                          &core.key_size, &core.value_size, &core.num_heads,
                          &core.num_kv_heads, &PyDict_Type, &parameters,
                          &given[ARG_KEYS], &given[ARG_VALUES], &given[ARG_VALID_LENS],
                          &given[ARG_MASK]) ||
        (core.score = find_score(state, score)) == NULL) {
        return NULL;
    }
    memory_object *memory = new_memory(state, &core);
    rows_init(&rows);
    if (memory != NULL && (take_parameters(state, memory, parameters) < 0 ||
                           read_rows(&core, given, NULL, &rows) < 0 ||
                           start_memory(state, memory, &rows) < 0)) {
        Py_CLEAR(memory);
    }
    clear_rows(&rows);
    return (PyObject *)memory;
}

PyObject *
layer_memory_now(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const memory_object *memory = (memory_object *)self;
    memory_object *fixed = new_memory(py_state_of_type(Py_TYPE(self)), &memory->core);
    if (fixed != NULL) {
        for (int i = 0; i < ATTN_PARAMETERS; i++) {
            fixed->core.parameters[i] = (PyArrayObject *)Py_XNewRef(
                memory->core.parameters[i]);
        }
        layer_memory_share(&fixed->now, &memory->now);
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
    PyObject *given[ARG_COUNT], *owned = NULL;
    memory_rows rows;
    int result = -1;

    if (py_parse(state, &append_signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    if (memory->fixed) {
        PyErr_SetString(PyExc_TypeError, "nothing is appended to a memory as it was");
        return NULL;
    }
    rows_init(&rows);
    if (py_make_plain(state, &append_signature, given, &owned) == 0 &&
        read_rows(&memory->core, given, &memory->now, &rows) == 0 &&
        layer_memory_check_own(memory) == 0) {
        result = layer_memory_extend(state, &memory->core, &memory->now, &rows);
    }
    clear_rows(&rows);
    Py_XDECREF(owned);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

const py_function memory_functions[] = {
    {&append_signature, PY_FASTCALL(memory_append)},
    {0},
};
