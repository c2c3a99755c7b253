/*
 * py_layer.h -- what the files of the exposed types share. An object of any of them is
 * called a layer.
 *
 *     py_layer.c               the life of a layer, from constructor to garbage collector
 *     py_layer_call.c          what it does: call and backward
 *     py_layer_parameters.c    parameters: drawing, checking, reading and setting them
 *     py_layer_gradients.c     their gradients
 *     py_layer_copies.c        what copies take over
 *     py_layer_context.c       the type Context: what a forward keeps for its backward
 *     py_layer_memory.c        the type Memory: keys and values that stay
 *     py_layer_memory_check.c  who may use it, and what a call takes of it
 *     py_layer_memory_call.c   what makes it and appends to it
 *     py_layer_memory_keys.c   what it has of them, and how it grows
 *     py_layer_memory_back.c   their gradients, added up over calls
 *     py_layer_types.c         the three types: constructors, and what they have
 *
 * Methods that need not be fast are in attnext/_layers.py: state dicts, pickle, repr.
 *
 * Python code may run in the middle of anything: a conversion, a finaliser, another
 * thread while the core works without the GIL. So a method works on a layer_core it
 * holds itself, and what it changes it changes at the end, in one go.
 */
#ifndef PY_LAYER_H
#define PY_LAYER_H

#include "py_call.h"

/* ---- a layer (py_layer.c) -------------------------------------------------------- */

/* What a constructor makes and a copy takes over. */
typedef struct {
    const py_score *score;
    Py_ssize_t key_size, query_size, num_hiddens;   /* with parameters: Dk, Dq, H */
    Py_ssize_t value_size, num_heads, num_kv_heads; /* multi-head */
    double dropout;                                 /* as given, for repr */
    bool has_scale;                                 /* dot: false means 1/sqrt(D) */
    double scale;
    bool training;
    PyObject *rng;                              /* numpy.random.Generator */
    PyArrayObject *parameters[ATTN_PARAMETERS]; /* NULL where the layer has none */
    PyObject *grads;    /* dict: name -> array, open to the user */
    PyObject *identity; /* marks the contexts of this layer */
} layer_core;

typedef struct {
    PyObject ob_base;
    vectorcallfunc vectorcall;
    PyObject *weakrefs;
    layer_core core;        /* all NULL but the score until __init__ */
    uint64_t revision;      /* how often somebody could change or get a parameter */
    PyObject *context;      /* of the last forward, NULL before the first */
    PyArrayObject *weights; /* of the last forward, NULL if it formed none */
} layer_object;

/* A layer whose __init__ has not run (py_layer_types.c). */
PyObject *layer_new(PyTypeObject *type);

/* numpy.random.default_rng(seed) */
PyObject *layer_rng(PyObject *seed);

/* Reads a constructor's dropout and, if given, scale. */
int layer_read_options(layer_core *core, PyObject *dropout, PyObject *scale);

/* Gives the core its identity and the layer the core, which is then empty; what the
 * layer was before, its last forward included, is given up. */
int layer_install(layer_object *layer, layer_core *core);

/* *held = the layer's core with references of its own, for layer_core_clear.
 * RuntimeError if __init__ has not run. For who neither changes a parameter nor hands it
 * out there is the second: a step over a memory then need not look for changes. */
int layer_hold(layer_object *layer, layer_core *held);
int layer_hold_to_read(const layer_object *layer, layer_core *held);
void layer_core_clear(layer_core *core);

/* Slots of every type. */
int layer_traverse(PyObject *self, visitproc visit, void *arg);
int layer_clear(PyObject *self);
void layer_dealloc(PyObject *self);

/* ---- methods and properties ------------------------------------------------------ */

/* Writes the signatures of the score's layer, which takes what py_options.def gives it,
 * and makes methods[] of its __call__ and backward. __call__ is listed for its docstring
 * and signature; METH_COEXIST puts it in the place of the one Python would make from the
 * slot. How many they are, or -1. */
int layer_fill_calls(const attnext_state *state, py_score *score, PyMethodDef *methods);
PyObject *layer_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf,
                           PyObject *kwnames);

/* object (..., rows, size) as float32, where the constructor called its number of
 * features size_name. */
PyArrayObject *layer_read_features(PyObject *object, const char *name, char rows,
                                   const char *size_name, Py_ssize_t size);

/* The others. */
PyObject *layer_parameters(PyObject *self, PyObject *ignored);
PyObject *layer_zero_grad(PyObject *self, PyObject *ignored);
PyObject *layer_live(PyObject *self, PyObject *ignored);
PyObject *layer_read(PyObject *self, PyObject *args);
PyObject *layer_write(PyObject *self, PyObject *values);
PyObject *layer_saved(PyObject *self, PyObject *ignored);
PyObject *layer_shown(PyObject *self, PyObject *ignored);
PyObject *layer_rebuild(PyObject *type, PyObject *saved);

PyObject *layer_get_grads(PyObject *self, void *closure);

PyObject *layer_get_scale(PyObject *self, void *closure);

/* What every type has of methods and properties, each ended by {0}. */
extern const PyMethodDef layer_methods[];
extern const PyGetSetDef layer_properties[];
extern const py_function layer_train_functions[];

/* ---- parameters (py_layer_parameters.c) ------------------------------------------ */

/* Parameter `which` is that of the score; these are its name, as an object, borrowed,
 * and as text; and its shape, dims[], in how many axes: of the live array, and in a state
 * dict, where w_v is (1, H). */
PyObject *layer_name(const attnext_state *state, const layer_core *core, int which);
const char *layer_text(const layer_core *core, int which);
enum { LAYER_TEXT = 64 };
int layer_shape(const layer_core *core, int which, npy_intp dims[PY_PARAMETER_AXES]);
int layer_state_shape(const layer_core *core, int which,
                      npy_intp dims[PY_PARAMETER_AXES]);

/* Has it the optional parameters? */
static inline bool
layer_has_bias(const layer_core *core)
{
    bool all = core->score->parameters > 0;
    for (int i = 0; i < core->score->parameters; i++) {
        all = all && core->parameters[i] != NULL;
    }
    return all;
}

/* A live array with the numbers of `values`, which has the shape of the parameter. */
PyArrayObject *layer_new_live(PyArrayObject *values);

/* Reads a constructor's sizes: ints, key_size and query_size >= 0, num_hiddens >= 1. */
int layer_read_sizes(layer_core *core, PyObject *key_size, PyObject *query_size,
                     PyObject *num_hiddens);

/* The same of a multi-head layer, after these: value_size >= 0; num_heads, which divides
 * num_hiddens; num_kv_heads, which divides num_heads, or None. */
int layer_read_heads(layer_core *core, PyObject *value_size, PyObject *num_heads,
                     PyObject *num_kv_heads);

/* Fills core->parameters with numbers drawn from core->rng, the optional ones only with
 * a bias, and core->grads with zeros. */
int layer_draw_parameters(const attnext_state *state, layer_core *core, bool bias);

/* Users hold the live arrays and can change more than their numbers: TypeError or
 * ValueError unless every parameter is still float32, C-contiguous and of its shape. */
int layer_check_parameters(const layer_core *core);

/* The same for one parameter, which must be writable too. */
int layer_check_writable(const layer_core *core, int which);

/* A new dict of the live arrays by name. */
PyObject *layer_parameter_dict(const attnext_state *state, const layer_core *core);

/* Properties of the parameters, each under its name. */
PyObject *layer_get_parameter(PyObject *self, void *which);
int layer_set_parameter(PyObject *self, PyObject *value, void *which);

/* ---- gradients (py_layer_gradients.c) -------------------------------------------- */

/* core->grads[name] = zeros in the parameter's shape */
int layer_put_zeros(const attnext_state *state, const layer_core *core, int which);

/* grads[name] += the gradient, for every parameter or, on failure, for none. */
int layer_add_gradients(const attnext_state *state, const layer_core *core,
                        const py_gradients *gradients);

/* A new dict of the gradients, in the parameters' shapes, by name. */
PyObject *layer_gradient_dict(const attnext_state *state, const layer_core *core);

/* ---- contexts (py_layer_context.c) ----------------------------------------------- */

extern PyType_Spec layer_context_spec;

/* What the backward needs: the inputs and options of the call, a copy of the output. */
PyObject *layer_context_new(const attnext_state *state, const layer_core *core,
                            const py_call *call, const py_inputs *in,
                            const py_outputs *outputs);

/* Fills *call with what context holds, borrowed from it. TypeError if it is no Context,
 * ValueError if it is one of another layer. */
int layer_context_read(const attnext_state *state, const layer_core *core,
                       PyObject *context, py_call *call);

/* ---- memories (py_layer_memory.c, py_layer_memory_call.c) ------------------------ */

/* What several backwards left: as in py_gradients, of the first keys; all NULL: nothing.
 * py_layer_memory_back.c. */
typedef struct {
    PyArrayObject *projected, *values, *key_use;
} memory_sums;

typedef struct {
    PyObject ob_base;
    PyObject *weakrefs;
    PyObject *layer; /* a weak reference: nothing here leads back to it; NULL: none */
    layer_core
        core; /* of the layer: its sizes, its identity, and copies of those of its
                         parameters that projected the keys */
    uint64_t checked; /* the layer's revision when it had these, and nobody else did */
    py_memory now;
    bool fixed;              /* nothing is appended to it */
    memory_sums sums, spare; /* spare: arrays, whatever they hold */
} memory_object;

extern PyType_Spec layer_memory_spec;

/* The methods of layers and of memories that take keywords. */
extern const py_function layer_memory_functions[], memory_functions[];
enum { MEMORY_METHODS = 8 };
extern PyMethodDef memory_methods[MEMORY_METHODS];

/* What attnext.torch makes, without a layer, and hands to functions, as it is now:
 * Memory._of(score, sizes, parameters, keys, ...), memory._check(parameters),
 * memory._now(). */
PyObject *layer_memory_of(PyObject *type, PyObject *args);
PyObject *layer_memory_check_given(PyObject *self, PyObject *parameters);
PyObject *layer_memory_now(PyObject *self, PyObject *ignored);

/* The layer of a memory, owned, and *held, its core. RuntimeError if it is gone. */
PyObject *layer_memory_hold(memory_object *memory, layer_core *held);

/* ValueError: the memory is not this layer's. */
int layer_memory_of_another(void);

/* Is the memory this layer's, and are its keys those that the layer, whose core is held
 * once, would project now? ValueError, RuntimeError. */
int layer_memory_check(const layer_object *layer, const layer_core *core,
                       memory_object *memory);

/* The same of the layer that it has, if it has one. */
int layer_memory_check_own(memory_object *memory);

/* Fills *call with what the memory has, which goes into *held with references of its own.
 * TypeError if values or lengths are given; and as layer_memory_check. */
int layer_memory_read(const layer_object *layer, const layer_core *core,
                      PyObject *memory, py_call *call, py_memory *held);

/* *to = *from, with references of its own; gives them up. */
void layer_memory_share(py_memory *to, const py_memory *from);
void layer_memory_release(py_memory *memory);

/* py_layer_memory_keys.c. What the core has to know of N keys of the memory. */
attn_problem layer_memory_problem(const layer_core *core, const py_memory *now,
                                  npy_intp N);

/* (..., rows, width) of any type with room for so many rows: the first `rows` are those of
 * `from`, the rest has every byte `fill`. */
PyArrayObject *layer_memory_grow(PyArrayObject *from, npy_intp rows, npy_intp room,
                                 int fill);

/* New keys, values, mask and, of a new memory, lengths, converted; owned. And what was
 * seen of keys and values. Long, and so not set to zero first. */
typedef struct {
    PyArrayObject *keys, *values, *mask, *lens;
    int ndim;
    npy_intp key_dims[PY_MAX_AXES], value_dims[PY_MAX_AXES];
} memory_rows;

/* ValueError unless keys and values are what was seen of them. */
int layer_memory_check_rows(const memory_rows *rows);

/* More keys and values, of the shapes that *now has but for the rows, n, and a mask
 * (..., n, 1) or NULL: all or nothing, whatever others append meanwhile. */
int layer_memory_extend(const attnext_state *state, const layer_core *core,
                        py_memory *now, const memory_rows *rows);

/* py_layer_memory_back.c. Adds what a backward left, which cannot fail; *d has it no
 * longer. memory.backward(); held: the core of its layer, which gets gradients. */
void layer_memory_add(PyObject *memory, py_gradients *d);
PyObject *layer_memory_backward(const attnext_state *state, const layer_core *held,
                                memory_object *memory);

/* The same of the layer that it has, if it has one. */
int layer_memory_check_own(memory_object *memory);
void layer_memory_clear_sums(memory_sums *sums);

#endif
