/*
 * py_cosine.c -- cosine attention: forward, backward, scores.
 */
#include "py_attention.h"
#include "py_docs.h"

/* The options of the score. */
#define DOC_COSINE                                      \
    "scale : float, optional\n"                         \
    "    What the cosines are multiplied by, finite.\n" \
    "eps : float, optional\n"                           \
    "    A norm below it counts as it, eps > 0: so a vector of zeros scores 0.\n"

static const py_signature forward_signature = {
    .function = "cosine_attention",
    .required = 3,
    .positional = 4,
    .args = {ARG_QUERIES, ARG_KEYS, ARG_VALUES, ARG_VALID_LENS, ARG_SCALE, ARG_EPS,
             PY_FORWARD_ARGS},
};

PyDoc_STRVAR(cosine_attention_doc,
"cosine_attention(queries, keys, values, valid_lens=None, *, scale=1.0, eps=1e-8, "
SIGNATURE_FORWARD
"Pool values by the softmax of cosines between queries and keys.\n"
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
DOC_COSINE
DOC_FORWARD_OPTIONS
"\n"
DOC_FORWARD_RETURNS
DOC_RAISES
"\n"
"See Also\n"
"--------\n"
"cosine_attention_backward : The gradients of this function.\n"
"cosine_scores : The scores alone.\n"
"dot_product_attention : Where lengths count too.\n"
"\n"
"Notes\n"
"-----\n"
"``score(q, k) = scale * q.k / (max(|q|, eps) * max(|k|, eps))``, the content-based\n"
"addressing of Graves, Wayne and Danihelka (2014), \"Neural Turing machines\",\n"
"section 3.3.1, with `scale` for their key strength. The cosine is that of PyTorch's\n"
"cosine_similarity.\n"
DOC_PADDING
"\n"
"Examples\n"
"--------\n"
"A memory is read at the address that points where the query points, whatever the\n"
"lengths.\n"
"\n"
">>> import numpy as np\n"
">>> from attnext import cosine_attention\n"
">>> keys = np.array([[3.0, 0.0], [0.0, 0.1], [-1.0, 0.0]])\n"
">>> values = np.array([[10.0], [20.0], [30.0]])\n"
">>> cosine_attention([[0.0, 5.0]], keys, values, scale=10).round(2)\n"
"array([[20.]], dtype=float32)\n");

static PyObject *
cosine_attention(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames)
{
    return py_call_forward(module, &attn_score_cosine, &forward_signature, args, nargs,
                           kwnames);
}

static const py_signature backward_signature = {
    .function = "cosine_attention_backward",
    .required = 4,
    .positional = 5,
    .args = {ARG_GRAD_OUTPUT, ARG_QUERIES, ARG_KEYS, ARG_VALUES, ARG_VALID_LENS,
             ARG_SCALE, ARG_EPS, PY_BACKWARD_ARGS},
};

PyDoc_STRVAR(cosine_attention_backward_doc,
"cosine_attention_backward(grad_output, queries, keys, values, valid_lens=None, *, "
"scale=1.0, eps=1e-8, "
SIGNATURE_BACKWARD
"Gradients of `cosine_attention`.\n"
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
DOC_COSINE
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
"cosine_attention : The function these are the gradients of.\n"
"\n"
"Notes\n"
"-----\n"
"With unit vectors ``u = q / |q|``, ``v = k / |k|`` and dS the gradient of the\n"
"scores: ``du = scale * sum dS v`` over the keys, and ``dq = (du - (u.du) u) / |q|``:\n"
"only the part across q turns it. The keys likewise. A norm below eps is the constant\n"
"eps, and ``dq = du / eps``.\n"
"\n"
"Examples\n"
"--------\n"
">>> import numpy as np\n"
">>> from attnext import cosine_attention_backward\n"
">>> q, k, v = [[2.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[0.0], [4.0]]\n"
">>> dq, dk, dv = cosine_attention_backward([[1.0]], q, k, v, scale=0.0)\n"
">>> dv\n"
"array([[0.5],\n"
"       [0.5]], dtype=float32)\n"
">>> dq, dk, dv = cosine_attention_backward([[1.0]], q, k, v)\n"
">>> dq.round(3)\n"
"array([[0.   , 0.393]], dtype=float32)\n");

static PyObject *
cosine_attention_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *kwnames)
{
    attention_gradients d;
    if (py_call_backward(module, &attn_score_cosine, &backward_signature, args, nargs,
                         kwnames, &d) < 0) {
        return NULL;
    }
    return py_pack_gradients(&d, NULL);
}

static const py_signature scores_signature = {
    .function = "cosine_scores",
    .required = 2,
    .positional = 2,
    .args = {ARG_QUERIES, ARG_KEYS, ARG_SCALE, ARG_EPS},
};

PyDoc_STRVAR(cosine_scores_doc,
"cosine_scores(queries, keys, *, scale=1.0, eps=1e-8)\n"
"--\n\n"
"Scaled cosine between every query and every key.\n"
"\n"
"Parameters\n"
"----------\n"
"queries : array_like, shape (..., M, D)\n"
"    M queries of D features; any leading axes, or none.\n"
DOC_FLOAT32
"keys : array_like, shape (..., N, D)\n"
"    The keys; leading axes as those of `queries`.\n"
DOC_COSINE
"\n"
"Returns\n"
"-------\n"
"scores : ndarray, float32, shape (..., M, N)\n"
"    ``scale * q.k / (max(|q|, eps) * max(|k|, eps))`` of every pair.\n"
"\n"
DOC_RAISES
"\n"
"See Also\n"
"--------\n"
"cosine_attention : The attention with this score.\n"
"masked_softmax : From scores to attention weights.\n"
"\n"
"Notes\n"
"-----\n"
"Cosines lie between -1 and 1: without a scale above 1 no softmax over many of them\n"
"is far from uniform.\n"
"\n"
"Examples\n"
"--------\n"
">>> from attnext import cosine_scores\n"
">>> cosine_scores([[3.0, 4.0]], [[1.0, 0.0], [-6.0, -8.0], [0.0, 0.0]]).round(3)\n"
"array([[ 0.6, -1. ,  0. ]], dtype=float32)\n");

static PyObject *
cosine_scores(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    return py_call_scores(module, &attn_score_cosine, &scores_signature, args, nargs,
                          kwnames);
}

PyMethodDef py_cosine_functions[] = {
    PY_FUNCTION(cosine_attention),
    PY_FUNCTION(cosine_attention_backward),
    PY_FUNCTION(cosine_scores),
    {0},
};
