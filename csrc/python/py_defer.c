/*
 * py_defer.c -- the way to Python: what is not plain is read there, and what is wrong is
 * said there.
 */
#include "py_attnext.h"

#include <stdarg.h>

/* A new reference; facts are those of Py_VaBuildValue. */
static PyObject *
ask(const char *module_name, const char *function, const char *facts, va_list list)
{
    PyObject *tuple = Py_VaBuildValue(facts, list);
    PyObject *name = tuple == NULL ? NULL : PyUnicode_FromString(module_name);
    PyObject *module = NULL, *call = NULL;
    if (name != NULL) { /* PyImport_GetModule also asks whether the import is done */
        module = py_item(PyImport_GetModuleDict(), name);
        if (module == NULL && !PyErr_Occurred()) {
            module = PyImport_Import(name);
        }
    }
    call = module == NULL ? NULL : PyObject_GetAttrString(module, function);
    PyObject *result = call == NULL ? NULL : PyObject_Call(call, tuple, NULL);
    Py_XDECREF(call);
    Py_XDECREF(module);
    Py_XDECREF(name);
    Py_XDECREF(tuple);
    return result;
}

PyObject *
py_ask(const char *module, const char *function, const char *facts, ...)
{
    va_list list;
    va_start(list, facts);
    PyObject *result = ask(module, function, facts, list);
    va_end(list);
    return result;
}

int
py_append(PyObject *list, PyObject *made)
{
    int result = made == NULL ? -1 : PyList_Append(list, made);
    Py_XDECREF(made);
    return result;
}

int
py_wrong(const char *what, const char *facts, ...)
{
    va_list list;
    va_start(list, facts);
    PyObject *error = ask("attnext._wrong", what, facts, list);
    va_end(list);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return -1;
}

PyObject *
py_dims(int ndim, const npy_intp *dims)
{
    return PyArray_IntTupleFromIntp(ndim, dims);
}

int
py_shape_error(PyArrayObject *a, const char *name, const char *expected)
{
    return py_wrong("shape", "(sOs)", name, a, expected);
}
