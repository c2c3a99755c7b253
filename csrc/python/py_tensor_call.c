/*
 * py_tensor_call.c -- a call whose arguments may be tensors of PyTorch: these become arrays of
 * their memory, and what the function makes becomes tensors. What reads a tensor and makes
 * one: py_exchange.c.
 */
#include "py_tensor_call.h"

/* ---- arguments ------------------------------------------------------------------- */

void
py_clear_tensors(tensor_call *call)
{
    for (int i = 0; i < call->count; i++) {
        tensor_argument *a = &call->arguments[i];
        PyObject *array = a->storage != NULL ? a->plain : NULL;
        /* Whoever has kept the array, in an error's traceback, keeps its memory too. */
        if (array != NULL && Py_REFCNT(array) > 1) {
            PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(a->storage));
        }
        Py_XDECREF(a->plain);
        Py_XDECREF(a->storage);
        Py_DECREF(a->given);
        Py_DECREF(a->name);
    }
}

bool
py_add_argument(tensor_call *call, PyObject *name, PyObject *given, bool in_graph)
{
    if (call->count == PY_MOST_TENSORS) {
        return false;
    }
    call->arguments[call->count++] = (tensor_argument){
        .name = Py_NewRef(name), .given = Py_NewRef(given), .in_graph = in_graph};
    return true;
}

bool
py_add_arguments(tensor_call *call, PyObject *dict, bool in_graph)
{
    PyObject *name, *given;
    Py_ssize_t place = 0;
    bool fits = PyDict_CheckExact(dict);
    while (fits && PyDict_Next(dict, &place, &name, &given)) {
        fits = py_add_argument(call, name, given, in_graph);
    }
    return fits;
}

/* All arguments as what the function reads without running code, first what may run some,
 * for CPython 3.11 may collect garbage when it makes an object. */
static bool
make_arrays(const attnext_state *state, tensor_call *call)
{
    for (int i = 0; i < call->count; i++) {
        tensor_argument *a = &call->arguments[i];
        if (py_is_tensor(a->given)) {
            a->storage = py_storage(a->given);
            if (a->storage == NULL) {
                return false;
            }
        }
    }
    for (int i = 0; i < call->count; i++) {
        tensor_argument *a = &call->arguments[i];
        a->plain = a->storage != NULL ? py_tensor_view(a->given, a->storage)
                                      : Py_NewRef(a->given);
        if (a->plain == NULL || !py_is_ready(state, a->name, a->plain) ||
            (a->in_graph && PyArray_TYPE((PyArrayObject *)a->plain) != NPY_FLOAT32)) {
            return false;
        }
    }
    return true;
}

/* ---- the call -------------------------------------------------------------------- */

PyObject *
py_call_on_arrays(const attnext_state *state, PyObject *function, tensor_call *call)
{
    PyObject *plain[PY_MOST_TENSORS], *names = PyTuple_New(call->count), *made = NULL;
    for (int i = 0; names != NULL && i < call->count; i++) {
        PyTuple_SET_ITEM(names, i, Py_NewRef(call->arguments[i].name));
    }
    if (names != NULL && make_arrays(state, call)) {
        for (int i = 0; i < call->count; i++) {
            plain[i] = call->arguments[i].plain;
        }
        made = PyObject_Vectorcall(function, plain, 0, names);
    }
    Py_XDECREF(names);
    return made;
}

PyObject *
py_as_tensors(PyObject *made)
{
    PyObject *result = NULL;
    if (PyArray_CheckExact(made)) {
        result = py_as_tensor((PyArrayObject *)made);
    } else if (PyTuple_Check(made)) {
        const Py_ssize_t count = PyTuple_GET_SIZE(made);
        result = PyTuple_New(count);
        for (Py_ssize_t i = 0; result != NULL && i < count; i++) {
            PyObject *item = py_as_tensors(Py_NewRef(PyTuple_GET_ITEM(made, i)));
            if (item == NULL) {
                Py_CLEAR(result);
            } else {
                PyTuple_SET_ITEM(result, i, item);
            }
        }
    } else {
        return made;
    }
    Py_DECREF(made);
    return result;
}

PyObject *
py_or_not(PyObject *answer)
{
    if (answer == NULL && PyErr_Occurred()) { /* Ctrl-C is none to ask again after */
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return NULL;
        }
        PyErr_Clear();
    }
    return answer == NULL ? Py_NewRef(Py_NotImplemented) : answer;
}
