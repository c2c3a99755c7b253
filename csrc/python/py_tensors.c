/*
 * py_tensors.c -- tensors of PyTorch, read and made without a line of Python and without
 * linking it; as if it were Python, for attnext.torch alone:
 *
 *     def _exchange_tensors(types, exchange, records):
 *         # tensors of these types are read by the functions in this capsule; records()
 *         # says whether autograd is on
 *
 *     def _on_tensors(function, arguments):
 *         arrays = {name: view_of(x) for name, x in arguments.items()}
 *         return as_tensors(function(**arrays))  # or NotImplemented
 *
 *     def _at_once(function, inputs, options, way):
 *         # a caller's call, of which nobody has seen anything: inputs are to be tensors
 *         return _on_tensors(function, inputs | options | way.asked)
 *
 *     def _go_back(function, names, gradients, kept, saved, options, asked, places):
 *         arguments = dict(zip(names, gradients)) | dict(zip(kept, saved)) | options | asked
 *         made = _on_tensors(function, arguments)
 *         return tuple(made[place] for place in places)  # None where there is None
 *
 * If autograd is to record the call, as one of its tensors requires a gradient, it is made
 * with what is helpful for a backward too, if it has not only few keys, and the answer is
 * that of way.record(kind, other options, what is kept, results, *tensors), the kind by the
 * tensors' names.
 *
 * NotImplemented: take the long way, by attnext/torch/tensors.py. Something is not plain, a
 * subclass, another device, a list, a number where an array belongs; or is wrong, for which
 * the long way has the words.
 *
 * What reads a tensor and makes one: py_exchange.c.
 */
#include "py_attnext.h"
#include "py_exchange.h"

/* Only attnext.torch calls these functions, but so may anybody. */
static bool
has(Py_ssize_t nargs, Py_ssize_t expected)
{
    if (nargs != expected) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", expected,
                     nargs);
    }
    return nargs == expected;
}

/* ---- a call ---------------------------------------------------------------------- */

/* More arguments than any function has. */
enum { MOST = ARG_COUNT };

typedef struct {
    PyObject *name, *given; /* owned */
    PyObject *storage;      /* of a tensor, owned, else NULL */
    PyObject *plain;        /* what the function gets, owned */
    bool in_graph;          /* a caller's tensor to which a gradient may flow */
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

static bool
add(tensor_call *call, PyObject *name, PyObject *given, bool in_graph)
{
    if (call->count == MOST) {
        return false;
    }
    call->arguments[call->count++] = (argument){
        .name = Py_NewRef(name), .given = Py_NewRef(given), .in_graph = in_graph};
    return true;
}

/* Adds what is in the dict; false: it is none, or too much. */
static bool
add_arguments(tensor_call *call, PyObject *dict, bool in_graph)
{
    PyObject *name, *given;
    Py_ssize_t place = 0;
    bool fits = PyDict_CheckExact(dict);
    while (fits && PyDict_Next(dict, &place, &name, &given)) {
        fits = add(call, name, given, in_graph);
    }
    return fits;
}

/* ---- what a call is -------------------------------------------------------------- */

typedef enum { OTHER, RECORDED, PLAIN } call_kind;

static bool
is_constant(PyObject *object)
{
    return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) ||
           PyFloat_CheckExact(object) || PyUnicode_CheckExact(object);
}

/* A caller's call: what it is to attnext.torch. learned: options to which gradients flow,
 * by name; those of True have to be tensors. */
static call_kind
look_at(tensor_call *call, PyObject *learned)
{
    bool wanted = false, constant = true;
    for (int i = 0; i < call->count; i++) {
        argument *a = &call->arguments[i];
        const bool input = a->in_graph;
        PyObject *rule = input ? Py_True : PyDict_GetItem(learned, a->name);
        if (py_is_tensor(a->given)) {
            const bool wants = py_wants_gradient(a->given);
            if (wants && rule == NULL) {
                return OTHER;
            }
            a->in_graph = rule != NULL;
            wanted = wanted || wants;
        } else if (input || (rule == Py_True && a->given != Py_None)) {
            return OTHER;
        } else {
            constant = constant && is_constant(a->given); /* until the backward */
        }
    }
    return !wanted || !py_records() ? PLAIN : constant ? RECORDED : OTHER;
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
        if (a->plain == NULL || !py_is_ready(state, a->name, a->plain) ||
            (a->in_graph && PyArray_TYPE((PyArrayObject *)a->plain) != NPY_FLOAT32)) {
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

/* The answer, or, after an error of the call or of what was tried, NotImplemented. */
static PyObject *
or_not(PyObject *answer)
{
    if (answer == NULL && PyErr_Occurred()) { /* Ctrl-C is none to ask again after */
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return NULL;
        }
        PyErr_Clear();
    }
    return answer == NULL ? Py_NewRef(Py_NotImplemented) : answer;
}

static PyObject *
on_tensors(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (!has(nargs, 2)) {
        return NULL;
    }
    PyObject *made = NULL;
    tensor_call call = {.count = 0};
    if (py_can_exchange() && add_arguments(&call, args[1], false)) {
        made = call_on_arrays(py_state_of_module(module), args[0], &call);
    }
    clear_call(&call);
    return or_not(made == NULL ? NULL : as_tensors(made));
}

/* The items of a way (attnext/torch/calls.py). A kind's first says what is kept. */
enum { ASKED, HELPFUL, FEW, LEARNED, KINDS, KINDS_OF_FEW, RECORD };

/* Those of the tensors and results that a backward needs. */
static PyObject *
kept(PyObject *kind, PyObject *const *tensors, int count, PyObject *results)
{
    PyObject *keeps = PyTuple_GET_ITEM(kind, 0), *them;
    Py_ssize_t size = 0, next = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keeps); i++) {
        size += PyTuple_GET_ITEM(keeps, i) == Py_True;
    }
    them = PyTuple_New(size);
    for (Py_ssize_t i = 0; them != NULL && next < size; i++) {
        if (PyTuple_GET_ITEM(keeps, i) == Py_True) {
            PyObject *x = i < count ? tensors[i] : PyTuple_GET_ITEM(results, i - count);
            PyTuple_SET_ITEM(them, next++, Py_NewRef(x));
        }
    }
    return them;
}

/* What record() makes of a call's first so many arguments and its results, a tuple. */
static PyObject *
record(const tensor_call *call, int count, PyObject *way, bool few, PyObject *results)
{
    enum { BEFORE = 4 };
    PyObject *given[BEFORE + MOST], **tensors = given + BEFORE;
    PyObject *names = PyTuple_New(count), *rest = PyDict_New(), *answer = NULL;
    int found = 0;
    bool done = names != NULL && rest != NULL;
    for (int i = 0; done && i < count; i++) {
        const argument *a = &call->arguments[i];
        if (a->storage != NULL) {
            PyTuple_SET_ITEM(names, found, Py_NewRef(a->name));
            tensors[found++] = a->given;
        } else {
            done = PyDict_SetItem(rest, a->name, a->given) == 0;
        }
    }
    if (done && _PyTuple_Resize(&names, found) == 0) {
        PyObject *kinds = PyTuple_GET_ITEM(way, few ? KINDS_OF_FEW : KINDS);
        PyObject *kind = PyObject_GetItem(kinds, names);
        PyObject *keep = kind == NULL ? NULL : kept(kind, tensors, found, results);
        if (keep != NULL) {
            given[0] = kind;
            given[1] = rest;
            given[2] = keep;
            given[3] = results;
            answer = PyObject_Vectorcall(PyTuple_GET_ITEM(way, RECORD), given,
                                         BEFORE + (size_t)found, NULL);
        }
        Py_XDECREF(keep);
        Py_XDECREF(kind);
    }
    Py_XDECREF(names);
    Py_XDECREF(rest);
    return answer;
}

static PyObject *
at_once(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (!has(nargs, 4)) {
        return NULL;
    }
    const attnext_state *state = py_state_of_module(module);
    PyObject *way = args[3], *made = NULL;
    call_kind kind = OTHER;
    tensor_call call = {.count = 0};
    if (py_can_exchange() && add_arguments(&call, args[1], true) &&
        add_arguments(&call, args[2], false)) {
        kind = look_at(&call, PyTuple_GET_ITEM(way, LEARNED));
    }
    const int given = call.count;
    bool few = true;
    if (kind == RECORDED) {
        PyObject *keys = PyDict_GetItem(args[1], state->names[ARG_KEYS]);
        few = keys != NULL &&
              py_rows(keys) <= PyLong_AsSsize_t(PyTuple_GET_ITEM(way, FEW));
    }
    if (kind != OTHER && add_arguments(&call, PyTuple_GET_ITEM(way, ASKED), false) &&
        (few || add_arguments(&call, PyTuple_GET_ITEM(way, HELPFUL), false))) {
        made = call_on_arrays(state, args[0], &call);
        made = made == NULL ? NULL : as_tensors(made);
    }
    if (made != NULL && kind == RECORDED) {
        PyObject *results = PyTuple_Check(made) ? made : PyTuple_Pack(1, made);
        Py_XDECREF(results == made ? NULL : made);
        made = results == NULL ? NULL : record(&call, given, way, few, results);
        Py_XDECREF(results);
    }
    clear_call(&call);
    return or_not(made);
}

/* ---- and back --------------------------------------------------------------------- */

/* Adds tensors by these names; false: too many, or the first is missing. */
static bool
add_tensors(tensor_call *call, PyObject *names, PyObject *tensors)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(tensors);
    bool fits = PyTuple_GET_SIZE(names) >= count;
    for (Py_ssize_t i = 0; fits && i < count; i++) {
        PyObject *tensor = PyTuple_GET_ITEM(tensors, i);
        fits = tensor == Py_None
                   ? i > 0
                   : py_is_tensor(tensor) &&
                         add(call, PyTuple_GET_ITEM(names, i), tensor, false);
    }
    return fits;
}

/* A result, borrowed: gradients may be a tuple of their own before what else was asked
 * for, or one alone. */
static PyObject *
result_at(PyObject *made, Py_ssize_t place)
{
    if (!PyTuple_Check(made)) {
        return made;
    }
    PyObject *first = PyTuple_GET_ITEM(made, 0);
    const Py_ssize_t inner = PyTuple_Check(first) ? PyTuple_GET_SIZE(first) : 0;
    if (inner > 0 && place < inner) {
        return PyTuple_GET_ITEM(first, place);
    }
    return PyTuple_GET_ITEM(made, inner > 0 ? place - inner + 1 : place);
}

/* Those results as tensors. */
static PyObject *
gradients_of(PyObject *made, PyObject *places)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(places);
    PyObject *gradients = PyTuple_New(count);
    for (Py_ssize_t i = 0; gradients != NULL && i < count; i++) {
        PyObject *place = PyTuple_GET_ITEM(places, i), *gradient = Py_NewRef(Py_None);
        if (place != Py_None) {
            PyObject *result = result_at(made, PyLong_AsSsize_t(place));
            Py_SETREF(gradient, as_tensors(Py_NewRef(result)));
        }
        if (gradient == NULL) {
            Py_CLEAR(gradients);
        } else {
            PyTuple_SET_ITEM(gradients, i, gradient);
        }
    }
    return gradients;
}

static PyObject *
go_back(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (!has(nargs, 8)) {
        return NULL;
    }
    PyObject *made = NULL, *gradients = NULL;
    tensor_call call = {.count = 0};
    if (py_can_exchange() && add_tensors(&call, args[1], args[2]) &&
        add_tensors(&call, args[3], args[4]) && add_arguments(&call, args[5], false) &&
        add_arguments(&call, args[6], false)) {
        made = call_on_arrays(py_state_of_module(module), args[0], &call);
    }
    clear_call(&call);
    if (made != NULL) {
        gradients = gradients_of(made, args[7]);
        Py_DECREF(made);
    }
    return or_not(gradients);
}

/* None: as where torch has no such functions. */
static PyObject *
exchange_tensors(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!has(nargs, 3)) {
        return NULL;
    }
    return py_exchange_by(args[0], args[1], args[2]) < 0 ? NULL : Py_NewRef(Py_None);
}

int
py_tensors_exec(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"_on_tensors", PY_FASTCALL(on_tensors), METH_FASTCALL,
         "_on_tensors($module, function, arguments, /)\n--\n\n"
         "The function of C, called with tensors; for attnext.torch."},
        {"_at_once", PY_FASTCALL(at_once), METH_FASTCALL,
         "_at_once($module, function, inputs, options, way, /)\n--\n\n"
         "The same of a caller's call; for attnext.torch."},
        {"_go_back", PY_FASTCALL(go_back), METH_FASTCALL,
         "_go_back($module, function, names, gradients, kept, saved, options, asked, "
         "places, /)\n--\n\n"
         "The same of a backward; for attnext.torch."},
        {"_exchange_tensors", PY_FASTCALL(exchange_tensors), METH_FASTCALL,
         "_exchange_tensors($module, types, exchange, records, /)\n--\n\n"
         "Read tensors of these types by these functions; for attnext.torch."},
        {0},
    };
    return py_exchange_exec() < 0 ? -1 : PyModule_AddFunctions(module, methods);
}
