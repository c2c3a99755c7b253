/*
 * py_layer.h -- what the files of the exposed types share. An object of any of them is
 * called a layer.
 *
 * What need not be fast is in attnext/_layers.py: train, state dicts, pickle, repr;
 * and what a constructor is given, in attnext/_constructors.py.
 *
 * Python code may run in the middle of anything: a conversion, a finaliser, another
 * thread while the core works without the GIL. So a method works on a layer_core it
 * holds itself, and what it changes it changes at the end, in one go.
 */
#ifndef PY_LAYER_H
#define PY_LAYER_H

#include "py_call.h"

/* ---- a layer (py_layer.c) -------------------------------------------------------- */

/* What a constructor makes and a copy takes over; and the last forward. */
enum {
    CORE_LIVE = ATTN_PARAMETERS,
    CORE_GRADS,
    CORE_RNG,
    CORE_SCALE,
    CORE_CONTEXT,
    CORE_WEIGHTS,
    CORE_IDENTITY,
    CORE_OBJECTS
};
typedef struct {
    const py_score *score;
    Py_ssize_t key_size, query_size, num_hiddens;   /* with parameters: Dk, Dq, H */
    Py_ssize_t value_size, num_heads, num_kv_heads; /* multi-head */
    double dropout;                                 /* as given, for repr */
    bool training;
    union {
        struct {
            PyArrayObject *parameters[ATTN_PARAMETERS]; /* NULL where there is none */
            PyObject *live;     /* dict: name -> parameter, for attnext/_layers.py */
            PyObject *grads;    /* dict: name -> array, open to the user */
            PyObject *rng;      /* numpy.random.Generator */
            PyObject *scale;    /* float; dot: NULL means 1/sqrt(D) */
            PyObject *context;  /* of the last forward, NULL before the first */
            PyObject *weights;  /* of the last forward, NULL if it formed none */
            PyObject *identity; /* marks the contexts of this layer */
        };
        PyObject *objects[CORE_OBJECTS]; /* the same */
    };
} layer_core;

typedef struct {
    PyObject ob_base;
    vectorcallfunc vectorcall;
    PyObject *weakrefs;
    layer_core core;           /* all NULL but the score until __init__ */
    _Atomic uint64_t revision; /* how often somebody could change or get a parameter */
} layer_object;

/* *held = the layer's core with references of its own, for layer_core_clear.
 * RuntimeError if __init__ has not run. to_read: for who neither changes a parameter nor
 * hands it out, a step over a memory need not look for changes then. */
int layer_hold(layer_object *layer, bool to_read, layer_core *held);
void layer_core_clear(layer_core *core);

/* Its numbers alone, without the objects. */
layer_core layer_sizes(const layer_core *core);

/* ---- methods and properties ------------------------------------------------------ */

/* Those that take keywords. */
typedef PyObject *layer_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                               PyObject *kwnames);
layer_method layer_call, layer_backward, layer_memory;
extern const py_signature layer_memory_signature;

PyObject *layer_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf,
                           PyObject *kwnames);

/* ValueError: queries, keys or values, plain, have not as many features as the layer
 * takes of them. Without this the message would blame a parameter. */
int layer_check_features(const layer_core *core, py_arg which, PyObject *object);

/* ---- parameters (py_layer_parameters.c) ------------------------------------------ */

/* Parameter `which` is that of the score; these are its name, as an object, borrowed,
 * and as text; and the shape of the live array, dims[], in how many axes. */
PyObject *layer_name(const attnext_state *state, const layer_core *core, int which);
const char *layer_text(const layer_core *core, int which);
int layer_shape(const layer_core *core, int which, npy_intp dims[PY_PARAMETER_AXES]);

/* core->parameters = those that a dict has by name, as float32 in their shapes. */
int layer_take_parameters(const attnext_state *state, layer_core *core, PyObject *dict);

/* Users hold the live arrays and can change more than their numbers: TypeError or
 * ValueError unless every parameter is still float32, C-contiguous and of its shape, and
 * KeyError if there is none; with values, those alone that one is there for, which is to be
 * written into them. */
int layer_check_parameters(const layer_core *core, const layer_core *values);

/* For attnext/_layers.py. */
PyObject *layer_write(PyObject *self, PyObject *dict);
PyObject *layer_read(PyObject *self, PyObject *args);

/* grads[name] += the gradient, for every parameter or, on failure, for none. */
int layer_add_gradients(const attnext_state *state, const layer_core *core,
                        const py_made *gradients);

/* layer.zero_grad() */
PyObject *layer_zero_grad(PyObject *self, PyObject *ignored);

/* ---- contexts (py_layer_context.c) ----------------------------------------------- */

extern PyType_Spec layer_context_spec;

/* What the backward of a call that was made needs: its inputs and options, a copy of the
 * output. */
PyObject *layer_context_new(const attnext_state *state, const layer_core *core,
                            const py_call *call);

/* Fills *call with what its context holds, or that of the last forward, borrowed from it.
 * RuntimeError if there was none, TypeError if it is no Context, ValueError if it is one of
 * another layer. */
int layer_context_read(const attnext_state *state, const layer_core *core,
                       py_call *call);

/* ---- memories (py_layer_memory.c) ------------------------------------------------ */

enum { MEMORY_KEYS, MEMORY_VALUES, MEMORY_SIDES };

/* Of its layer the core has the sizes, the identity, and copies of those of the parameters
 * that projected the keys. The sums are projected, values and key_use of several backwards, of
 * the first keys, or NULL; the spare ones are such arrays, whatever they hold. */
typedef struct {
    PyObject ob_base;
    PyObject *weakrefs;
    PyObject *layer; /* a weak reference: nothing here leads back to it; NULL: none */
    layer_core core;
    _Atomic uint64_t checked; /* the revision at which nobody else had its parameters */
    bool fixed;               /* nothing is appended to it */

    /* Of keys and values, (..., rows, width), since the first came: how many axes, 0 before
     * that; those in front; the last. */
    int ndim;
    npy_intp leading[PY_MAX_AXES], widths[MEMORY_SIDES];
    PyArrayObject *lens; /* int64, () or (B,), however long; NULL: none */
    py_memory now;
    py_made sums, spare;
} memory_object;

extern PyType_Spec layer_memory_spec;

/* Its methods that take keywords, before the type is made. */
int layer_memory_fill(const attnext_state *state);

/* py_layer_memory_check.c. A memory's layer, a new reference: its keys are those that the
 * layer would project now. RuntimeError if that is gone. */
layer_object *layer_memory_layer(memory_object *memory);

/* The same of a memory that may have no layer. */
int layer_memory_check_own(memory_object *memory);

/* Fills *call with what the memory has. TypeError if values or lengths are given; and as
 * layer_memory_layer. */
int layer_memory_read(const layer_object *layer, const layer_core *core,
                      PyObject *memory, py_call *call);

/* py_layer_memory_keys.c. *to = *from, with references of its own; *held = what the memory
 * has now, for py_memory_clear. */
void layer_memory_share(py_memory *to, const py_memory *from);
void layer_memory_hold(memory_object *memory, py_memory *held);

/* How many rows an array (..., rows, width) has, and numbers in each. */
static inline npy_intp
layer_rows_of(PyArrayObject *a)
{
    return PyArray_DIM(a, PyArray_NDIM(a) - 2);
}

static inline npy_intp
layer_width_of(PyArrayObject *a)
{
    return PyArray_DIM(a, PyArray_NDIM(a) - 1);
}

/* The first keys of a memory, with their lengths, or more, plain: all or nothing. */
int layer_memory_add_keys(const attnext_state *state, memory_object *memory,
                          PyObject *const *given);

/* py_layer_memory_back.c. Adds what a backward left, which cannot fail; *d has it no
 * longer. */
void layer_memory_add(const attnext_state *state, const py_memory *held, py_made *d);

/* memory.backward() */
PyObject *layer_memory_backward(PyObject *self, PyObject *ignored);

#endif
