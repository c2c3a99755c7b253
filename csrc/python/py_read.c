/*
 * py_read.c -- what the arguments of a call are before anybody looks at them: plain.
 *
 * Plain is what C reads without running any Python code, and has nothing to say against:
 * arrays of NumPy's own class and of a dtype that fits, ints, floats, bools, lists and tuples
 * of ints, with values that are allowed. Whatever else comes, attnext/_reading.py makes plain,
 * or says what is wrong with it (py_defer.c); of arrays the shapes, and what is in them, are
 * looked at later. From the last of these readings on nothing runs Python code until the core
 * is done: no argument can be taken from under it, none changes between two looks.
 * tests/test_door.py follows all calls to see it.
 */
#include "py_run.h"

#include <math.h>
#include <string.h>

/* ---- what is plain --------------------------------------------------------------- */

/* What an argument is to become, by the function of attnext/_reading.py that reads it. */
/* clang-format off */
#define KINDS(KIND)                                                                      \
    KIND(as_is) /* an object of ours, a word: it is looked at and not read */            \
    KIND(real) KIND(floats) KIND(bools) KIND(integers) KIND(parts) KIND(out) KIND(flag)  \
    KIND(rule) KIND(number) KIND(scale) KIND(w) KIND(sigma) KIND(positive)               \
    KIND(probability) KIND(seed) KIND(heads) KIND(window)
#define NUMBER(KIND) READ_##KIND,
#define NAME_OF(KIND) #KIND,
/* clang-format on */
typedef enum { KINDS(NUMBER) } read_kind;
static const char *const readers[] = {KINDS(NAME_OF)};

static const unsigned char kinds[ARG_COUNT] = {
#define ARGUMENT(ID, NAME, DEFAULT, TAKEN_BY, KIND) [ARG_##ID] = READ_##KIND,
#include "py_options.def"
};

/* Does an array lie in the memory of the one that it is a view of? That may have given it
 * back since, as a.resize(0, refcheck=False) does. */
static bool
has_memory(PyArrayObject *a)
{
    const char *low, *high;
    PyArrayObject *owner = a;
    for (PyObject *base = PyArray_BASE(a); base != NULL && PyArray_Check(base);
         base = PyArray_BASE(owner)) {
        owner = (PyArrayObject *)base;
    }
    if (owner == a || !PyArray_CHKFLAGS(owner, NPY_ARRAY_OWNDATA)) {
        return true;
    }
    const attn_array array = py_array(a);
    attn_extent(&array, &low, &high);
    return low == high || (low >= PyArray_BYTES(owner) &&
                           high <= PyArray_BYTES(owner) + PyArray_NBYTES(owner));
}

static inline bool
is_lost(PyObject *object)
{
    PyArrayObject *a = (PyArrayObject *)object;
    return PyArray_Check(object) && PyArray_BASE(a) != NULL && !has_memory(a);
}

/* The type of what is in an array of NumPy's own class; or NPY_NOTYPE. */
static inline int
type_of(PyObject *object)
{
    return PyArray_CheckExact(object) ? PyArray_TYPE((PyArrayObject *)object)
                                      : NPY_NOTYPE;
}

static inline bool
is_int(PyObject *object)
{
    return PyLong_Check(object) && !PyBool_Check(object);
}

/* NaN: it is no number, or an int too large for one. */
static double
number_of(PyObject *object)
{
    const double x = PyFloat_Check(object) ? PyFloat_AS_DOUBLE(object)
                     : is_int(object)      ? PyLong_AsDouble(object)
                                           : NAN;
    if (x == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return NAN;
    }
    return x;
}

static inline bool
is_real_array(PyObject *object)
{
    const int type = type_of(object);
    return PyTypeNum_ISFLOAT(type) || PyTypeNum_ISINTEGER(type);
}

/* Where there is no GIL another thread may change a list between two looks: there it is one
 * that was read, a copy. */
static inline bool
is_list(PyObject *object, bool was_read)
{
#ifndef Py_GIL_DISABLED
    was_read = true;
#endif
    return was_read && PyList_CheckExact(object);
}

static bool
is_exact_int(PyObject *object)
{
    return PyLong_CheckExact(object);
}

/* How far a window reaches: no further than the core adds. */
static bool
is_end(PyObject *object)
{
    const int64_t end = is_int(object) ? py_clip_int(object, -2, PY_FAR + 1) : -2;
    return end >= -1 && end <= PY_FAR;
}

/* A list or tuple all of whose items are what `is` says. */
static bool
is_sequence_of(PyObject *object, bool was_read, bool (*is)(PyObject *))
{
    bool all = PyTuple_CheckExact(object) || is_list(object, was_read);
    for (Py_ssize_t i = 0; all && i < PySequence_Fast_GET_SIZE(object); i++) {
        all = is(PySequence_Fast_GET_ITEM(object, i));
    }
    return all;
}

/* An array to write into; once it was read, of a subclass too. */
static bool
is_out(PyObject *object, bool was_read)
{
    PyArrayObject *a = (PyArrayObject *)object;
    return (was_read ? PyArray_Check(object) : PyArray_CheckExact(object)) &&
           PyArray_TYPE(a) == NPY_FLOAT32 &&
           PyArray_ISCARRAY(a) && /* of native bytes */
           !is_lost(object);
}

static bool
is_seed(PyObject *object)
{
    const bool fits = is_int(object) &&
                      (PyLong_AsUnsignedLongLong(object) != UINT64_MAX ||
                       !PyErr_Occurred());
    PyErr_Clear();
    return fits;
}

int
py_rule(PyObject *object)
{
    static const char *const names[] = {
        [ATTN_EMPTY_UNIFORM] = "uniform",
        [ATTN_EMPTY_ZERO] = "zero",
        [ATTN_EMPTY_NAN] = "nan",
    };
    int rule = PyUnicode_Check(object) ? 2 : -1;
    while (rule >= 0 && PyUnicode_CompareWithASCIIString(object, names[rule]) != 0) {
        rule--;
    }
    return rule;
}

/* Can object be looked at without running any code, and is it allowed? */
static bool
fits(read_kind kind, PyObject *object, bool was_read)
{
    switch (kind) {
    case READ_real:
        return is_real_array(object);
    case READ_floats:
        return PyTypeNum_ISFLOAT(type_of(object));
    case READ_bools:
        return PyTypeNum_ISBOOL(type_of(object));
    case READ_integers:
        return PyTypeNum_ISINTEGER(type_of(object)) || is_int(object) ||
               is_sequence_of(object, was_read, is_exact_int);
    case READ_parts:
        return is_real_array(object) || is_sequence_of(object, was_read, is_real_array);
    case READ_out:
        return is_out(object, was_read);
    case READ_flag:
        return PyBool_Check(object);
    case READ_rule:
        return py_rule(object) >= 0;
    case READ_number:
        return PyFloat_Check(object) || !isnan(number_of(object));
    case READ_scale:
    case READ_w:
        return isfinite((float)number_of(object)) ||
               (kind == READ_scale && is_real_array(object));
    case READ_sigma:
        return number_of(object) > 0.0 && isfinite((float)(1.0 / number_of(object))) &&
               isfinite(number_of(object));
    case READ_positive:
        return (float)number_of(object) > 0.0f && isfinite((float)number_of(object));
    case READ_probability:
        return number_of(object) >= 0.0 && (float)number_of(object) < 1.0f;
    case READ_seed:
        return is_seed(object);
    case READ_heads:
        return is_int(object) && py_clip_int(object, 0, 1) == 1;
    case READ_window:
        return is_sequence_of(object, was_read, is_end) &&
               PySequence_Fast_GET_SIZE(object) == 2;
    case READ_as_is:
        break;
    }
    return true; /* it is looked at and not read */
}

/* ---- what is not ----------------------------------------------------------------- */

static const char READING[] = "attnext._reading";

PyObject *
py_read_real(PyObject *object, const char *name)
{
    if (is_lost(object)) {
        py_wrong("lost_memory", "(s)", name);
        return NULL;
    }
    return fits(READ_real, object, false)
               ? Py_NewRef(object)
               : py_ask(READING, readers[READ_real], "(sO)", name, object);
}

bool py_defers;

/* Is it not given? None, where that is what is given by default. */
static inline bool
is_left_out(py_arg arg, PyObject *object)
{
    const char *standard = py_argument_rows[arg].standard;
    return object == NULL ||
           (object == Py_None && standard != NULL && strcmp(standard, "None") == 0);
}

/* What is not given, and a memory in the place of keys; and else what fits, but if everything
 * is to be read. */
static inline bool
is_ready(const attnext_state *state, py_arg arg, PyObject *object, bool was_read)
{
    return is_left_out(arg, object) ||
           ((was_read || !py_defers) && fits(kinds[arg], object, was_read) &&
            !(PyArray_CheckExact(object) && is_lost(object))) ||
           (arg == ARG_KEYS && Py_IS_TYPE(object, state->Memory)) ||
           kinds[arg] == READ_as_is;
}

bool
py_is_ready(const attnext_state *state, PyObject *name, PyObject *object)
{
    int arg = 0; /* names are interned */
    while (arg < ARG_COUNT && state->names[arg] != name) {
        arg++;
    }
    return is_ready(state, arg == ARG_COUNT ? ARG_PARAMETER_0 : (py_arg)arg, object,
                    false);
}

/* If so NumPy decides: these need not share an element. */
static bool
may_overlap(PyObject *out, PyObject *object)
{
    if (!PyArray_Check(out) || !PyArray_Check(object)) {
        return false;
    }
    const attn_array a = py_array((PyArrayObject *)out);
    const attn_array b = py_array((PyArrayObject *)object);
    return attn_may_overlap(&a, &b);
}

/* Is nothing to be read, nor, unless that was done, an out to be looked at that may have memory
 * of another? */
static bool
are_ready(const attnext_state *state, const py_signature *signature,
          PyObject *const *given, bool was_read)
{
    PyObject *out = was_read ? NULL : given[ARG_OUT];
    bool ready = true;
    for (const unsigned char *arg = signature->args; ready && *arg != ARG_END; arg++) {
        PyObject *object = given[*arg];
        ready = object == NULL || /* most are */
                (is_ready(state, *arg, object, was_read) &&
                 (out == NULL || *arg == ARG_OUT || !may_overlap(out, object)));
    }
    return ready;
}

/* What attnext._reading.plain is told: of each argument that is to be read what reads it, its
 * name, and it; and where they are looked at together, of the others as well, with None.
 * *told, which ends with ARG_END: which they are. */
static PyObject *
rows_of(const attnext_state *state, const py_signature *signature,
        PyObject *const *given, bool was_read, unsigned char *told)
{
    PyObject *rows = PyList_New(0);
    const bool beside = given[ARG_OUT] != NULL || given[ARG_X] != NULL ||
                        given[ARG_WINDOW] != NULL;
    int result = rows == NULL ? -1 : 0;
    for (const unsigned char *arg = signature->args; result == 0 && *arg != ARG_END;
         arg++) {
        PyObject *object = given[*arg];
        PyObject *name = py_argument_name(state, signature, *arg);
        const bool ready = is_ready(state, *arg, object, was_read);
        if (object != NULL && is_lost(object)) {
            result = py_wrong("lost_memory", "(O)", name);
        } else if (object != NULL && (beside || !ready)) {
            *told++ = *arg;
            const char *reader = ready ? NULL : readers[kinds[*arg]];
            result = py_append(rows, Py_BuildValue("(zOO)", reader, name, object));
        }
    }
    *told = ARG_END;
    if (result < 0) {
        Py_CLEAR(rows);
    }
    return rows;
}

/* given[] = what is read, which *owned keeps. */
PY_COLD static int
read_all(const attnext_state *state, const py_signature *signature, PyObject **given,
         PyObject **owned, bool was_read)
{
    unsigned char told[ARG_COUNT];
    PyObject *rows = rows_of(state, signature, given, was_read, told);
    PyObject *plain = rows == NULL ? NULL : py_ask(READING, "plain", "(N)", rows);
    if (plain == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; told[i] != ARG_END; i++) {
        given[told[i]] = PyTuple_GET_ITEM(plain, i);
    }
    *owned = *owned == NULL ? plain : Py_BuildValue("(NN)", *owned, plain);
    return *owned == NULL ? -1 : 0;
}

/* CPython 3.12.0 to 3.12.2 runs a collection that is due when it is asked for signals (py_run.c),
 * were the collector switched off or not (its issue 116604). There what is due runs here, before
 * the arguments are looked at; behind the gate nothing makes one due. */
static inline int
collect_now(void)
{
    const bool may = PY_VERSION_HEX >> 16 == 0x030C && Py_Version < 0x030C0300;
    return may ? PyErr_CheckSignals() : 0;
}

enum { MOST_LOOKS = 1000 };

/* Reading runs code, which may do something to what was plain until then: so all is looked at
 * again. */
int
py_make_plain(const attnext_state *state, const py_signature *signature,
              PyObject **given, PyObject **owned)
{
    for (int looks = 0; looks <= MOST_LOOKS; looks++) {
        if (collect_now() < 0) {
            return -1;
        }
        if (are_ready(state, signature, given, looks > 0)) {
            py_quiet_begin();
            return 0;
        }
        if (read_all(state, signature, given, owned, looks > 0) < 0) {
            return -1;
        }
    }
    return py_wrong("sentence", "(s)", "changing");
}
