"""What type checkers must say of calls that users write: checked by mypy and pyright, not run."""

from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray

import attnext
import attnext.torch
from attnext.kernel_regression import NWKernelRegression

Array = NDArray[np.float32]
q = k = v = np.ones((2, 3, 4), np.float32)
flag = bool(q.any())

# ---- a forward returns what is asked for ---------------------------------------------------------

assert_type(attnext.masked_softmax(q, [1, 2]), Array)
assert_type(attnext.dot_product_attention(q, k, v, [1, 2], causal=True, window=(2, 0)), Array)
assert_type(attnext.dot_product_attention(q, k, v, return_weights=True), tuple[Array, Array])
assert_type(attnext.cosine_attention(q, k, v, return_lse=True), tuple[Array, Array])
assert_type(
    attnext.gaussian_attention(q, k, v, sigma=0.5, return_weights=True, return_lse=True),
    tuple[Array, Array, Array],
)
assert_type(
    attnext.dot_product_attention(q, k, v, return_weights=flag),
    Array | tuple[Array, Array] | tuple[Array, Array, Array],
)
assert_type(attnext.dot_product_scores(q, k, scale=[[1.0], [2.0]]), Array)
assert_type(attnext.merge_attention([q, q], [q[..., 0], q[..., 0]]), tuple[Array, Array])

# ---- a backward, one gradient for each ----------------------------------------------------------

assert_type(attnext.dot_product_attention_backward(q, q, k, v), tuple[Array, Array, Array])
assert_type(
    attnext.dot_product_attention_backward(q, q, k, v, bias=q, return_grad_bias=True),
    tuple[Array, Array, Array, Array],
)
assert_type(attnext.gaussian_attention_backward(q, q, k, v), tuple[Array, Array, Array, np.float32])
assert_type(
    attnext.additive_attention_backward(q, q, k, v, q[0], q[0], q[0, 0]), attnext.AdditiveGradients
)
assert_type(
    attnext.multi_head_attention_backward(q, q, k, v, q[0], q[0], q[0], q[0], num_heads=2).b_o,
    Array | None,
)

# ---- layers --------------------------------------------------------------------------------------

attn = attnext.DotProductAttention(dropout=0.5).eval()
assert_type(attn, attnext.DotProductAttention)
assert_type(attn(q, k, v, need_weights=False), Array)
assert_type(attn(q, attn.memory(k, v, 2)), Array)
assert_type(attn.attention_weights, Array | Any)  # to look at without a check for None
assert_type(attnext.MultiHeadAttention(4, 4, 4, 4, 2).state_dict("torch"), dict[str, Array])
assert_type(NWKernelRegression().attention_weights, Array | Any)
additive = attnext.AdditiveAttention(2, 3, 4, bias=True)
assert_type(additive.W_q, Array)
assert_type(additive.b_h, Array | None)
additive.W_q = [[0.5, 1.0, 0.0]] * 4  # anything that is an array
additive.b_h = np.zeros(4)
assert_type(attn.backward(q), tuple[Array, Array, Array] | Any)
assert_type(attnext.show_config("dicts")["threads"]["chosen"], int)

# ---- tensors -------------------------------------------------------------------------------------

layer = attnext.torch.MultiHeadAttention(4, 2)
assert_type(layer.attention_weights, torch.Tensor | Any)
assert_type(layer.state_dict(layout="torch"), Any)
