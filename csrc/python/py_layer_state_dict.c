/*
 * py_layer_state_dict.c -- the parameters of a layer under the names and in the shapes that
 * torch.nn.Module.state_dict() gives those of the same layer written in PyTorch
 * (py_layer_layouts.c).
 */
#include "py_layer.h"

#include <string.h>

/* ---- out ------------------------------------------------------------------------- */

/* dict[name] = a copy of the parameters */
static int
put_copy(const layer_core *core, const layer_entry *entry, PyObject *dict)
{
    npy_intp dims[PY_PARAMETER_AXES];
    int ndim = layer_entry_shape(core, entry, dims), result = -1;
    PyArrayObject *copy = py_new_float32(ndim, dims);
    if (copy != NULL) {
        char *to = PyArray_BYTES(copy);
        for (int i = entry->first; i < entry->first + entry->count; i++) {
            PyArrayObject *from = core->parameters[i];
            memcpy(to, PyArray_DATA(from), (size_t)PyArray_NBYTES(from));
            to += PyArray_NBYTES(from);
        }
        result = PyDict_SetItemString(dict, entry->name, (PyObject *)copy);
        Py_DECREF(copy);
    }
    return result;
}

static PyObject *
dict_of(const layer_core *core, const layer_layout *layout)
{
    PyObject *dict = layer_check_parameters(core) < 0 ? NULL : PyDict_New();
    for (int i = 0; dict != NULL && i < layout->count; i++) {
        if (put_copy(core, &layout->entries[i], dict) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

static const py_signature state_signature = {
    .function = "state_dict",
    .method = true,
};

static const py_signature layout_signature = {
    .function = "state_dict",
    .positional = 1,
    .args = {ARG_LAYOUT},
    .method = true,
};

/* Is it "torch"? Else "d2l". */
static int
read_layout(PyObject *object, bool *torch)
{
    static const char expected[] = "'d2l' or 'torch'";
    if (!PyUnicode_Check(object)) {
        return py_kind_error(object, "layout", expected);
    }
    *torch = PyUnicode_CompareWithASCIIString(object, "torch") == 0;
    return *torch || PyUnicode_CompareWithASCIIString(object, "d2l") == 0
               ? 0
               : py_value_error(object, "layout", expected);
}

/* Either signature is a part of the second. */
static PyObject *
state_dict(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    layer_layout layout = {.count = 0};
    PyObject *given[ARG_COUNT], *dict = NULL;
    bool torch = false;
    layer_core held;

    if (layer_hold((layer_object *)self, &held) < 0) {
        return NULL;
    }
    const py_signature *signature = held.score->about->has_heads ? &layout_signature
                                                                 : &state_signature;
    if (py_parse(state, signature, args, nargs, kwnames, given) == 0 &&
        (given[ARG_LAYOUT] == NULL || read_layout(given[ARG_LAYOUT], &torch) == 0)) {
        if (!torch) {
            layer_own_layout(&held, &layout);
        } else if (layer_torch_layout(&held, &layout) < 0) {
            goto done;
        }
        dict = dict_of(&held, &layout);
    }
done:
    layer_core_clear(&held);
    return dict;
}

const py_function layer_state_functions[] = {
    {&state_signature, PY_FASTCALL(state_dict)},
    {0},
};

const py_function layer_layout_functions[] = {
    {&layout_signature, PY_FASTCALL(state_dict)},
    {0},
};

/* ---- in -------------------------------------------------------------------------- */

/* The names of the layout. */
static PyObject *
expected_names(const layer_layout *layout)
{
    PyObject *names = PyList_New(0);
    for (int i = 0; names != NULL && i < layout->count; i++) {
        PyObject *name = PyUnicode_FromString(layout->entries[i].name);
        if (name == NULL || PyList_Append(names, name) < 0) {
            Py_CLEAR(names);
        }
        Py_XDECREF(name);
    }
    return names;
}

/* The list [name for name in names if name not in container]. PySequence_Fast and not
 * PySequence_List, which keeps its argument for good where memory ends (CPython 3.11). */
static PyObject *
names_not_in(PyObject *names, PyObject *container)
{
    PyObject *list = PySequence_Fast(names, "names must be iterable");
    if (list == NULL) {
        return NULL;
    }
    PyObject *absent = PyList_New(0);
    for (Py_ssize_t i = 0; absent != NULL && i < PyList_GET_SIZE(list); i++) {
        PyObject *name = PyList_GET_ITEM(list, i);
        int found = PySequence_Contains(container, name);
        if (found < 0 || (!found && PyList_Append(absent, name) < 0)) {
            Py_CLEAR(absent);
        }
    }
    Py_DECREF(list);
    return absent;
}

/* KeyError unless the dict has exactly the expected names. */
static int
check_names(const layer_layout *layout, PyObject *dict)
{
    int result = -1;
    PyObject *expected = NULL, *missing = NULL, *unexpected = NULL;

    expected = expected_names(layout);
    if (expected == NULL) {
        goto done;
    }
    missing = names_not_in(expected, dict);
    if (missing == NULL) {
        goto done;
    }
    unexpected = names_not_in(dict, expected);
    if (unexpected == NULL) {
        goto done;
    }
    if (PyList_GET_SIZE(missing) == 0 && PyList_GET_SIZE(unexpected) == 0) {
        result = 0;
    } else {
        PyErr_Format(PyExc_KeyError,
                     "state_dict has the wrong names: missing %R, unexpected %R",
                     missing, unexpected);
    }
done:
    Py_XDECREF(unexpected);
    Py_XDECREF(missing);
    Py_XDECREF(expected);
    return result;
}

/* A dict of our own with what a mapping holds. */
static PyObject *
copy_of_mapping(PyObject *mapping)
{
    if (!PyDict_Check(mapping) && !PyObject_HasAttrString(mapping, "keys")) {
        PyErr_Format(PyExc_TypeError,
                     "state_dict must be a mapping of names to arrays, got %.200s",
                     Py_TYPE(mapping)->tp_name);
        return NULL;
    }
    PyObject *dict = PyDict_New();
    if (dict != NULL && PyDict_Update(dict, mapping) < 0) {
        Py_CLEAR(dict);
    }
    return dict;
}

/* A copy of the rows of parameter `which`, which begin at *rows and end where those
 * of the next begin. */
static PyArrayObject *
copy_rows(const layer_core *core, int which, char **rows)
{
    npy_intp dims[PY_PARAMETER_AXES];
    int ndim = layer_state_shape(core, which, dims);
    PyArrayObject *copy = py_new_float32(ndim, dims);
    if (copy != NULL) {
        memcpy(PyArray_DATA(copy), *rows, (size_t)PyArray_NBYTES(copy));
        *rows += PyArray_NBYTES(copy);
    }
    return copy;
}

/* values[i] = a copy, as float32 in the right shape, of what the dict has for parameter
 * i. A copy, because one parameter may be given as the live array of another. */
static int
read_entry(const layer_core *core, const layer_entry *entry, PyObject *dict,
           PyArrayObject *values[ATTN_PARAMETERS])
{
    npy_intp dims[PY_PARAMETER_AXES];
    int ndim = layer_entry_shape(core, entry, dims), result = 0;
    char text[LAYER_TEXT + 16];
    PyOS_snprintf(text, sizeof text, "state_dict['%s']", entry->name);
    PyObject *item = PyMapping_GetItemString(dict, entry->name);
    if (item == NULL) {
        return -1;
    }
    PyArrayObject *array = py_float32_shaped(item, text, NULL, ndim, dims);
    Py_DECREF(item);
    if (array == NULL) {
        return -1;
    }
    char *rows = PyArray_BYTES(array);
    for (int i = entry->first; result == 0 && i < entry->first + entry->count; i++) {
        values[i] = copy_rows(core, i, &rows);
        result = values[i] == NULL ? -1 : 0;
    }
    Py_DECREF(array);
    return result;
}

static int
read_values(const layer_core *core, const layer_layout *layout, PyObject *dict,
            PyArrayObject *values[ATTN_PARAMETERS])
{
    int result = check_names(layout, dict);
    for (int i = 0; result == 0 && i < layout->count; i++) {
        result = read_entry(core, &layout->entries[i], dict, values);
    }
    return result;
}

/* Overwrites all live arrays, or none of them. */
static int
write_values(const layer_core *core, PyArrayObject *const values[ATTN_PARAMETERS])
{
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        if (values[i] != NULL && layer_check_writable(core, i) < 0) {
            return -1;
        }
    }
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        if (values[i] != NULL) {
            memcpy(PyArray_DATA(core->parameters[i]), PyArray_DATA(values[i]),
                   (size_t)PyArray_NBYTES(values[i]));
        }
    }
    return 0;
}

PyObject *
layer_load_state_dict(PyObject *self, PyObject *state_dict)
{
    int result = -1;
    PyObject *dict = NULL;
    PyArrayObject *values[ATTN_PARAMETERS] = {0};
    layer_layout layout;
    layer_core held;

    if (layer_hold((layer_object *)self, &held) < 0) {
        return NULL;
    }
    dict = copy_of_mapping(state_dict);
    if (dict != NULL && layer_find_layout(&held, dict, &layout) == 0 &&
        read_values(&held, &layout, dict, values) == 0) {
        result = write_values(&held, values);
    }
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        Py_XDECREF(values[i]);
    }
    Py_XDECREF(dict);
    layer_core_clear(&held);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}
