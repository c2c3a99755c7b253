/*
 * py_dot.c -- dot-product attention: forward, backward, scores.
 */
#include "py_attention.h"
#include "py_docs.h"

static const py_signature forward_signature = {
    .function = "dot_product_attention",
    .required = 3,
    .positional = 4,
    .args = {ARG_QUERIES, ARG_KEYS, ARG_VALUES, ARG_VALID_LENS, ARG_SCALE,
             PY_FORWARD_ARGS},
};

PyDoc_STRVAR(dot_product_attention_doc,
"dot_product_attention(queries, keys, values, valid_lens=None, *, scale=None, "
SIGNATURE_FORWARD
"Pool values by the softmax of scaled dot products of queries and keys.\n"
"\n"
"Parameters\n"
"----------\n"
"queries : array_like, shape (..., M, D)\n"
"    M queries of D features; any leading axes (batch, heads), or none.\n"
DOC_FLOAT32
"keys : array_like, shape (..., N, D)\n"
"    The keys; leading axes as those of `queries`.\n"
"values : array_like, shape (..., N, Dv)\n"
"    The values, one for each key.\n"
DOC_VALID_LENS
"scale : float, optional\n"
"    What the dot products are multiplied by, finite; ``1 / sqrt(D)`` by default.\n"
DOC_FORWARD_OPTIONS
"\n"
DOC_FORWARD_RETURNS
DOC_RAISES
"\n"
"See Also\n"
"--------\n"
"dot_product_attention_backward : The gradients of this function.\n"
"dot_product_scores : The scores alone.\n"
"\n"
"Notes\n"
"-----\n"
"``output = softmax(scale * queries @ keys^T) @ values``, the softmax over the keys\n"
"that take part (Vaswani et al. 2017, \"Attention is all you need\", equation 1).\n"
DOC_PADDING
"\n"
"Examples\n"
"--------\n"
"The toy example of Dive into Deep Learning, section 11.3: all keys are equal, so the\n"
"output is the mean of the valid values.\n"
"\n"
">>> import numpy as np\n"
">>> from attnext import dot_product_attention\n"
">>> queries = np.random.default_rng(0).normal(size=(2, 1, 2))\n"
">>> keys = np.ones((2, 10, 2))\n"
">>> values = np.arange(40).reshape(1, 10, 4).repeat(2, axis=0)\n"
">>> output = dot_product_attention(queries, keys, values, [2, 6])\n"
">>> output[:, 0].round(3)\n"
"array([[ 2.,  3.,  4.,  5.],\n"
"       [10., 11., 12., 13.]], dtype=float32)\n");

static PyObject *
dot_product_attention(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames)
{
    return py_call_forward(module, &attn_score_dot, &forward_signature, args, nargs,
                           kwnames);
}

static const py_signature backward_signature = {
    .function = "dot_product_attention_backward",
    .required = 4,
    .positional = 5,
    .args = {ARG_GRAD_OUTPUT, ARG_QUERIES, ARG_KEYS, ARG_VALUES, ARG_VALID_LENS,
             ARG_SCALE, PY_BACKWARD_ARGS},
};

PyDoc_STRVAR(dot_product_attention_backward_doc,
"dot_product_attention_backward(grad_output, queries, keys, values, valid_lens=None, "
"*, scale=None, "
SIGNATURE_BACKWARD
"Gradients of `dot_product_attention`.\n"
"\n"
"Parameters\n"
"----------\n"
"grad_output : array_like, shape (..., M, Dv)\n"
"    Gradient of the loss with respect to the output.\n"
DOC_FLOAT32
"queries : array_like, shape (..., M, D)\n"
"    As in the forward.\n"
"keys : array_like, shape (..., N, D)\n"
"    As in the forward.\n"
"values : array_like, shape (..., N, Dv)\n"
"    As in the forward.\n"
"valid_lens : None, int or array_like of integers, optional\n"
"    As in the forward.\n"
"scale : float, optional\n"
"    As in the forward.\n"
DOC_BACKWARD_OPTIONS
"\n"
"Returns\n"
"-------\n"
DOC_GRADIENTS("D")
DOC_GRADIENT_OF_BIAS
DOC_RAISES
"\n"
"See Also\n"
"--------\n"
"dot_product_attention : The function these are the gradients of.\n"
"\n"
"Notes\n"
"-----\n"
"With weights P and g = `grad_output`: ``dv = P^T g``; ``dS = P * (g v^T - rowsum(g *\n"
"output))`` is the gradient of the scores; ``dq = scale * dS k``, ``dk = scale * dS^T\n"
"q``; dS itself, summed over the axes it was broadcast along, is the gradient of\n"
"`bias`. No array of shape (M, N) is formed (Dao et al. 2022, \"FlashAttention\",\n"
"appendix B.2).\n"
"\n"
"Examples\n"
"--------\n"
">>> import numpy as np\n"
">>> from attnext import dot_product_attention_backward\n"
">>> q, k, v = np.ones((1, 2)), np.ones((2, 2)), np.array([[1, 2], [3, 4]])\n"
">>> dq, dk, dv = dot_product_attention_backward([[1, 0]], q, k, v, scale=1.0)\n"
">>> dk\n"
"array([[-0.5, -0.5],\n"
"       [ 0.5,  0.5]], dtype=float32)\n"
">>> dv\n"
"array([[0.5, 0. ],\n"
"       [0.5, 0. ]], dtype=float32)\n");

static PyObject *
dot_product_attention_backward(PyObject *module, PyObject *const *args,
                               Py_ssize_t nargs, PyObject *kwnames)
{
    attention_gradients d;
    if (py_call_backward(module, &attn_score_dot, &backward_signature, args, nargs,
                         kwnames, &d) < 0) {
        return NULL;
    }
    return py_pack_gradients(&d, NULL);
}

static const py_signature scores_signature = {
    .function = "dot_product_scores",
    .required = 2,
    .positional = 2,
    .args = {ARG_QUERIES, ARG_KEYS, ARG_SCALE},
};

PyDoc_STRVAR(dot_product_scores_doc,
"dot_product_scores(queries, keys, *, scale=None)\n"
"--\n\n"
"Scaled dot product of every query with every key.\n"
"\n"
"Parameters\n"
"----------\n"
"queries : array_like, shape (..., M, D)\n"
"    M queries of D features; any leading axes, or none.\n"
DOC_FLOAT32
"keys : array_like, shape (..., N, D)\n"
"    The keys; leading axes as those of `queries`.\n"
"scale : float, optional\n"
"    What the dot products are multiplied by, finite; ``1 / sqrt(D)`` by default.\n"
"\n"
"Returns\n"
"-------\n"
"scores : ndarray, float32, shape (..., M, N)\n"
"    ``scale * queries @ keys^T``.\n"
"\n"
DOC_RAISES
"\n"
"See Also\n"
"--------\n"
"dot_product_attention : The attention with this score.\n"
"masked_softmax : From scores to attention weights.\n"
"\n"
"Notes\n"
"-----\n"
"For independent features of mean 0 and variance 1 the dot product has variance D,\n"
"and the default scale brings it back to 1 (Vaswani et al. 2017, section 3.2.1).\n"
"\n"
"Examples\n"
"--------\n"
">>> from attnext import dot_product_scores\n"
">>> dot_product_scores([[1, 2, 3, 4]], [[1, 1, 1, 1], [2, 0, 2, 0]])\n"
"array([[5., 4.]], dtype=float32)\n");

static PyObject *
dot_product_scores(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames)
{
    return py_call_scores(module, &attn_score_dot, &scores_signature, args, nargs,
                          kwnames);
}

PyMethodDef py_dot_functions[] = {
    PY_FUNCTION(dot_product_attention),
    PY_FUNCTION(dot_product_attention_backward),
    PY_FUNCTION(dot_product_scores),
    {0},
};
