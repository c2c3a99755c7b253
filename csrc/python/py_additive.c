/*
 * py_additive.c -- additive attention: forward, backward, scores.
 */
#include "py_attention.h"
#include "py_docs.h"

/* The arguments every additive function shares, as its docstring lists them. */
#define DOC_PARAMETERS                                                   \
    "W_q : array_like, shape (H, Dq)\n"                                  \
    "    Projection of the queries to H hidden units, in the layout of " \
    "torch.nn.Linear.\n"                                                 \
    "W_k : array_like, shape (H, Dk)\n"                                  \
    "    Projection of the keys, likewise.\n"                            \
    "w_v : array_like, shape (H,) or (1, H)\n"                           \
    "    Weight of each hidden unit in the score.\n"

static const py_signature forward_signature = {
    .function = "additive_attention",
    .required = 6,
    .positional = 7,
    .args = {ARG_QUERIES, ARG_KEYS, ARG_VALUES, ARG_W_Q, ARG_W_K, ARG_W_V,
             ARG_VALID_LENS, ARG_B_H, PY_FORWARD_ARGS},
};

PyDoc_STRVAR(additive_attention_doc,
"additive_attention(queries, keys, values, W_q, W_k, w_v, valid_lens=None, *, "
"b_h=None, "
SIGNATURE_FORWARD
"Pool values by the softmax of additive (Bahdanau) scores of queries and keys.\n"
"\n"
"Parameters\n"
"----------\n"
"queries : array_like, shape (..., M, Dq)\n"
"    M queries of Dq features; any leading axes (batch, heads), or none.\n"
DOC_FLOAT32
"keys : array_like, shape (..., N, Dk)\n"
"    The keys; leading axes as those of `queries`.\n"
"values : array_like, shape (..., N, Dv)\n"
"    The values, one for each key.\n"
DOC_PARAMETERS
DOC_VALID_LENS
"b_h : array_like, shape (H,), optional\n"
"    Bias of the hidden units.\n"
DOC_FORWARD_OPTIONS
"\n"
DOC_FORWARD_RETURNS
DOC_RAISES
"\n"
"See Also\n"
"--------\n"
"additive_attention_backward : The gradients of this function.\n"
"additive_scores : The scores alone.\n"
"AdditiveAttention : The same with parameters of its own.\n"
"\n"
"Notes\n"
"-----\n"
"``score(q, k) = w_v . tanh(W_q q + W_k k + b_h)`` (Bahdanau, Cho and Bengio 2015,\n"
"\"Neural machine translation by jointly learning to align and translate\", appendix\n"
"A.1.2). No array of shape (M, N, H) is ever formed.\n"
DOC_PADDING
"\n"
"Examples\n"
"--------\n"
"The toy example of Dive into Deep Learning, section 11.3: all keys are equal, so the\n"
"output is the mean of the valid values, whatever the parameters.\n"
"\n"
">>> import numpy as np\n"
">>> from attnext import additive_attention\n"
">>> rng = np.random.default_rng(0)\n"
">>> queries, keys = rng.normal(size=(2, 1, 20)), np.ones((2, 10, 2))\n"
">>> values = np.arange(40).reshape(1, 10, 4).repeat(2, axis=0)\n"
">>> W_q, W_k = rng.normal(size=(8, 20)), rng.normal(size=(8, 2))\n"
">>> w_v = rng.normal(size=8)\n"
">>> output = additive_attention(queries, keys, values, W_q, W_k, w_v, [2, 6])\n"
">>> output[:, 0].round(3)\n"
"array([[ 2.,  3.,  4.,  5.],\n"
"       [10., 11., 12., 13.]], dtype=float32)\n");

static PyObject *
additive_attention(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames)
{
    return py_call_forward(module, &attn_score_additive, &forward_signature, args,
                           nargs, kwnames);
}

static const py_signature backward_signature = {
    .function = "additive_attention_backward",
    .required = 7,
    .positional = 8,
    .args = {ARG_GRAD_OUTPUT, ARG_QUERIES, ARG_KEYS, ARG_VALUES, ARG_W_Q, ARG_W_K,
             ARG_W_V, ARG_VALID_LENS, ARG_B_H, PY_BACKWARD_ARGS},
};

PyDoc_STRVAR(additive_attention_backward_doc,
"additive_attention_backward(grad_output, queries, keys, values, W_q, W_k, w_v, "
"valid_lens=None, *, b_h=None, "
SIGNATURE_BACKWARD
"Gradients of `additive_attention`.\n"
"\n"
"Parameters\n"
"----------\n"
"grad_output : array_like, shape (..., M, Dv)\n"
"    Gradient of the loss with respect to the output.\n"
DOC_FLOAT32
"queries : array_like, shape (..., M, Dq)\n"
"    As in the forward.\n"
"keys : array_like, shape (..., N, Dk)\n"
"    As in the forward.\n"
"values : array_like, shape (..., N, Dv)\n"
"    As in the forward.\n"
DOC_PARAMETERS
"valid_lens : None, int or array_like of integers, optional\n"
"    As in the forward.\n"
"b_h : array_like, shape (H,), optional\n"
"    As in the forward.\n"
DOC_BACKWARD_OPTIONS
"\n"
"Returns\n"
"-------\n"
"gradients : AdditiveGradients\n"
"    A named tuple of the gradients with respect to `queries`, `keys`, `values`,\n"
"    `W_q`, `W_k`, `w_v` and `b_h`, each a float32 array in the shape of what it\n"
"    belongs to; `b_h` is None if none was given.\n"
DOC_GRADIENT_OF_BIAS
DOC_RAISES
"\n"
"See Also\n"
"--------\n"
"additive_attention : The function these are the gradients of.\n"
"\n"
"Notes\n"
"-----\n"
"With ``t = tanh(W_q q + W_k k + b_h)`` and dS the gradient of the scores: ``dw_v =\n"
"sum dS t`` over all pairs, and ``dS * w_v * (1 - t**2)``, summed over the keys, over\n"
"the queries and over both, is the gradient of the projected queries, of the\n"
"projected keys and of `b_h`. t is computed again where it is needed: no array of\n"
"shape (M, N, H) is formed.\n"
"\n"
"Examples\n"
"--------\n"
">>> import numpy as np\n"
">>> from attnext import additive_attention_backward\n"
">>> q, k, v = [[0.0]], [[0.0], [0.0]], [[1.0], [3.0]]\n"
">>> d = additive_attention_backward([[1.0]], q, k, v, [[1.0]], [[1.0]], [2.0])\n"
">>> d.keys\n"
"array([[-1.],\n"
"       [ 1.]], dtype=float32)\n"
">>> d.W_k.shape, d.w_v.shape, d.b_h\n"
"((1, 1), (1,), None)\n");

static PyObject *
additive_attention_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames)
{
    attention_gradients d;
    if (py_call_backward(module, &attn_score_additive, &backward_signature, args, nargs,
                         kwnames, &d) < 0) {
        return NULL;
    }
    PyObject *result = PyObject_CallFunctionObjArgs(
        py_state_of_module(module)->AdditiveGradients, d.queries, d.keys, d.values,
        d.W_q, d.W_k, d.w_v, py_or_none(d.b_h), NULL);
    if (result != NULL && d.want_bias) {
        Py_SETREF(result, PyTuple_Pack(2, result, py_or_none(d.bias)));
    }
    attention_gradients_clear(&d);
    return result;
}

static const py_signature scores_signature = {
    .function = "additive_scores",
    .required = 5,
    .positional = 5,
    .args = {ARG_QUERIES, ARG_KEYS, ARG_W_Q, ARG_W_K, ARG_W_V, ARG_B_H},
};

PyDoc_STRVAR(additive_scores_doc,
"additive_scores(queries, keys, W_q, W_k, w_v, *, b_h=None)\n"
"--\n\n"
"Additive (Bahdanau) score of every query with every key.\n"
"\n"
"Parameters\n"
"----------\n"
"queries : array_like, shape (..., M, Dq)\n"
"    M queries of Dq features; any leading axes, or none.\n"
DOC_FLOAT32
"keys : array_like, shape (..., N, Dk)\n"
"    The keys; leading axes as those of `queries`.\n"
DOC_PARAMETERS
"b_h : array_like, shape (H,), optional\n"
"    Bias of the hidden units.\n"
"\n"
"Returns\n"
"-------\n"
"scores : ndarray, float32, shape (..., M, N)\n"
"    ``w_v . tanh(W_q q + W_k k + b_h)`` of every pair.\n"
"\n"
DOC_RAISES
"\n"
"See Also\n"
"--------\n"
"additive_attention : The attention with this score.\n"
"masked_softmax : From scores to attention weights.\n"
"\n"
"Notes\n"
"-----\n"
"The score of Bahdanau, Cho and Bengio (2015), appendix A.1.2. No array of shape (M,\n"
"N, H) is ever formed.\n"
"\n"
"Examples\n"
"--------\n"
">>> import numpy as np\n"
">>> from attnext import additive_scores\n"
">>> additive_scores([[1.0]], [[-1.0], [0.0]], [[0.5]], [[0.5]], [2.0]).round(4)\n"
"array([[0.    , 0.9242]], dtype=float32)\n");

static PyObject *
additive_scores(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames)
{
    return py_call_scores(module, &attn_score_additive, &scores_signature, args, nargs,
                          kwnames);
}

PyMethodDef py_additive_functions[] = {
    PY_FUNCTION(additive_attention),
    PY_FUNCTION(additive_attention_backward),
    PY_FUNCTION(additive_scores),
    {0},
};
