/*
 * py_read.c -- any Python object as an array of whatever dtype it has, and what is
 * refused on the way: by a message that names the argument.
 */
#include "py_attnext.h"

/* ---- exceptions that others raised ----------------------------------------------- */

void
py_note_argument(const char *name)
{
    PyObject *type, *value, *traceback;
    if (!PyErr_ExceptionMatches(PyExc_Exception) ||
        PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return; /* KeyboardInterrupt, ...: not about the argument */
    }
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *note = PyUnicode_FromFormat("raised when the argument %s was read", name);
    PyObject *none = note == NULL ? NULL
                                  : PyObject_CallMethod(value, "add_note", "O", note);
    Py_XDECREF(none);
    Py_XDECREF(note);
    PyErr_Clear(); /* a note that cannot be added is no reason to lose the exception */
    PyErr_Restore(type, value, traceback);
}

void
py_raise_from(PyObject *kind, const char *format, const char *name)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    PyObject *text = PyUnicode_FromFormat(format, name);
    if (text != NULL) {
        PyErr_Format(kind, "%U: %S", text, value);
    }
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    PyErr_Fetch(&type, &text, &traceback);
    PyErr_NormalizeException(&type, &text, &traceback);
    PyException_SetCause(text, value); /* takes over both */
    PyErr_Restore(type, text, traceback);
}

/* ---- what is refused ------------------------------------------------------------- */

/* Is object an instance of module.type? A module nobody imported has no instances, so
 * this imports nothing. */
static int
is_instance_of(PyObject *object, const char *module, const char *type)
{
    int result = -1;
    PyObject *name = NULL, *mod = NULL, *cls = NULL;

    name = PyUnicode_FromString(module);
    if (name == NULL) {
        goto done;
    }
    mod = PyImport_GetModule(name);
    if (mod == NULL) {
        result = PyErr_Occurred() ? -1 : 0;
        goto done;
    }
    cls = PyObject_GetAttrString(mod, type);
    if (cls != NULL) {
        result = PyObject_IsInstance(object, cls);
    }
done:
    Py_XDECREF(cls);
    Py_XDECREF(mod);
    Py_XDECREF(name);
    return result;
}

int
py_refuse_subclass(PyArrayObject *a, const char *name)
{
    if (PyArray_CheckExact(a)) {
        return 0;
    }
    int masked = is_instance_of((PyObject *)a, "numpy.ma", "MaskedArray");
    int matrix = masked ? 0
                        : is_instance_of((PyObject *)a, "numpy.matrixlib", "matrix");
    if (masked == 1) {
        PyErr_Format(
            PyExc_TypeError,
            "%s is a numpy.ma.MaskedArray, whose mask would be lost; expected a plain "
            "array (for padding, use valid_lens)",
            name);
    } else if (matrix == 1) {
        PyErr_Format(PyExc_TypeError,
                     "%s is a numpy.matrix, expected a plain array "
                     "(numpy.asarray of it)",
                     name);
    }
    return masked == 0 && matrix == 0 ? 0 : -1;
}

/* A torch tensor that wants gradients cannot have them from here. */
static int
refuse_requires_grad(PyObject *object, const char *name)
{
    PyObject *requires_grad = PyObject_GetAttrString(object, "requires_grad");
    if (requires_grad == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            py_note_argument(name);
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    bool refused = requires_grad == Py_True;
    Py_DECREF(requires_grad);
    if (refused) {
        PyErr_Format(
            PyExc_TypeError,
            "%s is a tensor that requires grad, which a NumPy function cannot give it: "
            "use the function of the same name in attnext.torch, or pass %s.detach()",
            name, name);
    }
    return refused ? -1 : 0;
}

/* NumPy could not read the object: say which argument it was. */
static void
name_the_argument(const char *name)
{
    PyObject *kind = PyErr_Occurred();
    if (kind == PyExc_ValueError || kind == PyExc_TypeError ||
        kind == PyExc_RuntimeError) {
        py_raise_from(kind, "%s cannot be read as an array", name);
    } else {
        py_note_argument(name);
    }
}

/* What NumPy before 1.24 makes of lists of different lengths: an array of lists. Those of
 * others hold what they say they do, objects or not. */
static bool
is_ragged(PyObject *object, PyArrayObject *a)
{
    return (PyList_Check(object) || PyTuple_Check(object)) &&
           PyArray_TYPE(a) == NPY_OBJECT && PyArray_SIZE(a) > 0 &&
           PyList_Check(*(PyObject **)PyArray_DATA(a));
}

PyArrayObject *
py_read_array(PyObject *object, const char *name)
{
    PyArrayObject *a;
    if (PyArray_Check(object)) {
        a = (PyArrayObject *)Py_NewRef(object);
    } else {
        if (!PyList_CheckExact(object) && refuse_requires_grad(object, name) < 0) {
            return NULL;
        }
        a = (PyArrayObject *)PyArray_FROM_O(object);
        if (a == NULL) {
            name_the_argument(name);
            return NULL;
        }
        if (is_ragged(object, a)) {
            PyErr_Format(PyExc_ValueError,
                         "%s cannot be read as an array: its lists have different "
                         "lengths",
                         name);
            Py_DECREF(a);
            return NULL;
        }
    }
    if (py_refuse_subclass(a, name) < 0) {
        Py_CLEAR(a);
    }
    return a;
}

int
py_dtype_error(PyObject *object, PyArrayObject *a, const char *name,
               const char *expected)
{
    bool no_array_at_all = PyArray_TYPE(a) == NPY_OBJECT && PyArray_NDIM(a) == 0;
    if (object == Py_None) {
        PyErr_Format(PyExc_TypeError, "%s is None, expected %s", name, expected);
    } else if (no_array_at_all) {
        PyErr_Format(PyExc_TypeError, "%s is of type %.200s, expected %s", name,
                     Py_TYPE(object)->tp_name, expected);
    } else {
        PyErr_Format(PyExc_TypeError, "%s has dtype %S, expected %s", name,
                     PyArray_DESCR(a), expected);
    }
    return -1;
}

bool
py_is_empty_list(PyObject *object, PyArrayObject *a)
{
    return PyArray_SIZE(a) == 0 && (PyList_Check(object) || PyTuple_Check(object));
}

/* ---- memory in common ------------------------------------------------------------ */

/* The bytes between *low and *high hold every element of a (none if a is empty). */
static void
extent(PyArrayObject *a, const char **low, const char **high)
{
    *low = *high = PyArray_BYTES(a);
    if (PyArray_SIZE(a) == 0) {
        return;
    }
    for (int i = 0; i < PyArray_NDIM(a); i++) {
        npy_intp reach = (PyArray_DIM(a, i) - 1) * PyArray_STRIDE(a, i);
        *(reach < 0 ? low : high) += reach;
    }
    *high += PyArray_ITEMSIZE(a);
}

/* Extents that cross need not share an element (the even rows of an array and its third
 * row): those NumPy decides. */
int
py_refuse_overlap(PyArrayObject *out, PyArrayObject *input, const char *name)
{
    const char *low, *high, *out_low, *out_high;
    extent(input, &low, &high);
    extent(out, &out_low, &out_high);
    if (low >= out_high || out_low >= high || low == high || out_low == out_high) {
        return 0;
    }
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (numpy == NULL) {
        return -1;
    }
    PyObject *answer = PyObject_CallMethod(numpy, "shares_memory", "OOi",
                                           (PyObject *)out, (PyObject *)input, 100000);
    Py_DECREF(numpy);
    bool shared = answer == Py_True;
    if (answer == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) {
            return -1;
        }
        PyErr_Clear(); /* TooHardError: undecided counts as shared */
        shared = true;
    }
    Py_XDECREF(answer);
    if (shared) {
        PyErr_Format(PyExc_ValueError,
                     "out shares memory with %s, expected memory of its own", name);
    }
    return shared ? -1 : 0;
}
