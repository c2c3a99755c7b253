"""Every hint is followed: what it advises gives what the library gives that it speaks of.

A hint is what a call with another library's argument is told (attnext/_hints.py). Each is
taken out of the message, evaluated as the code it is, and the call made with it. There are as many
entries as heads and queries, so that whatever broadcasts by accident does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax_process
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

import attnext
import attnext.torch
from attnext._hints import FOREIGN

Array = NDArray[Any]
SIZE = 3  # of batch, heads and queries
KEYS, FEATURES = 5, 4

_rng = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return _rng.standard_normal(shape, dtype=np.float32)


HEADED = [normal(SIZE, SIZE, n, FEATURES) for n in (SIZE, KEYS, KEYS)]  # (B, heads, M, D)
PLAIN = [x[0] for x in HEADED]
FLAT = [normal(SIZE, n, SIZE * FEATURES) for n in (SIZE, KEYS, KEYS)]  # (B, M, E)
SELF = [normal(SIZE, SIZE, KEYS, FEATURES)] * 3
X = normal(SIZE, SIZE, KEYS)
PADDED = np.arange(KEYS) >= np.array([[2], [5], [4]])  # True: not a key
LENGTHS = np.array([2, 5, 4])
PAIRS = _rng.random((SIZE, SIZE, KEYS)) < 0.6
PAIRS[..., 0] = True
BIAS = normal(SIZE, KEYS)
NUMBERS = normal(SIZE)

THEIRS = torch.nn.MultiheadAttention(SIZE * FEATURES, SIZE, batch_first=True)
OURS = attnext.MultiHeadAttention(*[SIZE * FEATURES] * 4, num_heads=SIZE, bias=True)
OURS.load_state_dict(THEIRS.state_dict())
MODULE = attnext.torch.MultiHeadAttention(*[SIZE * FEATURES] * 4, SIZE, bias=True)
MODULE.load_state_dict(THEIRS.state_dict())


@pytest.fixture(scope="module", autouse=True)
def no_worker_is_left_behind() -> Iterator[None]:
    yield
    jax_process.stop()


# ---- ours ----------------------------------------------------------------------------------------


def tensors(x: Any) -> Any:
    return torch.tensor(x) if isinstance(x, np.ndarray) else x


def on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of attnext.torch, given arrays."""

    def call(*args: Any, **named: Any) -> Any:
        return function(*map(tensors, args), **{name: tensors(x) for name, x in named.items()})

    return call


def doors(name: str) -> list[Callable[..., Any]]:
    if name == "layer":
        return [OURS, on_tensors(MODULE)]
    return [getattr(attnext, name), on_tensors(getattr(attnext.torch, name))]


dot, softmax = doors("dot_product_attention"), [attnext.masked_softmax]
layers = doors("layer")


# ---- theirs --------------------------------------------------------------------------------------


def sdpa(inputs: list[Array], **options: Any) -> Array:
    options = {name: tensors(x) for name, x in options.items()}
    return functional.scaled_dot_product_attention(*map(tensors, inputs), **options).numpy()


def module(**options: Any) -> Array:
    options = {name: tensors(x) for name, x in options.items()}
    output, _ = THEIRS(*map(tensors, FLAT), **options)
    return np.asarray(output.detach())


def jax(inputs: list[Array], what: str = "output", **options: Any) -> Array:
    return np.asarray(jax_process.call("attention", *inputs, options)[what])


def formula(
    inputs: list[Array],
    scores: Callable[[Array], Array] = lambda x: x,
    part: Array | bool = True,
    sinks: Array | None = None,
) -> Array:
    """Attention in the words of a textbook, for what is not installed here."""
    q, k, v = inputs
    s = np.where(part, scores(q @ k.swapaxes(-1, -2) / FEATURES**0.5), -np.inf)
    if sinks is None:
        return np.asarray(np.exp(s) / np.exp(s).sum(-1, keepdims=True) @ v)
    logits = np.concatenate([s, np.broadcast_to(sinks[:, None, None], (*s.shape[:-1], 1))], -1)
    return np.asarray((np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))[..., :-1] @ v)


def softmax_formula(x: Array, part: Array | bool = True) -> Array:
    e = np.where(part, np.exp(x), 0)
    return np.asarray(e / e.sum(-1, keepdims=True))


def kernel(rate: float) -> Array:
    """Regression with exp(-rate * distance**2)."""
    q, k, v = PLAIN
    e = np.exp(-rate * np.square(q[..., :, None, :] - k[..., None, :, :]).sum(-1))
    return np.asarray(e / e.sum(-1, keepdims=True) @ v)


def band(left: int, right: int, offset: int = 0, M: int = SIZE) -> Array:
    shift = np.arange(KEYS) - np.arange(M)[:, None] - offset
    return np.asarray((shift >= -left) & (shift <= right))


# ---- the table -----------------------------------------------------------------------------------
#
# name there, argument here: what is called, on what, with which value; what the hint says to write
# (the value itself, where it says nothing); the library's result; and what else is to be given.

Hint = tuple[list[Callable[..., Any]], list[Array], Any, str, Callable[[], Array], dict[str, Any]]


def masks(name: str) -> list[tuple[str, str, Hint]]:
    """Of a mask of padding, (B, N): with heads inside, with heads as an axis, without."""
    given = PADDED if name.endswith("key_padding_mask") else ~PADDED
    there = f"~{name}" if name.endswith("key_padding_mask") else name
    of_heads, plain = f"{there}[:, None, None, :]", f"{there}[:, None, :]"
    return [
        (name, "mask", (layers, FLAT, given, of_heads,
                        lambda: module(key_padding_mask=PADDED), {})),
        (name, "mask", (dot, HEADED, given, of_heads,
                        lambda: sdpa(HEADED, attn_mask=~PADDED[:, None, None, :]), {})),
        (name, "mask", (dot, PLAIN, given, plain,
                        lambda: sdpa(PLAIN, attn_mask=~PADDED[:, None, :]), {})),
    ]  # fmt: skip


def lengths(name: str) -> tuple[str, str, Hint]:
    def there() -> Array:
        if name == "key_value_seq_lengths":
            return jax(HEADED, lengths=LENGTHS)
        return sdpa(HEADED, attn_mask=~PADDED[:, None, None, :])

    return name, "valid_lens", (dot, HEADED, LENGTHS, "", there, {})


def cut() -> Array:
    return np.where(np.arange(KEYS)[:, None] < LENGTHS[:, None, None], PLAIN[1], 0)


TABLE: list[tuple[str, str, Hint]] = [
    *[lengths(name) for name in ("valid_len", "valid_length", "enc_valid_lens", "lengths",
                                 "key_value_seq_lengths", "nonpad_kv_seqlen")],
    *[(name, "valid_len", ([attnext.sequence_mask], [PLAIN[1]], LENGTHS, "", cut, {}))
      for name in ("valid_lens", "valid_length", "lengths", "sequence_length")],
    ("attn_mask", "bias", (dot, HEADED, BIAS, "", lambda: sdpa(HEADED, attn_mask=BIAS), {})),
    ("attn_mask", "mask", (softmax, [X], PAIRS, "", lambda: softmax_formula(X, PAIRS), {})),
    ("attn_mask", "mask", (softmax, [X], ~PAIRS, "~attn_mask",
                           lambda: softmax_formula(X, PAIRS), {})),
    *masks("key_padding_mask"),
    *masks("src_key_padding_mask"),
    *masks("padding_mask"),
    *masks("attention_mask"),
    ("attention_mask", "mask", (layers, FLAT, PAIRS, "attention_mask[:, None]",
                                lambda: module(attn_mask=~PAIRS.repeat(SIZE, axis=0)), {})),
    ("attention_mask", "mask", (dot, HEADED, PAIRS, "attention_mask[:, None]",
                                lambda: sdpa(HEADED, attn_mask=PAIRS[:, None]), {})),
    ("where", "mask", (softmax, [X], PAIRS, "", lambda: softmax_formula(X, PAIRS), {})),
    ("attn_bias", "bias", (dot, HEADED, BIAS, "", lambda: jax(HEADED, bias=BIAS[None, None]), {})),
    ("attention_bias", "bias", (dot, HEADED, BIAS, "", lambda: sdpa(HEADED, attn_mask=BIAS), {})),
    ("is_causal", "causal", (dot, HEADED, True, "", lambda: sdpa(HEADED, is_causal=True), {})),
    ("is_causal", "causal", (dot, HEADED, True, "", lambda: jax(HEADED, causal=True), {})),
    ("use_causal_mask", "causal", (dot, HEADED, True, "",
                                   lambda: formula(HEADED, part=band(KEYS, 0)), {})),
    ("window_size", "window", (dot, HEADED, (2, -1), "",
                               lambda: formula(HEADED, part=band(2, KEYS, KEYS - SIZE)),
                               {"causal_offset": "N - M"})),
    ("local_window_size", "window", (dot, SELF, (2, 1), "", lambda: jax(SELF, window=(2, 1)), {})),
    ("local_window_size", "window", (dot, SELF, 1, "(w, w)", lambda: jax(SELF, window=1), {})),
    ("sliding_window", "window", (dot, SELF, 2, "(n - 1, 0)",
                                  lambda: formula(SELF, part=band(1, 0, M=KEYS)),
                                  {"causal": "True"})),
    *[(name, "scale", (dot, HEADED, 0.3, "", lambda: sdpa(HEADED, scale=0.3), {}))
      for name in ("softmax_scale", "sm_scale", "scaling")],
    ("bandwidth", "sigma", (doors("gaussian_attention"), PLAIN, 0.8, "",
                            lambda: kernel(1 / (2 * 0.8**2)), {})),
    ("gamma", "w", (doors("gaussian_attention"), PLAIN, 0.3, "sqrt(2 * gamma)",
                    lambda: kernel(0.3), {})),
    *[(name, "softcap", (dot, HEADED, 0.7, "",
                         lambda: formula(HEADED, lambda s: 0.7 * np.tanh(s / 0.7)), {}))
      for name in ("logits_soft_cap", "soft_cap")],
    *[(name, "sink", (dot, HEADED, NUMBERS, f"{name}[:, None]",
                      lambda: formula(HEADED, sinks=NUMBERS), {}))
      for name in ("s_aux", "sinks")],
]  # fmt: skip

# Names of the inputs, and of what is returned or dropped: no numbers that a library could decide.
NAMES = {
    "query": "queries", "q": "queries", "key": "keys", "k": "keys", "value": "values",
    "v": "values", "scores": "X", "input": "X", "axis": "X", "dim": "X",
}  # fmt: skip
ELSEWHERE = {"dropout", "dropout_rate", "dropout_rng", "generator", "need_weights"}
ELSEWHERE |= {"return_attention_scores", "return_weights", "return_residual", "weights"}


def follow(
    function: Callable[..., Any], inputs: list[Array], foreign: str, here: str, hint: Hint
) -> Array:
    """What the function gives when it is called as its message says."""
    *_, value, code, _, more = hint
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{foreign}'") as refused:
        function(*inputs, **{foreign: value})
    _, hint_given, told = str(refused.value).partition(f": use {here} instead")
    assert hint_given
    known = {foreign: value, "n": value, "w": value, "sqrt": math.sqrt, "N": KEYS, "M": SIZE}
    given = {here: value}
    if code:
        assert code in told
        given[here] = eval(code, known)
    for name, words in more.items():
        assert name in told
        given[name] = eval(words, known)
    return np.asarray(getattr(result := function(*inputs, **given), "detach", lambda: result)())


@pytest.mark.parametrize("number", range(len(TABLE)), ids=lambda i: "-".join(TABLE[i][:2]))
def test_a_hint_gives_what_the_library_gives(number: int) -> None:
    foreign, here, hint = TABLE[number]
    functions, inputs, *_, theirs, _ = hint
    expected = theirs()
    for function in functions:
        got = follow(function, inputs, foreign, here, hint)
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


def test_every_line_of_the_table_of_hints_is_followed() -> None:
    followed = {(foreign, here) for foreign, here, _ in TABLE} | set(NAMES.items())
    for foreign, here, _ in FOREIGN:
        assert (foreign, here) in followed or foreign in ELSEWHERE


def test_names_of_inputs() -> None:
    q, k, v = PLAIN
    expected = attnext.dot_product_attention(q, k, v)
    for names in (("query", "key", "value"), ("q", "k", "v")):
        there = dict(zip(names, PLAIN, strict=True))
        with pytest.raises(TypeError, match=f"'{names[0]}': use queries instead$"):
            attnext.dot_product_attention(**there)
        here = {NAMES[name]: x for name, x in there.items()}
        np.testing.assert_array_equal(attnext.dot_product_attention(**here), expected)
    for name in ("scores", "input", "axis", "dim"):
        hint = "use X instead$" if name in ("scores", "input") else "the softmax .* last axis of X"
        with pytest.raises(TypeError, match=f"'{name}': {hint}"):
            attnext.masked_softmax(**{name: X})
    given = {NAMES["input"]: X}
    theirs = functional.softmax(torch.tensor(X), dim=-1)  # "over the last axis"
    np.testing.assert_allclose(attnext.masked_softmax(**given), theirs, rtol=1e-5)


def told(function: Callable[..., Any], inputs: list[Array], name: str) -> str:
    with pytest.raises(TypeError) as refused:
        function(*inputs, **{name: True})
    return str(refused.value).partition(": use ")[2]


def test_what_is_returned() -> None:
    for function in dot:
        for name in ("need_weights", "return_attention_scores"):
            assert told(function, HEADED, name).startswith("return_weights")
        assert told(function, HEADED, "return_residual") == "return_lse instead"
        _, weights, lse = function(*HEADED, return_weights=True, return_lse=True)
        s = HEADED[0] @ HEADED[1].swapaxes(-1, -2) / 2
        np.testing.assert_allclose(weights, softmax_formula(s), rtol=1e-5)
        np.testing.assert_allclose(lse, jax(HEADED, "lse"), rtol=1e-5)
    for layer, holder in zip(layers, (OURS, MODULE), strict=True):
        for name in ("return_weights", "return_attention_scores"):
            assert told(layer, FLAT, name).startswith(
                "need_weights instead; the layer stores the weights in its attribute "
                "attention_weights"
            )
        layer(*FLAT, need_weights=True)
        _, theirs = THEIRS(*map(tensors, FLAT), average_attn_weights=False)
        weights = np.asarray(getattr(w := holder.attention_weights, "detach", lambda w=w: w)())
        np.testing.assert_allclose(weights, theirs.detach(), rtol=1e-4, atol=1e-6)


def test_dropout() -> None:
    seeds = "it needs a seed", "without a seed, torch's generator draws one"
    for function, seed in zip(dot, seeds, strict=True):
        for name in ("dropout", "dropout_rate"):
            assert told(function, HEADED, name) == f"dropout_p instead; {seed}"
        for name in ("dropout_rng", "generator"):
            assert told(function, HEADED, name) == "seed instead; it is an int"
        function(*HEADED, dropout_p=0.5, seed=3)


MASK = "to choose keys by bools, use the argument mask$"


def test_lengths_where_others_have_a_mask() -> None:
    """F.scaled_dot_product_attention has one fourth, a masked softmax second."""
    bias, pairs = normal(SIZE, KEYS), PAIRS[:, :1]
    for function in dot:
        with pytest.raises(
            TypeError, match="to add floats to the scores, use the argument bias of"
        ):
            function(*HEADED, bias)
        got = function(*HEADED, bias=bias)
        np.testing.assert_allclose(got, sdpa(HEADED, attn_mask=bias), rtol=2e-5, atol=1e-6)
        with pytest.raises(TypeError, match=MASK):
            function(*HEADED, pairs)
        got = function(*HEADED, mask=pairs)
        np.testing.assert_allclose(got, sdpa(HEADED, attn_mask=pairs), rtol=2e-5, atol=1e-6)
    for layer in layers:
        with pytest.raises(
            TypeError, match="to add floats to the scores, use the argument bias of"
        ):
            layer(*FLAT, bias)
        got = np.asarray(getattr(y := layer(*FLAT, bias=bias), "detach", lambda y=y: y)())
        np.testing.assert_allclose(got, module(attn_mask=bias), rtol=1e-4, atol=1e-6)
    for function in doors("masked_softmax"):
        with pytest.raises(TypeError, match=MASK):
            function(X, pairs)
        np.testing.assert_allclose(function(X, mask=pairs), softmax_formula(X, pairs), rtol=1e-5)


def test_what_was_meant() -> None:
    for function in dot:
        assert "did you mean causal?" in misspelt(function, HEADED)
        expected = sdpa(HEADED, is_causal=True)
        np.testing.assert_allclose(function(*HEADED, causal=True), expected, rtol=1e-5, atol=1e-6)
    for layer in layers:
        assert "did you mean causal?" in misspelt(layer, FLAT)
    for softmax in doors("masked_softmax"):
        with pytest.raises(TypeError, match=r"'empty_row'(: did you mean empty_rows\?)?$"):
            softmax(X, empty_row="zero")


def misspelt(function: Callable[..., Any], inputs: list[Array]) -> str:
    with pytest.raises(TypeError) as refused:
        function(*inputs, casual=True)
    return str(refused.value)


LAYERS = {
    "additive": (attnext.AdditiveAttention, attnext.torch.AdditiveAttention, (4, 4, 8)),
    "multi_head": (attnext.MultiHeadAttention, attnext.torch.MultiHeadAttention, (4, 4, 4, 8, 2)),
}


@pytest.mark.parametrize("kind", [*LAYERS, "dot_product"])
def test_a_layer_is_called(kind: str) -> None:
    """Not its forward, which those of torch have."""
    layer = LAYERS[kind][0](*LAYERS[kind][2]) if kind in LAYERS else attnext.DotProductAttention()

    class Derived(type(layer)):  # type: ignore[misc]
        def forward(self, *inputs: Array) -> Any:
            return self(*inputs)

    inputs = [PLAIN[0], PLAIN[1], PLAIN[2]]
    missing = f"^'{type(layer).__name__}' object has no attribute 'forward': "
    for asked in (layer, type(layer)):
        with pytest.raises(AttributeError, match=missing + r"call the layer itself, layer\(que"):
            asked.forward(*inputs)
        assert not hasattr(asked, "forward")
    assert "forward" not in dir(layer) and "state_dict" in dir(layer)
    derived = Derived(*(LAYERS[kind][2] if kind in LAYERS else ()))
    assert derived.forward(*inputs).shape == layer(*inputs).shape


@pytest.mark.parametrize("kind", LAYERS)
def test_biases_for_a_layer_that_has_none(kind: str) -> None:
    in_c, in_torch, sizes = LAYERS[kind]
    hint = ": to load biases, create the layer with bias=True"
    states = [in_torch(*sizes, bias=True).state_dict()]
    if kind == "multi_head":
        states.append(torch.nn.MultiheadAttention(8, 2, kdim=4, vdim=4).state_dict())
        sizes = (4, 8, 4, 8, 2)
        states[0] = in_torch(*sizes, bias=True).state_dict()
    for state in states:
        with pytest.raises(KeyError, match=hint):
            in_c(*sizes).load_state_dict(state)
        in_c(*sizes, bias=True).load_state_dict(state)
        layer = in_torch(*sizes)
        with pytest.raises(
            RuntimeError, match=rf'(?s)^Error\(s\) in loading .*Unexpected.*"{hint}$'
        ):
            layer.load_state_dict(state)
        in_torch(*sizes, bias=True).load_state_dict(state)

        # Not strict: torch's own answer, and all that both have is there.
        missing, unexpected = layer.load_state_dict(state, strict=False)
        assert not missing and unexpected
        assert all(name == "b_h" or name.endswith(".bias") for name in unexpected)
        model = torch.nn.ModuleDict({"attention": in_torch(*sizes)})
        whole = {f"attention.{name}": x for name, x in state.items()}
        assert model.load_state_dict(whole, strict=False).unexpected_keys == [
            f"attention.{name}" for name in unexpected
        ]
        with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict"):
            model.load_state_dict(whole)
    lost = in_torch(*sizes).state_dict()
    lost.popitem()
    with pytest.raises(RuntimeError, match=r"Missing key\(s\)[^:]*: \"[a-zA-Z_.]*\"\. $"):
        in_torch(*sizes).load_state_dict(lost)
