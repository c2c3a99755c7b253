/*
 * py_layer_memory_check.c -- who may use a memory: the layer that made it, as long as it has
 * the parameters that projected the keys; or a function that is given these.
 */
#include "py_layer.h"

#include <string.h>

/* ---- the parameters -------------------------------------------------------------- */

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

/* The live array, which the layer has and its dict, and whoever holds its core, has its memory
 * (take_live), as whatever is made of it in NumPy, a view, say, does or has itself. */
static bool
is_the_layers(PyArrayObject *live, Py_ssize_t references)
{
    PyObject *memory = PyArray_BASE(live);
    return is_nobody_elses(live, references) && memory != NULL &&
           PyArray_CheckExact(memory) && is_nobody_elses((PyArrayObject *)memory, 1);
}

/* Have the parameters, of those that are given, the numbers that projected the keys?
 * RuntimeError. */
static int
check_parameters(const memory_object *memory, PyObject *const *given)
{
    for (int i = 0; i < memory->core.score->parameters; i++) {
        PyArrayObject *copy = memory->core.parameters[i];
        const char *name = layer_text(&memory->core, i);
        if (copy == NULL || !py_is_given(given[i])) {
            continue;
        }
        PyArrayObject *now = py_float32(given[i], name);
        if (now == NULL) {
            return -1;
        }
        const size_t bytes = (size_t)PyArray_NBYTES(copy);
        const bool same_size = (size_t)PyArray_NBYTES(now) == bytes;
        const bool same = same_size &&
                          (PyArray_DATA(now) == PyArray_DATA(copy) ||
                           memcmp(PyArray_DATA(now), PyArray_DATA(copy), bytes) == 0);
        Py_DECREF(now);
        if (!same) {
            return py_wrong("changed", "(si)", name, same_size);
        }
    }
    return 0;
}

/* ---- a layer --------------------------------------------------------------------- */

/* Is the memory this layer's, and are its keys those that the layer would project now? Its
 * core is held once, or is the layer's own. Parameters that nobody else could write into
 * since the last look are not compared: of a decoding step that would be up to the half. */
static int
check(const layer_object *layer, const layer_core *core, memory_object *memory)
{
    const Py_ssize_t references = core == &layer->core ? 2 : 3;
    bool nobody_elses = true;
    if (memory->core.identity != core->identity) {
        return py_wrong("sentence", "(s)", "memory_of_another");
    }
    for (int i = 0; nobody_elses && i < core->score->parameters; i++) {
        nobody_elses = memory->core.parameters[i] == NULL ||
                       is_the_layers(core->parameters[i], references);
    }
    if (nobody_elses && memory->checked == layer->revision) {
        return 0;
    }
    if (layer_check_parameters(core, NULL) < 0 ||
        check_parameters(memory, core->objects) < 0) {
        return -1;
    }
    if (nobody_elses) {
        memory->checked = layer->revision;
    }
    return 0;
}

layer_object *
layer_memory_layer(memory_object *memory)
{
    PyObject *object = memory->layer == NULL ? Py_NewRef(Py_None)
                                             : PyObject_CallNoArgs(memory->layer);
    layer_object *layer = (layer_object *)object;
    int result = -1;
    if (object == Py_None) {
        py_wrong("sentence", "(s)", "layer_is_gone");
    } else if (object != NULL) {
        Py_BEGIN_CRITICAL_SECTION(object);
        result = check(layer, &layer->core, memory);
        Py_END_CRITICAL_SECTION();
    }
    if (result < 0) {
        Py_CLEAR(object);
    }
    return (layer_object *)object;
}

int
layer_memory_check_own(memory_object *memory)
{
    layer_object *layer = memory->layer == NULL ? NULL : layer_memory_layer(memory);
    Py_XDECREF(layer);
    return layer == NULL && memory->layer != NULL ? -1 : 0;
}

/* ---- calls ----------------------------------------------------------------------- */

/* The call has the memory in the place of keys. TypeError if what a memory has itself is
 * given beside it. */
static int
put_into(py_call *call, PyObject *object)
{
    memory_object *memory = (memory_object *)object;
    const char *own = py_is_given(call->given[ARG_VALUES])       ? "values"
                      : py_is_given(call->given[ARG_VALID_LENS]) ? "valid_lens"
                                                                 : NULL;
    if (own != NULL) {
        return py_wrong("beside_memory", "(s)", own);
    }
    layer_memory_hold(memory, &call->memory);
    call->memory.owner = Py_NewRef(object);
    call->given[ARG_VALID_LENS] = (PyObject *)memory->lens;
    return 0;
}

int
layer_memory_read(const layer_object *layer, const layer_core *core, PyObject *object,
                  py_call *call)
{
    return put_into(call, object) < 0 ? -1
                                      : check(layer, core, (memory_object *)object);
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
        return py_wrong("sentence", "(s)", "memory_of_another");
    }
    return check_parameters(memory, call->given + ARG_PARAMETER_0) < 0
               ? -1
               : put_into(call, call->given[ARG_KEYS]);
}
