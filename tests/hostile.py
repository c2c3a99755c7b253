"""What hostile tests share: every function with all that it reads, and what may be done meanwhile.

The deeds are done by arguments while they are read (test_attacks_hostile.py), and by finalisers
that the garbage collector runs at any allocation (test_attacks_finalisers.py).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from helpers import SCORES, SCORES_FUNCTION, Array, make_problem

import attnext
from attnext import AdditiveAttention, DotProductAttention, MultiHeadAttention

Layer = AdditiveAttention | DotProductAttention
Arguments = dict[str, Any]

RNG = np.random.default_rng(0)


def same(found: Any, expected: Any) -> None:
    """Arrays, or tuples of them, down to the bit."""
    if isinstance(expected, tuple):
        for a, b in zip(found, expected, strict=True):
            same(a, b)
    else:
        np.testing.assert_array_equal(found, expected)


# ---- functions and their arguments ---------------------------------------------------------------


class Mine(np.ndarray[Any, Any]):
    """Read through a view, which does not know what becomes of it."""


def of_floats(*shape: int) -> Array:
    return RNG.standard_normal(shape, dtype=np.float32)


def named(name: str, function: Any) -> Callable[..., Any]:
    function.__name__ = name
    return function  # type: ignore[no-any-return]


def functions() -> Iterator[tuple[Callable[..., Any], Arguments]]:
    """Every function that reads more than one array, with all that it reads."""
    masks: Arguments = {"valid_lens": np.array([4, 5]), "mask": RNG.random((2, 3, 5)) < 0.8}
    masks |= {"bias": of_floats(3, 5), "sink": of_floats(2, 3), "causal_offset": np.array([2, 3])}
    masks |= {"dropout_mask": RNG.random((3, 5)) < 0.8, "dropout_p": 0.5, "window": (9, 9)}
    extras = {"grad_weights": of_floats(2, 3, 5), "grad_lse": of_floats(2, 3)}
    for score in SCORES:
        problem = make_problem(score, RNG, M=3, N=5, D=4, Dv=3)
        scored = {name: x for name, x in problem.inputs.items() if name != "values"}
        inputs = problem.inputs | masks | ({"b_h": of_floats(6)} if "W_q" in scored else {})
        of_scores = SCORES_FUNCTION[score]
        attention = of_scores.replace("scores", "attention")
        scores_backward, attention_backward = (
            getattr(attnext, f"{name}_backward") for name in (of_scores, attention)
        )
        yield getattr(attnext, of_scores), scored
        yield scores_backward, {"grad_output": of_floats(2, 3, 5)} | scored
        yield getattr(attnext, attention), inputs | {"return_weights": True}
        yield attention_backward, {"grad_output": of_floats(2, 3, 3)} | inputs | extras
    projected: Arguments = {"queries": of_floats(2, 3, 4), "keys": of_floats(2, 5, 4)}
    projected |= {"values": of_floats(2, 5, 3), "W_q": of_floats(6, 4), "W_k": of_floats(6, 4)}
    projected |= {"W_v": of_floats(6, 3), "W_o": of_floats(6, 6), "b_o": of_floats(6)}
    projected |= masks | {"mask": masks["dropout_mask"], "sink": of_floats(3)}
    heads: Callable[..., Any] = partial(attnext.multi_head_attention, num_heads=2)
    yield named("multi_head_attention", heads), projected | {"return_weights": True}
    heads = partial(attnext.multi_head_attention_backward, num_heads=2)
    flows = {"grad_output": of_floats(2, 3, 6), "grad_lse": of_floats(2, 2, 3)}
    yield named("multi_head_attention_backward", heads), flows | projected
    X, lens = of_floats(2, 3, 5), {"valid_lens": np.array([4, 5])}
    yield attnext.masked_softmax, {"X": X, "mask": masks["mask"]} | lens
    yield attnext.masked_softmax_backward, {"grad_output": X, "weights": X, "mask": X > 0} | lens
    yield attnext.sequence_mask, {"X": X, "valid_len": lens["valid_lens"], "value": 1.5}
    parts: Arguments = {"outputs": of_floats(2, 3, 4, 5), "lses": of_floats(2, 3, 4)}
    yield attnext.merge_attention, parts
    into = {"grad_output": of_floats(3, 4, 5), "grad_lse": of_floats(3, 4)}
    yield attnext.merge_attention_backward, parts | into
    for make in MAKERS.values():
        layer = make()
        rows = {"keys": X[..., :4].copy(), "values": X, "mask": np.ones((2, 1, 3), dtype=bool)}
        call = {name: masks[name] for name in ("mask", "bias", "sink")}
        yield (
            layer,
            {
                "queries": of_floats(2, 3, 4),
                "keys": of_floats(2, 5, 4),
                "values": of_floats(2, 5, 3),
            }
            | call,
        )
        yield memory_of(layer), rows
    many: Callable[..., Any] = MultiHeadAttention(4, 4, 3, 6, 2, rng=1)
    rows = {"queries": of_floats(2, 3, 4), "keys": of_floats(2, 5, 4), "values": of_floats(2, 5, 3)}
    yield many, rows | {"mask": masks["dropout_mask"]}


MAKERS: dict[str, Callable[[], Layer]] = {
    "additive": lambda: AdditiveAttention(4, 4, 6, bias=True, rng=1),
    "dot": lambda: DotProductAttention(scale=0.5, rng=1),
}


def memory_of(layer: Layer) -> Callable[..., Any]:
    """What a memory has, made and appended to with the same rows."""

    def read(**rows: Any) -> Any:
        memory = layer.memory(**rows)
        return layer(np.ones((2, 1, 4), np.float32), memory)

    read.__name__ = f"memory of {type(layer).__name__}"
    return read


FUNCTIONS = {getattr(f, "__name__", type(f).__name__): (f, a) for f, a in functions()}


def freed(victim: Array, how: str) -> None:
    """Gives the memory of the array back, which others then write to, as far as can be."""
    state = 1, victim.shape, victim.dtype, False, victim.tobytes()
    if victim.size > 0:
        victim.resize((0,), refcheck=False)
    others = [np.full(len(state[-1]), 255, dtype=np.uint8) for _ in range(8)]
    if how == "moved":
        victim.__setstate__(state)  # type: ignore[attr-defined]
    others.clear()


# ---- layers and memories -------------------------------------------------------------------------

Q, K, V, G = of_floats(2, 3, 4), of_floats(2, 5, 4), of_floats(2, 5, 3), of_floats(2, 3, 3)
BIAS, SINK, OF_WEIGHTS = of_floats(3, 1), of_floats(3), of_floats(2, 3, 5)


def deeds(layer: Any, memory: Any) -> dict[str, Callable[[], Any]]:
    """What an argument may do to the layer that is being called, and to its memory."""
    found: dict[str, Callable[[], Any]] = {
        "call": lambda: layer(Q, K, V, softcap=1.0),
        "backward": lambda: layer.backward(G),
        "call with the memory": lambda: (layer(Q, memory), layer.backward(G)),
        "append": lambda: memory.append(K, V),
        "backward of the memory": lambda: memory.backward(),
        "zero_grad": layer.zero_grad,
        "lose the gradients": layer.grads.clear,
        "spoil the gradients": lambda: layer.grads.update(W_q=[[1.0]], w_v="x"),
        "load": lambda: layer.load_state_dict(layer.state_dict()),
        "train": lambda: layer.train().eval(),
        "collect": lambda: gc.collect(1),
        "another life": lambda: layer.__init__(*[4, 4, 6][: 3 * bool(layer.parameters())], rng=7),
    }
    if layer.parameters():
        found["set"] = lambda: setattr(layer, "W_k", layer.W_k + 1)
        found["set all"] = lambda: [x.fill(9) for x in layer.parameters().values()]
    return found


def methods(layer: Any, memory: Any) -> dict[str, tuple[Callable[..., Any], Arguments]]:
    """What reads arguments, and those of it that may do something."""
    masks: Arguments = {"mask": np.ones((3, 5), bool), "bias": BIAS, "sink": SINK}
    inputs: Arguments = {"queries": Q, "keys": K, "values": V, "valid_lens": np.array([4, 5])}
    of_memory = {"queries": Q, "bias": BIAS, "sink": SINK}
    rows: Arguments = {"keys": K, "values": V, "mask": np.ones((2, 1, 5), bool)}
    found: dict[str, tuple[Callable[..., Any], Arguments]] = {
        "call": (layer, inputs | masks),
        "call with a memory": (lambda **given: layer(keys=memory, **given), of_memory),
        "backward": (layer.backward, {"grad_output": G, "grad_weights": OF_WEIGHTS}),
        "memory": (layer.memory, rows | {"valid_lens": np.array([4, 5])}),
        "append": (memory.append, rows),
    }
    if layer.parameters():
        state = layer.state_dict()
        found["load"] = lambda **given: layer.load_state_dict(given), state
        found["set"] = lambda **given: setattr(layer, "W_q", given["W_q"]), {"W_q": layer.W_q + 1}
    return found


def make(kind: str) -> tuple[Any, Any]:
    """A layer after a call, and a memory of it."""
    layer: Any = MAKERS[kind]()
    memory = layer.memory(K, V)
    layer(Q, K, V)
    return layer, memory


REFUSED = r"context belongs to another layer|changed|belongs to another|grads\['.*\]|W_k has"


def begin_again(layer: Any) -> None:
    layer.__init__(*[4, 4, 6][: 3 * bool(layer.parameters())], rng=7)


def check_well(layer: Any) -> None:
    """It is still good for another life."""
    fresh: Any = AdditiveAttention(4, 4, 6, rng=7) if layer.parameters() else DotProductAttention()
    begin_again(layer)
    same(layer(Q, K, V), fresh(Q, K, V))
    same(layer.backward(G), fresh.backward(G))
