/*
 * py_layer.c -- what an AdditiveAttention and a DotProductAttention do, as if it were
 * Python:
 *
 *     class Layer:
 *         def __call__(self, queries, keys, values, valid_lens=None, *,
 *                      mask=None, causal=False, need_weights=True):
 *             p = self.dropout if self.training else 0
 *             seed = self._rng.integers(0, 2**64, dtype=uint64) if p > 0 else None
 *             output, weights, lse = attention(queries, keys, values, ...)
 *             self.context = Context(queries, keys, values, ...)
 *             self.attention_weights = weights if need_weights else None
 *             return output
 *
 *         def backward(self, grad_output, *, grad_weights=None, context=None):
 *             d = attention_backward(grad_output, context or self.context, ...)
 *             for name, grad in self.grads.items():
 *                 grad += d[name]
 *             return d.queries, d.keys, d.values
 */
#include "py_docs.h"
#include "py_modules.h"

/* ---- forward --------------------------------------------------------------------- */

/* A new seed for dropout from the layer's generator. */
static int
draw_seed(PyObject *rng, uint64_t *seed)
{
    PyObject *drawn = PyObject_CallMethod(
        rng, "integers", "iKOsO", 0, (unsigned long long)UINT64_MAX, Py_None, "uint64",
        Py_True); /* True: the upper end counts */
    if (drawn == NULL) {
        return -1;
    }
    int result = py_seed(drawn, "a seed drawn from rng", seed);
    Py_DECREF(drawn);
    return result;
}

/* object (..., rows, size) as float32; the constructor called its number of features
 * size_name. Without this the message would blame the parameter. */
static PyArrayObject *
read_features(PyObject *object, const char *name, char rows, const char *size_name,
              Py_ssize_t size)
{
    PyArrayObject *a = py_float32(object, name, NULL);
    int ndim = a == NULL ? 0 : PyArray_NDIM(a);
    if (ndim >= 2 && PyArray_DIM(a, ndim - 1) != size) {
        char expected[100];
        PyOS_snprintf(expected, sizeof expected, "(..., %c, %zd): %s is %zd", rows,
                      size, size_name, size);
        py_shape_error(a, name, expected);
        Py_CLEAR(a);
    }
    return a;
}

/* What a call of the layer and its backward have in common. */
static attention_args
common_args(const layer_object *layer, const layer_core *held)
{
    return (attention_args){
        .score = layer->score,
        .parameters = {.W_q = (PyObject *)held->parameters[LAYER_W_Q],
                       .W_k = (PyObject *)held->parameters[LAYER_W_K],
                       .w_v = (PyObject *)held->parameters[LAYER_W_V],
                       .b_h = (PyObject *)held->parameters[LAYER_B_H],
                       .has_scale = held->has_scale,
                       .scale = (float)held->scale},
    };
}

/* Makes this forward the layer's last one. */
static int
remember(attnext_state *state, layer_object *layer, const layer_core *held,
         const attention_inputs *in, const attention_outputs *outputs)
{
    PyObject *context = py_context_new(state, held->identity, in, outputs);
    if (context == NULL) {
        return -1;
    }
    PyObject *old_context = layer->context;
    PyArrayObject *old_weights = layer->weights;
    layer->context = context;
    layer->weights = (PyArrayObject *)Py_XNewRef(outputs->weights);
    Py_XDECREF(old_context); /* only now: it may run code that looks at the layer */
    Py_XDECREF(old_weights);
    return 0;
}

static const py_signature call_signature = {
    .function = "__call__",
    .required = 3,
    .positional = 4,
    .args = {ARG_QUERIES, ARG_KEYS, ARG_VALUES, ARG_VALID_LENS, ARG_MASK, ARG_CAUSAL,
             ARG_NEED_WEIGHTS},
};

PyDoc_STRVAR(call_doc,
"__call__($self, queries, keys, values, valid_lens=None, *, mask=None, causal=False, "
"need_weights=True)\n"
"--\n\n"
"Pool the values, each query by the attention it pays to the keys.\n"
"\n"
"Parameters\n"
"----------\n"
"queries : array_like, shape (..., M, Dq)\n"
"    M queries; any leading axes (batch, heads), or none. Dq is `query_size` for\n"
"    AdditiveAttention. Used as it is if float32 and C-contiguous, like every array\n"
"    here; other layouts, lists, other real dtypes and torch tensors are converted\n"
"    first.\n"
"keys : array_like, shape (..., N, Dk)\n"
"    The keys; leading axes as those of `queries`. Dk is `key_size` for\n"
"    AdditiveAttention, Dq for DotProductAttention.\n"
"values : array_like, shape (..., N, Dv)\n"
"    The values, one for each key.\n"
DOC_VALID_LENS
DOC_MASK
DOC_CAUSAL
"need_weights : bool, optional\n"
"    False leaves `attention_weights` None and saves forming an array of (..., M, N).\n"
"\n"
"Returns\n"
"-------\n"
"output : ndarray, float32, shape (..., M, Dv)\n"
"    The pooled values.\n"
"\n"
"Raises\n"
"------\n"
"TypeError\n"
"    An argument is of the wrong kind or dtype (complex, bool, object, a masked\n"
"    array, a tensor that requires grad), or unknown, or missing.\n"
"ValueError\n"
"    An argument has the wrong shape, or a length is negative.\n"
"\n"
"See Also\n"
"--------\n"
"backward : The gradients of this call.\n"
"\n"
"Notes\n"
"-----\n"
"In training, and if `dropout` is above 0, weights are dropped by a seed drawn afresh\n"
"from the object's generator; `attention_weights` are those before dropout. A query\n"
"to which no key is left pays 1/N to each of the N keys; apart from that, keys and\n"
"values that take no part are never read. Several threads may call one object at\n"
"once; a call that runs while another thread sets the parameters may see some of the\n"
"old numbers and some of the new.\n"
"\n"
"Examples\n"
"--------\n"
">>> import numpy as np\n"
">>> from attnext import DotProductAttention\n"
">>> attn = DotProductAttention()\n"
">>> attn(np.eye(2), np.zeros((4, 2)), np.arange(8).reshape(4, 2), [1, 3])\n"
"array([[0., 1.],\n"
"       [2., 3.]], dtype=float32)\n"
">>> attn.attention_weights.round(2)\n"
"array([[1.  , 0.  , 0.  , 0.  ],\n"
"       [0.33, 0.33, 0.33, 0.  ]], dtype=float32)\n");

/* A forward of the layer as it is held; the inputs are in *call. */
static PyObject *
forward(attnext_state *state, layer_object *layer, const layer_core *held,
        attention_args *call)
{
    attention_inputs in;
    attention_outputs outputs;
    PyObject *result = NULL;

    if (layer_check_parameters(held) < 0) {
        return NULL;
    }
    call->want_lse = true; /* it makes the backward cheaper */
    call->keeps_inputs = true;
    call->dropout.p = held->training ? (float)held->dropout : 0.0f;
    if (call->dropout.p > 0.0f && draw_seed(held->rng, &call->dropout.seed) < 0) {
        return NULL;
    }
    if (attention_forward(state, call, &in, &outputs) < 0) {
        return NULL;
    }
    if (remember(state, layer, held, &in, &outputs) == 0) {
        result = Py_NewRef(outputs.output);
    }
    attention_outputs_clear(&outputs);
    attention_inputs_clear(&in);
    return result;
}

static PyObject *
layer_call(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    layer_object *layer = (layer_object *)self;
    attnext_state *state = py_state_of_type(Py_TYPE(self));
    PyObject *given[ARG_COUNT], *result = NULL;
    PyArrayObject *queries = NULL, *keys = NULL;
    layer_core held;

    if (layer_hold(layer, &held) < 0) {
        return NULL;
    }
    attention_args call = common_args(layer, &held);
    call.want_weights = true;
    if (py_parse(state, &call_signature, args, nargs, kwnames, given) < 0 ||
        py_flag(given[ARG_CAUSAL], &call.masks.causal) < 0 ||
        (given[ARG_NEED_WEIGHTS] != NULL &&
         py_flag(given[ARG_NEED_WEIGHTS], &call.want_weights) < 0)) {
        goto done;
    }
    call.queries = given[ARG_QUERIES];
    call.keys = given[ARG_KEYS];
    call.values = given[ARG_VALUES];
    call.masks.valid_lens = given[ARG_VALID_LENS];
    call.masks.mask = given[ARG_MASK];
    if (layer->score == &attn_score_additive) {
        queries = read_features(call.queries, "queries", 'M', "query_size",
                                held.query_size);
        keys = queries == NULL
                   ? NULL
                   : read_features(call.keys, "keys", 'N', "key_size", held.key_size);
        if (keys == NULL) {
            goto done;
        }
        call.queries = (PyObject *)queries;
        call.keys = (PyObject *)keys;
    }
    result = forward(state, layer, &held, &call);
done:
    Py_XDECREF(keys);
    Py_XDECREF(queries);
    layer_core_clear(&held);
    return result;
}

PyObject *
layer_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf,
                 PyObject *kwnames)
{
    return layer_call(self, args, PyVectorcall_NARGS(nargsf), kwnames);
}

/* ---- backward -------------------------------------------------------------------- */

static const py_signature backward_signature = {
    .function = "backward",
    .required = 1,
    .positional = 1,
    .args = {ARG_GRAD_OUTPUT, ARG_GRAD_WEIGHTS, ARG_CONTEXT},
};

PyDoc_STRVAR(backward_doc,
"backward($self, grad_output, *, grad_weights=None, context=None)\n"
"--\n\n"
"Gradients of a call; those of the parameters are added to `grads`.\n"
"\n"
"Parameters\n"
"----------\n"
"grad_output : array_like, shape (..., M, Dv)\n"
"    Gradient of the loss with respect to the output.\n"
"grad_weights : array_like, shape (..., M, N), optional\n"
"    Gradient of the loss with respect to `attention_weights`, if it depends on them.\n"
"context : Context, optional\n"
"    Which call: the `context` as it was after it. The last one by default.\n"
"\n"
"Returns\n"
"-------\n"
"dq : ndarray, float32, shape (..., M, Dq)\n"
"    Gradient with respect to the queries.\n"
"dk : ndarray, float32, shape (..., N, Dk)\n"
"    Gradient with respect to the keys; exactly 0 for those that take no part.\n"
"dv : ndarray, float32, shape (..., N, Dv)\n"
"    Gradient with respect to the values, likewise.\n"
"\n"
"Raises\n"
"------\n"
"RuntimeError\n"
"    There was no call yet.\n"
"TypeError\n"
"    An argument is of the wrong kind or dtype.\n"
"ValueError\n"
"    An argument has the wrong shape, or `context` is another object's.\n"
"\n"
"See Also\n"
"--------\n"
"zero_grad : Start the sums in `grads` again.\n"
"\n"
"Notes\n"
"-----\n"
"The parameters must still be those of the call: run `backward` before the step that\n"
"changes them, and do not write into the inputs in between. A second `backward` of\n"
"the same call adds to `grads` again. Dropout is that of the call.\n"
"\n"
"Examples\n"
"--------\n"
">>> import numpy as np\n"
">>> from attnext import DotProductAttention\n"
">>> attn = DotProductAttention(scale=1.0)\n"
">>> output = attn(np.ones((1, 2)), np.ones((2, 2)), np.array([[1, 2], [3, 4]]))\n"
">>> dq, dk, dv = attn.backward([[1, 0]])\n"
">>> dk\n"
"array([[-0.5, -0.5],\n"
"       [ 0.5,  0.5]], dtype=float32)\n");

static PyObject *
layer_backward(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    layer_object *layer = (layer_object *)self;
    attnext_state *state = py_state_of_type(Py_TYPE(self));
    PyObject *given[ARG_COUNT], *context = NULL, *result = NULL;
    layer_core held;
    attention_inputs in;
    attention_gradients gradients = {0};

    if (layer_hold(layer, &held) < 0) {
        return NULL;
    }
    attention_inputs_init(&in);
    if (py_parse(state, &backward_signature, args, nargs, kwnames, given) < 0) {
        goto done;
    }
    context = Py_XNewRef(py_is_given(given[ARG_CONTEXT]) ? given[ARG_CONTEXT]
                                                         : layer->context);
    if (context == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "backward() needs a forward before it: call the object first");
        goto done;
    }
    attention_args call = common_args(layer, &held);
    call.grad.output = given[ARG_GRAD_OUTPUT];
    call.grad.weights = given[ARG_GRAD_WEIGHTS];
    if (py_context_read(state, context, held.identity, &call) < 0 ||
        layer_check_parameters(&held) < 0 ||
        attention_backward(state, &call, &in, &gradients) < 0 ||
        layer_add_gradients(state, &held, &gradients) < 0) {
        goto done;
    }
    result = PyTuple_Pack(3, gradients.queries, gradients.keys, gradients.values);
done:
    attention_gradients_clear(&gradients);
    attention_inputs_clear(&in);
    Py_XDECREF(context);
    layer_core_clear(&held);
    return result;
}

const char layer_attention_weights_doc[] = PyDoc_STR(
"ndarray or None: the attention weights of the last call, shape (..., M, N), float32,\n"
"before dropout; rows sum to 1. None before the first call, and after one with\n"
"need_weights=False.");

PyObject *
layer_get_attention_weights(PyObject *self, void *Py_UNUSED(closure))
{
    PyArrayObject *weights = ((layer_object *)self)->weights;
    return Py_NewRef(weights == NULL ? Py_None : (PyObject *)weights);
}

const char layer_context_doc[] = PyDoc_STR(
"Context or None: what the last call saved for `backward`; None before the first.\n"
"Keep it to run `backward` through several calls, such as a decoder's time steps.");

PyObject *
layer_get_context(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *context = ((layer_object *)self)->context;
    return Py_NewRef(context == NULL ? Py_None : context);
}

/* ---- the table of methods -------------------------------------------------------- */

/* __call__ is listed for its docstring and signature; METH_COEXIST puts it in the place
 * of the one Python would make from the slot. */
PyMethodDef layer_methods[] = {
    {"__call__", (PyCFunction)(void (*)(void))layer_call,
     METH_FASTCALL | METH_KEYWORDS | METH_COEXIST, call_doc},
    {"backward", (PyCFunction)(void (*)(void))layer_backward,
     METH_FASTCALL | METH_KEYWORDS, backward_doc},
    {"train", (PyCFunction)(void (*)(void))layer_train, METH_FASTCALL | METH_KEYWORDS,
     layer_train_doc},
    {"eval", layer_eval, METH_NOARGS, layer_eval_doc},
    {"parameters", layer_parameters, METH_NOARGS, layer_parameters_doc},
    {"zero_grad", layer_zero_grad, METH_NOARGS, layer_zero_grad_doc},
    {"state_dict", layer_state_dict, METH_NOARGS, layer_state_dict_doc},
    {"load_state_dict", layer_load_state_dict, METH_O, layer_load_state_dict_doc},
    {"__reduce__", layer_reduce, METH_NOARGS, layer_reduce_doc},
    {"_rebuild", layer_rebuild, METH_O | METH_CLASS, layer_rebuild_doc},
    {0},
};
