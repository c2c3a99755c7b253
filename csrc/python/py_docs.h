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

#define DOC_DROPOUT \
"dropout_p : float, optional\n" \
"    Probability, 0 <= dropout_p < 1, that a weight is left out of the pooling;\n" \
"    those kept are scaled by ``1 / (1 - dropout_p)``. Needs `seed`.\n" \
"seed : int, optional\n" \
"    Which weights dropout drops, 0 <= seed < 2**64: the same in forward and\n" \
"    backward, on any number of threads, on any machine (Philox4x32-10; Salmon et\n" \
"    al. 2011).\n"

/* What every forward takes after its own options. */
#define DOC_FORWARD_OPTIONS \
DOC_DROPOUT \
"empty_rows : {'uniform', 'zero', 'nan'}, optional\n" \
"    What becomes of a query of valid length 0: 'uniform' pools with weights 1/N\n" \
"    over all keys, as the d2l code does; 'zero' gives weights and output 0, as\n" \
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
"    0 beyond the valid length.\n" \
"lse : ndarray, float32, shape (..., M)\n" \
"    Only with `return_lse`: natural logarithm of the sum of ``exp(score)`` over\n" \
"    the keys that take part, -inf where there are none.\n" \
"\n"

/* What every backward takes after its own options. */
#define DOC_BACKWARD_OPTIONS \
"dropout_p : float, optional\n" \
"    As in the forward.\n" \
"seed : int, optional\n" \
"    As in the forward.\n" \
"empty_rows : {'uniform', 'zero', 'nan'}, optional\n" \
"    As in the forward.\n" \
"grad_weights : array_like, shape (..., M, N), optional\n" \
"    Gradient that flows into the returned weights, if any.\n" \
"grad_lse : array_like, shape (..., M), optional\n" \
"    Gradient that flows into the returned lse, if any.\n" \
"output : array_like, shape (..., M, Dv), optional\n" \
"    What the forward returned, to save computing it again; may change the last\n" \
"    bits.\n" \
"lse : array_like, shape (..., M), optional\n" \
"    What the forward returned, likewise.\n"

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
"Keys and values beyond the valid length are never read: NaN there does no harm.\n" \
"The one exception: an empty row with 'uniform' is the mean of all the values.\n"

#endif
