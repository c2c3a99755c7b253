/*
 * py_attnext.h -- what the files of the Python door share.
 *
 *     py_module.c      the module: its state, start-up
 *     py_config.c      threads and configuration
 *     py_arguments.c   from a call's arguments to named slots, numbers and flags
 *     py_read.c        any object as an array of whatever dtype, and what is refused
 *     py_arrays.c      from there to arrays of known dtype and shape
 *     py_lengths.c     valid lengths, in every shape they may come
 *     py_masks.c       mask, bias, dropout_mask, causal and window
 *     py_run.c         one call into the core: threads, GIL, scratch, Ctrl-C
 *     py_softmax.c  py_merge.c           exposed functions that are no attention
 *     py_docs.h        the paragraphs that docstrings share
 *     py_attention.h   the attention functions, and the files they consist of
 *     py_modules.h     the exposed types, and theirs
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

/* ---- arguments (py_arguments.c) -------------------------------------------------- */

/* Every argument name of every function and method, once. A parsed call is an array
 * PyObject *given[ARG_COUNT] of borrowed references, NULL where nothing was passed. */
typedef enum {
    ARG_END, /* ends a signature */
    ARG_X,
    ARG_QUERIES,
    ARG_KEYS,
    ARG_VALUES,
    ARG_VALID_LENS,
    ARG_VALID_LEN,
    ARG_VALUE,
    ARG_W_Q,
    ARG_W_K,
    ARG_W_V,
    ARG_B_H,
    ARG_SCALE,
    ARG_W,
    ARG_SIGMA,
    ARG_EPS,
    ARG_MASK,
    ARG_BIAS,
    ARG_CAUSAL,
    ARG_CAUSAL_OFFSET,
    ARG_WINDOW,
    ARG_ENABLE_GQA,
    ARG_DROPOUT_P,
    ARG_SEED,
    ARG_DROPOUT_MASK,
    ARG_EMPTY_ROWS,
    ARG_RETURN_WEIGHTS,
    ARG_RETURN_LSE,
    ARG_OUT,
    ARG_GRAD_OUTPUT,
    ARG_GRAD_WEIGHTS,
    ARG_GRAD_LSE,
    ARG_WEIGHTS,
    ARG_OUTPUT,
    ARG_LSE,
    ARG_RETURN_GRAD_BIAS,
    ARG_OUTPUTS,
    ARG_LSES,
    ARG_N,
    ARG_MODE,
    ARG_NEED_WEIGHTS,
    ARG_CONTEXT,
    ARG_COUNT
} py_arg;

/* A signature: its arguments in order, the first `required` of them required, the first
 * `positional` of them allowed by position, the rest by keyword only. */
typedef struct {
    const char *function; /* for messages: "masked_softmax" */
    int required, positional;
    unsigned char args[32]; /* of py_arg; what follows the last is ARG_END */
} py_signature;

typedef struct attnext_state attnext_state;

/* Fills state->names. */
int py_intern_names(attnext_state *state);

/* Sorts a METH_FASTCALL | METH_KEYWORDS (or vectorcall) call into given[ARG_COUNT].
 * Missing, unknown, doubled or too many arguments: TypeError. */
int py_parse(const attnext_state *state, const py_signature *signature,
             PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
             PyObject **given);

static inline bool
py_is_given(PyObject *object)
{
    return object != NULL && object != Py_None;
}

/* A real number: a Python or NumPy number, a 0-d array, or, where one_element says so,
 * any array or list of one element. bool and complex: TypeError. May be inf or nan. */
int py_number(PyObject *object, const char *name, bool one_element, double *number);

/* One that is finite as float32, else ValueError. */
int py_finite(PyObject *object, const char *name, bool one_element, float *number);

/* 0 <= p < 1 as float32, else ValueError. */
int py_dropout(PyObject *object, const char *name, float *p);

/* An int 0 <= seed < 2**64. */
int py_seed(PyObject *object, const char *name, uint64_t *seed);

/* "uniform", "zero" or "nan"; not given: uniform. */
int py_empty_rows(PyObject *object, attn_empty_rows *rule);

/* Truth of any object; NULL: false. */
static inline int
py_flag(PyObject *object, bool *flag)
{
    int truth = object == NULL ? 0 : PyObject_IsTrue(object);
    *flag = truth == 1;
    return truth < 0 ? -1 : 0;
}

/* ---- reading (py_read.c) --------------------------------------------------------- */

/* object as an array of whatever dtype it has. */
PyArrayObject *py_read_array(PyObject *object, const char *name);

/* TypeError for subclasses of ndarray whose meaning would be lost: a masked array's
 * mask, the rules of np.matrix. Others (memmap, a user's own) are read as they are. */
int py_refuse_subclass(PyArrayObject *a, const char *name);

/* ValueError if any element of `input` lies in out. */
int py_refuse_overlap(PyArrayObject *out, PyArrayObject *input, const char *name);

/* Sets the TypeError "name has dtype ..., expected ...", where object was read as a;
 * returns -1. */
int py_dtype_error(PyObject *object, PyArrayObject *a, const char *name,
                   const char *expected);

/* NumPy calls [] floats, whatever it is meant to be. */
bool py_is_empty_list(PyObject *object, PyArrayObject *a);

/* ---- arrays (py_arrays.c) -------------------------------------------------------- */

/* More axes than any NumPy array has (64; 32 before NumPy 2). */
enum { PY_MAX_AXES = 64 };

/* In all of these, `name` is used in messages, and out is NULL or the array given as
 * out=, with which object must not share memory (ValueError). */

/* object as a float32, C-contiguous, aligned array in native byte order: itself when it
 * is one, else a converted copy. */
PyArrayObject *py_float32(PyObject *object, const char *name, PyArrayObject *out);

/* The same of floats only: of any dtype, but no integers and no bools. */
PyArrayObject *py_floats(PyObject *object, const char *name, PyArrayObject *out);

/* A dim of an expected shape that is not a number but a letter: it fits every size, and
 * messages show it: "keys has shape (2, 3, 4), expected (2, N, 5)". */
enum {
    PY_M = -1,
    PY_N = -2,
    PY_H = -3,
    PY_D = -4,
    PY_DQ = -5,
    PY_DK = -6,
    PY_DV = -7,
    PY_HEADS = -8
};

bool py_shape_fits(PyArrayObject *a, int ndim, const npy_intp *dims);

/* ValueError unless a has exactly this shape. */
int py_check_shape(PyArrayObject *a, const char *name, int ndim, const npy_intp *dims);

/* py_float32 and py_check_shape in one. */
PyArrayObject *py_float32_shaped(PyObject *object, const char *name, PyArrayObject *out,
                                 int ndim, const npy_intp *dims);

/* w_v, which may be (H,) or (1, H); returned in the shape given. */
PyArrayObject *py_float32_w_v(PyObject *object, PyArrayObject *out, npy_intp H);

/* A new float32 array, contents undefined. Sizes that overflow: ValueError. */
PyArrayObject *py_new_float32(int ndim, const npy_intp *dims);

/* object given as out=: *out is NULL if not given, else a new reference to it, known to
 * be a writable float32 C-contiguous array. Its shape is for py_check_shape. */
int py_out(PyObject *object, PyArrayObject **out);

/* Integers as a private int64 array in the shape given, those below low or above high
 * moved to the ends. Floats are a TypeError with a hint; bools are one that says
 * "expected <not_bools>". */
PyArrayObject *py_int64_copy(PyObject *object, const char *name, const char *not_bools,
                             int64_t low, int64_t high, PyArrayObject *out);

/* The same of n integers in one of the forms they mostly have, without an array: a list
 * of Python ints, or a plain int64 array of shape (n,). false: another form; nothing is
 * raised. */
bool py_usual_integers(PyObject *object, npy_intp n, int64_t low, int64_t high,
                       int64_t *to);

/* The arguments that are masks. */
typedef enum { PY_MASK, PY_DROPOUT_MASK } py_mask_name;
extern const char *const py_mask_names[];

/* object as an array of bools whose last axis is contiguous, or of size 1, or repeats
 * one element: itself when it is one, whatever its other strides. */
PyArrayObject *py_bools(PyObject *object, py_mask_name which, PyArrayObject *out);

/* Sets the ValueError "name has shape (...), expected ..."; returns -1. */
int py_shape_error(PyArrayObject *a, const char *name, const char *expected);

/* "(2, N, 4)": at most 20 digits and a separator for each axis. */
enum { PY_SHAPE_TEXT = PY_MAX_AXES * 22 + 4 };
const char *py_shape_text(char text[PY_SHAPE_TEXT], int ndim, const npy_intp *dims);

/* dims = the shape of a; how many axes that is. */
static inline int
py_note_shape(PyArrayObject *a, npy_intp dims[PY_MAX_AXES])
{
    for (int i = 0; i < PyArray_NDIM(a); i++) {
        dims[i] = PyArray_DIM(a, i);
    }
    return PyArray_NDIM(a);
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

/* ---- valid lengths (py_lengths.c) ------------------------------------------------ */

/* How many batch entries share one entry of the first axis of rows (..., M). */
npy_intp py_heads(int ndim, const npy_intp *rows);

/* So many lengths, one per batch entry, need no array of their own. */
enum { PY_FEW_LENS = 16 };

/* The valid lengths of rows `rows` = queries.shape[:-1] with N keys: None, an int, or
 * integers of shape rows[:1], (rows[0], M) or rows. Fills *valid, and *lens with the
 * private int64 copy it points into (NULL if not given), in the shape given, every
 * length clipped to 0..N. few: NULL, or room for PY_FEW_LENS, where the copy may lie
 * instead; *lens is then NULL too. */
int py_valid_lens(PyObject *object, int ndim, const npy_intp *rows, npy_intp N,
                  PyArrayObject *out, attn_valid_lens *valid, PyArrayObject **lens,
                  int64_t *few);

/* One length in 0..N per entry of an axis of B: integers of shape (B,), or an int,
 * which is repeated B times if `expand` says so and else comes as a 0-d array. */
PyArrayObject *py_lens_per_entry(PyObject *object, const char *name, npy_intp B,
                                 npy_intp N, bool expand);

/* ---- masks (py_masks.c) ---------------------------------------------------------- */

/* A mask of pairs dims = (..., M, N), bools of a shape that broadcasts to it: as an
 * array, and as the view of it that the core reads, which points into both. */
PyArrayObject *py_mask(PyObject *object, py_mask_name which, int ndim,
                       const npy_intp *dims, PyArrayObject *out, attn_view *view,
                       attn_axis axes[PY_MAX_AXES]);

/* The same for bias: floats, float32 and C-contiguous afterwards. */
PyArrayObject *py_bias(PyObject *object, int ndim, const npy_intp *dims,
                       PyArrayObject *out, attn_view *view,
                       attn_axis axes[PY_MAX_AXES]);

/* Fills *band from window, a pair or None, causal, and causal_offset, an int or
 * integers of shape rows[:1], NULL if not given; *offsets is the private copy it points
 * into. */
int py_band(PyObject *window, bool causal, PyObject *offset, int ndim,
            const npy_intp *rows, PyArrayObject *out, attn_band *band,
            PyArrayObject **offsets);

/* ---- running the core (py_run.c) ------------------------------------------------- */

/* One call into the core:
 *     py_run run;
 *     py_plan(&run, state, work);
 *     void *scratch = py_scratch(&run, attn_..._workspace(p, run.run.threads));
 *     py_enter(&run);
 *     int rc = attn_...(..., scratch, &run.run);
 *     result = py_leave(&run, rc);
 * work: in multiply-adds. Below some 10 us of it the GIL is kept and one thread does
 * all. */
typedef struct {
    attn_run run;
    bool release;          /* is the work worth giving up the GIL? */
    bool raised;           /* a signal handler raised, and the exception is set */
    PyThreadState *thread; /* set while the GIL is given up */
    void *heap;            /* scratch too big for `stack` */
    _Alignas(64) char stack[32 * 1024];
} py_run;

void py_plan(py_run *run, attnext_state *state, double work);
void py_enter(py_run *run);

/* NULL: ValueError or MemoryError is set. */
void *py_scratch(py_run *run, size_t bytes);

/* Frees the scratch. -1: a signal handler raised. */
int py_leave(py_run *run, int rc);

/* ---- the module (py_module.c) ---------------------------------------------------- */

struct attnext_state {
    PyObject *names[ARG_COUNT];  /* interned argument names, to compare by identity */
    PyObject *AdditiveGradients; /* the named tuple */

    /* Made by py_modules.c; Context is the type of their .context. */
    PyTypeObject *AdditiveAttention, *DotProductAttention, *Context;

    int threads; /* of set_num_threads; changed and read under the GIL */
};

/* The state, from the module, or from a type made by PyType_FromModuleAndSpec or a
 * subclass of one. */
attnext_state *py_state_of_module(PyObject *module);
attnext_state *py_state_of_type(PyTypeObject *type);

/* The functions each file exposes, ended by a zero entry. PY_FUNCTION makes the entry
 * of `name`, documented by `name_doc`. */
/* clang-format off */
#define PY_FUNCTION(name) \
    {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL | METH_KEYWORDS, \
     name##_doc}
/* clang-format on */
extern PyMethodDef py_config_functions[], py_softmax_functions[], py_dot_functions[],
    py_cosine_functions[], py_additive_functions[], py_gaussian_functions[],
    py_merge_functions[];

/* py_modules.c: makes its types, puts them in *state and adds them to the module. The
 * state's references are visited and cleared by py_module.c. */
int py_modules_exec(PyObject *module, attnext_state *state);

#endif
