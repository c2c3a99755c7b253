/*
 * py_modules.h -- what the files of the two exposed types share. An object of either
 * type is called a layer here, to tell it from a Python module.
 *
 *     py_modules.c           the life of a layer, from constructor to garbage collector
 *     py_layer.c             what it does: call and backward
 *     py_parameters.c        parameters: drawing, checking, reading and setting them
 *     py_gradients.c         their gradients
 *     py_state_dict.c        their exchange with PyTorch
 *     py_copies.c            pickle, copy and deepcopy
 *     py_context.c           the type Context: what a forward keeps for its backward
 *     py_additive_module.c   the type AdditiveAttention
 *     py_dot_module.c        the type DotProductAttention
 *
 * Python code may run in the middle of anything: a conversion, a finaliser, another
 * thread while the core works without the GIL. So a method works on a layer_core it
 * holds itself, and what it changes it changes at the end, in one go.
 */
#ifndef PY_MODULES_H
#define PY_MODULES_H

#include "py_attention.h"

/* ---- a layer (py_modules.c) ------------------------------------------------------ */

/* The parameters of the additive layer, in the order they are drawn and listed in. */
enum { LAYER_W_Q, LAYER_W_K, LAYER_W_V, LAYER_B_H, LAYER_PARAMETERS };

/* What a constructor makes and a copy takes over. */
typedef struct {
    Py_ssize_t key_size, query_size, num_hiddens; /* additive: Dk, Dq, H */
    double dropout;                               /* as given, for repr */
    bool has_scale;                               /* dot: false means 1/sqrt(D) */
    double scale;
    bool training;
    PyObject *rng;                               /* numpy.random.Generator */
    PyArrayObject *parameters[LAYER_PARAMETERS]; /* NULL where the layer has none */
    PyObject *grads;    /* dict: name -> array, open to the user */
    PyObject *identity; /* marks the contexts of this layer */
} layer_core;

typedef struct {
    PyObject ob_base;
    vectorcallfunc vectorcall;
    PyObject *weakrefs;
    const attn_score *score;
    layer_core core;        /* all NULL until __init__ */
    PyObject *context;      /* of the last forward, NULL before the first */
    PyArrayObject *weights; /* of the last forward, NULL if it formed none */
} layer_object;

/* A layer whose __init__ has not run. */
PyObject *layer_new(PyTypeObject *type, const attn_score *score);

/* numpy.random.default_rng(seed) */
PyObject *layer_rng(PyObject *seed);

/* Reads a constructor's dropout and, if given, scale. */
int layer_read_options(layer_core *core, PyObject *dropout, PyObject *scale);

/* Gives the core its identity and the layer the core, which is then empty; what the
 * layer was before, its last forward included, is given up. */
int layer_install(layer_object *layer, layer_core *core);

/* *held = the layer's core with references of its own, for layer_core_clear.
 * RuntimeError if __init__ has not run. */
int layer_hold(const layer_object *layer, layer_core *held);
void layer_core_clear(layer_core *core);

/* Slots of either type. */
int layer_traverse(PyObject *self, visitproc visit, void *arg);
int layer_clear(PyObject *self);
void layer_dealloc(PyObject *self);

PyObject *layer_get_training(PyObject *self, void *closure);
PyObject *layer_train(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames);
PyObject *layer_eval(PyObject *self, PyObject *ignored);
extern const char layer_training_doc[], layer_train_doc[], layer_eval_doc[];

/* ---- what it does (py_layer.c) --------------------------------------------------- */

PyObject *layer_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf,
                           PyObject *kwnames);
PyObject *layer_get_attention_weights(PyObject *self, void *closure);
PyObject *layer_get_context(PyObject *self, void *closure);
extern const char layer_attention_weights_doc[], layer_context_doc[];

/* The table of methods of either type. */
extern PyMethodDef layer_methods[];

/* The first entries of either type's table of properties. */
#define LAYER_PROPERTIES                                                               \
    {"attention_weights", layer_get_attention_weights, NULL,                           \
     layer_attention_weights_doc, NULL},                                               \
    {"context", layer_get_context, NULL, layer_context_doc, NULL},                     \
    {"grads", layer_get_grads, NULL, layer_grads_doc, NULL},                           \
    {"training", layer_get_training, NULL, layer_training_doc, NULL}

/* The first entries of either type's table of members. */
#define LAYER_MEMBERS                                                                  \
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(layer_object, vectorcall), READONLY, \
     NULL},                                                                            \
    {"__weaklistoffset__", T_PYSSIZET, offsetof(layer_object, weakrefs), READONLY,     \
     NULL},                                                                            \
    {"dropout", T_DOUBLE, offsetof(layer_object, core.dropout), READONLY,              \
     "float: the probability that a weight is dropped in training."}

/* The flags of either type. */
#define LAYER_FLAGS                                                                    \
    (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |                   \
     Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE)

/* ---- parameters (py_parameters.c) ------------------------------------------------ */

typedef struct {
    py_arg arg;                    /* state->names[arg] is the name as an object */
    const char *name, *state_name; /* "W_q", "W_q.weight" */
    const char *grads_entry, *state_entry; /* what they are called in messages */
} layer_parameter_info;

extern const layer_parameter_info layer_infos[LAYER_PARAMETERS];

/* The shape of a parameter, dims[]; returns its number of axes. */
int layer_shape(const layer_core *core, int which, npy_intp dims[2]);

/* A live array with the numbers of `values`, which has the shape of the parameter. */
PyArrayObject *layer_new_live(PyArrayObject *values);

/* Reads a constructor's sizes: ints, key_size and query_size >= 0, num_hiddens >= 1. */
int layer_read_sizes(layer_core *core, PyObject *key_size, PyObject *query_size,
                     PyObject *num_hiddens);

/* Fills core->parameters with numbers drawn from core->rng, b_h only with a bias, and
 * core->grads with zeros. */
int layer_draw_parameters(attnext_state *state, layer_core *core, bool bias);

/* Users hold the live arrays and can change more than their numbers: TypeError or
 * ValueError unless every parameter is still float32, C-contiguous and of its shape. */
int layer_check_parameters(const layer_core *core);

/* The same for one parameter, which must be writable too. */
int layer_check_writable(const layer_core *core, int which);

/* A new dict of the live arrays by name. */
PyObject *layer_parameter_dict(attnext_state *state, const layer_core *core);

PyObject *layer_parameters(PyObject *self, PyObject *ignored);
PyObject *layer_get_parameter(PyObject *self, void *which);
int layer_set_parameter(PyObject *self, PyObject *value, void *which);
extern const char layer_parameters_doc[];

/* ---- gradients (py_gradients.c) -------------------------------------------------- */

/* core->grads[name] = zeros in the parameter's shape */
int layer_put_zeros(attnext_state *state, const layer_core *core, int which);

/* grads[name] += gradients->name, for every parameter or, on failure, for none. */
int layer_add_gradients(attnext_state *state, const layer_core *core,
                        const attention_gradients *gradients);

/* A new dict of the gradients, in the parameters' shapes, by name. */
PyObject *layer_gradient_dict(attnext_state *state, const layer_core *core);

PyObject *layer_get_grads(PyObject *self, void *closure);
PyObject *layer_zero_grad(PyObject *self, PyObject *ignored);
extern const char layer_grads_doc[], layer_zero_grad_doc[];

/* ---- state dict (py_state_dict.c) ------------------------------------------------ */

PyObject *layer_state_dict(PyObject *self, PyObject *ignored);
PyObject *layer_load_state_dict(PyObject *self, PyObject *state_dict);
extern const char layer_state_dict_doc[], layer_load_state_dict_doc[];

/* ---- copies (py_copies.c) -------------------------------------------------------- */

PyObject *layer_reduce(PyObject *self, PyObject *ignored);
PyObject *layer_rebuild(PyObject *type, PyObject *saved);
extern const char layer_reduce_doc[], layer_rebuild_doc[];

/* ---- contexts (py_context.c) ----------------------------------------------------- */

extern PyType_Spec py_context_spec;

/* What the backward needs: references to the inputs, a copy of the output. */
PyObject *py_context_new(attnext_state *state, PyObject *identity,
                         const attention_inputs *in, const attention_outputs *outputs);

/* Fills in what context holds, borrowed from it. TypeError if it is no Context,
 * ValueError if it is one of another layer. */
int py_context_read(attnext_state *state, PyObject *context, PyObject *identity,
                    attention_args *args);

/* ---- the two types --------------------------------------------------------------- */

extern PyType_Spec py_additive_module_spec, py_dot_module_spec;

#endif
