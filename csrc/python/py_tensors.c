/*
 * py_tensors.c -- tensors of PyTorch, read and made without a line of Python and without
 * linking it; as if it were Python, for attnext.torch alone:
 *
 *     def _exchange_tensors(types, exchange):
 *         # tensors of these types are read by the functions in this capsule
 *
 *     def _on_tensors(function, arguments, options=None, recorded=None):
 *         arrays = {name: view_of(x) for name, x in (arguments | options).items()}
 *         return as_tensors(function(**arrays))  # or NotImplemented
 *
 * Who gives options gives a caller's call, unseen: the other arguments are to be tensors of
 * float32. Else they are what was checked before. If autograd watches, it gives what else a
 * call is given that is recorded: one of whose arguments some require a gradient. Its answer
 * is (Ellipsis, results, {those options that are tensors}).
 *
 * NotImplemented: take the long way, by attnext/torch/tensors.py. Something is not plain, a
 * subclass, another device, a list, a number where an array belongs; or is wrong, for which
 * the long way has the words.
 *
 * What reads a tensor and makes one: py_exchange.c.
 */
#include "py_attnext.h"
#include "py_exchange.h"

/* ---- a call ---------------------------------------------------------------------- */

/* More arguments than any function has. */
enum { MOST = ARG_COUNT };

typedef struct {
    PyObject *name, *given; /* owned */
    PyObject *storage;      /* of a tensor, owned, else NULL */
    PyObject *plain;        /* what the function gets, owned */
    bool unseen;            /* an argument of a caller's call */
} argument;

typedef struct {
    argument arguments[MOST];
    int count;
} tensor_call;

static void
clear_call(tensor_call *call)
{
    for (int i = 0; i < call->count; i++) {
        argument *a = &call->arguments[i];
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

/* Adds what is in the dict; false: it is none, or too much. */
static bool
add_arguments(tensor_call *call, PyObject *dict, bool unseen)
{
    PyObject *name, *given;
    Py_ssize_t place = 0;
    if (!PyDict_CheckExact(dict) || call->count + PyDict_GET_SIZE(dict) > MOST) {
        return false;
    }
    while (PyDict_Next(dict, &place, &name, &given)) {
        call->arguments[call->count++] = (argument){
            .name = Py_NewRef(name), .given = Py_NewRef(given), .unseen = unseen};
    }
    return true;
}

/* ---- what a call is -------------------------------------------------------------- */

typedef enum { OTHER, RECORDED, PLAIN } call_kind;

static bool
is_constant(PyObject *object)
{
    return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) ||
           PyFloat_CheckExact(object) || PyUnicode_CheckExact(object);
}

/* A caller's call: what it is to attnext.torch. */
static call_kind
look_at(const tensor_call *call, bool watched)
{
    bool recorded = false, constant = true;
    for (int i = 0; i < call->count; i++) {
        const argument *a = &call->arguments[i];
        if (!py_is_tensor(a->given)) {
            if (a->unseen) {
                return OTHER;
            }
            constant = constant && is_constant(a->given); /* until the backward */
        } else if (!a->unseen) {
            if (py_wants_gradient(a->given)) {
                return OTHER;
            }
        } else if (py_tensor_dtype(a->given) != NPY_FLOAT32) {
            return OTHER;
        } else if (watched && !recorded) {
            recorded = py_wants_gradient(a->given);
        }
    }
    return !recorded ? PLAIN : constant ? RECORDED : OTHER;
}

/* All arguments as what the function reads without running code, first what may run some,
 * for CPython 3.11 may collect garbage when it makes an object. */
static bool
make_arrays(const attnext_state *state, tensor_call *call)
{
    for (int i = 0; i < call->count; i++) {
        argument *a = &call->arguments[i];
        if (py_is_tensor(a->given)) {
            a->storage = py_storage(a->given);
            if (a->storage == NULL) {
                return false;
            }
        }
    }
    for (int i = 0; i < call->count; i++) {
        argument *a = &call->arguments[i];
        a->plain = a->storage != NULL ? py_tensor_view(a->given, a->storage)
                                      : Py_NewRef(a->given);
        if (a->plain == NULL || !py_is_ready(state, a->name, a->plain)) {
            return false;
        }
    }
    return true;
}

/* ---- results -------------------------------------------------------------------- */

/* Arrays as tensors, in tuples too, which come plain; a new reference for this one. */
static PyObject *
as_tensors(PyObject *made)
{
    PyObject *result = NULL;
    if (PyArray_CheckExact(made)) {
        result = py_as_tensor((PyArrayObject *)made);
    } else if (PyTuple_Check(made)) {
        const Py_ssize_t count = PyTuple_GET_SIZE(made);
        result = PyTuple_New(count);
        for (Py_ssize_t i = 0; result != NULL && i < count; i++) {
            PyObject *item = as_tensors(Py_NewRef(PyTuple_GET_ITEM(made, i)));
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

/* ---- the functions --------------------------------------------------------------- */

/* What the function makes of them, or NULL. */
static PyObject *
call_on_arrays(const attnext_state *state, PyObject *function, tensor_call *call)
{
    PyObject *plain[MOST], *names = PyTuple_New(call->count), *made = NULL;
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

/* Those options that are tensors, a new dict. */
static PyObject *
tensors_of(const tensor_call *call)
{
    PyObject *tensors = PyDict_New();
    for (int i = 0; tensors != NULL && i < call->count; i++) {
        const argument *a = &call->arguments[i];
        if (!a->unseen && a->storage != NULL &&
            PyDict_SetItem(tensors, a->name, a->given) < 0) {
            Py_CLEAR(tensors);
        }
    }
    return tensors;
}

static PyObject *
on_tensors(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    const attnext_state *state = py_state_of_module(module);
    const bool unseen = nargs > 2, watched = nargs > 3 && args[3] != Py_None;
    call_kind kind = OTHER;
    tensor_call call;
    PyObject *made = NULL;

    call.count = 0;
    if (py_can_exchange() && add_arguments(&call, args[1], unseen) &&
        (!unseen || add_arguments(&call, args[2], false))) {
        kind = unseen ? look_at(&call, watched) : PLAIN;
    }
    if (kind == PLAIN || (kind == RECORDED && add_arguments(&call, args[3], false))) {
        made = call_on_arrays(state, args[0], &call);
    }
    const bool recorded = made != NULL && kind == RECORDED;
    PyObject *tensors = recorded ? tensors_of(&call) : NULL;
    clear_call(&call);
    made = made == NULL ? NULL : as_tensors(made);
    if (recorded) {
        made = Py_BuildValue("(ONN)", Py_Ellipsis, made, tensors);
    }
    if (made == NULL && PyErr_Occurred()) { /* Ctrl-C is no answer to ask again for */
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return NULL;
        }
        PyErr_Clear();
    }
    return made == NULL ? Py_NewRef(Py_NotImplemented) : made;
}

/* None: as where torch has no such functions. */
static PyObject *
exchange_tensors(PyObject *Py_UNUSED(module), PyObject *const *args,
                 Py_ssize_t Py_UNUSED(nargs))
{
    return py_exchange_by(args[0], args[1]) < 0 ? NULL : Py_NewRef(Py_None);
}

int
py_tensors_exec(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"_on_tensors", PY_FASTCALL(on_tensors), METH_FASTCALL,
         "_on_tensors($module, function, arguments, options=None, recorded=None, "
         "/)\n--\n\n"
         "The function of C, called with tensors; for attnext.torch."},
        {"_exchange_tensors", PY_FASTCALL(exchange_tensors), METH_FASTCALL,
         "_exchange_tensors($module, types, exchange, /)\n--\n\n"
         "Read tensors of these types by these functions; for attnext.torch."},
        {0},
    };
    return py_exchange_exec() < 0 ? -1 : PyModule_AddFunctions(module, methods);
}
