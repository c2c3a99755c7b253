"""Multi-head attention: project, attend with each head, join the heads, project again."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from .arguments import (
    Array,
    Mask,
    as_array,
    as_array_or_zeros,
    as_lens,
    as_size,
    deliver,
    read_array,
)
from .attention import Attended, Inputs, attention, attention_backward
from .band import as_offset, band_of
from .dot_product import DotProduct
from .masks import broadcast_lens, pairs_that_take_part
from .options import HEADS_BACKWARD, HEADS_FORWARD, Options

if TYPE_CHECKING:
    from .._options import MultiHeadBackward
    from .options import MultiHeadAttention


# ---- linear layers and heads -------------------------------------------------------------------


def project(x: Array, W: Array, b: Array | None) -> Array:
    """Map x (..., rows, I) to (..., rows, O) with W (O, I) and b (O,), as torch.nn.Linear does."""
    y: Array = x @ W.T
    return y if b is None else y + b


def project_backward(
    d_y: Array, x: Array, W: Array, b: Array | None
) -> tuple[Array, Array, Array | None]:
    """Return the gradients of x, W and b. A row of x is not read if its row of d_y is 0."""
    used = (d_y != 0).any(axis=-1)  # also True for NaN
    # forward was: y = W x + b for each row, with one W and one b for all rows
    d_x: Array = d_y @ W
    return d_x, d_y[used].T @ x[used], None if b is None else np.sum(d_y[used], axis=0)


def split(x: Array, heads: int) -> Array:
    """Split x (..., rows, heads * d) into heads: (..., heads, rows, d)."""
    *lead, rows, width = x.shape
    return x.reshape(*lead, rows, heads, width // heads).swapaxes(-3, -2)


def join(x: Array) -> Array:
    """Join the heads of x (..., heads, rows, d) again: (..., rows, heads * d)."""
    *lead, heads, rows, d = x.shape
    return x.swapaxes(-3, -2).reshape(*lead, rows, heads * d)


# ---- arguments ---------------------------------------------------------------------------------


class Arguments(NamedTuple):
    """Inputs and parameters, whose shapes have been checked."""

    queries: Array  # (..., M, Dq)
    keys: Array  # (..., N, Dk)
    values: Array  # (..., N, Dv)
    W_q: Array  # (H, Dq), H = heads * d
    W_k: Array  # (Hk, Dk), Hk = kv_heads * d
    W_v: Array  # (Hk, Dv)
    W_o: Array  # (H, H)
    b_q: Array | None  # (H,), (Hk,), (Hk,), (H,); None if not given
    b_k: Array | None
    b_v: Array | None
    b_o: Array | None
    heads: int
    kv_heads: int  # each key head is shared by heads / kv_heads query heads

    def of_heads(self, valid_lens: ArrayLike | None) -> Inputs:
        """Return q (..., heads, M, d), k and v (..., kv_heads, N, d), lengths (..., heads, M)."""
        q = split(project(self.queries, self.W_q, self.b_q), self.heads)
        k = split(project(self.keys, self.W_k, self.b_k), self.kv_heads)
        v = split(project(self.values, self.W_v, self.b_v), self.kv_heads)
        if valid_lens is None:
            return q, k, v, None
        rows = self.queries.shape[:-1]
        lens = broadcast_lens(as_lens("valid_lens", valid_lens, k.shape[-2]), rows)
        return q, k, v, np.broadcast_to(np.broadcast_to(lens, rows)[..., None, :], q.shape[:-1])


def read_arguments(x: dict[str, Any]) -> Arguments:
    """Check the arguments of a call of `multi_head_attention`, given by name."""
    heads = as_size("num_heads", x["num_heads"], 1)
    kv_heads = x.get("num_kv_heads")
    kv_heads = heads if kv_heads is None else as_size("num_kv_heads", kv_heads, 1)
    if heads % kv_heads != 0:
        expected = f"a divisor of num_heads ({heads})"
        raise ValueError(f"num_kv_heads is {kv_heads}, expected {expected}")
    q = as_array("queries", x["queries"])
    if q.ndim < 2:
        raise ValueError(f"queries has shape {q.shape}, expected two axes or more: (..., M, Dq)")
    k = as_array("keys", x["keys"], (*q.shape[:-2], "N", "Dk"))
    v = as_array("values", x["values"], (*k.shape[:-1], "Dv"))
    W_q = as_array("W_q", x["W_q"], ("H", q.shape[-1]))
    H = len(W_q)
    if H % heads != 0:
        expected = f"where H is a multiple of num_heads ({heads})"
        raise ValueError(f"W_q has shape {W_q.shape}, expected (H, {q.shape[-1]}), {expected}")
    Hk = H // heads * kv_heads
    W_k = as_array("W_k", x["W_k"], (Hk, k.shape[-1]))
    W_v = as_array("W_v", x["W_v"], (Hk, v.shape[-1]))
    W_o = as_array("W_o", x["W_o"], (H, H))
    b_q, b_k, b_v, b_o = (
        None if x.get(name) is None else as_array(name, x[name], (len(W),))
        for name, W in {"b_q": W_q, "b_k": W_k, "b_v": W_v, "b_o": W_o}.items()
    )
    return Arguments(q, k, v, W_q, W_k, W_v, W_o, b_q, b_k, b_v, b_o, heads, kv_heads)


def live_rows(inputs: Inputs, o: Options) -> Mask:
    """Return a bool array (..., heads, M): True for queries with at least one unmasked key."""
    q, k, _, lens = inputs
    rows, N = np.shape(q)[:-1], np.shape(k)[-2]
    return np.asarray(
        pairs_that_take_part(rows, N, Options(**{**vars(o), "valid_lens": lens})).any(axis=-1)
    )


def check_heads(name: str, shape: tuple[int, ...], pairs: tuple[int, ...]) -> None:
    """Raise ValueError if the shape is ambiguous: (batch, M, N) or (heads, M, N)."""
    if not 2 < len(shape) < len(pairs) or prod(shape[:-2]) == 1:
        return
    all_axes = f"a shape with {len(pairs)} axes that broadcasts to {pairs}"
    expected = f"a shape that broadcasts to {pairs[-2:]}, or {all_axes}"
    if len(pairs) == 4:
        each = f"{name}[:, None] if it has one {name} per batch element"
        expected += f"; pass {each}, or {name}[None] if it has one {name} per head"
    raise ValueError(f"{name} has shape {shape}, expected {expected}")


def options_of_heads(a: Arguments, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options for the attention inside the heads."""
    as_offset(band_of(options).offset, a.queries.shape[:-1])
    *lead, M, _ = a.queries.shape
    for name in ("mask", "bias", "dropout_mask"):
        if options.get(name) is not None:
            shape = (*lead, a.heads, M, a.keys.shape[-2])
            check_heads(name, read_array(name, options[name]).shape, shape)
    return {**options, "enable_gqa": a.kv_heads != a.heads}


# ---- the functions -----------------------------------------------------------------------------


@HEADS_FORWARD.spelled_out
@np.errstate(all="ignore")
def multi_head_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    W_v: ArrayLike,
    W_o: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    num_heads: int,
    **options: Unpack[MultiHeadAttention],
) -> Attended:
    """Project queries, keys and values, attend with several heads, and project the results.

    Notes
    -----
    ``head_h = softmax(scale * (W_q[h] q) . (W_k[h] k)) @ (W_v[h] v)`` and ``output = W_o
    concat(head_1, ..., head_H)`` (Vaswani et al. 2017, section 3.2.2). This is
    ``MultiHeadAttention`` of Dive into Deep Learning (11.5 in English, 10.5 in Chinese).

    Examples
    --------
    Two heads and two features. Head 0 uses feature 0 only.

    >>> import numpy as np
    >>> from attnext import reference
    >>> I, x = np.eye(2), np.array([[4.0, 0.0], [0.0, 4.0]])
    >>> reference.multi_head_attention(x, x, x, I, I, I, I, num_heads=2).round(2)
    array([[4., 2.],
           [2., 4.]])
    """
    a = read_arguments({**locals(), **options})
    o = HEADS_FORWARD.read("multi_head_attention", valid_lens, options)
    asked = {**options, "return_weights": True, "return_lse": True, "out": None}
    inputs = a.of_heads(valid_lens)
    heads = options_of_heads(a, asked)
    pooled, weights, lse = attention("multi_head_attention", DotProduct, inputs, heads)
    arrays = [x for x in a if isinstance(x, np.ndarray)]
    output = deliver(project(join(pooled), a.W_o, a.b_o), o.out, *arrays)
    extras = [x for wanted, x in [(o.return_weights, weights), (o.return_lse, lse)] if wanted]
    return (output, *extras) if extras else output


class MultiHeadGradients(NamedTuple):
    """Gradients of `multi_head_attention`, each in the shape of its input.

    Parameters
    ----------
    queries, keys, values, W_q, W_k, W_v, W_o : ndarray of float64
        Gradients with respect to these inputs.
    b_q, b_k, b_v, b_o : ndarray of float64 or None
        Gradients with respect to the biases; None if no bias was given.
    """

    queries: Array
    keys: Array
    values: Array
    W_q: Array
    W_k: Array
    W_v: Array
    W_o: Array
    b_q: Array | None
    b_k: Array | None
    b_v: Array | None
    b_o: Array | None


@HEADS_BACKWARD.spelled_out
@np.errstate(all="ignore")
def multi_head_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    W_v: ArrayLike,
    W_o: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    num_heads: int,
    **options: Unpack[MultiHeadBackward],
) -> Any:
    """Gradients of `multi_head_attention`.

    Notes
    -----
    The backward passes of the output layer, of the attention in each head, and of the three
    projections follow each other. The heads are independent, except that the gradients of the
    inputs are sums over all heads.

    Examples
    --------
    >>> import numpy as np
    >>> from attnext import reference
    >>> I, x = np.eye(2), np.array([[4.0, 0.0], [0.0, 4.0]])
    >>> grad = [[1, 0], [0, 0]]
    >>> d = reference.multi_head_attention_backward(grad, x, x, x, I, I, I, I, num_heads=2)
    >>> d.values.round(2)
    array([[1., 0.],
           [0., 0.]])
    """
    a = read_arguments({**locals(), **options})
    o = HEADS_BACKWARD.read("multi_head_attention_backward", valid_lens, options)
    d_output = as_array("grad_output", grad_output, (*a.queries.shape[:-1], len(a.W_o)))
    as_array_or_zeros("output", o.output, d_output.shape)  # it is only checked
    inputs = a.of_heads(valid_lens)
    of_backward = ("grad_", "return_grad_", "weights", "output", "lse")
    of_forward = {name: x for name, x in options.items() if not name.startswith(of_backward)}
    heads = options_of_heads(a, of_forward)
    pooled = attention("multi_head_attention", DotProduct, inputs, heads)

    # forward was: output = project(join(pooled), W_o, b_o)
    d_joined, d_W_o, d_b_o = project_backward(d_output, join(pooled), a.W_o, a.b_o)
    # forward was: pooled = attention(score, q, k, v, ...)
    d_pooled, backward = split(d_joined, a.heads), options_of_heads(a, {**options, "output": None})
    function = "multi_head_attention_backward"
    d = attention_backward(function, DotProduct, d_pooled, inputs, backward)
    d_q, d_k, d_v = map(join, d[:3])
    # forward was: q = split(project(queries, W_q, b_q), heads), and the same for k and v
    d_queries, d_W_q, d_b_q = project_backward(d_q, a.queries, a.W_q, a.b_q)
    if o.empty_rows == "nan":
        # a query whose keys are all masked has a NaN gradient, which W_q and b_q must not get
        live_d_q = join(np.where(live_rows(inputs, o)[..., None], d[0], 0))
        _, d_W_q, d_b_q = project_backward(live_d_q, a.queries, a.W_q, a.b_q)
    d_keys, d_W_k, d_b_k = project_backward(d_k, a.keys, a.W_k, a.b_k)
    d_values, d_W_v, d_b_v = project_backward(d_v, a.values, a.W_v, a.b_v)
    of_weights, of_biases = (d_W_q, d_W_k, d_W_v, d_W_o), (d_b_q, d_b_k, d_b_v, d_b_o)
    gradients = MultiHeadGradients(d_queries, d_keys, d_values, *of_weights, *of_biases)
    return (gradients, *d[3:]) if d[3:] else gradients
