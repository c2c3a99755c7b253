"""Attention as attnext, d2l, PyTorch, JAX and ONNX Runtime compute it, behind one signature.

    queries (B, heads, M, D)   keys (B, key heads, N, D)   values (B, key heads, N, D)

Options go to each framework under its own name for them and as they are: nothing here makes a mask
out of lengths, or floats out of bools. What a framework has no argument for is `NotThere`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax_process
import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_errors
from torch import Tensor, nn
from torch.nn import functional

import attnext

Array = NDArray[Any]
Attend = Callable[..., dict[str, Array]]


class Inputs(NamedTuple):
    queries: Array
    keys: Array
    values: Array

    @property
    def share_keys(self) -> bool:
        """Whether several heads have the same keys."""
        return bool(self.queries.shape[1] != self.keys.shape[1])


class NotThere(Exception):
    """The framework has no such argument."""


def none_of(options: dict[str, Any]) -> None:
    """Options that are left over are those that the framework does not have."""
    if options:
        raise NotThere(", ".join(options))


# ---- attnext -------------------------------------------------------------------------------------


def by_attnext(
    x: Inputs,
    *,
    lengths: Any = None,
    grad_output: Array | None = None,
    grad_lse: Array | None = None,
    **options: Any,
) -> dict[str, Array]:
    options["enable_gqa"] = x.share_keys
    output, weights, lse = attnext.dot_product_attention(
        *x, lengths, **options, return_weights=True, return_lse=True
    )
    result = {"output": output, "weights": weights, "lse": lse}
    if grad_output is None:
        return result
    gradients = attnext.dot_product_attention_backward(
        grad_output, *x, lengths, **options, grad_lse=grad_lse
    )
    return result | dict(zip(("d_queries", "d_keys", "d_values"), gradients, strict=True))


# ---- d2l: the scaled dot-product attention of Dive into Deep Learning, section 11.3 --------------


def d2l_masked_softmax(X: Tensor, lengths: Tensor | None) -> Tensor:
    """Weights of X (B, M, N): scores behind the length, of a sequence or of a query, are -1e6."""
    if lengths is None:
        return functional.softmax(X, dim=-1)
    of_each_row = lengths.unsqueeze(1) if lengths.dim() == 1 else lengths  # (B, 1) or (B, M)
    behind = torch.arange(X.shape[-1]) >= of_each_row.unsqueeze(-1)
    return functional.softmax(torch.where(behind, -1e6, X), dim=-1)


def by_d2l(
    x: Inputs,
    *,
    lengths: Any = None,
    dropout_p: float = 0.0,
    grad_output: Array | None = None,
    **others: Any,
) -> dict[str, Array]:
    """The book's layer takes three axes: heads are sequences of their own."""
    none_of(others)
    if x.share_keys:
        raise NotThere("heads that share keys")
    B, heads = x.queries.shape[:2]
    queries, keys, values = (as_leaf(a.reshape(B * heads, *a.shape[2:])) for a in x)
    lens = None if lengths is None else torch.tensor(lengths).repeat_interleave(heads, dim=0)
    scores = torch.bmm(queries, keys.transpose(1, 2)) / queries.shape[-1] ** 0.5
    weights = d2l_masked_softmax(scores, lens)
    output = torch.bmm(nn.Dropout(dropout_p)(weights), values)
    result = {"output": output, "weights": weights}
    if grad_output is not None:
        output.backward(torch.tensor(grad_output).reshape(output.shape))
        result |= gradients_of(queries, keys, values)
    return {name: a.detach().numpy().reshape(B, heads, *a.shape[1:]) for name, a in result.items()}


# ---- PyTorch: torch.nn.functional.scaled_dot_product_attention -----------------------------------


def by_torch(
    x: Inputs,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    dropout_p: float = 0.0,
    grad_output: Array | None = None,
    **others: Any,
) -> dict[str, Array]:
    """One argument, attn_mask, is both mask and bias."""
    none_of(others)
    given = [a for a in (mask, bias) if a is not None]
    queries, keys, values = map(as_leaf, x)
    output = functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=torch.tensor(given[0]) if given else None,
        is_causal=causal,
        dropout_p=dropout_p,
        enable_gqa=x.share_keys,
    )
    assert isinstance(output, Tensor)  # nothing besides
    result = {"output": output}
    if grad_output is not None:
        output.backward(torch.tensor(grad_output))
        result |= gradients_of(queries, keys, values)
    return {name: a.detach().numpy() for name, a in result.items()}


def as_leaf(x: Array) -> Tensor:
    return torch.tensor(x).requires_grad_()


def gradients_of(queries: Tensor, keys: Tensor, values: Tensor) -> dict[str, Tensor]:
    leaves = {"d_queries": queries, "d_keys": keys, "d_values": values}
    gradients = {name: x.grad for name, x in leaves.items()}
    return {name: x for name, x in gradients.items() if x is not None}


# ---- JAX: jax.nn.dot_product_attention -----------------------------------------------------------


def by_jax(x: Inputs, **options: Any) -> dict[str, Array]:
    none_of({name: o for name, o in options.items() if name not in jax_process.OPTIONS})
    result: dict[str, Array] = jax_process.call("attention", *x, options)
    return result


# ---- ONNX Runtime: the operator Attention on the CPU ---------------------------------------------

# The version of the operator, and the later one in which ONNX gave it a window.
OPSET, OPSET_WITH_WINDOW = 24, 25

REFUSALS = (
    TypeError,
    ValueError,
    RuntimeError,
    onnxruntime_errors.Fail,
    onnxruntime_errors.InvalidArgument,
    onnxruntime_errors.InvalidGraph,
    onnxruntime_errors.NotImplemented,
    onnxruntime_errors.RuntimeException,
)


def by_onnxruntime(
    x: Inputs,
    *,
    lengths: Any = None,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    **others: Any,
) -> dict[str, Array]:
    """One input, attn_mask, is both mask and bias; output 3 has the weights if they are asked for.

    It is for inference: there are no gradients.
    """
    none_of(others)
    feeds = dict(zip("QKV", x, strict=True))
    for name, a, dtype in (
        ("attn_mask", mask, None),
        ("attn_mask", bias, None),
        ("nonpad_kv_seqlen", lengths, np.int64),
    ):
        if a is not None:
            feeds[name] = np.asarray(a, dtype=dtype)
    attributes: dict[str, Any] = {"is_causal": int(causal), "qk_matmul_output_mode": 3}
    attributes["softcap"] = softcap
    opset = OPSET
    if window is not None:
        opset = OPSET_WITH_WINDOW
        attributes |= {"left_window_size": window[0], "right_window_size": window[1]}
    names = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
    node = onnx.helper.make_node(
        "Attention",
        [name if name in feeds else "" for name in names],
        ["output", "", "", "weights"],
        **attributes,
    )
    try:
        session = onnx_session(node, feeds, opset)
    except onnxruntime_errors.InvalidGraph as refusal:
        if "Unrecognized attribute: left_window_size" not in str(refusal):
            raise
        raise NotThere("window") from refusal
    return dict(zip(("output", "weights"), session.run(None, feeds), strict=True))


def onnx_session(node: Any, feeds: dict[str, Array], opset: int) -> Any:
    """A model of one node, ready to run."""

    def typed(name: str, x: Array | None) -> Any:
        dtype = np.dtype(np.float32) if x is None else x.dtype
        element = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        return onnx.helper.make_tensor_value_info(name, element, None if x is None else x.shape)

    outputs = [typed(name, None) for name in node.output if name]
    graph = onnx.helper.make_graph(
        [node], "one_node", [typed(name, x) for name, x in feeds.items()], outputs
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # refusals are exceptions here, and need no line on the screen
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


# ---- all of them, by the names of the table's columns --------------------------------------------

ATTEND: dict[str, Attend] = {
    "attnext": by_attnext,
    "d2l's code": by_d2l,
    "PyTorch": by_torch,
    "JAX": by_jax,
    "ONNX Runtime": by_onnxruntime,
}


def softmax_by(framework: str, X: Array) -> Array:
    """The framework's softmax over the last axis."""
    if framework == "attnext":
        return attnext.masked_softmax(X)
    if framework == "d2l's code":
        return d2l_masked_softmax(torch.tensor(X), None).numpy()
    if framework == "PyTorch":
        return functional.softmax(torch.tensor(X), dim=-1).numpy()
    if framework == "JAX":
        weights: Array = jax_process.call("softmax", X)
        return weights
    node = onnx.helper.make_node("Softmax", ["X"], ["weights"], axis=-1)
    (result,) = onnx_session(node, {"X": X}, OPSET).run(None, {"X": X})
    return np.asarray(result)
