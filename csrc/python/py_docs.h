/*
 * py_docs.h -- the paragraphs that docstrings of several functions share, so that they
 * cannot drift apart. Each is a run of whole lines.
 */
/* clang-format off */
#ifndef PY_DOCS_H
#define PY_DOCS_H

#define DOC_FLOAT32 \
"    Used as it is if float32 and C-contiguous, like every array here; other\n" \
"    layouts, lists and other real dtypes are converted to float32 first.\n"

#define DOC_OUT(SHAPE) \
"out : ndarray, optional\n" \
"    Where to put the result: float32, C-contiguous, writable, of shape\n" \
"    ``" SHAPE "``, and sharing no memory with an input.\n"

#define DOC_VALID_LENS \
"valid_lens : None, int or array_like of integers, optional\n" \
"    How many keys take part, the first ones. One int for all queries; shape (B,)\n" \
"    with B = ``queries.shape[0]``, one for each entry of the first axis; (B, M),\n" \
"    one for each query, shared by the axes between (heads); or\n" \
"    ``queries.shape[:-1]``. A length above N means N. None: all keys.\n"

#define DOC_MASK \
"mask : array_like of bool, optional\n" \
"    True where a query may attend to a key, of any shape that broadcasts to\n" \
"    ``(..., M, N)``. Read in the shape and layout it has, without a copy, if its\n" \
"    last axis is contiguous.\n"

#define DOC_CAUSAL \
"causal : bool, optional\n" \
"    Query i attends to no key after key i.\n"

#define DOC_DROPOUT \
"dropout_p : float, optional\n" \
"    Probability, 0 <= dropout_p < 1, that a weight is left out of the pooling;\n" \
"    those kept are scaled by ``1 / (1 - dropout_p)``. Needs `seed` or\n" \
"    `dropout_mask`.\n" \
"seed : int, optional\n" \
"    Which weights dropout drops, 0 <= seed < 2**64: the same in forward and\n" \
"    backward, on any number of threads, on any machine (Philox4x32-10; Salmon et\n" \
"    al. 2011).\n" \
"dropout_mask : array_like of bool, optional\n" \
"    The weights themselves that are kept, in the place of `seed`, to repeat the\n" \
"    dropout of another program: True = keep, of any shape that broadcasts to\n" \
"    ``(..., M, N)``.\n"

/* What every attention function takes after its own options: how the signature goes on
 * after them, and the parameters up to empty_rows. */
#define SIGNATURE_COMMON \
"mask=None, bias=None, causal=False, causal_offset=0, window=None, enable_gqa=False, " \
"dropout_p=0.0, seed=None, dropout_mask=None, empty_rows='uniform', "

#define SIGNATURE_FORWARD \
SIGNATURE_COMMON "return_weights=False, return_lse=False, out=None)\n--\n\n"

#define SIGNATURE_BACKWARD \
SIGNATURE_COMMON "grad_weights=None, grad_lse=None, weights=None, output=None, " \
"lse=None, return_grad_bias=False)\n--\n\n"

#define DOC_FORWARD_OPTIONS \
DOC_MASK \
"bias : array_like of floats, optional\n" \
"    Added to the scores, of any shape that broadcasts to ``(..., M, N)``; -inf\n" \
"    keeps a query from a key.\n" \
DOC_CAUSAL \
"causal_offset : int or array_like of integers, shape (B,), optional\n" \
"    Moves the diagonal of `causal` and `window`: query i stands at key\n" \
"    ``i + causal_offset``. N - M makes the last query attend to the last key. One\n" \
"    for each entry of the first axis, or one for all.\n" \
"window : tuple of two ints, optional\n" \
"    ``(left, right)``: the query that stands at key i attends to keys i - left to\n" \
"    i + right; -1 is no bound on that side.\n" \
"enable_gqa : bool, optional\n" \
"    Let groups of query heads share the heads of keys and values (grouped-query\n" \
"    attention): the heads are the last leading axis, and may be fewer for keys and\n" \
"    values if they divide those of the queries.\n" \
DOC_DROPOUT \
"empty_rows : {'uniform', 'zero', 'nan'}, optional\n" \
"    What becomes of a query to which no key is left: 'uniform' pools with weights\n" \
"    1/N over all keys, as the d2l code does; 'zero' gives weights and output 0, as\n" \
"    PyTorch's SDPA; 'nan' gives NaN.\n" \
"return_weights : bool, optional\n" \
"    Also return the attention weights.\n" \
"return_lse : bool, optional\n" \
"    Also return the log-sum-exp of the scores.\n" \
DOC_OUT("(..., M, Dv)")

#define DOC_FORWARD_RETURNS \
"Returns\n" \
"-------\n" \
"output : ndarray, float32, shape (..., M, Dv)\n" \
"    The values, averaged with the attention weights.\n" \
"weights : ndarray, float32, shape (..., M, N)\n" \
"    Only with `return_weights`: the weights before dropout. Rows sum to 1; exactly\n" \
"    0 for keys that take no part.\n" \
"lse : ndarray, float32, shape (..., M)\n" \
"    Only with `return_lse`: natural logarithm of the sum of ``exp(score)`` over\n" \
"    the keys that take part, -inf where there are none.\n" \
"\n"

/* What every backward takes after its own options. */
#define DOC_BACKWARD_OPTIONS \
"mask : array_like of bool, optional\n" \
"    As in the forward, like everything up to `empty_rows`.\n" \
"bias : array_like of floats, optional\n" \
"    As in the forward.\n" \
"causal : bool, optional\n" \
"    As in the forward.\n" \
"causal_offset : int or array_like of integers, shape (B,), optional\n" \
"    As in the forward.\n" \
"window : tuple of two ints, optional\n" \
"    As in the forward.\n" \
"enable_gqa : bool, optional\n" \
"    As in the forward.\n" \
"dropout_p : float, optional\n" \
"    As in the forward.\n" \
"seed : int, optional\n" \
"    As in the forward.\n" \
"dropout_mask : array_like of bool, optional\n" \
"    As in the forward.\n" \
"empty_rows : {'uniform', 'zero', 'nan'}, optional\n" \
"    As in the forward.\n" \
"grad_weights : array_like, shape (..., M, N), optional\n" \
"    Gradient that flows into the returned weights, if any.\n" \
"grad_lse : array_like, shape (..., M), optional\n" \
"    Gradient that flows into the returned lse, if any.\n" \
"weights : array_like, shape (..., M, N), optional\n" \
"    What the forward returned, to save computing it again; may change the last\n" \
"    bits.\n" \
"output : array_like, shape (..., M, Dv), optional\n" \
"    What the forward returned, likewise.\n" \
"lse : array_like, shape (..., M), optional\n" \
"    What the forward returned, likewise.\n" \
"return_grad_bias : bool, optional\n" \
"    Also return the gradient of `bias`.\n"

#define DOC_GRADIENTS(D) \
"dq : ndarray, float32, shape (..., M, " D ")\n" \
"    Gradient with respect to `queries`.\n" \
"dk : ndarray, float32, shape (..., N, " D ")\n" \
"    Gradient with respect to `keys`; exactly 0 for those that take no part.\n" \
"dv : ndarray, float32, shape (..., N, Dv)\n" \
"    Gradient with respect to `values`, likewise.\n"

#define DOC_GRADIENT_OF_BIAS \
"dbias : ndarray, float32, shape of `bias`\n" \
"    Only with `return_grad_bias`: gradient with respect to `bias`, summed over the\n" \
"    axes along which it was broadcast; None without a bias.\n" \
"\n"

#define DOC_RAISES \
"Raises\n" \
"------\n" \
"TypeError\n" \
"    An argument is of the wrong kind or dtype (complex, bool, object, a masked\n" \
"    array, a tensor that requires grad), or unknown, or missing.\n" \
"ValueError\n" \
"    An argument has the wrong shape or an impossible value.\n" \
"MemoryError\n" \
"    There is no memory for the result.\n"

#define DOC_PADDING \
"\n" \
"A key takes part in the row of a query if `valid_lens`, `mask`, `bias`, `causal`\n" \
"and `window`, as far as they are given, all allow it. What takes no part is never\n" \
"read: NaN there does no harm, and where no query of a block meets any key of a\n" \
"block no time is spent. The one exception: an empty row with 'uniform' is the mean\n" \
"of all the values.\n"

#endif
