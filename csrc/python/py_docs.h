/*
 * py_docs.h -- what docstrings are made of: the rows of py_options.def, and the
 * paragraphs that several functions share, so that they cannot drift apart. Each of
 * these is a run of whole lines.
 */
/* clang-format off */
#ifndef PY_DOCS_H
#define PY_DOCS_H

#include "py_attnext.h"

/* What the table says of an argument; by py_arg (py_tables.c). */
typedef struct {
    const char *name, *standard, *type, *doc; /* standard: its default, as text */
    int taken_by;
} py_argument_row;

extern const py_argument_row py_argument_rows[ARG_COUNT];

#define DOC_FLOAT32 \
"    Used as it is if float32 and C-contiguous, like every array here; other\n" \
"    layouts, lists and other real dtypes are converted to float32 first.\n"

#define DOC_VALID_LENS \
"valid_lens : None, int or array_like of integers, optional\n" \
"    How many keys take part, the first ones. One int for all queries; shape (B,)\n" \
"    with B = ``queries.shape[0]``, one for each entry of the first axis; (B, M),\n" \
"    one for each query, shared by the axes between (heads); or\n" \
"    ``queries.shape[:-1]``. A length above N means N. None: all keys.\n"

#define DOC_FORWARD_OUTPUT \
"    The values, averaged with the attention weights.\n"

#define DOC_FORWARD_WEIGHTS \
"    Only with `return_weights`: the weights before dropout. Rows sum to 1, with a\n" \
"    `sink` to less; exactly 0 for keys that take no part.\n"

#define DOC_FORWARD_LSE \
"    Only with `return_lse`: natural logarithm of the sum of ``exp(score)`` over\n" \
"    the keys that take part, and of the sink; -inf where there is none.\n"

#define DOC_GRADIENTS_OF_SCORES \
"dq : ndarray, float32, shape (..., M, D)\n" \
"    Gradient with respect to `queries`.\n" \
"dk : ndarray, float32, shape (..., N, D)\n" \
"    Gradient with respect to `keys`.\n"

#define DOC_GRADIENTS \
"dq : ndarray, float32, shape (..., M, D)\n" \
"    Gradient with respect to `queries`.\n" \
"dk : ndarray, float32, shape (..., N, D)\n" \
"    Gradient with respect to `keys`; exactly 0 for those that take no part.\n" \
"dv : ndarray, float32, shape (..., N, Dv)\n" \
"    Gradient with respect to `values`, likewise.\n"

#define DOC_GRADIENT_OF_BIAS \
"dbias : ndarray, float32, shape of `bias`\n" \
"    Only with `return_grad_bias`: gradient with respect to `bias`, summed over the\n" \
"    axes along which it was broadcast; None without a bias.\n" \
"dsink : ndarray, float32, shape of `sink`\n" \
"    Only with `return_grad_sink`: gradient with respect to `sink`, likewise.\n"

#define DOC_GRADIENT_OF_SCALE \
"dscale : ndarray, float32, shape of `scale`\n" \
"    Only with `return_grad_scale`: gradient with respect to `scale`, summed over all\n" \
"    pairs that share it; a float32 number if `scale` is one, or is not given.\n"

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
"of all the values. A mask is read in the shape and layout it has, without a copy, if\n" \
"its last axis is contiguous.\n"

#endif
