"""The life of AdditiveAttention, DotProductAttention and MultiHeadAttention objects: construction,
subclasses, copies, pickles, the garbage collector, threads, and not a block of memory lost on the
way."""

from __future__ import annotations

import copy
import doctest
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import SLACK, assert_same_bits, in_threads, lost_blocks

import attnext
from attnext import AdditiveAttention, DotProductAttention, MultiHeadAttention

Layer = AdditiveAttention | DotProductAttention | MultiHeadAttention

QUERIES = np.random.default_rng(0).standard_normal((2, 3, 4), dtype=np.float32)
KEYS = np.random.default_rng(1).standard_normal((2, 5, 4), dtype=np.float32)
ONES = np.ones((2, 3, 4), np.float32)


class SubclassedAdditive(AdditiveAttention):
    pass


class SubclassedDot(DotProductAttention):
    pass


class SubclassedHeads(MultiHeadAttention):
    pass


def additive(cls: type[AdditiveAttention] = AdditiveAttention, **options: Any) -> AdditiveAttention:
    return cls(4, 4, 6, 0.25, bias=True, rng=5, **options)


def heads(cls: type[MultiHeadAttention] = MultiHeadAttention, **options: Any) -> MultiHeadAttention:
    return cls(4, 4, 4, 4, 2, 0.25, rng=5, **options)


MAKERS: dict[str, Callable[[], Layer]] = {
    "additive": additive,
    "additive subclass": lambda: additive(SubclassedAdditive),
    "dot": lambda: DotProductAttention(0.25, scale=0.5, rng=5),
    "dot subclass": lambda: SubclassedDot(0.25, rng=5),
    "multi-head": lambda: heads(bias=True),
    "multi-head subclass": lambda: heads(SubclassedHeads, num_kv_heads=1),
}


@pytest.fixture(params=MAKERS)
def layer(request: pytest.FixtureRequest) -> Layer:
    return MAKERS[request.param]()


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def forward(layer: Layer) -> Any:
    return layer(QUERIES, KEYS, KEYS, [2, 9])


# ---- before, during and after __init__ -----------------------------------------------------------


@pytest.mark.parametrize("cls", [AdditiveAttention, DotProductAttention, MultiHeadAttention])
def test_everything_before_init(cls: type[Layer]) -> None:
    """Only a subclass that forgets super().__init__() gets here."""
    layer = cls.__new__(cls)
    text = rf"^attnext\.{cls.__name__}\.__init__\(\) has not been called$"
    actions: list[Callable[[], Any]] = [
        lambda: forward(layer),
        lambda: layer.backward(ONES),
        lambda: layer.grads,
        lambda: layer.load_state_dict({}),
        lambda: copy.copy(layer),
        lambda: pickle.dumps(layer),
        layer.parameters,
        layer.zero_grad,
        layer.state_dict,
    ]
    if isinstance(layer, AdditiveAttention):
        actions += [lambda: layer.W_q, lambda: setattr(layer, "b_h", 0)]
    for action in actions:
        with pytest.raises(RuntimeError, match=text):
            action()
    assert repr(layer).startswith(cls.__name__ + "(")
    assert layer.context is None
    assert layer.attention_weights is None
    assert layer.eval() is layer


def test_init_again_makes_a_new_object_of_it() -> None:
    layer = additive()
    forward(layer)
    context, W_q = layer.context, layer.W_q
    layer.eval()
    layer.__init__(2, 3, 4)
    text = "AdditiveAttention(key_size=2, query_size=3, num_hiddens=4, dropout=0.0, bias=False)"
    assert repr(layer) == text
    assert layer.training
    assert layer.context is None
    assert layer.attention_weights is None
    assert layer.b_h is None
    assert W_q.shape == (6, 4)
    with pytest.raises(ValueError, match="^context belongs to another layer"):
        layer.backward(ONES, context=context)


def test_a_failed_init_changes_nothing() -> None:
    layer = additive()
    forward(layer)
    context, state = layer.context, layer.state_dict()
    with pytest.raises(ValueError, match="dropout"):
        layer.__init__(2, 3, 4, 2.0)
    assert layer.context is context
    assert_same_bits(layer.state_dict(), state)


def test_a_subclass_with_its_own_constructor_and_call() -> None:
    class Mine(AdditiveAttention):
        def __init__(self, size: int) -> None:
            super().__init__(size, size, 2 * size, rng=0)
            self.calls = 0

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return super().__call__(*args, **kwargs)

    mine = Mine(4)
    expected = AdditiveAttention(4, 4, 8, rng=0)(QUERIES, KEYS, KEYS, need_weights=False)
    np.testing.assert_array_equal(mine(QUERIES, KEYS, values=KEYS, need_weights=False), expected)
    assert mine.calls == 1
    assert mine.num_hiddens == 8


def test_types_are_closed_and_subclasses_open() -> None:
    with pytest.raises(TypeError, match="immutable type"):
        AdditiveAttention.backward = None
    layer, mine = DotProductAttention(), SubclassedDot()
    with pytest.raises(AttributeError):
        layer.extra = 1
    mine.extra = 1
    with pytest.raises(TypeError, match="__class__ assignment"):
        layer.__class__ = AdditiveAttention
    with pytest.raises(TypeError, match="__class__ assignment"):
        mine.__class__ = SubclassedAdditive


# ---- copies and pickles --------------------------------------------------------------------------

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {n}": lambda layer, n=n: pickle.loads(pickle.dumps(layer, n))
        for n in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_the_same_and_its_own(layer: Layer, how: str) -> None:
    forward(layer)
    layer.backward(ONES)
    layer.eval()
    twin = COPIES[how](layer)
    assert type(twin) is type(layer)
    assert repr(twin) == repr(layer)
    assert not twin.training
    assert_same_bits(twin.parameters(), layer.parameters())
    assert_same_bits(twin.grads, layer.grads)
    assert all(grad.any() for grad in twin.grads.values())
    np.testing.assert_array_equal(forward(twin), forward(layer))
    for mine, its in [(layer.parameters(), twin.parameters()), (layer.grads, twin.grads)]:
        assert list(mine) == list(its)
        for name in mine:
            assert not np.shares_memory(mine[name], its[name])
            assert its[name].flags.writeable


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_starts_without_a_last_call(layer: Layer, how: str) -> None:
    forward(layer)
    twin = COPIES[how](layer)
    assert twin.context is None
    assert twin.attention_weights is None
    with pytest.raises(RuntimeError, match="forward"):
        twin.backward(ONES)
    with pytest.raises(ValueError, match="^context belongs to another layer"):
        twin.backward(ONES, context=layer.context)


@pytest.mark.parametrize("how", [how for how in COPIES if how != "copy"])
def test_the_generator_is_copied_as_it_is(layer: Layer, how: str) -> None:
    forward(layer)
    twin = COPIES[how](layer)
    for _ in range(2):  # the same seeds from here on, and neither disturbs the other
        np.testing.assert_array_equal(forward(twin), forward(layer))
        assert twin.context.seed == layer.context.seed


def test_copy_shares_the_generator() -> None:
    layer = additive()
    twin = copy.copy(layer)
    assert layer.__reduce__()[1][0]["rng"] is twin.__reduce__()[1][0]["rng"]


@pytest.mark.parametrize("how", COPIES)
def test_copies_of_a_subclass_carry_its_attributes(how: str) -> None:
    layer = additive(SubclassedAdditive)
    layer.me, layer.note = layer, ["a"]
    twin = COPIES[how](layer)
    assert twin.note == ["a"]
    assert (twin.note is layer.note) == (how == "copy")
    assert twin.me is (layer if how == "copy" else twin)


class Slotted(AdditiveAttention):
    __slots__ = ("note",)


class Secretive(DotProductAttention):
    def __getstate__(self) -> dict[str, Any]:
        return {"told": self.told}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, back=True)


@pytest.mark.parametrize("how", COPIES)
def test_subclasses_with_slots_or_a_state_of_their_own(how: str) -> None:
    slotted, secretive = additive(Slotted), Secretive(0.5)
    slotted.note = "x"
    secretive.told, secretive.untold = 1, 2
    if how not in ("pickle 0", "pickle 1"):  # slots need protocol 2 or later, as everywhere
        assert COPIES[how](slotted).note == "x"
    twin = COPIES[how](secretive)
    assert vars(twin) == {"told": 1, "back": True}
    assert twin.dropout == 0.5


@pytest.mark.parametrize("how", COPIES)
def test_copying_leaves_the_gradients_as_they_are(how: str) -> None:
    """Whatever the user put there: the copy has what counts as zeros as zeros."""
    layer = additive()
    as_list = np.arange(24.0).reshape(6, 4).tolist()
    layer.grads.update(W_q=None, W_k=as_list)
    del layer.grads["w_v"]
    twin = COPIES[how](layer)
    assert list(layer.grads) == ["W_q", "W_k", "b_h"]
    assert layer.grads["W_q"] is None
    assert layer.grads["W_k"] is as_list
    assert [twin.grads[name].any() for name in ("W_q", "W_k", "w_v")] == [False, True, False]


def test_pickle_with_buffers_out_of_band() -> None:
    layer, buffers = additive(), list[pickle.PickleBuffer]()
    data = pickle.dumps(layer, 5, buffer_callback=buffers.append)
    assert buffers
    read_only = [bytes(buffer) for buffer in buffers]
    twin = pickle.loads(data, buffers=read_only)
    twin.W_q += 1
    forward(twin)
    twin.backward(ONES)
    np.testing.assert_array_equal(twin.W_q, layer.W_q + 1)


def test_layers_that_share_a_generator_still_do_after_deepcopy() -> None:
    shared = np.random.default_rng(0)
    layers = copy.deepcopy([DotProductAttention(0.5, rng=shared) for _ in range(2)])
    seeds = set()
    for layer in layers:
        forward(layer)
        seeds.add(layer.context.seed)
    assert len(seeds) == 2


def saved(cls: type[Layer] = AdditiveAttention, **changes: Any) -> dict[str, Any]:
    """What __reduce__ saves, changed; ... leaves an entry out."""
    state: dict[str, Any] = (additive() if cls is AdditiveAttention else cls()).__reduce__()[1][0]
    state |= changes
    return {name: x for name, x in state.items() if x is not ...}


class Meddler:
    """An array_like that empties a dict when it is read."""

    def __init__(self, victim: dict[str, Any]) -> None:
        self.victim = victim

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.victim.clear()
        return np.zeros((6, 4), np.float32)


GARBAGE: list[Any] = [
    None,
    [],
    {},
    {1: 2},
    saved(extra=1),
    *(saved(**{name: ...}) for name in saved()),
    *(saved(**{name: object()}) for name in saved() if name not in ("bias", "training")),
    saved(key_size=3),
    saved(num_hiddens=0),
    saved(num_hiddens=2**62),
    saved(dropout=1.5),
    saved(scale=np.inf),
    saved(rng=1),
    saved(rng=np.random.PCG64(0)),
    saved(parameters={}),
    saved(parameters=saved()["parameters"] | {"W_q": None}),
    saved(parameters=saved()["parameters"] | {"W_q": np.zeros((4, 6))}),
    saved(parameters=saved()["parameters"] | {"W_q": Meddler(saved()["parameters"])}, grads={}),
    saved(grads=saved()["grads"] | {"b_h": np.zeros(7)}),
    saved(grads=saved()["grads"] | {"b_h": "x"}),
]


@pytest.mark.parametrize("state", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_a_pickle(state: Any) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        AdditiveAttention._rebuild(state)


def test_a_state_that_changes_while_it_is_read() -> None:
    state = saved()
    state["parameters"]["W_q"] = Meddler(state)
    twin = AdditiveAttention._rebuild(state)
    assert state == {}
    assert not twin.W_q.any()
    state = saved()
    state["parameters"]["W_q"] = Meddler(state["parameters"])
    with pytest.raises(KeyError):
        AdditiveAttention._rebuild(state)


def test_a_state_of_the_other_type() -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        AdditiveAttention._rebuild(saved(DotProductAttention))
    twin = DotProductAttention._rebuild(saved())
    assert twin.parameters() == twin.grads == {}
    forward(twin)
    twin.backward(ONES)


@pytest.mark.parametrize("how", COPIES)
def test_contexts_are_not_pickled_or_copied(how: str) -> None:
    layer = additive()
    forward(layer)
    with pytest.raises(TypeError, match=r"cannot pickle 'attnext\._core\.Context' object"):
        COPIES[how](layer.context)


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_object_dies_with_its_last_reference(make: Callable[[], Layer]) -> None:
    """No cycle through the context: its arrays must not wait for the garbage collector."""
    gc.disable()
    try:
        layer = make()
        forward(layer)
        layer.backward(ONES)
        context, dead = layer.context, []
        references = [weakref.ref(layer, dead.append)]
        weights = weakref.ref(layer.attention_weights)
        del layer
        assert dead == references
        assert weights() is None
        assert repr(context).startswith("<Context")
    finally:
        gc.enable()


def test_the_last_context_is_freed_by_the_next_call() -> None:
    layer, keys = DotProductAttention(), KEYS.copy()
    gone = weakref.ref(keys)
    layer(QUERIES, keys, keys)
    del keys
    assert gone() is not None
    forward(layer)
    assert gone() is None


def test_cycles_are_collected() -> None:
    """Through a subclass's attributes, the dict of gradients, a generator."""

    class Generator(np.random.Generator):
        owner: Any = None

    rng = Generator(np.random.PCG64(0))
    cycles: list[Layer] = [DotProductAttention(0.5, rng=rng), additive(), SubclassedDot(0.5)]
    rng.owner = cycles[0]
    cycles[1].grads["me"] = cycles[1]
    cycles[2].me = cycles[2]
    for each in cycles:
        forward(each)
    cycles[2].saved = cycles[2].context
    alive = [weakref.ref(each) for each in cycles]
    gc.disable()  # not a moment before it is called
    try:
        del rng, cycles, each
        assert all(reference() is not None for reference in alive)
    finally:
        gc.enable()
    gc.collect()
    assert all(reference() is None for reference in alive)


class WithAttributes(np.ndarray):
    """The collector sees its attributes, but not through an array that has it as its base."""

    owner: Any = None

    @classmethod
    def owning(cls, values: Any) -> WithAttributes:
        array = cls(np.shape(values), np.asarray(values).dtype)
        array[...] = values
        return array


class Exporter:
    def __init__(self, array: Any) -> None:
        self.array, self.__array_interface__ = array, array.__array_interface__


def with_owner(owner: Any, x: Any) -> Any:
    x.owner = owner
    return x


SUBCLASSED: dict[str, Callable[[Any, Any], Any]] = {
    "of its own memory": lambda x, me: with_owner(me, WithAttributes.owning(x)),
    "a view": lambda x, me: with_owner(me, x.copy().view(WithAttributes)),
    "a view of one": lambda x, me: np.asarray(with_owner(me, WithAttributes.owning(x))),
    "broadcast": lambda x, me: with_owner(
        me, np.broadcast_to(x.copy().view(WithAttributes), x.shape, subok=True)
    ),
    "an owner that is no array": lambda x, me: np.asarray(with_owner(me, Exporter(x))),
}


@pytest.mark.parametrize("how", SUBCLASSED)
def test_arrays_with_attributes_that_lead_back_are_collected(how: str) -> None:
    """A context keeps their numbers, and nothing else of them; its backward is the same."""
    layer, mask = DotProductAttention(), np.arange(15).reshape(3, 5) % 4 > 0
    expected = layer(QUERIES, KEYS, KEYS, mask=mask), *layer.backward(ONES)
    queries, values, rows = (SUBCLASSED[how](x, layer) for x in (QUERIES, KEYS, mask))
    output = layer(queries, KEYS, values, mask=rows)
    alive = weakref.ref(layer)
    for got, wanted in zip((output, *layer.backward(ONES)), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    del layer, queries, values, rows
    gc.collect()
    assert alive() is None


def test_plain_arrays_and_files_are_kept_as_they_are(tmp_path: Path) -> None:
    """By reference: what is written into them is what the backward reads."""
    layer = DotProductAttention()
    for i, kind in enumerate(("array", "view", "memmap")):
        values = np.memmap(tmp_path / str(i), np.float32, "w+", shape=KEYS.shape)
        values = values if kind == "memmap" else np.array(KEYS)[:]
        layer(QUERIES, KEYS, values)
        values[...] = 0
        dq, _, _ = layer.backward(ONES)
        assert not dq.any(), kind
        values[...] = KEYS
        assert layer.backward(ONES)[0].any(), kind


def test_del_may_call_the_object_one_last_time() -> None:
    seen = []

    class Last(DotProductAttention):
        def __del__(self) -> None:
            seen.append(forward(self).shape)

    mine = Last()
    mine.me = mine
    del mine
    gc.collect()
    assert seen == [(2, 3, 4)]


def raises(error: type[Exception], action: Callable[[], Any]) -> Callable[[], None]:
    def attempt() -> None:
        try:
            action()
        except error:
            return
        raise AssertionError(f"no {error.__name__}")

    return attempt


def leak_cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every function and every way for it to fail, on objects that stay alive."""
    a, d, mine = additive(), DotProductAttention(0.25, rng=1), additive(SubclassedAdditive)
    m = heads(bias=True)
    for name, layer in [("additive", a), ("dot", d), ("subclass", mine), ("multi-head", m)]:
        forward(layer)
        context = layer.context
        yield f"{name}: call", lambda layer=layer: forward(layer)
        yield f"{name}: backward", lambda layer=layer: layer.backward(ONES)
        yield (
            f"{name}: backward of a context",
            lambda layer=layer, context=context: layer.backward(
                ONES.tolist(),
                grad_weights=np.ones_like(layer.attention_weights),
                context=context,
            ),
        )
        for method in ("parameters", "zero_grad", "state_dict", "train", "eval", "__reduce__"):
            yield f"{name}: {method}", getattr(layer, method)
        for attribute in ("attention_weights", "context", "grads", "training", "dropout"):
            yield f"{name}: {attribute}", lambda x=layer, n=attribute: getattr(x, n)
        yield f"{name}: repr", lambda layer=layer: repr(layer) + repr(layer.context)
        yield f"{name}: copy", lambda layer=layer: copy.copy(layer)
        yield f"{name}: pickle", lambda layer=layer: pickle.loads(pickle.dumps(layer))
        yield f"{name}: context seed", lambda layer=layer: layer.context.seed
    yield "call with lists", lambda: a(QUERIES.tolist(), KEYS.tolist(), KEYS.tolist(), 3)
    yield "call with tensors", lambda: a(*map(torch.from_numpy, (QUERIES, KEYS, KEYS)))
    yield "call without weights", lambda: a(QUERIES, KEYS, KEYS, need_weights=False)
    masks: dict[str, Any] = {"bias": np.ones(5), "causal_offset": [2, 1], "window": [1, 1]}
    yield (
        "call with options",
        lambda: (a(QUERIES, KEYS, KEYS, **masks), a.backward(ONES, return_grad_bias=True)),
    )
    modified: dict[str, Any] = {"scale": [2, 0.5], "sink": np.ones((2, 1)), "softcap": 3}
    asked: dict[str, Any] = {"return_grad_scale": True, "return_grad_sink": True}
    yield (
        "call with modifiers",
        lambda: (d(QUERIES, KEYS, KEYS, **modified), d.backward(ONES, **asked)),
    )
    yield "construct additive", additive
    yield "construct dot", lambda: DotProductAttention(0.5, scale=2.0, rng=[1])
    yield "init again", lambda: mine.__init__(4, 4, 6, rng=0)
    yield "set a parameter", lambda: setattr(a, "W_q", a.W_q.astype(np.float64))
    yield "load a state dict", lambda: a.load_state_dict(a.state_dict())
    yield "replace a gradient", lambda: (a.grads.update(w_v=[0] * 6), a.backward(ONES))
    yield "lose a gradient", lambda: (a.grads.pop("w_v"), a.zero_grad())


def error_cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    a, d, other = additive(), DotProductAttention(), DotProductAttention()
    forward(a)
    forward(other)
    state = a.state_dict()
    new = AdditiveAttention.__new__(AdditiveAttention)
    type_error: dict[str, Callable[[], Any]] = {
        "too few arguments": lambda: a(QUERIES, KEYS),
        "unknown keyword": lambda: a(QUERIES, KEYS, KEYS, seed=None),
        "queries of the wrong kind": lambda: a("x", KEYS, KEYS),
        "values of the wrong kind": lambda: a(QUERIES, KEYS, object()),
        "scale of the wrong kind": lambda: d(QUERIES, KEYS, KEYS, scale=[1j, 2]),
        "sink of the wrong kind": lambda: a(QUERIES, KEYS, KEYS, sink=["x"]),
        "offsets of the wrong kind": lambda: a(QUERIES, KEYS, KEYS, causal_offset=[0.5]),
        "lens of the wrong kind": lambda: a(QUERIES, KEYS, KEYS, [0.5, 1]),
        "context of the wrong type": lambda: a.backward(ONES, context=1),
        "no size": lambda: AdditiveAttention(1, 2, 3.0),
        "no rng": lambda: AdditiveAttention(1, 2, 3, rng="x"),
        "no rng for dot": lambda: DotProductAttention(rng="x"),
        "no dropout": lambda: DotProductAttention("x"),
        "no scale": lambda: DotProductAttention(scale="x"),
        "no parameter": lambda: setattr(a, "W_q", "x"),
        "no state dict": lambda: a.load_state_dict(1),
        "state dict of strings": lambda: a.load_state_dict(dict.fromkeys(state, "x")),
        "train twice": lambda: a.train(True, mode=False),
        "pickle a context": lambda: pickle.dumps(a.context),
        "rebuild from nothing": lambda: AdditiveAttention._rebuild({}),
    }
    value_error: dict[str, Callable[[], Any]] = {
        "queries of the wrong size": lambda: a(QUERIES[..., :3], KEYS, KEYS),
        "keys of the wrong size": lambda: a(QUERIES, KEYS[..., :3], KEYS),
        "values of the wrong shape": lambda: a(QUERIES, KEYS, KEYS[:1]),
        "sink of the wrong shape": lambda: a(QUERIES, KEYS, KEYS, sink=np.ones((3, 1))),
        "scale that is not finite": lambda: d(QUERIES, KEYS, KEYS, scale=[1, np.inf]),
        "negative length": lambda: a(QUERIES, KEYS, KEYS, -1),
        "gradient of the wrong shape": lambda: a.backward(ONES[:1]),
        "weights' gradient of the wrong shape": lambda: a.backward(ONES, grad_weights=ONES),
        "context of another": lambda: a.backward(ONES, context=other.context),
        "parameter of the wrong shape": lambda: setattr(a, "W_q", np.ones(3)),
        "state dict of the wrong shape": lambda: a.load_state_dict(state | {"b_h": np.ones(7)}),
        "negative size": lambda: AdditiveAttention(1, -2, 3),
        "sizes that overflow": lambda: AdditiveAttention(2**61, 2, 3),
        "negative rng": lambda: AdditiveAttention(1, 2, 3, rng=-1),
        "dropout above 1": lambda: AdditiveAttention(1, 2, 3, 1.5),
        "infinite scale": lambda: DotProductAttention(scale=np.inf),
        "rebuild another size": lambda: AdditiveAttention._rebuild(saved(key_size=3)),
    }
    others: dict[type[Exception], dict[str, Callable[[], Any]]] = {
        TypeError: type_error,
        ValueError: value_error,
        KeyError: {"wrong names": lambda: a.load_state_dict({"x": 1, 2: 3})},
        RuntimeError: {
            "backward before forward": lambda: d.backward(ONES),
            "call before init": lambda: forward(new),
            "reduce before init": lambda: copy.copy(new),
        },
        AttributeError: {
            "delete a parameter": lambda: delattr(a, "W_q"),
            "set no bias": lambda: setattr(AdditiveAttention(1, 1, 1), "b_h", 1),
        },
    }
    for error, actions in others.items():
        for name, action in actions.items():
            yield f"{error.__name__}: {name}", raises(error, action)

    def spoiled_gradient() -> None:
        a.grads["w_v"] = "x"
        raises(TypeError, lambda: a.backward(ONES))()
        a.zero_grad()

    yield "gradient that cannot be added to", spoiled_gradient


ALLOCATING: dict[str, Callable[[AdditiveAttention], Any]] = {
    "call": forward,
    "call with lists": lambda layer: layer(QUERIES.tolist(), KEYS, KEYS.tolist(), [2, 9]),
    "backward": lambda layer: layer.backward(ONES),
    "state_dict": lambda layer: layer.state_dict(),
    "load_state_dict": lambda layer: layer.load_state_dict(layer.state_dict()),
    "reduce": lambda layer: layer.__reduce__(),
    "copy": copy.copy,
    "repr": lambda layer: repr(layer) + repr(layer.context),
    "set": lambda layer: setattr(layer, "W_q", layer.W_q.astype(np.float64)),
}
CASES = dict([*leak_cases(), *error_cases()])


@pytest.mark.parametrize("case", CASES)
def test_no_memory_is_lost(case: str) -> None:
    if sys.getallocatedblocks() == 0:
        pytest.skip("Python's own allocator, which counts blocks, is switched off")
    assert lost_blocks(CASES[case]) < SLACK


@pytest.mark.parametrize("case", ALLOCATING)
def test_every_allocation_may_fail(case: str) -> None:
    """The first, the second, ...: each time a MemoryError, and nothing has changed."""
    fail = pytest.importorskip("_testcapi")  # CPython's own tool for it
    layer, action = additive().eval(), ALLOCATING[case]
    expected = forward(layer)
    layer.backward(ONES)
    state, grads = layer.state_dict(), {name: grad.copy() for name, grad in layer.grads.items()}
    action(layer)  # what is made once and kept
    nth = failed = last_failed = 0
    while nth < last_failed + 10:
        layer.zero_grad()
        layer.backward(ONES)
        fail.set_nomemory(nth, nth + 1)
        try:
            action(layer)
        except MemoryError:
            failed, last_failed = failed + 1, nth
            assert_same_bits(layer.grads, grads)
        finally:
            fail.remove_mem_hooks()
        nth += 1
    assert failed > 0
    assert_same_bits(layer.state_dict(), state)
    np.testing.assert_array_equal(forward(layer), expected)


def test_no_reference_is_lost() -> None:
    """Of what is there before and after: counted, as a lost one allocates nothing."""
    layer = additive()
    forward(layer)
    arrays = [QUERIES.copy(), KEYS.copy(), KEYS.copy(), ONES.copy(), np.array([2, 9])]
    types = [AdditiveAttention, DotProductAttention, type(layer.context)]
    live = [*layer.parameters().values(), *layer.grads.values()]
    objects: list[Any] = [*arrays, *types, *live, layer]
    before = [sys.getrefcount(x) for x in objects]
    for _ in range(100):
        layer(*arrays[:3], arrays[4])
        layer.backward(arrays[3], context=layer.context)
        raises(ValueError, lambda: layer(*arrays[:3], [1, 2, 3]))()
        raises(ValueError, lambda: layer.backward(arrays[3][:1]))()
        copy.copy(layer)
        forward(DotProductAttention())
    forward(layer)
    assert [sys.getrefcount(x) for x in objects] == before


# ---- threads -------------------------------------------------------------------------------------


LARGE_Q = np.random.default_rng(2).standard_normal((8, 20, 4), dtype=np.float32)
LARGE_K = np.random.default_rng(3).standard_normal((8, 30, 4), dtype=np.float32)
LARGE_ONES = np.ones((8, 20, 4), np.float32)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_threads_that_call_one_object(make: Callable[[], Layer], switching: None) -> None:
    """Each gets its own result, and the sum of all gradients is complete."""
    layer = make().eval()
    expected = layer(LARGE_Q, LARGE_K, LARGE_K)
    layer.backward(LARGE_ONES)
    once = {name: grad.copy() for name, grad in layer.grads.items()}
    layer.zero_grad()

    def work() -> None:
        for _ in range(30):
            np.testing.assert_array_equal(layer(LARGE_Q, LARGE_K, LARGE_K), expected)
            layer.backward(LARGE_ONES)
            assert layer.attention_weights is not None

    in_threads(work, work, work)
    for name, grad in layer.grads.items():
        np.testing.assert_allclose(grad, 90 * once[name], rtol=1e-5, atol=1e-5)


def test_dropout_seeds_of_threads_are_all_different(switching: None) -> None:
    layer = DotProductAttention(0.5)
    results: list[bytes] = []

    def work() -> None:
        for _ in range(30):
            results.append(layer(LARGE_Q, LARGE_K, LARGE_K).tobytes())

    in_threads(work, work, work)
    assert len(set(results)) == 90


def test_parameters_set_while_other_threads_call(switching: None) -> None:
    """A call may see old and new numbers mixed, but ends, and the last value set stays."""
    layer = additive().eval()
    W_q = layer.W_q.copy()
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            assert np.isfinite(layer(LARGE_Q, LARGE_K, LARGE_K)).all()
            layer.backward(LARGE_ONES)

    def change() -> None:
        try:
            for i in range(200):
                layer.W_q = (i % 3) * W_q
                layer.load_state_dict(layer.state_dict())
                layer.zero_grad()
                with pytest.raises(ValueError, match="cannot resize"):
                    layer.W_q.resize((1, 1), refcheck=False)
        finally:
            done.set()

    in_threads(work, change, work)
    np.testing.assert_array_equal(layer.W_q, W_q)


def test_init_while_other_threads_call(switching: None) -> None:
    layer = additive().eval()
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            assert np.isfinite(layer(LARGE_Q, LARGE_K, LARGE_K)).all()
            try:
                layer.backward(LARGE_ONES)
            except (RuntimeError, ValueError):
                pass  # there was an __init__ between the forward and the backward

    def change() -> None:
        try:
            for i in range(200):
                layer.__init__(4, 4, 5 + i % 3, rng=i)
        finally:
            done.set()

    in_threads(work, change, work)


# ---- docstrings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cls",
    [AdditiveAttention, DotProductAttention, MultiHeadAttention, attnext._core.Context],
    ids=lambda c: c.__name__,
)
def test_docstrings_run(cls: type) -> None:
    runner, parser = doctest.DocTestRunner(), doctest.DocTestParser()
    documented = {cls.__name__: cls.__doc__}
    documented |= {
        f"{cls.__name__}.{name}": x.__doc__
        for name, x in vars(cls).items()
        if name == "__call__" or not name.startswith("_")
    }
    for name, doc in documented.items():
        assert doc, f"{name} has no docstring"
        runner.run(parser.get_doctest(doc, {}, name, None, None))
    results = runner.summarize(verbose=False)
    assert results.failed == 0
    assert results.attempted > 0
