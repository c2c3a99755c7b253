"""Part 8 of the tour: the time that attnext, plain NumPy and PyTorch take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import attnext
from attnext._tour.page import largest_difference
from attnext._tour.peer import Peer
from attnext._tour.tour import Check, Tour
from attnext._width import ljust

Array = NDArray[np.float32]
# What is computed, of which size; by attnext, by NumPy, which have the same result, by PyTorch.
Contest = tuple[str, str, Callable[[], Array], Callable[[], Array], Callable[[], object] | None]

BUDGET = 0.1  # seconds for each contender
UNSTEADY = 2.0  # times the shortest: a median beyond it says that others had the machine
SAME = 1e-5  # how far results may be apart, relative to the largest
_CHINESE = {"dot product": "点积", "additive": "加性", "with backward": "含反向传播"}


def timings(tour: Tour) -> None:
    """Part 8: the best time of each library for four problems."""
    page, text, peer = tour.page, tour.page.text, tour.peer
    tour.title(en="How long it takes", zh="用时")
    page.say(
        en="Times are in milliseconds, for float32, on one thread. The libraries take turns and "
        "run several times; the fastest run counts. NumPy evaluates the formulas as written; its "
        "BLAS may use more threads for matrix products. x2.0 means twice the time of attnext. A "
        "dash means that the times varied too much, for example because the machine is busy. "
        f"A line is marked {page.tick} if attnext and NumPy agree within {SAME:g}.",
        zh="单位是毫秒，数据为float32，各用一个线程。各库轮流运行多次，取最快的一次。NumPy照公式直接"
        "计算，但做矩阵乘法时，BLAS可能使用更多线程。x2.0表示用时是attnext的两倍。短横表示各次用时"
        f"相差太大，例如机器正忙。attnext与NumPy的结果相差不超过{SAME:g}时，标{page.tick}。",
    )
    page.line()
    config = attnext.show_config("dicts")
    chosen = config["instruction_set"]["chosen"]
    version = f"attnext {attnext.__version__}"
    peers = [f"NumPy {np.__version__}"] + ([peer.name] if peer else [])
    contenders = text(
        en=f"{version} (instruction set {chosen}), {', '.join(peers)}",
        zh=f"{version}（指令集{chosen}），{'，'.join(peers)}",
    )
    page.indented(contenders)
    page.line()
    a, b, c = (14, 20, 8) if page.narrow else (16, 20, 8)
    head = f"{'NumPy':>{6 if page.narrow else 9}}"
    if peer:
        head += f"{'torch':>{6 if page.narrow else 15}}"
    page.note(f"{'':<{a}}{'B x M x N':<{b}}{'attnext':>{c}}{head}")
    with _one_thread(peer):
        for name, size, ours, plain, theirs in _contests(peer):
            off = largest_difference(ours(), plain())
            first, *others = _fastest([ours, plain] if theirs is None else [ours, plain, theirs])
            ratios = [_ratio(other, first) for other in others]
            times = "".join(
                f"{_number(other):>9} {ratio:<5}"
                for other, ratio in zip(others, ratios, strict=True)
            )
            cells = "".join(f"{ratio or '-':>6}" for ratio in ratios) if page.narrow else times
            tour.result(
                ljust(text(en=name, zh=_CHINESE[name]), a)
                + f"{size:<{b}}{_number(first):>{c}}{cells}",
                Check(f"{name.strip()} {size}, relative difference from NumPy", off, 0, SAME),
            )


@contextmanager
def _one_thread(peer: Peer | None) -> Iterator[None]:
    """One thread for attnext and for the peer: more of them wait for each other where others work.

    NumPy's BLAS reads how many it may have when it is loaded; that has happened.
    """
    libraries: list[Any] = [attnext] + ([peer.torch] if peer else [])
    before = [library.get_num_threads() for library in libraries]
    for library in libraries:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, threads in zip(libraries, before, strict=True):
            library.set_num_threads(threads)


def _fastest(contenders: list[Callable[[], object]]) -> list[float]:
    """The shortest time of each in seconds: in turn, at least three times, so warm in the end.

    NaN where half of the runs took more than UNSTEADY times as long.
    """
    times: list[list[float]] = [[] for _ in contenders]
    runs, deadline = 0, time.perf_counter() + BUDGET * len(contenders)
    while runs < 3 or (runs < 1000 and time.perf_counter() < deadline):
        for taken, contender in zip(times, contenders, strict=True):
            started = time.perf_counter()
            contender()
            taken.append(time.perf_counter() - started)
        runs += 1
    best = [min(taken) for taken in times]
    return [
        shortest if median(taken) <= UNSTEADY * shortest else math.nan
        for shortest, taken in zip(best, times, strict=True)
    ]


def _number(seconds: float) -> str:
    """Milliseconds in three significant digits, never an exponent."""
    if math.isnan(seconds):
        return "-"
    value = 1e3 * seconds
    decimals = 2 - math.floor(math.log10(max(value, 1e-6)))
    return f"{value:.{max(decimals, 0)}f}"


def _ratio(seconds: float, ours: float) -> str:
    value = seconds / ours
    if math.isnan(value):
        return ""
    return f"x{value:.1f}" if value < 10 else f"x{value:.0f}"


def _contests(peer: Peer | None) -> Iterator[Contest]:
    rng = np.random.default_rng(8)

    def random(*shape: int) -> Array:
        return rng.standard_normal(shape, dtype=np.float32)

    def theirs(name: str, *arrays: Array) -> Callable[[], object] | None:
        if peer is None:
            return None
        return partial(getattr(peer, name), *map(peer.tensor, arrays))

    for leading, M, N, d in [((2,), 1, 10, 2), ((4, 8), 128, 512, 64)]:
        dot = random(*leading, M, d), random(*leading, N, d), random(*leading, N, d)
        yield (
            "dot product",
            f"{math.prod(leading)} x {M} x {N}, d {d}",
            partial(attnext.dot_product_attention, *dot),
            partial(_plain_dot_product, *dot),
            theirs("fused_dot_product", *dot),
        )

    layer = attnext.AdditiveAttention(64, 64, 64, rng=rng)
    inputs = random(8, 64, 64), random(8, 128, 64), random(8, 128, 64)
    grad, W = random(8, 64, 64), (layer.W_q, layer.W_k, layer.w_v)
    yield (
        "additive",
        "8 x 64 x 128, h 64",
        partial(attnext.additive_attention, *inputs, *W),
        partial(_plain_additive, *inputs, *W),
        theirs("additive", *inputs, *W),
    )

    def ours() -> Array:
        layer(*inputs, need_weights=False)
        return layer.backward(grad)[0]

    yield (
        "with backward",
        "8 x 64 x 128, h 64",
        ours,
        lambda: _plain_additive_gradients(grad, *inputs, *W)[0],
        None if peer is None else peer.timed_gradients(peer.additive, grad, *inputs, *W),
    )


# ---- the formulas as written, in NumPy --------------------------------------------------------


def _plain_softmax(scores: Array) -> Array:
    weights: Array = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights


def _plain_dot_product(queries: Array, keys: Array, values: Array) -> Array:
    scores = queries @ keys.swapaxes(-1, -2) / np.float32(math.sqrt(queries.shape[-1]))
    output: Array = _plain_softmax(scores) @ values
    return output


def _plain_additive(
    queries: Array, keys: Array, values: Array, W_q: Array, W_k: Array, w_v: Array
) -> Array:
    features = np.tanh((queries @ W_q.T)[:, :, None] + (keys @ W_k.T)[:, None])  # (B, M, N, H)
    output: Array = _plain_softmax(features @ w_v) @ values
    return output


def _plain_additive_gradients(
    grad: Array, queries: Array, keys: Array, values: Array, W_q: Array, W_k: Array, w_v: Array
) -> tuple[Array, ...]:
    """The gradients of sum(grad * output), in the order of the arguments."""
    features = np.tanh((queries @ W_q.T)[:, :, None] + (keys @ W_k.T)[:, None])
    weights = _plain_softmax(features @ w_v)
    dweights = grad @ values.swapaxes(-1, -2)
    dscores = weights * (dweights - (dweights * weights).sum(-1, keepdims=True))
    dsum = dscores[..., None] * w_v * (1 - features**2)
    dQ, dK = dsum.sum(2), dsum.sum(1)  # of the projected queries and keys
    H = len(w_v)
    return (
        dQ @ W_q,
        dK @ W_k,
        weights.swapaxes(-1, -2) @ grad,
        dQ.reshape(-1, H).T @ queries.reshape(-1, queries.shape[-1]),
        dK.reshape(-1, H).T @ keys.reshape(-1, keys.shape[-1]),
        features.reshape(-1, H).T @ dscores.ravel(),
    )
