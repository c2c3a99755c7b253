"""The functions of attnext as plain NumPy code in float64, written to be read.

Every function here has the name, the arguments and the meaning of its fast twin in ``attnext``,
and differs from it in three ways: it computes and returns float64, it takes its time, and it can
be checked by eye against a textbook. The tests hold the fast functions against these, and these
against central differences.

All attention here is one line,

    output = softmax(score(query, keys)) @ values,

worked out for one query at a time. The file goes from the inside out: the softmax of one row, the
scoring functions of one query, the walk over all queries, forward and backward. Then come the two
arrays that the walk is given, who takes part and what dropout keeps; the public functions; and,
last, the checking of arguments.

Letters: M queries, N keys (= values), n <= N of which take part for the query at hand, D features
(Dq of a query, Dk of a key, Dv of a value), H hidden units. ``d_x`` is the gradient of x.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "AdditiveGradients",
    "additive_attention",
    "additive_attention_backward",
    "additive_scores",
    "dot_product_attention",
    "dot_product_attention_backward",
    "dot_product_scores",
    "gaussian_attention",
    "gaussian_attention_backward",
    "gaussian_scores",
    "masked_softmax",
    "masked_softmax_backward",
    "sequence_mask",
]

Array: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

# What a forward returns: the output, or a tuple of the output and the extras asked for.
Attended: TypeAlias = Any


# ---- softmax of one row ------------------------------------------------------------------------


def _softmax(s: Array) -> tuple[Array, float]:
    """Weights w (n,) of the scores s (n,), n >= 1, and lse, the logarithm of sum(exp(s))."""
    largest = float(np.max(s))
    if math.isinf(largest):  # only scores of -inf, or one of +inf: inf - inf is no number
        return np.full_like(s, np.nan), largest
    e = np.exp(s - largest)  # the factor exp(-largest) cancels, and nothing overflows
    total = np.sum(e)
    return e / total, float(largest + np.log(total))


def _softmax_backward(d_w: Array, d_lse: Array | float, w: Array) -> Array:
    """Gradient d_s (n,) of the scores."""
    # forward was: w = exp(s) / sum(exp(s)),  so dw_i / ds_j = w_i * ([i = j] - w_j)
    #              lse = log(sum(exp(s))),    so dlse / ds_j = w_j
    return w * (d_w - np.sum(w * d_w)) + w * d_lse


def _empty_row_weight(N: int, empty_rows: str) -> float:
    """The weight of each key in a row in which no key takes part."""
    return {"uniform": 1 / max(N, 1), "zero": 0.0, "nan": math.nan}[empty_rows]


# ---- scoring functions: one query against n keys -----------------------------------------------


class _Score(Protocol):
    """A scoring function and its parameters, if it has any."""

    parameters: dict[str, Array]

    def forward(self, q: Array, k: Array) -> Array:
        """Scores s (n,) of a query q (Dq,) against keys k (n, Dk)."""

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        """Gradients d_q (Dq,) and d_k (n, Dk), and those of the parameters by their names."""


class _DotProduct:
    """score(q, k) = scale * q . k"""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.parameters: dict[str, Array] = {}

    def forward(self, q: Array, k: Array) -> Array:
        return self.scale * (k @ q)

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        # forward was: s_j = scale * sum_d k_jd * q_d
        d_q = self.scale * (d_s @ k)  # (D,)
        d_k = self.scale * np.outer(d_s, q)  # (n, D)
        return d_q, d_k, {}


class _Additive:
    """score(q, k) = w_v . tanh(W_q q + W_k k + b_h)"""

    def __init__(self, W_q: Array, W_k: Array, w_v: Array, b_h: Array) -> None:
        self.W_q = W_q  # (H, Dq)
        self.W_k = W_k  # (H, Dk)
        self.w_v = w_v  # (H,)
        self.b_h = b_h  # (H,)
        self.parameters = {"W_q": W_q, "W_k": W_k, "w_v": w_v, "b_h": b_h}

    def forward(self, q: Array, k: Array) -> Array:
        a = self.W_q @ q + k @ self.W_k.T + self.b_h  # (n, H)
        return np.tanh(a) @ self.w_v

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        a = self.W_q @ q + k @ self.W_k.T + self.b_h  # (n, H)
        # forward was: s = tanh(a) @ w_v
        d_w_v = d_s @ np.tanh(a)  # (H,)
        d_tanh = np.outer(d_s, self.w_v)  # (n, H)
        # tanh' = 1 - tanh^2, written so that no digits are lost where tanh is close to 1
        d_a = d_tanh / np.cosh(a) ** 2  # (n, H)
        # forward was: a = W_q q + W_k k + b_h, with one q and one b_h for all n keys
        d_b_h = np.sum(d_a, axis=0)  # (H,)
        d_W_q = np.outer(d_b_h, q)  # (H, Dq)
        d_q = d_b_h @ self.W_q  # (Dq,)
        d_W_k = d_a.T @ k  # (H, Dk)
        d_k = d_a @ self.W_k  # (n, Dk)
        return d_q, d_k, {"W_q": d_W_q, "W_k": d_W_k, "w_v": d_w_v, "b_h": d_b_h}


class _Gaussian:
    """score(q, k) = -(w * |q - k|)^2 / 2"""

    def __init__(self, w: float) -> None:
        self.w = w
        self.parameters = {"w": np.array(w)}

    def forward(self, q: Array, k: Array) -> Array:
        s: Array = -np.sum((self.w * (q - k)) ** 2, axis=1) / 2
        return s

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        # forward was: s_j = -w^2 / 2 * sum_d (q_d - k_jd)^2
        difference = q - k  # (n, D)
        d_difference = -(self.w**2) * d_s[:, None] * difference  # (n, D)
        d_w = -self.w * np.sum(d_s * np.sum(difference**2, axis=1))
        return np.sum(d_difference, axis=0), -d_difference, {"w": d_w}


# ---- the walk: score, softmax, pool, for every query -------------------------------------------
#
# queries (..., M, Dq)   keys (..., N, Dk)   values (..., N, Dv)
# takes_part (..., M, N)  bool: who takes part.  Only those keys and values are ever looked at
# keep (..., M, N)        what dropout multiplies a weight by: 0, or 1 / (1 - p)


@np.errstate(all="ignore")  # inf and NaN follow the rules of arithmetic, silently
def _attend(
    score: _Score,
    queries: Array,
    keys: Array,
    values: Array,
    takes_part: Mask,
    keep: Array,
    empty_rows: str,
) -> tuple[Array, Array, Array]:
    """Output (..., M, Dv), weights (..., M, N) before dropout, and lse (..., M)."""
    rows, N = takes_part.shape[:-1], takes_part.shape[-1]
    output = np.zeros((*rows, values.shape[-1]))
    weights = np.zeros((*rows, N))
    lse = np.full(rows, -np.inf)
    for row in np.ndindex(rows):  # row = (..., m), one query
        batch, live = row[:-1], takes_part[row]
        if live.any():
            s = score.forward(queries[row], keys[batch][live])  # (n,)
            weights[row][live], lse[row] = _softmax(s)
            pooled = live
        else:
            weights[row] = _empty_row_weight(N, empty_rows)
            pooled = np.full(N, empty_rows != "zero")  # weights of 1/N or NaN reach every value
        output[row] = (weights[row] * keep[row])[pooled] @ values[batch][pooled]  # (Dv,)
    return output, weights, lse


@np.errstate(all="ignore")
def _attend_backward(
    score: _Score,
    queries: Array,
    keys: Array,
    values: Array,
    takes_part: Mask,
    keep: Array,
    empty_rows: str,
    d_output: Array,
    d_weights: Array,
    d_lse: Array,
) -> tuple[Array, Array, Array, dict[str, Array]]:
    """Gradients of queries, keys and values, and those of the score's parameters by name."""
    rows, N = takes_part.shape[:-1], takes_part.shape[-1]
    d_queries, d_keys, d_values = (np.zeros_like(x) for x in (queries, keys, values))
    d_parameters = {name: np.zeros_like(x) for name, x in score.parameters.items()}
    for row in np.ndindex(rows):
        batch, live = row[:-1], takes_part[row]
        if not live.any():
            # forward was: output = sum_j keep_j * v_j / N, with no score in it
            if empty_rows == "uniform":
                d_values[batch] += np.outer(keep[row] / max(N, 1), d_output[row])
            # forward was: output = NaN
            if empty_rows == "nan" and N > 0:
                d_queries[row] = np.nan
            continue
        q, k, v = queries[row], keys[batch][live], values[batch][live]
        w, _ = _softmax(score.forward(q, k))  # (n,)
        kept = keep[row][live]  # (n,)

        # forward was: output = (w * kept) @ v, and w itself may have been used too
        d_v = np.outer(w * kept, d_output[row])  # (n, Dv)
        d_w = (v @ d_output[row]) * kept + d_weights[row][live]  # (n,)
        # forward was: w, lse = softmax(s)
        d_s = _softmax_backward(d_w, d_lse[row], w)  # (n,)
        # forward was: s = score.forward(q, k)
        d_q, d_k, d_of = score.backward(d_s, q, k)

        d_queries[row] = d_q
        d_keys[batch][live] += d_k  # a key serves every query, and so do the parameters:
        d_values[batch][live] += d_v  # their gradients are sums
        for name in d_parameters:
            d_parameters[name] += d_of[name]
    return d_queries, d_keys, d_values, d_parameters


# ---- who takes part ----------------------------------------------------------------------------


def _pairs_that_take_part(rows: tuple[int, ...], N: int, valid_lens: ArrayLike | None) -> Mask:
    """Everything that decides who attends to whom, as one bool array of shape (*rows, N).

    ``rows`` is (..., M), the shape of the queries without their features. This is the only place
    that knows how a query can be kept from a key; the walk sees only its result.
    """
    takes_part = np.ones((*rows, N), dtype=bool)
    if valid_lens is not None:
        lens = _broadcast_lens(_lens("valid_lens", valid_lens, N), rows)
        takes_part &= np.arange(N) < lens[..., None]
    return takes_part


def _broadcast_lens(lens: NDArray[np.int64], rows: tuple[int, ...]) -> NDArray[np.int64]:
    """Give lens the axes it lacks, so that it broadcasts to rows = (..., M)."""
    ones = (1,) * len(rows)
    accepted = {(): (), rows[:1]: rows[:1] + ones[1:]}  # one for all; one for each first-axis entry
    if len(rows) > 1:  # (B, M): one for each query, shared by the heads between
        accepted[rows[0], rows[-1]] = (rows[0], *ones[2:], rows[-1])
    accepted[rows] = rows
    if lens.shape not in accepted:
        expected = " or ".join(str(shape) for shape in accepted if shape) or "an int"
        raise ValueError(f"valid_lens has shape {lens.shape}, expected {expected}")
    return lens.reshape(accepted[lens.shape])


# ---- dropout -----------------------------------------------------------------------------------


def _philox4x32(counter: ArrayLike, key: tuple[int, int]) -> NDArray[np.uint32]:
    """Four random words for each counter of four: Philox4x32-10 of Salmon et al. (2011).

    counter (..., 4), key and result are 32-bit words. They are computed with as 64-bit words,
    which hold the product of any two.
    """
    low32, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, dtype=np.uint64), -1, 0)
    k0, k1 = key
    for _ in range(10):
        a = c0 * np.uint64(0xD2511F53)
        b = c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (b >> high) ^ c1 ^ np.uint64(k0), b & low32
        c2, c3 = (a >> high) ^ c3 ^ np.uint64(k1), a & low32
        k0 = (k0 + 0x9E3779B9) % 2**32
        k1 = (k1 + 0xBB67AE85) % 2**32
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def _dropout_keep(shape: tuple[int, ...], dropout_p: ArrayLike, seed: int | None) -> Array:
    """What dropout multiplies each weight by: 0, or 1 / (1 - p) for the ones that stay.

    The pairs are numbered through the whole array of weights, of shape (..., M, N). Pair i stays
    if word i % 4 of the block with counter i // 4 is at least p * 2^32.
    """
    p = _number("dropout_p", dropout_p)
    if 0 <= p <= 1:
        p = float(np.float32(p))  # as the fast functions take it
    if not 0 <= p < 1:
        raise ValueError(f"dropout_p is {dropout_p!r}, expected 0 <= dropout_p < 1 in float32")
    if seed is not None:
        seed = _seed(seed)
    if p == 0:
        return np.ones(shape)
    if seed is None:
        raise ValueError(
            "seed is not given, expected an int 0 <= seed < 2**64 because dropout_p is not 0"
        )
    pairs = math.prod(shape)
    block = np.arange((pairs + 3) // 4, dtype=np.uint64)
    counter = np.zeros((len(block), 4), dtype=np.uint64)
    counter[:, 0] = block & np.uint64(0xFFFFFFFF)
    counter[:, 1] = block >> np.uint64(32)
    words = _philox4x32(counter, (seed % 2**32, seed >> 32)).reshape(-1)[:pairs]
    stays = words >= math.ceil(p * 2**32)
    return (stays / (1 - p)).reshape(shape)


# ---- what the three attentions share -----------------------------------------------------------


def _forward(
    score: _Score,
    q: Array,
    k: Array,
    v: Array,
    valid_lens: ArrayLike | None,
    dropout_p: ArrayLike,
    seed: int | None,
    empty_rows: str,
    return_weights: bool,
    return_lse: bool,
    out: Array | None,
) -> Attended:
    """Attention with this score: the output, and the extras asked for."""
    takes_part = _pairs_that_take_part(q.shape[:-1], k.shape[-2], valid_lens)
    keep = _dropout_keep(takes_part.shape, dropout_p, seed)
    _check_empty_rows(empty_rows)
    output, weights, lse = _attend(score, q, k, v, takes_part, keep, empty_rows)
    output = _deliver(output, out, q, k, v, *score.parameters.values())
    extras = [x for wanted, x in [(return_weights, weights), (return_lse, lse)] if wanted]
    return (output, *extras) if extras else output


def _backward(
    grad_output: ArrayLike,
    score: _Score,
    q: Array,
    k: Array,
    v: Array,
    valid_lens: ArrayLike | None,
    dropout_p: ArrayLike,
    seed: int | None,
    empty_rows: str,
    grad_weights: ArrayLike | None,
    grad_lse: ArrayLike | None,
    output: ArrayLike | None,
    lse: ArrayLike | None,
) -> tuple[Array, Array, Array, dict[str, Array]]:
    """Gradients of q, k, v, and those of the score's parameters by name."""
    takes_part = _pairs_that_take_part(q.shape[:-1], k.shape[-2], valid_lens)
    keep = _dropout_keep(takes_part.shape, dropout_p, seed)
    _check_empty_rows(empty_rows)
    output_shape = q.shape[:-1] + v.shape[-1:]
    d_output = _array("grad_output", grad_output, output_shape)
    d_weights = _optional_array("grad_weights", grad_weights, takes_part.shape)
    d_lse = _optional_array("grad_lse", grad_lse, q.shape[:-1])
    _optional_array("output", output, output_shape)  # these two are computed again
    _optional_array("lse", lse, q.shape[:-1])
    return _attend_backward(
        score, q, k, v, takes_part, keep, empty_rows, d_output, d_weights, d_lse
    )


@np.errstate(all="ignore")
def _scores(score: _Score, q: Array, k: Array) -> Array:
    """The score of every pair, masks and all playing no part: (..., M, N)."""
    scores = np.zeros(q.shape[:-1] + k.shape[-2:-1])
    for row in np.ndindex(scores.shape[:-1]):
        scores[row] = score.forward(q[row], k[row[:-1]])
    return scores


# ---- the public functions: softmax and masking -------------------------------------------------


def masked_softmax(
    X: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    empty_rows: str = "uniform",
    out: Array | None = None,
) -> Array:
    """Softmax over the last axis of which only the first keys take part.

    Parameters
    ----------
    X : array_like, shape (..., M, N)
        Scores; one axis, (N,), is a single row.
    valid_lens : None, int or array_like of integers, optional
        How many keys of a row take part: one int for all rows; shape ``X.shape[:1]``, one for
        each entry of the first axis; ``(X.shape[0], M)``; or ``X.shape[:-1]``. None: all keys.
    empty_rows : {'uniform', 'zero', 'nan'}, optional
        What a row of valid length 0 becomes: 1/N everywhere, 0, or NaN.
    out : ndarray of float64, shape (..., M, N), optional
        Where to put the result.

    Returns
    -------
    weights : ndarray of float64, shape (..., M, N)
        Rows sum to 1; exactly 0 beyond the valid length.

    Raises
    ------
    TypeError
        X is not of real numbers, valid_lens not of integers.
    ValueError
        An argument has the wrong shape or an impossible value.

    Notes
    -----
    ``weights[j] = exp(X[j]) / sum_{i < valid_len} exp(X[i])`` for ``j < valid_len``: the
    ``masked_softmax`` of Dive into Deep Learning (Zhang et al., section 11.3), which has -1e6 in
    the place of our -inf.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.masked_softmax([0.9, 0.8, 0.3, 0.4], 3).round(4)
    array([0.4076, 0.3688, 0.2237, 0.    ])
    """
    x = _scores_array("X", X)
    takes_part = _pairs_that_take_part(x.shape[:-1], x.shape[-1], valid_lens)
    _check_empty_rows(empty_rows)
    weights = np.zeros_like(x)
    with np.errstate(all="ignore"):
        for row in np.ndindex(x.shape[:-1]):
            live = takes_part[row]
            if live.any():
                weights[row][live], _ = _softmax(x[row][live])
            else:
                weights[row] = _empty_row_weight(x.shape[-1], empty_rows)
    return _deliver(weights, out, x)


def masked_softmax_backward(
    grad_output: ArrayLike,
    weights: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    empty_rows: str = "uniform",
) -> Array:
    """Gradient of `masked_softmax` with respect to its scores.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, N)
        Gradient of the loss with respect to the weights.
    weights : array_like, shape (..., M, N)
        What `masked_softmax` returned.
    valid_lens, empty_rows : optional
        As given to `masked_softmax`. The gradient of an empty row is 0, with 'nan' NaN.

    Returns
    -------
    dX : ndarray of float64, shape (..., M, N)
        Gradient with respect to ``X``; exactly 0 beyond the valid length.

    Raises
    ------
    TypeError, ValueError
        As in `masked_softmax`.

    Notes
    -----
    ``dX[j] = weights[j] * (g[j] - sum_i weights[i] * g[i])`` with ``g = grad_output``.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.masked_softmax_backward([1, 2, 3], [0.25, 0.75, 0], 2)
    array([-0.1875,  0.1875,  0.    ])
    """
    w = _scores_array("weights", weights)
    d_w = _array("grad_output", grad_output, w.shape)
    takes_part = _pairs_that_take_part(w.shape[:-1], w.shape[-1], valid_lens)
    _check_empty_rows(empty_rows)
    dX = np.zeros_like(w)
    with np.errstate(all="ignore"):
        for row in np.ndindex(w.shape[:-1]):
            live = takes_part[row]
            if live.any():
                # forward was: weights[row][live] = softmax(x[row][live])
                dX[row][live] = _softmax_backward(d_w[row][live], 0.0, w[row][live])
            elif empty_rows == "nan":
                dX[row] = np.nan
    return dX


def sequence_mask(X: ArrayLike, valid_len: ArrayLike, value: ArrayLike = 0.0) -> Array:
    """Copy a batch of sequences, overwriting the steps beyond each one's length.

    Parameters
    ----------
    X : array_like, shape (B, T, ...)
        B sequences of T steps, two axes or more.
    valid_len : int or array_like of integers, shape (B,)
        How many steps of each sequence are kept; above T means T.
    value : float, optional
        What the others become.

    Returns
    -------
    copy : ndarray of float64, shape (B, T, ...)
        `X`, but `value` at ``[i, t]`` where ``t >= valid_len[i]``.

    Raises
    ------
    TypeError
        X is not of real numbers, valid_len not of integers.
    ValueError
        An argument has the wrong shape or an impossible value.

    Notes
    -----
    The semantics of ``sequence_mask`` in Dive into Deep Learning (Zhang et al., section 11.3).

    Examples
    --------
    >>> from attnext import reference
    >>> reference.sequence_mask([[1, 2, 3], [4, 5, 6]], [1, 2], value=-1)
    array([[ 1., -1., -1.],
           [ 4.,  5., -1.]])
    """
    copy = _array("X", X).copy()
    if copy.ndim < 2:
        raise ValueError(f"X has shape {copy.shape}, expected two axes or more: (B, T, ...)")
    B, T = copy.shape[:2]
    lens = _lens("valid_len", valid_len, T)
    if lens.shape not in [(), (B,)]:
        raise ValueError(f"valid_len has shape {lens.shape}, expected {(B,)}")
    fill = _number("value", value)
    for i, length in enumerate(np.broadcast_to(lens, B)):
        copy[i, length:] = fill
    return copy


# ---- the public functions: dot-product attention -----------------------------------------------


def dot_product_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    dropout_p: ArrayLike = 0.0,
    seed: int | None = None,
    empty_rows: str = "uniform",
    return_weights: bool = False,
    return_lse: bool = False,
    out: Array | None = None,
) -> Attended:
    """Pool values by the softmax of scaled dot products of queries and keys.

    Parameters
    ----------
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        Any leading axes (batch, heads), the same for all three, or none.
    valid_lens : None, int or array_like of integers, optional
        How many keys take part, the first ones. One int for all queries; shape (B,) with
        B = ``queries.shape[0]``; (B, M), shared by the axes between; or ``queries.shape[:-1]``.
        A length above N means N. None: all keys.
    scale : float, optional
        What the dot products are multiplied by, finite; ``1 / sqrt(D)`` by default.
    dropout_p : float, optional
        Probability, 0 <= dropout_p < 1, that a weight is left out of the pooling; those kept are
        scaled by ``1 / (1 - dropout_p)``. Needs `seed`.
    seed : int, optional
        Which weights dropout drops, 0 <= seed < 2**64: the same ones as in the fast function.
    empty_rows : {'uniform', 'zero', 'nan'}, optional
        What becomes of a query of valid length 0: 'uniform' pools with weights 1/N over all keys,
        'zero' gives weights and output 0, 'nan' gives NaN.
    return_weights, return_lse : bool, optional
        Also return the attention weights; the log-sum-exp of the scores.
    out : ndarray of float64, shape (..., M, Dv), optional
        Where to put the output.

    Returns
    -------
    output : ndarray of float64, shape (..., M, Dv)
        The values, averaged with the attention weights.
    weights : ndarray of float64, shape (..., M, N)
        Only with `return_weights`: the weights before dropout. Rows sum to 1; exactly 0 beyond
        the valid length.
    lse : ndarray of float64, shape (..., M)
        Only with `return_lse`: logarithm of the sum of ``exp(score)`` over the keys that take
        part, -inf where there are none.

    Raises
    ------
    TypeError
        An array is not of real numbers, valid_lens not of integers, seed not an int.
    ValueError
        An argument has the wrong shape or an impossible value.

    Notes
    -----
    ``output = softmax(scale * queries @ keys^T) @ values`` (Vaswani et al. 2017, "Attention is all
    you need", equation 1).

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[1, 0]], [[1, 0], [0, 1]], [[10], [20]]
    >>> reference.dot_product_attention(q, k, v, scale=1).round(4)
    array([[12.6894]])
    """
    q, k, v = _inputs(queries, keys, values)
    score = _dot_product_score(q, k, scale)
    return _forward(
        score, q, k, v, valid_lens, dropout_p, seed, empty_rows, return_weights, return_lse, out
    )


def dot_product_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    dropout_p: ArrayLike = 0.0,
    seed: int | None = None,
    empty_rows: str = "uniform",
    grad_weights: ArrayLike | None = None,
    grad_lse: ArrayLike | None = None,
    output: ArrayLike | None = None,
    lse: ArrayLike | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients of `dot_product_attention`.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        As given to `dot_product_attention`.
    valid_lens, scale, dropout_p, seed, empty_rows : optional
        As given to `dot_product_attention`.
    grad_weights, grad_lse : array_like, shapes (..., M, N) and (..., M), optional
        Gradients of the loss with respect to the returned weights and lse.
    output, lse : array_like, shapes (..., M, Dv) and (..., M), optional
        What the forward returned. Only their shapes are looked at here: both are computed again.

    Returns
    -------
    dq, dk, dv : ndarray of float64
        Gradients with respect to `queries`, `keys` and `values`, in their shapes.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    Notes
    -----
    With weights P and g = `grad_output`: ``dv = P^T g``, ``dP = g v^T``, the gradient of the
    scores is ``dS = P * (dP - rowsum(P * dP))``, and ``dq = scale * dS k``,
    ``dk = scale * dS^T q``.

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[1, 1]], [[1, 1], [1, 1]], [[1, 2], [3, 4]]
    >>> dq, dk, dv = reference.dot_product_attention_backward([[1, 0]], q, k, v, scale=1)
    >>> dk
    array([[-0.5, -0.5],
           [ 0.5,  0.5]])
    """
    q, k, v = _inputs(queries, keys, values)
    score = _dot_product_score(q, k, scale)
    dq, dk, dv, _ = _backward(
        grad_output, score, q, k, v, valid_lens, dropout_p, seed, empty_rows,
        grad_weights, grad_lse, output, lse,
    )  # fmt: skip
    return dq, dk, dv


def dot_product_scores(
    queries: ArrayLike, keys: ArrayLike, *, scale: ArrayLike | None = None
) -> Array:
    """Scaled dot product of every query with every key.

    Parameters
    ----------
    queries, keys : array_like, shapes (..., M, D) and (..., N, D)
        Any leading axes, the same for both, or none.
    scale : float, optional
        What the dot products are multiplied by, finite; ``1 / sqrt(D)`` by default.

    Returns
    -------
    scores : ndarray of float64, shape (..., M, N)
        ``scale * queries @ keys^T``.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    Notes
    -----
    For independent features of mean 0 and variance 1 the dot product has variance D, and the
    default scale brings it back to 1 (Vaswani et al. 2017, section 3.2.1).

    Examples
    --------
    >>> from attnext import reference
    >>> reference.dot_product_scores([[1, 2, 3, 4]], [[1, 1, 1, 1], [2, 0, 2, 0]])
    array([[5., 4.]])
    """
    q, k = _queries_and_keys(queries, keys)
    return _scores(_dot_product_score(q, k, scale), q, k)


# ---- the public functions: additive attention --------------------------------------------------


class AdditiveGradients(NamedTuple):
    """Gradients of `additive_attention`, each in the shape of what it belongs to.

    Parameters
    ----------
    queries, keys, values, W_q, W_k, w_v : ndarray of float64
        Gradients with respect to these.
    b_h : ndarray of float64 or None
        Gradient with respect to the bias; None where none was given.
    """

    queries: Array
    keys: Array
    values: Array
    W_q: Array
    W_k: Array
    w_v: Array
    b_h: Array | None


def additive_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    b_h: ArrayLike | None = None,
    dropout_p: ArrayLike = 0.0,
    seed: int | None = None,
    empty_rows: str = "uniform",
    return_weights: bool = False,
    return_lse: bool = False,
    out: Array | None = None,
) -> Attended:
    """Pool values by the softmax of additive (Bahdanau) scores of queries and keys.

    Parameters
    ----------
    queries, keys, values : array_like, shapes (..., M, Dq), (..., N, Dk) and (..., N, Dv)
        Any leading axes (batch, heads), the same for all three, or none.
    W_q, W_k : array_like, shapes (H, Dq) and (H, Dk)
        Projections of queries and keys to H hidden units, in the layout of torch.nn.Linear.
    w_v : array_like, shape (H,) or (1, H)
        Weight of each hidden unit in the score.
    valid_lens : None, int or array_like of integers, optional
        As in `dot_product_attention`.
    b_h : array_like, shape (H,), optional
        Bias of the hidden units.
    dropout_p, seed, empty_rows, return_weights, return_lse, out : optional
        As in `dot_product_attention`.

    Returns
    -------
    output, weights, lse : ndarray of float64
        As from `dot_product_attention`.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    Notes
    -----
    ``score(q, k) = w_v . tanh(W_q q + W_k k + b_h)`` (Bahdanau, Cho and Bengio 2015, "Neural
    machine translation by jointly learning to align and translate", appendix A.1.2).

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[1.0]], [[-1.0], [0.0]], [[10.0], [20.0]]
    >>> reference.additive_attention(q, k, v, [[0.5]], [[0.5]], [2.0]).round(4)
    array([[17.159]])
    """
    q, k, v = _inputs(queries, keys, values)
    score = _additive_score(q, k, W_q, W_k, w_v, b_h)
    return _forward(
        score, q, k, v, valid_lens, dropout_p, seed, empty_rows, return_weights, return_lse, out
    )


def additive_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    b_h: ArrayLike | None = None,
    dropout_p: ArrayLike = 0.0,
    seed: int | None = None,
    empty_rows: str = "uniform",
    grad_weights: ArrayLike | None = None,
    grad_lse: ArrayLike | None = None,
    output: ArrayLike | None = None,
    lse: ArrayLike | None = None,
) -> AdditiveGradients:
    """Gradients of `additive_attention`.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : array_like, shapes (..., M, Dq), (..., N, Dk) and (..., N, Dv)
        As given to `additive_attention`.
    W_q, W_k, w_v : array_like, shapes (H, Dq), (H, Dk) and (H,) or (1, H)
        As given to `additive_attention`.
    valid_lens, b_h, dropout_p, seed, empty_rows : optional
        As given to `additive_attention`.
    grad_weights, grad_lse, output, lse : optional
        As in `dot_product_attention_backward`.

    Returns
    -------
    gradients : AdditiveGradients
        A named tuple of the gradients with respect to `queries`, `keys`, `values`, `W_q`, `W_k`,
        `w_v` and `b_h`, each in the shape of what it belongs to; `b_h` is None if none was given.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    Notes
    -----
    With ``a = W_q q + W_k k + b_h`` and dS the gradient of the scores, ``da = dS * w_v *
    (1 - tanh(a)**2)``; its sum over the keys flows to the query, its sum over the queries to the
    key, and its sum over all pairs to `b_h`.

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[0.0]], [[0.0], [0.0]], [[1.0], [3.0]]
    >>> d = reference.additive_attention_backward([[1.0]], q, k, v, [[1.0]], [[1.0]], [2.0])
    >>> d.keys
    array([[-1.],
           [ 1.]])
    """
    q, k, v = _inputs(queries, keys, values)
    score = _additive_score(q, k, W_q, W_k, w_v, b_h)
    dq, dk, dv, d_of = _backward(
        grad_output, score, q, k, v, valid_lens, dropout_p, seed, empty_rows,
        grad_weights, grad_lse, output, lse,
    )  # fmt: skip
    d_w_v = d_of["w_v"].reshape(np.shape(w_v))  # (H,) or (1, H), as it came
    d_b_h = None if b_h is None else d_of["b_h"]
    return AdditiveGradients(dq, dk, dv, d_of["W_q"], d_of["W_k"], d_w_v, d_b_h)


def additive_scores(
    queries: ArrayLike,
    keys: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    *,
    b_h: ArrayLike | None = None,
) -> Array:
    """Additive (Bahdanau) score of every query with every key.

    Parameters
    ----------
    queries, keys : array_like, shapes (..., M, Dq) and (..., N, Dk)
        Any leading axes, the same for both, or none.
    W_q, W_k, w_v : array_like, shapes (H, Dq), (H, Dk) and (H,) or (1, H)
        As in `additive_attention`.
    b_h : array_like, shape (H,), optional
        Bias of the hidden units.

    Returns
    -------
    scores : ndarray of float64, shape (..., M, N)
        ``w_v . tanh(W_q q + W_k k + b_h)`` of every pair.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    Notes
    -----
    The score of Bahdanau, Cho and Bengio (2015), appendix A.1.2.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.additive_scores([[1.0]], [[-1.0], [0.0]], [[0.5]], [[0.5]], [2.0]).round(4)
    array([[0.    , 0.9242]])
    """
    q, k = _queries_and_keys(queries, keys)
    return _scores(_additive_score(q, k, W_q, W_k, w_v, b_h), q, k)


# ---- the public functions: Gaussian attention --------------------------------------------------


def gaussian_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    w: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
    dropout_p: ArrayLike = 0.0,
    seed: int | None = None,
    empty_rows: str = "uniform",
    return_weights: bool = False,
    return_lse: bool = False,
    out: Array | None = None,
) -> Attended:
    """Pool values by a Gaussian kernel of the distance between queries and keys.

    Parameters
    ----------
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        Any leading axes (batch, heads), the same for all three, or none.
    valid_lens : None, int or array_like of integers, optional
        As in `dot_product_attention`.
    w : float, optional
        Inverse of the bandwidth, finite, a number or an array of one element; 1 by default.
    sigma : float, optional
        The bandwidth itself, ``w = 1 / sigma``, greater than 0; instead of `w`.
    dropout_p, seed, empty_rows, return_weights, return_lse, out : optional
        As in `dot_product_attention`.

    Returns
    -------
    output, weights, lse : ndarray of float64
        As from `dot_product_attention`.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`; ValueError also if both `w` and `sigma` are given.

    Notes
    -----
    ``score(q, k) = -(w * |q - k|)**2 / 2``, which makes the output the regression of Nadaraya
    (1964) and Watson (1964) with a Gaussian kernel (Dive into Deep Learning, section 11.2).

    Examples
    --------
    >>> from attnext import reference
    >>> x, y = [[0.0], [1.0], [2.0]], [[5.0], [2.0], [4.0]]
    >>> reference.gaussian_attention([[1.5]], x, y, sigma=0.5).round(3)
    array([[3.018]])
    """
    q, k, v = _inputs(queries, keys, values)
    score = _gaussian_score(q, k, w, sigma)
    return _forward(
        score, q, k, v, valid_lens, dropout_p, seed, empty_rows, return_weights, return_lse, out
    )


def gaussian_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    w: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
    dropout_p: ArrayLike = 0.0,
    seed: int | None = None,
    empty_rows: str = "uniform",
    grad_weights: ArrayLike | None = None,
    grad_lse: ArrayLike | None = None,
    output: ArrayLike | None = None,
    lse: ArrayLike | None = None,
) -> tuple[Array, Array, Array, np.float64]:
    """Gradients of `gaussian_attention`.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        As given to `gaussian_attention`.
    valid_lens, w, sigma, dropout_p, seed, empty_rows : optional
        As given to `gaussian_attention`.
    grad_weights, grad_lse, output, lse : optional
        As in `dot_product_attention_backward`.

    Returns
    -------
    dq, dk, dv : ndarray of float64
        Gradients with respect to `queries`, `keys` and `values`, in their shapes.
    dw : float64
        Gradient with respect to ``w = 1 / sigma``, whichever of the two was given.

    Raises
    ------
    TypeError, ValueError
        As in `gaussian_attention`.

    Notes
    -----
    With dS the gradient of the scores: ``dq = -w**2 * sum dS (q - k)`` over the keys, dk the same
    with the other sign over the queries, and ``dw = -w * sum dS |q - k|**2`` over all pairs.

    Examples
    --------
    >>> from attnext import reference
    >>> x, y = [[-1.0], [1.0]], [[0.0], [4.0]]
    >>> dq, dk, dv, dw = reference.gaussian_attention_backward([[1.0]], [[0.0]], x, y, w=0.5)
    >>> dq
    array([[0.5]])
    """
    q, k, v = _inputs(queries, keys, values)
    score = _gaussian_score(q, k, w, sigma)
    dq, dk, dv, d_of = _backward(
        grad_output, score, q, k, v, valid_lens, dropout_p, seed, empty_rows,
        grad_weights, grad_lse, output, lse,
    )  # fmt: skip
    return dq, dk, dv, np.float64(d_of["w"])


def gaussian_scores(
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    w: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
) -> Array:
    """Logarithm of a Gaussian kernel of the distance of every query to every key.

    Parameters
    ----------
    queries, keys : array_like, shapes (..., M, D) and (..., N, D)
        Any leading axes, the same for both, or none.
    w, sigma : float, optional
        As in `gaussian_attention`.

    Returns
    -------
    scores : ndarray of float64, shape (..., M, N)
        ``-(w * |q - k|)**2 / 2`` of every pair.

    Raises
    ------
    TypeError, ValueError
        As in `gaussian_attention`.

    Notes
    -----
    The constant of the normal density is left out: softmax does not see it.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.gaussian_scores([[0.0, 0.0]], [[0.0, 2.0], [3.0, 4.0]])
    array([[ -2. , -12.5]])
    """
    q, k = _queries_and_keys(queries, keys)
    return _scores(_gaussian_score(q, k, w, sigma), q, k)


# ---- arguments ---------------------------------------------------------------------------------


def _plain_array(name: str, value: ArrayLike) -> NDArray[Any]:
    """The value as an array of whatever dtype it has."""
    if isinstance(value, np.ma.MaskedArray | np.matrix):
        raise TypeError(f"{name} is a {type(value).__name__}, expected a plain array")
    if getattr(value, "requires_grad", False):
        raise TypeError(f"{name} is a tensor that requires grad: pass {name}.detach()")
    return np.asarray(value)


def _array(name: str, value: ArrayLike, shape: tuple[int | str, ...] | None = None) -> Array:
    """The value as float64, of the shape expected; a letter in it stands for any size."""
    array = _plain_array(name, value)
    if array.dtype.kind not in "fiu":
        raise TypeError(
            f"{name} has dtype {array.dtype}, expected real numbers (any float or integer dtype)"
        )
    if shape is not None and (
        array.ndim != len(shape)
        or any(e not in (a, str(e)) for e, a in zip(shape, array.shape, strict=True))
    ):
        expected = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
        raise ValueError(f"{name} has shape {array.shape}, expected ({expected})")
    return array.astype(np.float64, order="C", copy=False)


def _optional_array(name: str, value: ArrayLike | None, shape: tuple[int, ...]) -> Array:
    """The value as float64 of this shape; zeros if there is none."""
    return np.zeros(shape) if value is None else _array(name, value, shape)


def _scores_array(name: str, value: ArrayLike) -> Array:
    array = _array(name, value)
    if array.ndim == 0:
        raise ValueError(f"{name} has shape (), expected one axis or more: (..., M, N)")
    return array


def _queries_and_keys(queries: ArrayLike, keys: ArrayLike) -> tuple[Array, Array]:
    """queries (..., M, Dq) and keys (..., N, Dk) with the same leading axes."""
    q = _array("queries", queries)
    if q.ndim < 2:
        raise ValueError(f"queries has shape {q.shape}, expected two axes or more: (..., M, D)")
    return q, _array("keys", keys, (*q.shape[:-2], "N", "Dk"))


def _inputs(queries: ArrayLike, keys: ArrayLike, values: ArrayLike) -> tuple[Array, Array, Array]:
    """queries (..., M, Dq), keys (..., N, Dk) and values (..., N, Dv)."""
    q, k = _queries_and_keys(queries, keys)
    return q, k, _array("values", values, (*k.shape[:-1], "Dv"))


def _same_features(q: Array, k: Array) -> None:
    _array("keys", k, (*q.shape[:-2], "N", q.shape[-1]))


def _dot_product_score(q: Array, k: Array, scale: ArrayLike | None) -> _DotProduct:
    _same_features(q, k)
    D = q.shape[-1]
    return _DotProduct(1 / math.sqrt(max(D, 1)) if scale is None else _finite("scale", scale))


def _additive_score(
    q: Array, k: Array, W_q: ArrayLike, W_k: ArrayLike, w_v: ArrayLike, b_h: ArrayLike | None
) -> _Additive:
    Wq = _array("W_q", W_q, ("H", q.shape[-1]))
    H = Wq.shape[0]
    Wk = _array("W_k", W_k, (H, k.shape[-1]))
    wv = _array("w_v", w_v)
    if wv.shape not in [(H,), (1, H)]:
        raise ValueError(f"w_v has shape {wv.shape}, expected {(H,)} or {(1, H)}")
    return _Additive(Wq, Wk, wv.reshape(H), _optional_array("b_h", b_h, (H,)))


def _gaussian_score(q: Array, k: Array, w: ArrayLike | None, sigma: ArrayLike | None) -> _Gaussian:
    _same_features(q, k)
    if sigma is None:
        return _Gaussian(1.0 if w is None else _finite("w", w, one_element=True))
    if w is not None:
        raise ValueError("w and sigma are both given, expected one of them: w = 1 / sigma")
    bandwidth = _finite("sigma", sigma, one_element=True)
    if bandwidth <= 0:
        raise ValueError(f"sigma is {sigma!r}, expected sigma > 0")
    return _Gaussian(1 / bandwidth)


def _number(name: str, value: ArrayLike, one_element: bool = False) -> float:
    array = _array(name, value)
    if array.ndim != 0 and not (one_element and array.size == 1):
        expected = "a number or an array of one element" if one_element else "a number"
        raise ValueError(f"{name} has shape {array.shape}, expected {expected}")
    return float(array.reshape(()))


def _finite(name: str, value: ArrayLike, one_element: bool = False) -> float:
    number = _number(name, value, one_element)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r}, expected a finite number")
    return number


def _seed(seed: int) -> int:
    if isinstance(seed, bool):
        raise TypeError("seed must be an int, got bool")
    seed = operator.index(seed)
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed}, expected 0 <= seed < 2**64")
    return seed


def _lens(name: str, value: ArrayLike, N: int) -> NDArray[np.int64]:
    """Lengths as int64, those above N as N."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = min(value, N)  # an int of any size
    lens = _plain_array(name, value)
    if lens.size == 0 and isinstance(value, list | tuple):
        lens = lens.astype(np.int64)  # NumPy calls an empty list floats
    if lens.dtype.kind not in "iu":
        hint = {"f": ": .astype(int), if these are whole numbers", "b": ": how many, not which"}
        raise TypeError(
            f"{name} has dtype {lens.dtype}, expected integers{hint.get(lens.dtype.kind, '')}"
        )
    if (lens < 0).any():
        raise ValueError(f"{name} contains {lens.min()}, expected lengths of 0 or more")
    clipped: NDArray[np.int64] = np.minimum(lens, N).astype(np.int64)
    return clipped


def _check_empty_rows(empty_rows: str) -> None:
    if empty_rows not in ("uniform", "zero", "nan"):
        raise ValueError(f"empty_rows is {empty_rows!r}, expected 'uniform', 'zero' or 'nan'")


def _deliver(result: Array, out: Array | None, *inputs: Array) -> Array:
    """The result itself or, if there is an out, the result in it."""
    if out is None:
        return result
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy.ndarray, got {type(out).__name__}")
    if out.dtype != np.float64:
        raise TypeError(f"out has dtype {out.dtype}, expected float64")
    if out.shape != result.shape:
        raise ValueError(f"out has shape {out.shape}, expected {result.shape}")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ValueError("out is read-only or not C-contiguous, expected neither")
    if any(np.shares_memory(out, x) for x in inputs):
        raise ValueError("out shares memory with an input, expected memory of its own")
    out[...] = result
    return out
