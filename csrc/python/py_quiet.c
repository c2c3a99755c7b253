/*
 * py_quiet.c -- what py_run.h promises, in a build with assertions: frames of Python code
 * are counted where CPython evaluates them, collections where it says that one starts.
 * Types of C that an argument may have are not seen: tests/test_door.py reads for them.
 */
#include "py_run.h"

#ifndef NDEBUG
_Thread_local unsigned long py_quiet_runs;

int
py_quiet_end(int result)
{
    if (result == 0 && py_quiet_runs != 0) {
        Py_FatalError("Python code ran, or the collector, between the last reading of "
                      "the arguments and the end of the core");
    }
    return result;
}

static PyObject *
evaluate(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throws)
{
    py_quiet_runs++;
    return _PyEval_EvalFrameDefault(thread, frame, throws);
}

/* gc.callbacks: of the beginning of a collection, and of its end */
static PyObject *
collecting(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args))
{
    py_quiet_runs++;
    return Py_NewRef(Py_None);
}

int
py_quiet_exec(void)
{
    static PyMethodDef method = {"collecting", collecting, METH_VARARGS, NULL};
    PyObject *gc = PyImport_ImportModule("gc");
    PyObject *callbacks = gc == NULL ? NULL : PyObject_GetAttrString(gc, "callbacks");
    int result = callbacks == NULL
                     ? -1
                     : py_append(callbacks, PyCFunction_New(&method, NULL));
    Py_XDECREF(callbacks);
    Py_XDECREF(gc);
    if (result == 0) {
        _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), evaluate);
    }
    return result;
}
#endif
