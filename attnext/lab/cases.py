"""The cases: inputs of growing size for each function, small enough to be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnext.lab.book import Array

Arguments = dict[str, Any]  # of a call, in the order of the signature


@dataclass(frozen=True)
class Case:
    """One call.

    key: its name in texts/cases.txt. strided: its arrays are stored column by column, as after a
    transpose. numpy_only: PyTorch's operators refuse it.
    """

    key: str
    arguments: Arguments
    strided: bool = False
    numpy_only: bool = False


class Numbers:
    """Random numbers with one decimal, which are easy to read; the same in every process."""

    def __init__(self, seed: int = 27) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape: int, size: float = 1.0) -> Array:
        return (self.rng.normal(size=shape) * size).round(1)

    def integers(self, *shape: int) -> Array:
        return self.rng.integers(-2, 3, shape)


def _lens(*lens: Any) -> Array:
    return np.array(lens)


def softmax() -> Iterator[Case]:
    r = Numbers()

    def case(key: str, X: Array, lens: Array | None, **how: bool) -> Case:
        return Case(key, {"X": X, "valid_lens": lens}, **how)

    yield case("one-row", r(1, 1, 4), None)
    yield case("one-row-with-a-length", r(1, 1, 4), _lens(2))
    yield case("batch", r(2, 2, 4), None)
    yield case("length-of-each-entry", r(2, 2, 4), _lens(2, 3))
    yield case("length-of-each-query", r(2, 2, 4), _lens([1, 3], [2, 4]))
    yield case("sizes-differ", r(3, 2, 5), _lens(1, 5, 3))
    yield case("empty-row", r(2, 2, 4), _lens(0, 3))
    far = np.array([[[1e4], [-1e4]], [[0.0], [3e3]]])
    yield case("huge-scores", r(2, 2, 4) + far, None)
    yield case("very-negative-scores", r(2, 1, 4) - 5000, _lens(2, 3))
    X = r(1, 2, 4)
    X[..., 2:] = 1e5
    yield case("padding-huge", X, _lens(2))
    X = r(2, 2, 4)
    X[0, :, 2:] = X[1, :, 3:] = np.nan
    yield case("padding-nan", X, _lens(2, 3))
    lens = _lens(2, 3).astype(np.int32)
    yield case("integers", r.integers(2, 2, 4), lens, numpy_only=True)
    yield case("strided", r(2, 2, 4), _lens([1, 3], [2, 4]), strided=True)


def softmax_backward() -> Iterator[Case]:
    from attnext import reference

    for case in softmax():
        if case.key in ("empty-row", "huge-scores", "padding-huge", "padding-nan", "integers"):
            continue
        X, lens = case.arguments.values()
        weights = reference.masked_softmax(X, lens)
        dweights = Numbers(28)(*X.shape)
        yield Case(case.key, {"dweights": dweights, "weights": weights}, case.strided)


def sequences() -> Iterator[Case]:
    r = Numbers()

    def case(key: str, X: Array, *lens: int, value: float | None = None, **how: bool) -> Case:
        given = {} if value is None else {"value": value}
        return Case(key, {"X": X, "valid_len": _lens(*lens), **given}, **how)

    yield case("one-row", np.array([[1.0, 2.0, 3.0]]), 1)
    yield case("batch", np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), 1, 2)
    yield case("another-value", np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), 1, 2, value=-1.0)
    yield case("nothing-and-all", r(3, 5), 0, 5, 2, value=-1e6)
    yield case("features", r(2, 3, 4), 1, 2, value=-1.0)
    X = r(2, 3)
    X[0, 1:] = X[1, 2:] = np.nan
    yield case("padding-nan", X, 1, 2)
    yield case("integers", r.integers(2, 4), 3, 1, numpy_only=True)
    yield case("strided", r(2, 4), 3, 1, strided=True)


def _attention_inputs(
    r: Numbers, sizes: tuple[int, ...], additive: bool, size: float = 1.0
) -> Arguments:
    """Return queries, keys and values, and the parameters of an additive score."""
    B, M, N, Dq, Dk, Dv, H = sizes
    if not additive:
        Dk = Dq
    arrays = {"queries": r(B, M, Dq, size=size), "keys": r(B, N, Dk, size=size)}
    arrays["values"] = r(B, N, Dv)
    if additive:
        arrays |= {"W_q": r(H, Dq), "W_k": r(H, Dk), "w_v": r(H)}
    return arrays


# B, M, N, Dq, Dk, Dv, H. In the first case all sizes are equal, so a wrong transpose gives numbers,
# which say more than an error.
SMALL = (2, 2, 4, 2, 2, 2, 2)
SIZES = {
    "square": (1, 3, 3, 3, 3, 3, 3),
    "one-query": (1, 1, 3, 2, 2, 2, 2),
    "batch": (2, 2, 2, 2, 2, 2, 2),
    "sizes-differ": (2, 3, 4, 5, 6, 1, 7),
}


def scores(additive: bool) -> Iterator[Case]:
    r = Numbers()
    for key, sizes in SIZES.items():
        yield Case(key, _without_values(_attention_inputs(r, sizes, additive)))
    inputs = _without_values(_attention_inputs(r, SMALL, additive))
    whole = {name: r.integers(*x.shape) for name, x in inputs.items()}
    yield Case("integers", whole, numpy_only=True)
    yield Case("strided", inputs, strided=True)


def _without_values(inputs: Arguments) -> Arguments:
    return {name: x for name, x in inputs.items() if name != "values"}


def attention(additive: bool) -> Iterator[Case]:
    r = Numbers()

    def case(key: str, inputs: Arguments, lens: Array | None = None, **how: bool) -> Case:
        return Case(key, {**inputs, "valid_lens": lens}, **how)

    def small(size: float = 1.0) -> Arguments:
        return _attention_inputs(r, SMALL, additive, size)

    for key, sizes in SIZES.items():
        yield case(key, _attention_inputs(r, sizes, additive))
    yield case("length-of-each-entry", small(), _lens(2, 3))
    yield case("length-of-each-query", small(), _lens([1, 3], [2, 4]))
    yield case("empty-row", small(), _lens(0, 3))
    inputs = small(1.0 if additive else 100.0)
    if additive:
        inputs["w_v"] = inputs["w_v"] * 1e4
    yield case("huge-scores", inputs)
    if not additive:
        inputs = small(0.01)
        inputs["queries"] += 70
        inputs["keys"] = r(2, 4, 2, size=0.1) - 70
        yield case("very-negative-scores", inputs, _lens(2, 3))
    inputs = small()
    for b, length in enumerate((2, 3)):
        inputs["keys"][b, length:] = np.nan
        inputs["values"][b, length:] = 1e5
    yield case("padding-of-attention", inputs, _lens(2, 3))
    inputs = small()
    whole = {name: r.integers(*x.shape) for name, x in inputs.items()}
    yield case("integers", whole, _lens(2, 3).astype(np.int32), numpy_only=True)
    yield case("strided", inputs, _lens([1, 3], [2, 4]), strided=True)


NOT_BACKWARD = ("huge-scores", "very-negative-scores", "padding-of-attention")


def scores_backward(additive: bool) -> Iterator[Case]:
    for case in scores(additive):
        q, k = case.arguments["queries"], case.arguments["keys"]
        yield _with_gradient(case, (*q.shape[:2], k.shape[1]))


def attention_backward(additive: bool) -> Iterator[Case]:
    for case in attention(additive):
        if case.key not in NOT_BACKWARD:
            shapes = case.arguments["queries"].shape, case.arguments["values"].shape
            yield _with_gradient(case, (*shapes[0][:2], shapes[1][-1]))


def _with_gradient(case: Case, shape: tuple[int, ...]) -> Case:
    arguments = {"grad_output": Numbers(28)(*shape), **case.arguments}
    return Case(case.key, arguments, case.strided, case.numpy_only)


def kernel() -> Iterator[Case]:
    r = Numbers()

    def case(key: str, q: Array, k: Array, sigma: float, **how: bool) -> Case:
        return Case(key, {"queries": q, "keys": k, "sigma": sigma}, **how)

    yield case("square", r(3, 1), r(3, 1), 1.0)
    yield case("one-query", np.array([[1.0]]), np.array([[0.0], [0.5], [3.0]]), 1.0)
    yield case("another-sigma", r(3, 1), r(4, 1), 0.5)
    yield case("two-features", r(3, 2), r(4, 2), 2.0)
    yield case("sizes-differ", r(2, 3), r(5, 3), 0.8)
    yield case("integers", r.integers(2, 2), r.integers(4, 2), 2, numpy_only=True)
    yield case("strided", r(3, 2), r(4, 2), 1.5, strided=True)


def regression() -> Iterator[Case]:
    r = Numbers()

    def case(key: str, n: int, N: int, sigma: float, **how: bool) -> Case:
        return Case(
            key, {"x": r(n), "x_train": r(N), "y_train": r(N, size=3.0), "sigma": sigma}, **how
        )

    yield case("square", 3, 3, 1.0)
    yield case("one-query", 1, 3, 1.0)
    yield case("another-sigma", 4, 4, 0.5)
    yield case("sizes-differ", 3, 5, 2.0)
    whole = {name: r.integers(4) for name in ("x", "x_train", "y_train")}
    yield Case("integers", {**whole, "sigma": 2}, numpy_only=True)
    yield case("strided", 3, 4, 1.5, strided=True)


def examples() -> Iterator[Case]:
    r = Numbers()

    def case(key: str, x: Array, y: Array, **how: bool) -> Case:
        return Case(key, {"x": x, "y": y}, **how)

    yield case("three-examples", np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0]))
    yield case("more-examples", r(5), r(5))
    yield case("two-examples", r(2), r(2))
    yield case("integers", np.arange(4), np.arange(4) ** 2, numpy_only=True)
    yield case("strided", r(4), r(4), strided=True)


def heads(backward: bool) -> Iterator[Case]:
    for key, B, n, heads, d, strided in [
        ("one-entry", 1, 2, 2, 3, False),
        ("batch", 2, 3, 2, 3, False),
        ("square", 2, 2, 2, 2, False),
        ("more-heads", 3, 4, 5, 2, False),
        ("one-head", 2, 3, 1, 4, False),
        ("strided", 2, 3, 2, 4, True),
    ]:
        shape = (B * heads, n, d) if backward else (B, n, heads * d)
        X = np.arange(float(B * n * heads * d)).reshape(shape)
        yield Case(key, {"X": X, "num_heads": heads}, strided)


def positions() -> Iterator[Case]:
    for key, steps, hiddens in [
        ("few-positions", 4, 6),
        ("square-positions", 4, 4),
        ("one-wave", 5, 2),
        ("many-features", 6, 16),
        ("many-positions", 60, 8),
    ]:
        yield Case(key, {"num_steps": steps, "num_hiddens": hiddens})


# ---- large inputs, for timing --------------------------------------------------------------------

LARGE, LARGE_ADDITIVE = (8, 64, 64, 64, 64, 64, 64), (4, 32, 32, 32, 32, 32, 32)


def large(name: str) -> Arguments:
    """Return arguments so large that computing takes longer than calling."""
    r = Numbers()
    additive = name.startswith("additive")
    sizes = LARGE_ADDITIVE if additive else LARGE
    B, M, N = sizes[:3]
    lens = r.rng.integers(1, N + 1, B)
    if name.startswith("masked_softmax"):
        X = r(B, M, N)
        return {"X": X, "valid_lens": lens} if name == "masked_softmax" else {"dX": X, "X": abs(X)}
    if name == "sequence_mask":
        return {"X": r(B * M, N), "valid_len": r.rng.integers(0, N + 1, B * M)}
    if name == "nadaraya_watson":
        return {"x": r(500), "x_train": r(500), "y_train": r(500), "sigma": 0.5}
    if name == "leave_one_out":
        return {"x": r(300), "y": r(300)}
    if name == "positional_encoding":
        return {"num_steps": 500, "num_hiddens": 64}
    inputs = _attention_inputs(r, sizes, additive)
    if "scores" in name:
        inputs = _without_values(inputs)
    else:
        inputs["valid_lens"] = lens
    if name.endswith("_backward"):
        inputs = {"grad_output": r(B, M, N if "scores" in name else sizes[5]), **inputs}
    return inputs
