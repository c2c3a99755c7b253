/*
 * py_read.c -- what the arguments of a call are before anybody looks at them: plain.
 *
 * Plain is what C reads without running any Python code: arrays of NumPy's own class and
 * of a dtype that fits, ints, floats, bools, lists of ints. Whatever else comes,
 * attnext/_reading.py makes plain, or says what is wrong with its kind; what is wrong with
 * a shape or a value C says, where it looks at them. From the last of these readings on
 * nothing runs Python code until the core is done: no argument can be taken from under it,
 * none changes between two looks.
 */
#include "py_attnext.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is plain --------------------------------------------------------------- */

static const char *const readers[] = {
    [READ_REAL] = "real",     [READ_FLOATS] = "floats",
    [READ_BOOLS] = "bools",   [READ_INTEGERS] = "integers",
    [READ_PARTS] = "parts",   [READ_OUT] = "out",
    [READ_NUMBER] = "number", [READ_ONE_NUMBER] = "one_number",
    [READ_SCALE] = "scale",   [READ_INDEX] = "index",
    [READ_WINDOW] = "window", [READ_RNG] = "rng",
};

static const unsigned char kinds[ARG_COUNT] = {
    [ARG_QUERIES] = READ_REAL,       [ARG_KEYS] = READ_REAL,
    [ARG_VALUES] = READ_REAL,        [ARG_PARAMETER_0] = READ_REAL,
    [ARG_PARAMETER_1] = READ_REAL,   [ARG_PARAMETER_2] = READ_REAL,
    [ARG_PARAMETER_3] = READ_REAL,   [ARG_PARAMETER_4] = READ_REAL,
    [ARG_PARAMETER_5] = READ_REAL,   [ARG_PARAMETER_6] = READ_REAL,
    [ARG_PARAMETER_7] = READ_REAL,   [ARG_VALID_LENS] = READ_INTEGERS,
    [ARG_NUM_HEADS] = READ_INDEX,    [ARG_NUM_KV_HEADS] = READ_INDEX,
    [ARG_SCALE] = READ_SCALE,        [ARG_SCALE_OF_LAYER] = READ_SCALE,
    [ARG_SCALE_OF_ONE] = READ_SCALE, [ARG_EPS] = READ_NUMBER,
    [ARG_W] = READ_ONE_NUMBER,       [ARG_SIGMA] = READ_ONE_NUMBER,
    [ARG_SOFTCAP] = READ_NUMBER,     [ARG_MASK] = READ_BOOLS,
    [ARG_BIAS] = READ_FLOATS,        [ARG_CAUSAL_OFFSET] = READ_INTEGERS,
    [ARG_WINDOW] = READ_WINDOW,      [ARG_SINK] = READ_REAL,
    [ARG_DROPOUT_P] = READ_NUMBER,   [ARG_SEED] = READ_INDEX,
    [ARG_DROPOUT_MASK] = READ_BOOLS, [ARG_OUT] = READ_OUT,
    [ARG_GRAD_WEIGHTS] = READ_REAL,  [ARG_GRAD_LSE] = READ_REAL,
    [ARG_WEIGHTS] = READ_REAL,       [ARG_OUTPUT] = READ_REAL,
    [ARG_LSE] = READ_REAL,           [ARG_KEPT] = READ_REAL,
    [ARG_GRAD_OUTPUT] = READ_REAL,   [ARG_X] = READ_REAL,
    [ARG_VALID_LEN] = READ_INTEGERS, [ARG_VALUE] = READ_NUMBER,
    [ARG_OUTPUTS] = READ_PARTS,      [ARG_LSES] = READ_PARTS,
};

static inline bool
is_int(PyObject *object)
{
    return PyLong_Check(object) && !PyBool_Check(object);
}

bool
py_is_number(PyObject *object)
{
    return PyFloat_Check(object) || is_int(object);
}

static inline bool
is_real_array(PyObject *object)
{
    if (!PyArray_CheckExact(object)) {
        return false;
    }
    int dtype = PyArray_TYPE((PyArrayObject *)object);
    return PyTypeNum_ISFLOAT(dtype) || PyTypeNum_ISINTEGER(dtype);
}

static bool
is_list_of_ints(PyObject *object)
{
    bool all = PyList_CheckExact(object);
    for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(object); i++) {
        all = PyLong_CheckExact(PyList_GET_ITEM(object, i));
    }
    return all;
}

/* A list or tuple all of whose items are what `is` says. */
static bool
is_sequence_of(PyObject *object, bool (*is)(PyObject *))
{
    bool all = PyTuple_CheckExact(object) || PyList_CheckExact(object);
    for (Py_ssize_t i = 0; all && i < PySequence_Fast_GET_SIZE(object); i++) {
        all = is(PySequence_Fast_GET_ITEM(object, i));
    }
    return all;
}

bool
py_fits(py_kind kind, PyObject *object)
{
    PyArrayObject *a = (PyArrayObject *)object;
    const bool array = PyArray_CheckExact(object);
    switch (kind) {
    case READ_REAL:
        return is_real_array(object);
    case READ_FLOATS:
        return array && PyTypeNum_ISFLOAT(PyArray_TYPE(a));
    case READ_BOOLS:
        return array && PyTypeNum_ISBOOL(PyArray_TYPE(a));
    case READ_INTEGERS:
        return (array && PyTypeNum_ISINTEGER(PyArray_TYPE(a))) || is_int(object) ||
               is_list_of_ints(object);
    case READ_PARTS:
        return is_real_array(object) || is_sequence_of(object, is_real_array);
    case READ_OUT:
        return array || !PyArray_Check(object); /* which C refuses */
    case READ_NUMBER:
    case READ_ONE_NUMBER:
        return py_is_number(object);
    case READ_SCALE:
        return py_is_number(object) || is_real_array(object);
    case READ_INDEX:
        return is_int(object);
    case READ_WINDOW:
        return is_sequence_of(object, is_int);
    default:
        return true; /* a flag, a word: they are looked at and not read */
    }
}

/* ---- what is not ----------------------------------------------------------------- */

/* attnext._reading.function(first, ...), a new reference; up to four objects, NULL ends. */
static PyObject *
call_reading(const char *function, PyObject *first, PyObject *second, PyObject *third,
             PyObject *fourth)
{
    PyObject *const given[] = {first, second, third, fourth};
    PyObject *name = PyUnicode_FromString("attnext._reading"), *call = NULL;
    PyObject *module = name == NULL ? NULL : PyImport_GetModule(name);
    if (module == NULL && name != NULL && !PyErr_Occurred()) {
        module = PyImport_Import(name);
    }
    call = module == NULL ? NULL : PyObject_GetAttrString(module, function);
    size_t count = third == NULL ? 2 : fourth == NULL ? 3 : 4;
    PyObject *result = call == NULL ? NULL
                                    : PyObject_Vectorcall(call, given, count, NULL);
    Py_XDECREF(call);
    Py_XDECREF(module);
    Py_XDECREF(name);
    return result;
}

PyObject *
py_read(py_kind kind, PyObject *object, const char *name)
{
    PyObject *text = PyUnicode_FromString(name), *result = NULL;
    if (text != NULL) {
        result = call_reading(readers[kind], text, object, NULL, NULL);
        Py_DECREF(text);
    }
    return result;
}

static bool defers; /* everything is read there: ATTNEXT_DEFER, for tests */

void
py_read_setting(void)
{
    const char *wanted = getenv("ATTNEXT_DEFER");
    defers = wanted != NULL && *wanted != '\0';
}

/* What is not given, or refused where it is looked at, and a memory in the place of keys;
 * and else what fits, but if everything is to be read. */
static inline bool
is_ready(const attnext_state *state, py_arg arg, PyObject *object)
{
    return object == NULL || object == Py_None ||
           (arg == ARG_KEYS && Py_IS_TYPE(object, state->Memory)) ||
           (!defers && py_fits(kinds[arg], object)) || kinds[arg] == READ_AS_IS;
}

/* Extents that cross need not share an element (the even rows of an array and its third
 * row): those NumPy decides. */
static bool
may_overlap(PyObject *out, PyObject *object)
{
    const char *low, *high, *out_low, *out_high;
    if (out == NULL || !PyArray_Check(out) || object == NULL ||
        !PyArray_Check(object)) {
        return false;
    }
    py_extent((PyArrayObject *)object, &low, &high);
    py_extent((PyArrayObject *)out, &out_low, &out_high);
    return low < out_high && out_low < high && low != high && out_low != out_high;
}

/* A window one of whose ends is further than the core adds. */
static bool
is_far(PyObject *window)
{
    if (!py_is_given(window) || PySequence_Fast_GET_SIZE(window) != 2) {
        return false;
    }
    PyObject *const *ends = PySequence_Fast_ITEMS(window);
    return py_clip_int(ends[0], 0, PY_FAR + 1) > PY_FAR ||
           py_clip_int(ends[1], 0, PY_FAR + 1) > PY_FAR;
}

/* One argument, while it is made ready: what has been done. */
enum { READ = 1, APART = 2, MOVED = 4 };

/* given[arg] = plain, a new reference, which *owned keeps. */
static int
take(PyObject **given, py_arg arg, PyObject *plain, PyObject **owned)
{
    int result = -1;
    if (*owned == NULL) {
        *owned = PyList_New(0);
    }
    if (plain != NULL && *owned != NULL) {
        given[arg] = plain;
        result = PyList_Append(*owned, plain);
    }
    Py_XDECREF(plain);
    return result;
}

/* Runs what code the argument needs to have run, if any: 1 if it did, or -1. */
static int
make_ready(const attnext_state *state, const py_signature *signature, py_arg arg,
           PyObject **given, char *done, PyObject **owned)
{
    PyObject *object = given[arg], *offset = given[ARG_CAUSAL_OFFSET];
    PyObject *name = py_argument_name(state, signature, arg), *result;
    if (!(*done & READ) && !is_ready(state, arg, object)) {
        *done |= READ;
        result = call_reading(readers[kinds[arg]], name, object, NULL, NULL);
        return take(given, arg, result, owned) < 0 ? -1 : 1;
    }
    if (arg != ARG_OUT && may_overlap(given[ARG_OUT], object) && !(*done & APART)) {
        *done |= APART;
        result = call_reading("overlap", name, object, given[ARG_OUT], NULL);
        Py_XDECREF(result);
        return result == NULL ? -1 : 1;
    }
    if (arg == ARG_WINDOW && py_is_given(offset) && is_far(object) &&
        !(*done & MOVED)) {
        PyObject *causal = given[ARG_CAUSAL] == NULL ? Py_False : given[ARG_CAUSAL];
        result = call_reading("near_offset", offset, object, causal, NULL);
        *done |= MOVED;
        return take(given, ARG_CAUSAL_OFFSET, result, owned) < 0 ? -1 : 1;
    }
    return 0;
}

int
py_make_plain(const attnext_state *state, const py_signature *signature,
              PyObject **given, PyObject **owned)
{
    char done[ARG_COUNT];
    bool ready = given[ARG_OUT] == NULL &&
                 (given[ARG_WINDOW] == NULL || given[ARG_CAUSAL_OFFSET] == NULL);
    for (const unsigned char *arg = signature->args; ready && *arg != ARG_END; arg++) {
        ready = is_ready(state, *arg, given[*arg]);
    }
    if (ready) {
        return 0;
    }
    memset(done, 0, sizeof done);
    for (int ran = 1; ran != 0;) { /* what code may do to what was plain until then */
        ran = 0;
        for (const unsigned char *arg = signature->args; *arg != ARG_END; arg++) {
            int one = make_ready(state, signature, *arg, given, &done[*arg], owned);
            if (one < 0) {
                return -1;
            }
            ran |= one;
        }
    }
    return 0;
}

/* ---- what is wrong with others --------------------------------------------------- */

void
py_notice_swapped(const attnext_state *state, const py_signature *signature,
                  PyObject *const *given)
{
    const py_arg which = signature->args[1];
    PyObject *X = given[ARG_X], *lens = given[which];
    PyObject *type, *value, *traceback, *error;
    if (!py_is_given(X) || !py_is_given(lens) ||
        (!PyErr_ExceptionMatches(PyExc_TypeError) &&
         !PyErr_ExceptionMatches(PyExc_ValueError))) {
        return;
    }
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *function = PyUnicode_FromString(signature->function);
    error = function == NULL
                ? NULL
                : call_reading("swapped", function, X, lens, state->names[which]);
    Py_XDECREF(function);
    if (error != NULL && error != Py_None) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    } else {
        PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(error);
}
