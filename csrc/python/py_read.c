/*
 * py_read.c -- what the arguments of a call are before anybody looks at them: plain.
 *
 * Plain is what C reads without running any Python code: arrays of NumPy's own class and
 * of a dtype that fits, ints, floats, bools, lists of ints. Whatever else comes,
 * attnext/_reading.py makes plain, or says what is wrong with its kind (py_defer.c). From the last of these readings on
 * nothing runs Python code until the core is done: no argument can be taken from under it,
 * none changes between two looks. tests/test_door.py follows all calls to see it.
 */
#include "py_attnext.h"
#include "py_quiet.h"

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
#define ARGUMENT(ID, NAME, DEFAULT, PLAIN) [ARG_##ID] = READ_##PLAIN,
#include "py_options.def"
};

static inline bool
is_int(PyObject *object)
{
    return PyLong_Check(object) && !PyBool_Check(object);
}

static bool
is_number(PyObject *object)
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

/* Can object be looked at without running any code? */
static bool
fits(py_kind kind, PyObject *object)
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
        return is_number(object);
    case READ_SCALE:
        return is_number(object) || is_real_array(object);
    case READ_INDEX:
        return is_int(object);
    case READ_WINDOW:
        return is_sequence_of(object, is_int) && PySequence_Fast_GET_SIZE(object) == 2;
    case READ_RNG:
        return false;
    default:
        return true; /* a flag, a word: they are looked at and not read */
    }
}

/* ---- what is not ----------------------------------------------------------------- */

static const char READING[] = "attnext._reading";

PyObject *
py_read(py_kind kind, PyObject *object, const char *name)
{
    if (fits(kind, object)) {
        return Py_NewRef(object);
    }
    return py_ask(READING, readers[kind], "(sO)", name, object);
}

static bool defers; /* everything is read there: ATTNEXT_DEFER, for tests */

void
py_read_setting(void)
{
    const char *wanted = getenv("ATTNEXT_DEFER");
    defers = wanted != NULL && *wanted != '\0';
}

/* Is it not given? None, where that is what is given by default. */
static inline bool
is_left_out(py_arg arg, PyObject *object)
{
    const char *standard = py_argument_rows[arg].standard;
    return object == NULL ||
           (object == Py_None && standard != NULL && strcmp(standard, "None") == 0);
}

/* What is not given, or refused where it is looked at, and a memory in the place of keys;
 * and else what fits, but if everything is to be read. */
static inline bool
is_ready(const attnext_state *state, py_arg arg, PyObject *object)
{
    return is_left_out(arg, object) ||
           (arg == ARG_KEYS && Py_IS_TYPE(object, state->Memory)) ||
           (!defers && fits(kinds[arg], object)) || kinds[arg] == READ_AS_IS;
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
    if (!py_is_given(window)) {
        return false;
    }
    PyObject *const *ends = PySequence_Fast_ITEMS(window);
    return py_clip_int(ends[0], 0, PY_FAR + 1) > PY_FAR ||
           py_clip_int(ends[1], 0, PY_FAR + 1) > PY_FAR;
}

bool
py_is_ready(const attnext_state *state, PyObject *name, PyObject *object)
{
    int arg = 0; /* names are interned */
    while (arg < ARG_COUNT && state->names[arg] != name) {
        arg++;
    }
    return is_ready(state, arg == ARG_COUNT ? ARG_PARAMETER_0 : (py_arg)arg, object) &&
           !(arg == ARG_WINDOW && is_far(object));
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
        result = py_ask(READING, readers[kinds[arg]], "(OO)", name, object);
        return take(given, arg, result, owned) < 0 ? -1 : 1;
    }
    if (arg != ARG_OUT && may_overlap(given[ARG_OUT], object) && !(*done & APART)) {
        *done |= APART;
        result = py_ask(READING, "overlap", "(OOO)", name, object, given[ARG_OUT]);
        Py_XDECREF(result);
        return result == NULL ? -1 : 1;
    }
    if (arg == ARG_WINDOW && py_is_given(offset) && is_far(object) &&
        !(*done & MOVED)) {
        PyObject *causal = given[ARG_CAUSAL] == NULL ? Py_False : given[ARG_CAUSAL];
        result = py_ask(READING, "near_offset", "(OOO)", offset, object, causal);
        *done |= MOVED;
        return take(given, ARG_CAUSAL_OFFSET, result, owned) < 0 ? -1 : 1;
    }
    return 0;
}

static int
make_plain(const attnext_state *state, const py_signature *signature, PyObject **given,
           PyObject **owned)
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

int
py_make_plain(const attnext_state *state, const py_signature *signature,
              PyObject **given, PyObject **owned)
{
    int result = make_plain(state, signature, given, owned);
    py_quiet_begin();
    return result;
}
