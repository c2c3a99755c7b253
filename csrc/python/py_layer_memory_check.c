/*
 * py_layer_memory_check.c -- who may use a memory: the layer that made it, as long as it has
 * the parameters that projected the keys; or a function that is given these.
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
 * one at any time. Without a GIL a count of references is nothing to go by. */
static bool
is_nobody_elses(PyArrayObject *a, Py_ssize_t references)
{
#ifdef Py_GIL_DISABLED
    return false;
#endif
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

/* Has the parameter the numbers that projected the keys? RuntimeError. */
static int
check_copy(const memory_object *memory, int which, PyArrayObject *now)
{
    PyArrayObject *copy = memory->core.parameters[which];
    if (copy == NULL) {
        return 0;
    }
    const char *name = layer_text(&memory->core, which);
    const size_t bytes = (size_t)PyArray_NBYTES(copy);
    if ((size_t)PyArray_NBYTES(now) != bytes) {
        PyErr_Format(PyExc_RuntimeError,
                     "%s has another shape than when the memory was made: make a new "
                     "memory",
                     name);
        return -1;
    }
    if (PyArray_DATA(now) != PyArray_DATA(copy) &&
        memcmp(PyArray_DATA(now), PyArray_DATA(copy), bytes) != 0) {
        PyErr_Format(PyExc_RuntimeError,
                     "%s has changed since the memory projected its keys with it: "
                     "make a new memory",
                     name);
        return -1;
    }
    return 0;
}

/* Parameters that nobody else could write into since the last look are not compared: of a
 * decoding step that would be up to the half. */
int
layer_memory_check(const layer_object *layer, const layer_core *core,
                   memory_object *memory)
{
    if (memory->core.identity != core->identity) {
        return layer_memory_of_another();
    }
    if (layer_check_parameters(core) < 0) {
        return -1;
    }
    bool nobody_elses = true;
    for (int i = 0; i < core->score->parameters; i++) {
        nobody_elses = nobody_elses && (memory->core.parameters[i] == NULL ||
                                        is_the_layers(core->parameters[i]));
    }
    if (nobody_elses && memory->checked == layer->revision) {
        return 0;
    }
    for (int i = 0; i < core->score->parameters; i++) {
        if (check_copy(memory, i, core->parameters[i]) < 0) {
            return -1;
        }
    }
    if (nobody_elses) {
        memory->checked = layer->revision;
    }
    return 0;
}

int
layer_memory_check_own(memory_object *memory)
{
    layer_core held;
    if (memory->layer == NULL) {
        return 0;
    }
    PyObject *layer = layer_memory_hold(memory, &held);
    if (layer == NULL) {
        return -1;
    }
    int result = layer_memory_check((layer_object *)layer, &held, memory);
    layer_core_clear(&held);
    Py_DECREF(layer);
    return result;
}

/* TypeError if what a memory has itself is given beside it. */
static int
check_beside(const py_call *call)
{
    const char *own = py_is_given(call->given[ARG_VALUES])       ? "values"
                      : py_is_given(call->given[ARG_VALID_LENS]) ? "valid_lens"
                                                                 : NULL;
    if (own != NULL) {
        PyErr_Format(PyExc_TypeError,
                     "%s is given beside a memory, expected none: it has its own", own);
        return -1;
    }
    return 0;
}

int
layer_memory_read(const layer_object *layer, const layer_core *core, PyObject *object,
                  py_call *call, py_memory *held)
{
    memory_object *memory = (memory_object *)object;
    if (check_beside(call) < 0 || layer_memory_check(layer, core, memory) < 0) {
        return -1;
    }
    layer_memory_share(held, &memory->now);
    held->owner = Py_NewRef(object);
    call->given[ARG_VALID_LENS] = (PyObject *)held->lens;
    call->memory = held;
    return 0;
}

/* The same of what is given for it; nothing may be given. */
static int
check_given(const memory_object *memory, int which, PyObject *given)
{
    if (memory->core.parameters[which] == NULL || !py_is_given(given)) {
        return 0;
    }
    PyArrayObject *now = py_float32(given, layer_text(&memory->core, which));
    int result = now == NULL ? -1 : check_copy(memory, which, now);
    Py_XDECREF(now);
    return result;
}

PyObject *
layer_memory_check_given(PyObject *self, PyObject *parameters)
{
    const memory_object *memory = (memory_object *)self;
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    for (int i = 0; i < memory->core.score->parameters; i++) {
        PyObject *name = layer_name(state, &memory->core, i);
        PyObject *given = PyDict_GetItemWithError(parameters, name);
        if (PyErr_Occurred() || check_given(memory, i, given) < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

int
py_read_memory(const attnext_state *state, py_call *call)
{
    const memory_object *memory = (memory_object *)call->given[ARG_KEYS];
    if (!Py_IS_TYPE((PyObject *)memory, state->Memory) || !memory->fixed) {
        return 0;
    }
    if (memory->core.score != call->score ||
        memory->core.num_heads != call->options.num_heads ||
        memory->core.num_kv_heads != call->options.num_kv_heads) {
        return layer_memory_of_another();
    }
    for (int i = 0; i < call->score->parameters; i++) {
        if (check_given(memory, i, call->given[ARG_PARAMETER_0 + i]) < 0) {
            return -1;
        }
    }
    if (check_beside(call) < 0) {
        return -1;
    }
    call->given[ARG_VALID_LENS] = (PyObject *)memory->now.lens;
    call->memory = &memory->now;
    return 0;
}

PyObject *
layer_memory_hold(memory_object *memory, layer_core *held)
{
    PyObject *layer = memory->layer == NULL ? Py_NewRef(Py_None)
                                            : PyObject_CallNoArgs(memory->layer);
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
