/*
 * py_layer_state_dict.c -- the parameters of a layer under the names and in the shapes that
 * torch.nn.Module.state_dict() gives those of the same layer written in PyTorch.
 */
#include "py_layer.h"

#include <string.h>

/* ---- out ------------------------------------------------------------------------- */

/* dict[name] = a copy of the parameter */
static int
put_copy(const layer_core *core, int which, PyObject *dict)
{
    npy_intp dims[PY_PARAMETER_AXES];
    int ndim = layer_state_shape(core, which, dims), result = -1;
    char name[LAYER_TEXT];
    PyArrayObject *copy = py_new_float32(ndim, dims);
    if (copy != NULL) {
        memcpy(PyArray_DATA(copy), PyArray_DATA(core->parameters[which]),
               (size_t)PyArray_NBYTES(copy));
        result = PyDict_SetItemString(dict, layer_state_name(core, which, name),
                                      (PyObject *)copy);
        Py_DECREF(copy);
    }
    return result;
}

const char layer_state_dict_doc[] = PyDoc_STR(
    "state_dict($self)\n"
    "--\n\n"
    "Copies of the parameters, with the names and shapes of a PyTorch state dict.\n"
    "\n"
    "Returns\n"
    "-------\n"
    "state_dict : dict\n"
    "    Of float32 arrays. AdditiveAttention: ``W_q.weight`` (H, Dq), ``W_k.weight`` "
    "(H,\n"
    "    Dk), ``w_v.weight`` (1, H) and, with a bias, ``b_h`` (H,). "
    "DotProductAttention:\n"
    "    empty.\n"
    "\n"
    "See Also\n"
    "--------\n"
    "load_state_dict : The way back.\n"
    "parameters : The live arrays.\n"
    "\n"
    "Notes\n"
    "-----\n"
    "``module.load_state_dict({k: torch.from_numpy(v) for k, v in\n"
    "attn.state_dict().items()})`` gives them to the AdditiveAttention of *Dive into "
    "Deep\n"
    "Learning*.\n"
    "\n"
    "Examples\n"
    "--------\n"
    ">>> from attnext import AdditiveAttention, DotProductAttention\n"
    ">>> attn = AdditiveAttention(key_size=2, query_size=20, num_hiddens=8)\n"
    ">>> {name: array.shape for name, array in attn.state_dict().items()}\n"
    "{'W_q.weight': (8, 20), 'W_k.weight': (8, 2), 'w_v.weight': (1, 8)}\n"
    ">>> DotProductAttention().state_dict()\n"
    "{}\n");

PyObject *
layer_state_dict(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    layer_core held;
    if (layer_hold((layer_object *)self, &held) < 0) {
        return NULL;
    }
    PyObject *dict = layer_check_parameters(&held) < 0 ? NULL : PyDict_New();
    for (int i = 0; dict != NULL && i < ATTN_PARAMETERS; i++) {
        if (held.parameters[i] != NULL && put_copy(&held, i, dict) < 0) {
            Py_CLEAR(dict);
        }
    }
    layer_core_clear(&held);
    return dict;
}

/* ---- in -------------------------------------------------------------------------- */

/* The names this layer's state dict has. */
static PyObject *
expected_names(const layer_core *core)
{
    PyObject *names = PyList_New(0);
    for (int i = 0; names != NULL && i < ATTN_PARAMETERS; i++) {
        if (core->parameters[i] == NULL) {
            continue;
        }
        char text[LAYER_TEXT];
        PyObject *name = PyUnicode_FromString(layer_state_name(core, i, text));
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
check_names(const layer_core *core, PyObject *dict)
{
    int result = -1;
    PyObject *expected = NULL, *missing = NULL, *unexpected = NULL;

    expected = expected_names(core);
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

/* values[i] = a copy, as float32 in the right shape, of the dict's entry for parameter
 * i. A copy, because one parameter may be given as the live array of another. */
static int
read_values(const layer_core *core, PyObject *dict,
            PyArrayObject *values[ATTN_PARAMETERS])
{
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        if (core->parameters[i] == NULL) {
            continue;
        }
        npy_intp dims[PY_PARAMETER_AXES];
        int ndim = layer_state_shape(core, i, dims);
        char name[LAYER_TEXT], entry[LAYER_TEXT + 16];
        layer_state_name(core, i, name);
        PyOS_snprintf(entry, sizeof entry, "state_dict['%s']", name);
        PyObject *item = PyMapping_GetItemString(dict, name);
        if (item == NULL) {
            return -1;
        }
        PyArrayObject *array = py_float32_shaped(item, entry, NULL, ndim, dims);
        Py_DECREF(item);
        if (array == NULL) {
            return -1;
        }
        values[i] = (PyArrayObject *)PyArray_NewCopy(array, NPY_CORDER);
        Py_DECREF(array);
        if (values[i] == NULL) {
            return -1;
        }
    }
    return 0;
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

const char layer_load_state_dict_doc[] = PyDoc_STR(
    "load_state_dict($self, state_dict, /)\n"
    "--\n\n"
    "Set the parameters from a state dict, of this package or of PyTorch.\n"
    "\n"
    "Parameters\n"
    "----------\n"
    "state_dict : mapping\n"
    "    Array_likes or torch tensors with exactly the names and shapes that "
    "`state_dict`\n"
    "    gives. They are converted to float32 and copied into the live arrays.\n"
    "\n"
    "Raises\n"
    "------\n"
    "KeyError\n"
    "    Names are missing or unexpected. In this case and the others nothing is "
    "changed.\n"
    "TypeError\n"
    "    `state_dict` is no mapping, or an entry is of the wrong dtype, or a tensor "
    "that\n"
    "    requires grad (those in the state dict of a torch module do not).\n"
    "ValueError\n"
    "    An entry has the wrong shape.\n"
    "\n"
    "See Also\n"
    "--------\n"
    "state_dict : The way out.\n"
    "\n"
    "Examples\n"
    "--------\n"
    ">>> import numpy as np\n"
    ">>> from attnext import AdditiveAttention\n"
    ">>> a = AdditiveAttention(key_size=2, query_size=20, num_hiddens=8, rng=0)\n"
    ">>> b = AdditiveAttention(key_size=2, query_size=20, num_hiddens=8, rng=1)\n"
    ">>> a.load_state_dict(b.state_dict())\n"
    ">>> np.array_equal(a.W_q, b.W_q)\n"
    "True\n");

PyObject *
layer_load_state_dict(PyObject *self, PyObject *state_dict)
{
    int result = -1;
    PyObject *dict = NULL;
    PyArrayObject *values[ATTN_PARAMETERS] = {0};
    layer_core held;

    if (layer_hold((layer_object *)self, &held) < 0) {
        return NULL;
    }
    dict = copy_of_mapping(state_dict);
    if (dict != NULL && check_names(&held, dict) == 0 &&
        read_values(&held, dict, values) == 0) {
        result = write_values(&held, values);
    }
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        Py_XDECREF(values[i]);
    }
    Py_XDECREF(dict);
    layer_core_clear(&held);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}
