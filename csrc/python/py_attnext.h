/*
 * py_attnext.h -- what the files of the door share; which file does what: CONTRIBUTING.md.
 *
 * Conventions. `int` functions return 0, or -1 with a Python exception set; functions
 * that return a pointer return a new reference, or NULL with an exception set. A
 * PyObject * that is passed in is borrowed. "Not given" is NULL or None. Letters (B M N
 * H Dq Dk Dv D): attn.h.
 */
#ifndef PY_ATTNEXT_H
#define PY_ATTNEXT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define PY_ARRAY_UNIQUE_SYMBOL attnext_numpy_api
#ifndef ATTNEXT_IMPORTS_NUMPY /* py_module.c alone fills NumPy's table of functions */
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <stdbool.h>
#include <stdint.h>

#include "../core/attn.h"
#include "../core/view.h"

typedef struct attnext_state attnext_state;

/* For a function that says what is wrong: the room its text takes is no part of its
 * caller's frame, on top of which Python code may run and call us again. */
#define PY_COLD __attribute__((cold, noinline))

/* ---- without a GIL --------------------------------------------------------------- */

/* What reads or changes several members of an object that threads share stands between
 * these two, and no return with it: a critical section, since CPython 3.13; where there is
 * a GIL, that is it. As there, others may come in where Python code runs or the core is
 * waited for. */
#ifndef Py_BEGIN_CRITICAL_SECTION
#define Py_BEGIN_CRITICAL_SECTION(object) \
    {                                     \
        (void)(object);
#define Py_END_CRITICAL_SECTION() }
#endif

/* dict[key], a new reference; NULL: there is none, or an exception is set. */
static inline PyObject *
py_item(PyObject *dict, PyObject *key)
{
#if PY_VERSION_HEX >= 0x030D0000 /* others may take it out meanwhile */
    PyObject *item;
    PyDict_GetItemRef(dict, key, &item);
    return item;
#else
    return Py_XNewRef(PyDict_GetItemWithError(dict, key));
#endif
}

/* ---- arguments (py_signature.c) -------------------------------------------------- */

/* A parsed call is an array PyObject *given[ARG_COUNT] of borrowed references, NULL
 * where nothing was passed. */
typedef enum {
    ARG_END, /* ends a signature */
#define ARGUMENT(ID, ...) ARG_##ID,
#include "py_options.def"
    ARG_COUNT
} py_arg;

/* The scores of attn.h, numbered, and behind them multi-head attention, which is an
 * attention in every respect but that there are no functions of its scores alone. */
typedef enum {
#define NUMBER(ID) SCORE_##ID,
    ATTN_SCORES(NUMBER)
#undef NUMBER
        SCORE_multi_head,
    SCORE_COUNT
} py_score_number;

/* A signature: its arguments in order, the first `required` of them required, the first
 * `positional` of them allowed by position, the rest by keyword only. */
typedef struct {
    const char *function; /* "masked_softmax" */
    int required, positional;
    unsigned char args[ARG_COUNT]; /* of py_arg; what follows the last is ARG_END */
    unsigned char keyword; /* of py_arg: a keyword that is required; or ARG_END */
    bool method;           /* help() shows $self */
    py_score_number score; /* whose parameters these are, if there are any */
} py_signature;

/* Fills state->names. */
int py_intern_names(attnext_state *state);

/* The name of an argument as an object, borrowed. */
PyObject *py_argument_name(const attnext_state *state, const py_signature *signature,
                           py_arg arg);

/* "name(a, b=None, *, c=0": as help() shows it, but for the end. */
PyObject *py_signature_text(const attnext_state *state, const py_signature *signature);

/* Sorts a METH_FASTCALL | METH_KEYWORDS (or vectorcall) call into given[ARG_COUNT], where
 * all is NULL. Missing, unknown, doubled or too many arguments: TypeError. */
int py_parse(const attnext_state *state, const py_signature *signature,
             PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
             PyObject **given);

static inline bool
py_is_given(PyObject *object)
{
    return object != NULL && object != Py_None;
}

/* ---- reading (py_read.c) --------------------------------------------------------- */

/* object as an array of real numbers, a new reference; what is wrong with it is said with its
 * name. Unless it is one, this runs code, anybody's. */
PyObject *py_read_real(PyObject *object, const char *name);

/* A plain number. */
static inline double
py_number(PyObject *object)
{
    return PyFloat_Check(object) ? PyFloat_AS_DOUBLE(object) : PyLong_AsDouble(object);
}

/* "uniform", "zero" or "nan", of attn_empty_rows; -1: another object. */
int py_rule(PyObject *object);

/* All arguments of a parsed call as what fits, but for None where that is nothing. *owned,
 * NULL before, is a list that keeps what was read, or NULL. */
int py_make_plain(const attnext_state *state, const py_signature *signature,
                  PyObject **given, PyObject **owned);

/* Is nothing read of an argument of this name, whatever the function? What has another
 * name is a parameter of a score. */
bool py_is_ready(const attnext_state *state, PyObject *name, PyObject *object);

/* Is what fits read too? ATTNEXT_DEFER in the environment, so that a run of the tests tries
 * every reader. */
extern bool py_defers;

/* ---- the way to Python (py_defer.c) ---------------------------------------------- */

/* module.function(*facts), facts as Py_BuildValue has them, of a tuple; and where what it
 * returns is of no use: */
PyObject *py_ask(const char *module, const char *function, const char *facts, ...);

static inline int
py_told(PyObject *answer)
{
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

/* Appends what was made, and gives up its reference; -1 if that is NULL. */
int py_append(PyObject *list, PyObject *made);

/* Something is wrong with an argument: raises what attnext._wrong.<what>(*facts) makes of
 * it, and returns -1. */
int py_wrong(const char *what, const char *facts, ...);

/* A shape, as a fact; and an error about one: */
PyObject *py_dims(int ndim, const npy_intp *dims);
int py_shape_error(PyArrayObject *a, const char *name, const char *expected);

/* ---- arrays (py_arrays.c) -------------------------------------------------------- */

/* As many axes as any NumPy array has (64; 32 before NumPy 2), and one of heads. */
enum { PY_MAX_AXES = 65 };

/* In all of these, `name` is used in messages. */

/* Is object what the core reads: an array of this dtype, C-contiguous and native? */
bool py_is_plain(PyObject *object, int dtype);

/* object as a float32, C-contiguous, aligned array in native byte order: itself when it
 * is one, else a converted copy. */
PyArrayObject *py_float32(PyObject *object, const char *name);

/* A dim of an expected shape that is not a number but a letter: it fits every size, and
 * messages show it: "keys has shape (2, 3, 4), expected (2, N, 5)" (attnext/_wrong.py). */
enum { PY_N = -2, PY_H = -3, PY_DK = -6, PY_DV = -7, PY_HEADS = -8 };

bool py_dims_fit(int own, const npy_intp *came, int ndim, const npy_intp *dims);

static inline bool
py_shape_fits(PyArrayObject *a, int ndim, const npy_intp *dims)
{
    return py_dims_fit(PyArray_NDIM(a), PyArray_DIMS(a), ndim, dims);
}

/* ValueError unless a has exactly this shape. */
int py_check_shape(PyArrayObject *a, const char *name, int ndim, const npy_intp *dims);

/* object as aligned native float32 whose last axis is contiguous or repeats one element: itself,
 * or a copy that is no larger than its distinct data (py_rows.c). */
PyArrayObject *py_floats_for_pairs(PyObject *object, const char *name);

/* py_float32 and py_check_shape in one. */
PyArrayObject *py_float32_shaped(PyObject *object, const char *name, int ndim,
                                 const npy_intp *dims);

/* Sizes by letter: sizes['H' - 'A'] is how large an axis with the letter H is. */
enum { PY_LETTERS = 26, PY_PARAMETER_AXES = 4 };

/* dims = the shape that a score gives a parameter by letters (attn.h), a leading axis of
 * size 1 included; how many axes that is. */
int py_letter_shape(const char *letters, const npy_intp sizes[PY_LETTERS],
                    npy_intp dims[PY_PARAMETER_AXES]);

/* A parameter as float32, in the shape given, which may lack the leading axis of size 1.
 * A size that is one of the letters above becomes that of the array. */
PyArrayObject *py_parameter(PyObject *object, const char *name, const char *letters,
                            npy_intp sizes[PY_LETTERS]);

/* The array that is given as out; ValueError unless it has this shape. */
PyArrayObject *py_out(PyObject *out, int ndim, const npy_intp *dims);

/* dims = the shape of a; how many axes that is. */
static inline int
py_note_shape(PyArrayObject *a, npy_intp dims[PY_MAX_AXES])
{
    for (int i = 0; i < PyArray_NDIM(a); i++) {
        dims[i] = PyArray_DIM(a, i);
    }
    return PyArray_NDIM(a);
}

static inline attn_array
py_array(PyArrayObject *a)
{
    return (attn_array){PyArray_BYTES(a), PyArray_NDIM(a), PyArray_DIMS(a),
                        PyArray_STRIDES(a), PyArray_ITEMSIZE(a)};
}

static inline float *
py_data(PyArrayObject *a) /* NULL for NULL */
{
    return a ? (float *)PyArray_DATA(a) : NULL;
}

/* array, or None for NULL; borrowed. */
static inline PyObject *
py_or_none(PyArrayObject *array)
{
    return array != NULL ? (PyObject *)array : Py_None;
}

/* ---- memory (py_memory.c) --------------------------------------------------------- */

/* A new float32 array, contents undefined. Sizes that overflow: ValueError. */
PyArrayObject *py_new_float32(int ndim, const npy_intp *dims);

/* ---- integers (py_arrays.c) ------------------------------------------------------- */

int64_t py_clip_int(PyObject *integer, int64_t low, int64_t high);

/* Twice as far as any key is from any query, and so small that the core can add. */
static const int64_t PY_FAR = (int64_t)1 << 61;

/* The offsets of a band, an int or integers of shape rows[:1]: a private copy, which
 * may be given again, and where *band reads them. */
PyArrayObject *py_offsets(PyObject *object, int ndim, const npy_intp *rows,
                          attn_band *band);

/* So many lengths need no array of their own. */
enum { PY_FEW_LENS = 16 };

/* Valid lengths, for rows `rows` = queries.shape[:-1], of N keys: None, an int, or integers
 * of shape rows[:1], (rows[0], M) or rows. Fills *valid, and *lens with the
 * private int64 copy it points into (NULL if not given), in the shape given, every
 * length clipped to 0..N. few: NULL, or room for PY_FEW_LENS, where the copy may lie
 * instead; *lens is then NULL too. */
int py_valid_lens(PyObject *object, const char *name, int ndim, const npy_intp *rows,
                  npy_intp N, attn_valid_lens *valid, PyArrayObject **lens,
                  int64_t *few);

/* ---- masks (py_masks.c) ---------------------------------------------------------- */

/* mask, dropout_mask (bools), bias (floats), sink (real, finite or -inf), scale (real and
 * finite), of a shape that broadcasts to that of the pairs, dims = (..., M, N), that of a
 * sink to (..., M), of a scale to (...): as an array, and as the view of it that the core
 * reads, which points into it and is to be cleared. makes_heads: the last leading axis of
 * dims is the call's own, and not its queries'. dense: a bias has to be C-contiguous, for its
 * gradient. */
PyArrayObject *py_pairs(PyObject *object, py_arg which, bool makes_heads, bool dense,
                        int ndim, const npy_intp *dims, attn_view *view);
void py_view_clear(attn_view *view);

/* ---- tables and docstrings (py_tables.c) ---------------------------------------- */

/* Which forms of an attention take an argument of py_options.def: any that is named, and
 * IF_ says what the score has to be for that. Python sees the TAKERS. SCALED: the backwards
 * of a score whose scale is a factor. */
enum { FORWARD = 1, BACKWARD = 2, LAYER_CALL = 4, LAYER_BACKWARD = 8, SCORES = 16 };
enum { SCALED = 32, TAKERS = 63, FUNCTIONS = FORWARD | BACKWARD | SCORES };
/* All but a layer's backward, whose inputs are in its context; of those, what has values. */
enum { INPUTS = 1 << 6, POOLED = 1 << 7, BACKWARDS = 1 << 8 };
enum { KEEPING = 1 << 9, KEEPING_BACKWARD = 1 << 10 };
/* It makes heads itself, or not; and has eps, or an ATTN_SCALE_ROOT, ... */
enum { IF_HEADS = 1 << 12, IF_WHOLE = 1 << 13, IF_EPS = 1 << 14 };
enum { IF_ROOT = 1 << 15, IF_ONE = 1 << 16, IF_BANDWIDTH = 1 << 17, IFS = 63 << 12 };

/* What the table says of an argument: standard is its default, as text. */
typedef struct {
    const char *name, *standard;
    int taken_by;
    bool shared; /* an OPTION or an ARRAY of all attentions */
} py_argument_row;

extern const py_argument_row py_argument_rows[ARG_COUNT];

/* An exposed function. */
typedef struct {
    const py_signature *signature;
    PyCFunction function;
} py_function;

#define PY_FASTCALL(function) (PyCFunction)(void (*)(void))(function)

/* What a function of the module does once its arguments are plain; and a call of it: parsed,
 * made plain, and handed on (py_signature.c). */
typedef PyObject *py_body(attnext_state *state, PyObject *const *given);
PyObject *py_call_body(PyObject *module, const py_signature *signature, py_body *body,
                       PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* NAME, of these arguments, the first REQUIRED, the first POSITIONAL of which are so, as
 * CPython calls it: py_NAME. */
#define PY_EXPOSED(NAME, BODY, REQUIRED, POSITIONAL, ...)                            \
    static const py_signature NAME##_signature = {.function = #NAME,                 \
                                                  .required = REQUIRED,              \
                                                  .positional = POSITIONAL,          \
                                                  .args = {__VA_ARGS__}};            \
    static PyObject *NAME(PyObject *module, PyObject *const *args, Py_ssize_t nargs, \
                          PyObject *kwnames)                                         \
    {                                                                                \
        return py_call_body(module, &NAME##_signature, BODY, args, nargs, kwnames);  \
    }                                                                                \
    const py_function py_##NAME = {&NAME##_signature, PY_FASTCALL(NAME)};

/* *method = the function, with its signature for help(): METH_FASTCALL | METH_KEYWORDS |
 * flags. Static: functions point there. */
int py_fill_method(const attnext_state *state, const py_function *function, int flags,
                   PyMethodDef *method);

/* Gives everything exposed its words, attnext._docs.join(module, add). */
int py_join_docs(PyObject *module);

/* ---- the scores (py_functions.c) ------------------------------------------------- */

/* What a score is exposed as: functions of the attention and of its scores alone; those
 * that keep what their backward may use, for attnext.torch, of multi-head attention alone;
 * and what its layer does, if there is one. The odd ones are backward. */
typedef enum {
    OF_ATTENTION,
    OF_ATTENTION_BACKWARD,
    OF_SCORES,
    OF_SCORES_BACKWARD,
    OF_KEEPING,
    OF_KEEPING_BACKWARD,
    OF_LAYER,
    OF_LAYER_BACKWARD,
    PY_FORMS
} py_form;

static inline bool
py_is_backward(py_form form)
{
    return form % 2 != 0;
}

static inline bool
py_is_of_layer(py_form form)
{
    return form >= OF_LAYER;
}

typedef struct {
    const attn_score *score;
    const attn_score_info *about;
    int parameters;    /* how many it has */
    bool own_key_size; /* Dk may differ from Dq */
    py_signature signatures[PY_FORMS];
} py_score;

/* Those of all forms, of a score with this number (py_signature.c). */
void py_write_signatures(py_score *score, py_score_number number);

/* Fills state->scores, and adds their functions and tables to the module. */
int py_scores_exec(PyObject *module, attnext_state *state);

/* Has attnext/_tables.py make OPTIONS, SCORES, ATTENTIONS and the named tuples of
 * gradients, of which the scores are told (py_tables.c). */
int py_fill_tables(PyObject *module, attnext_state *state);

/* ---- the module (py_module.c) ---------------------------------------------------- */

enum { STATE_OBJECTS = ARG_COUNT + SCORE_COUNT * (ATTN_PARAMETERS + 2) + 2 };
struct attnext_state {
    union {
        struct {
            PyObject *names[ARG_COUNT]; /* interned, to compare by identity */
            PyObject *parameter_names[SCORE_COUNT][ATTN_PARAMETERS];

            /* The named tuple of a score with parameters, else None. */
            PyObject *gradients[SCORE_COUNT];

            /* Made by py_layer.c: the layers of those attentions that have one, Context,
             * the type of their .context, and Memory, that of what their memory() makes. */
            PyTypeObject *layers[SCORE_COUNT], *Context, *Memory;
        };
        PyObject *objects[STATE_OBJECTS]; /* the same */
    };
    py_score scores[SCORE_COUNT];
    _Atomic int threads; /* of set_num_threads */
};

/* The state, from the module, or from a type made by PyType_FromModuleAndSpec or a
 * subclass of one. */
attnext_state *py_state_of_module(PyObject *module);
attnext_state *py_state_of_type(PyTypeObject *type);

/* The functions that are no attention. */
#define PY_FUNCTIONS(ITEM)        \
    ITEM(masked_softmax)          \
    ITEM(masked_softmax_backward) \
    ITEM(sequence_mask)           \
    ITEM(merge_attention)         \
    ITEM(merge_attention_backward)
#define DECLARE(NAME) extern const py_function py_##NAME;
PY_FUNCTIONS(DECLARE)
#undef DECLARE
extern PyMethodDef py_config_methods[];

/* py_layer.c: makes its types, puts them in *state and adds them to the module. The
 * state's references are visited and cleared by py_module.c. Sealed, types cannot be
 * changed any more. */
int py_layers_exec(PyObject *module, attnext_state *state);
void py_layers_seal(const attnext_state *state);

#endif
