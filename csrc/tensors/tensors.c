/*
 * tensors.c -- tensors of PyTorch, read and made without a line of Python and without
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
 *         # a caller's call, before any check: inputs are expected to be tensors
 *         return _on_tensors(function, inputs | options | way.asked)
 *
 *     def _go_back(function, names, gradients, kept, saved, options, asked, places):
 *         arguments = dict(zip(names, gradients)) | dict(zip(kept, saved)) | options | asked
 *         made = _on_tensors(function, arguments)
 *         return tuple(made[place] for place in places)  # None where there is None
 *
 * If autograd is to record the call, because one of its tensors requires a gradient, the
 * function is also asked for what helps a backward, unless there are few keys. _at_once then
 * returns a list, the arguments of attnext/torch/autograd.py's node: kind, other options, what
 * is kept, results, *tensors. The kind is found by the tensors' names.
 *
 * NotImplemented: C does not serve the call, and nothing was computed. Something is not plain:
 * a subclass, another device, a list, a number where an array belongs. attnext/torch/tensors.py
 * serves it, or says what is wrong. Every exception reaches the caller: those of the function,
 * of PyTorch, of the caller's modes and signal handlers, MemoryError.
 *
 * The arguments, read and handed on: exchange.c.
 */
#include "tensors.h"

/* Check the number of arguments: users can call these functions, too. */
static bool
has(Py_ssize_t nargs, Py_ssize_t expected)
{
    if (nargs != expected) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", expected,
                     nargs);
    }
    return nargs == expected;
}

static int
refuse(const char *what)
{
    PyErr_Format(PyExc_TypeError, "%s: only attnext.torch may call this function",
                 what);
    return false;
}

/* ---- what a call is -------------------------------------------------------------- */

typedef enum { FAILED, OTHER, RECORDED, PLAIN } call_kind;

static bool
is_constant(PyObject *object)
{
    return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) ||
           PyFloat_CheckExact(object) || PyUnicode_CheckExact(object);
}

/* True for "outputs[0]": the argument is a list, of which this is an item. */
static bool
is_item(PyObject *name)
{
    const Py_ssize_t size = PyUnicode_Check(name) ? PyUnicode_GET_LENGTH(name) : 0;
    return size > 0 && PyUnicode_READ_CHAR(name, size - 1) == ']';
}

/* Return what a caller's call is to attnext.torch; FAILED: an exception was raised. learned:
 * options to which gradients flow, by name; those of True have to be tensors. */
static call_kind
look_at(tensor_call *call, PyObject *learned)
{
    bool wanted = false, constant = true;
    for (int i = 0; i < call->count; i++) {
        tensor_argument *a = &call->arguments[i];
        const bool input = a->in_graph;
        PyObject *rule = input ? Py_True : PyDict_GetItemWithError(learned, a->name);
        if (rule == NULL && PyErr_Occurred()) {
            return FAILED;
        }
        if (input && is_item(a->name)) {
            return OTHER;
        }
        if (py_is_tensor(a->given)) {
            const int wants = py_wants_gradient(a->given);
            if (wants < 0 || (wants && rule == NULL)) {
                return wants < 0 ? FAILED : OTHER;
            }
            a->in_graph = rule != NULL;
            wanted = wanted || wants;
        } else if (input || (rule == Py_True && a->given != Py_None)) {
            return OTHER;
        } else {
            constant = constant && is_constant(a->given); /* until the backward */
        }
    }
    const int records = wanted ? py_records() : 0;
    if (records <= 0) {
        return records < 0 ? FAILED : PLAIN;
    }
    return constant ? RECORDED : OTHER;
}

/* ---- the functions --------------------------------------------------------------- */

/* Return what a call made, or NotImplemented, or NULL with an exception set. */
static PyObject *
result_of(py_answer answer, PyObject *made)
{
    return answer == PY_OTHER ? Py_NewRef(Py_NotImplemented) : made;
}

static PyObject *
on_tensors(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (!has(nargs, 2)) {
        return NULL;
    }
    PyObject *made = NULL;
    py_answer answer = PY_OTHER;
    tensor_call call = {.count = 0};
    if (py_can_exchange() && py_add_arguments(&call, args[1], false)) {
        answer = py_call_on_arrays(py_state_of_module(module), args[0], &call, &made);
    }
    py_clear_tensors(&call);
    return result_of(answer, made == NULL ? NULL : py_as_tensors(made));
}

/* The items of a way (attnext/torch/calls.py). A kind's first says what is kept. */
enum { ASKED, HELPFUL, FEW, LEARNED, KINDS, KINDS_OF_FEW, WAY_ITEMS };

/* Those of the tensors and results that a backward needs. */
static PyObject *
kept(PyObject *kind, PyObject *const *tensors, int count, PyObject *results)
{
    PyObject *keeps = PySequence_GetItem(kind, 0), *them = NULL;
    Py_ssize_t size = 0, next = 0;
    if (keeps == NULL || !PyTuple_CheckExact(keeps) ||
        PyTuple_GET_SIZE(keeps) > count + PyTuple_GET_SIZE(results)) {
        Py_XDECREF(keeps);
        refuse("kind");
        return NULL;
    }
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
    Py_DECREF(keeps);
    return them;
}

/* Return a list for the node: kind, other options, what is kept, results, *tensors, of a call's
 * first `count` arguments. */
static PyObject *
to_record(const tensor_call *call, int count, PyObject *way, bool few,
          PyObject *results)
{
    PyObject *names = PyTuple_New(count), *rest = PyDict_New(), *answer = NULL;
    PyObject *tensors[PY_MOST_TENSORS];
    int found = 0;
    bool done = names != NULL && rest != NULL;
    for (int i = 0; done && i < count; i++) {
        const tensor_argument *a = &call->arguments[i];
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
        PyObject *const first[] = {kind, rest, keep, results};
        const int before = Py_ARRAY_LENGTH(first);
        answer = keep == NULL ? NULL : PyList_New(before + found);
        for (int i = 0; answer != NULL && i < before + found; i++) {
            PyObject *item = i < before ? first[i] : tensors[i - before];
            PyList_SET_ITEM(answer, i, Py_NewRef(item));
        }
        Py_XDECREF(keep);
        Py_XDECREF(kind);
    }
    Py_XDECREF(names);
    Py_XDECREF(rest);
    return answer;
}

static bool
is_way(PyObject *way)
{
    return (PyTuple_Check(way) && PyTuple_GET_SIZE(way) >= WAY_ITEMS &&
            PyLong_CheckExact(PyTuple_GET_ITEM(way, FEW)) &&
            PyDict_CheckExact(PyTuple_GET_ITEM(way, LEARNED))) ||
           refuse("way");
}

/* Set *few to whether a call that is recorded has so few keys that nothing helps a backward. */
static int
read_few(const attnext_state *state, PyObject *inputs, PyObject *limit, bool *few)
{
    PyObject *keys = py_item(inputs, state->names[ARG_KEYS]);
    const Py_ssize_t most = PyLong_AsSsize_t(limit);
    *few = keys != NULL && py_rows(keys) <= most;
    Py_XDECREF(keys);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *
at_once(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (!has(nargs, 4) || !is_way(args[3])) {
        return NULL;
    }
    const attnext_state *state = py_state_of_module(module);
    PyObject *way = args[3], *made = NULL;
    call_kind kind = OTHER;
    tensor_call call = {.count = 0};
    if (py_can_exchange() && py_add_arguments(&call, args[1], true) &&
        py_add_arguments(&call, args[2], false)) {
        kind = look_at(&call, PyTuple_GET_ITEM(way, LEARNED));
    }
    const int given = call.count;
    bool few = true;
    if (kind == RECORDED &&
        read_few(state, args[1], PyTuple_GET_ITEM(way, FEW), &few) < 0) {
        kind = FAILED;
    }
    py_answer answer = kind == FAILED ? PY_RAISED : PY_OTHER;
    if (kind > OTHER && py_add_arguments(&call, PyTuple_GET_ITEM(way, ASKED), false) &&
        (few || py_add_arguments(&call, PyTuple_GET_ITEM(way, HELPFUL), false))) {
        answer = py_call_on_arrays(state, args[0], &call, &made);
        made = made == NULL ? NULL : py_as_tensors(made);
    }
    if (made != NULL && kind == RECORDED) {
        PyObject *results = PyTuple_Check(made) ? Py_NewRef(made)
                                                : PyTuple_Pack(1, made);
        Py_SETREF(made,
                  results == NULL ? NULL : to_record(&call, given, way, few, results));
        Py_XDECREF(results);
    }
    py_clear_tensors(&call);
    return result_of(answer, made);
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
        fits = tensor == Py_None ? i > 0
                                 : py_is_tensor(tensor) &&
                                       py_add_argument(call, PyTuple_GET_ITEM(names, i),
                                                       tensor, false);
    }
    return fits;
}

/* A result, borrowed: gradients may be a tuple of their own before what else was asked
 * for, or one alone. NULL: there is none in that place. */
static PyObject *
result_at(PyObject *made, Py_ssize_t place)
{
    if (!PyTuple_Check(made)) {
        return made;
    }
    if (PyTuple_GET_SIZE(made) == 0) {
        return NULL;
    }
    PyObject *first = PyTuple_GET_ITEM(made, 0);
    const Py_ssize_t inner = PyTuple_Check(first) ? PyTuple_GET_SIZE(first) : 0;
    if (inner > 0 && place >= inner) {
        place -= inner - 1;
    } else if (inner > 0) {
        made = first;
    }
    return place >= 0 && place < PyTuple_GET_SIZE(made) ? PyTuple_GET_ITEM(made, place)
                                                        : NULL;
}

/* Return the results in these places as tensors. */
static PyObject *
gradients_of(PyObject *made, PyObject *places)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(places);
    PyObject *gradients = PyTuple_New(count);
    for (Py_ssize_t i = 0; gradients != NULL && i < count; i++) {
        PyObject *place = PyTuple_GET_ITEM(places, i), *gradient = Py_NewRef(Py_None);
        if (place != Py_None) {
            const Py_ssize_t index = PyLong_AsSsize_t(place);
            PyObject *result = PyErr_Occurred() ? NULL : result_at(made, index);
            if (result == NULL && !PyErr_Occurred()) {
                refuse("places");
            }
            Py_SETREF(gradient,
                      result == NULL ? NULL : py_as_tensors(Py_NewRef(result)));
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
    bool fits = has(nargs, 8);
    for (int i = 1; fits && i < 8;
         i++) { /* all but two dicts, which are looked at below */
        fits = i == 5 || i == 6 || PyTuple_CheckExact(args[i]) || refuse("names");
    }
    if (!fits) {
        return NULL;
    }
    PyObject *made = NULL, *gradients = NULL;
    py_answer answer = PY_OTHER;
    tensor_call call = {.count = 0};
    if (py_can_exchange() && add_tensors(&call, args[1], args[2]) &&
        add_tensors(&call, args[3], args[4]) &&
        py_add_arguments(&call, args[5], false) &&
        py_add_arguments(&call, args[6], false)) {
        answer = py_call_on_arrays(py_state_of_module(module), args[0], &call, &made);
    }
    py_clear_tensors(&call);
    if (made != NULL) {
        gradients = gradients_of(made, args[7]);
        Py_DECREF(made);
    }
    return result_of(answer, gradients);
}

/* None: as where torch has no such functions. */
static PyObject *
exchange_tensors(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!has(nargs, 3) || !(PyTuple_CheckExact(args[0]) || refuse("types"))) {
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
    return PyModule_AddFunctions(module, methods);
}
