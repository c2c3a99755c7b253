/*
 * py_gaussian.c -- Gaussian-kernel attention: forward, backward, scores.
 */
#include "py_attention.h"
#include "py_docs.h"

/* The two spellings of the bandwidth. */
#define DOC_BANDWIDTH                                                                  \
    "w : float, optional\n"                                                            \
    "    Inverse of the bandwidth, finite, a number or an array of one element; 1 by " \
    "default.\n"                                                                       \
    "sigma : float, optional\n"                                                        \
    "    The bandwidth itself, ``w = 1 / sigma``, greater than 0; instead of `w`.\n"

static const py_signature forward_signature = {
    .function = "gaussian_attention",
    .required = 3,
    .positional = 4,
    .args = {ARG_QUERIES, ARG_KEYS, ARG_VALUES, ARG_VALID_LENS, ARG_W, ARG_SIGMA,
             PY_FORWARD_ARGS},
};

PyDoc_STRVAR(gaussian_attention_doc,
"gaussian_attention(queries, keys, values, valid_lens=None, *, w=None, sigma=None, "
SIGNATURE_FORWARD
"Pool values by a Gaussian kernel of the distance between queries and keys.\n"
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
DOC_BANDWIDTH
DOC_FORWARD_OPTIONS
"\n"
DOC_FORWARD_RETURNS
DOC_RAISES
"\n"
"See Also\n"
"--------\n"
"gaussian_attention_backward : The gradients of this function.\n"
"gaussian_scores : The scores alone.\n"
"\n"
"Notes\n"
"-----\n"
"``score(q, k) = -(w * |q - k|)**2 / 2``, which makes the output the regression of\n"
"Nadaraya (1964) and Watson (1964) with a Gaussian kernel (Dive into Deep Learning,\n"
"section 11.2). The squared distance is summed from the differences, without\n"
"cancellation.\n"
DOC_PADDING
"\n"
"Examples\n"
"--------\n"
"Regression at x = 1.5 from three observations (x, y).\n"
"\n"
">>> import numpy as np\n"
">>> from attnext import gaussian_attention\n"
">>> x, y = np.array([[0.0], [1.0], [2.0]]), np.array([[5.0], [2.0], [4.0]])\n"
">>> y_hat, weights = gaussian_attention(\n"
"...     [[1.5]], x, y, sigma=0.5, return_weights=True)\n"
">>> weights.round(3)\n"
"array([[0.009, 0.495, 0.495]], dtype=float32)\n"
">>> y_hat.round(3)\n"
"array([[3.018]], dtype=float32)\n");

static PyObject *
gaussian_attention(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames)
{
    return py_call_forward(module, &attn_score_gaussian, &forward_signature, args,
                           nargs, kwnames);
}

static const py_signature backward_signature = {
    .function = "gaussian_attention_backward",
    .required = 4,
    .positional = 5,
    .args = {ARG_GRAD_OUTPUT, ARG_QUERIES, ARG_KEYS, ARG_VALUES, ARG_VALID_LENS, ARG_W,
             ARG_SIGMA, PY_BACKWARD_ARGS},
};

PyDoc_STRVAR(gaussian_attention_backward_doc,
"gaussian_attention_backward(grad_output, queries, keys, values, valid_lens=None, *, "
"w=None, sigma=None, "
SIGNATURE_BACKWARD
"Gradients of `gaussian_attention`.\n"
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
DOC_BANDWIDTH
DOC_BACKWARD_OPTIONS
"\n"
"Returns\n"
"-------\n"
DOC_GRADIENTS("D")
"dw : float32\n"
"    Gradient with respect to ``w = 1 / sigma``, whichever of the two was given.\n"
DOC_GRADIENT_OF_BIAS
DOC_RAISES
"\n"
"See Also\n"
"--------\n"
"gaussian_attention : The function these are the gradients of.\n"
"\n"
"Notes\n"
"-----\n"
"With dS the gradient of the scores: ``dq = -w**2 * sum dS (q - k)`` over the keys,\n"
"dk the same with the other sign over the queries, and ``dw = -w * sum dS |q -\n"
"k|**2`` over all pairs.\n"
"\n"
"Examples\n"
"--------\n"
">>> import numpy as np\n"
">>> from attnext import gaussian_attention_backward\n"
">>> x, y = np.array([[-1.0], [1.0]]), np.array([[0.0], [4.0]])\n"
">>> dq, dk, dv, dw = gaussian_attention_backward([[1.0]], [[0.0]], x, y, w=0.5)\n"
">>> dq\n"
"array([[0.5]], dtype=float32)\n"
">>> dv\n"
"array([[0.5],\n"
"       [0.5]], dtype=float32)\n");

static PyObject *
gaussian_attention_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames)
{
    attention_gradients d;
    PyObject *result = NULL;

    if (py_call_backward(module, &attn_score_gaussian, &backward_signature, args, nargs,
                         kwnames, &d) < 0) {
        return NULL;
    }
    PyObject *dw = PyArrayScalar_New(Float);
    if (dw != NULL) {
        PyArrayScalar_ASSIGN(dw, Float, d.w);
        result = py_pack_gradients(&d, dw);
        Py_DECREF(dw);
    }
    attention_gradients_clear(&d);
    return result;
}

static const py_signature scores_signature = {
    .function = "gaussian_scores",
    .required = 2,
    .positional = 2,
    .args = {ARG_QUERIES, ARG_KEYS, ARG_W, ARG_SIGMA},
};

PyDoc_STRVAR(gaussian_scores_doc,
"gaussian_scores(queries, keys, *, w=None, sigma=None)\n"
"--\n\n"
"Logarithm of a Gaussian kernel of the distance of every query to every key.\n"
"\n"
"Parameters\n"
"----------\n"
"queries : array_like, shape (..., M, D)\n"
"    M queries of D features; any leading axes, or none.\n"
DOC_FLOAT32
"keys : array_like, shape (..., N, D)\n"
"    The keys; leading axes as those of `queries`.\n"
DOC_BANDWIDTH
"\n"
"Returns\n"
"-------\n"
"scores : ndarray, float32, shape (..., M, N)\n"
"    ``-(w * |q - k|)**2 / 2`` of every pair.\n"
"\n"
DOC_RAISES
"\n"
"See Also\n"
"--------\n"
"gaussian_attention : The attention with this score.\n"
"masked_softmax : From scores to attention weights.\n"
"\n"
"Notes\n"
"-----\n"
"The constant of the normal density is left out: softmax does not see it.\n"
"\n"
"Examples\n"
"--------\n"
">>> from attnext import gaussian_scores\n"
">>> gaussian_scores([[0.0, 0.0]], [[0.0, 2.0], [3.0, 4.0]])\n"
"array([[ -2. , -12.5]], dtype=float32)\n");

static PyObject *
gaussian_scores(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames)
{
    return py_call_scores(module, &attn_score_gaussian, &scores_signature, args, nargs,
                          kwnames);
}

PyMethodDef py_gaussian_functions[] = {
    PY_FUNCTION(gaussian_attention),
    PY_FUNCTION(gaussian_attention_backward),
    PY_FUNCTION(gaussian_scores),
    {0},
};
