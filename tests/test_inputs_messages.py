"""Messages for those who come from elsewhere: they say what to write instead."""

from __future__ import annotations

import importlib
import inspect
import re
import traceback
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
import torch
from helpers import REPOSITORY, run_python

import attnext
import attnext.dask
import attnext.torch
from attnext._hints import FOREIGN

X = np.zeros((2, 3, 4), dtype=np.float32)
T = torch.zeros(2, 3, 4)
layer = attnext.DotProductAttention()
dot, softmax = attnext.dot_product_attention, attnext.masked_softmax
UNKNOWN = "{}() got an unexpected keyword argument '{}'"

HINTS: list[tuple[Callable[..., Any], str, str]] = [
    (dot, "attn_mask",
     ": use bias instead if it has floats, or mask if it has bools; True means attend, so for a "
     "mask of nn.MultiheadAttention pass ~attn_mask"),
    (softmax, "attn_mask",
     ": use mask instead; True means attend, so for a mask of nn.MultiheadAttention pass "
     "~attn_mask"),
    (dot, "key_padding_mask",
     ": use mask instead; True means attend, the opposite of key_padding_mask: pass "
     "~key_padding_mask[:, None, None, :] if there is an axis of heads, ~key_padding_mask[:, "
     "None, :] if not"),
    (dot, "is_causal", ": use causal instead"),
    (softmax, "is_causal", ""),  # it takes none
    (dot, "valid_len", ": use valid_lens instead"),
    (attnext.sequence_mask, "valid_lens", ": use valid_len instead"),
    (dot, "window_size", ": use window instead; it is a pair (left, right), and -1 means no bound; "
     "the diagonal of flash_attn ends at the last key, so also pass causal_offset=N - M"),
    (dot, "dropout_rate", ": use dropout_p instead; it needs a seed"),
    (layer, "dropout_rate", ""),
    (dot, "need_weights", ": use return_weights instead; it is a bool, False by default"),
    (layer, "return_weights",
     ": use need_weights instead; the layer stores the weights in its attribute attention_weights"),
    (dot, "query", ": use queries instead"),
    (softmax, "axis", ": the softmax is over the last axis of X, so move your axis to the end"),
    (attnext.gaussian_attention, "bandwidth", ": use sigma instead"),
    (dot, "bandwidth", ""),
    (dot, "anything", ""),
]  # fmt: skip


@pytest.mark.parametrize(("function", "name", "hint"), HINTS, ids=str)
def test_a_foreign_keyword_is_told_its_name_here(
    function: Callable[..., Any], name: str, hint: str
) -> None:
    own = getattr(function, "__name__", "__call__")
    with pytest.raises(TypeError, match=re.escape(UNKNOWN.format(own, name) + hint) + "$"):
        function(X, X, X, **{name: 1}) if function not in (softmax,) else function(X, **{name: 1})


@pytest.mark.parametrize("module", [attnext.torch, attnext.dask, attnext.explain], ids=str)
def test_the_modules_around_say_the_same(module: Any) -> None:
    x = T if module is attnext.torch else da.zeros((2, 3, 4)) if module is attnext.dask else X
    for name in ("attn_mask", "key_padding_mask", "is_causal", "valid_len", "window_size"):
        with pytest.raises(TypeError) as fast:
            dot(X, X, X, **{name: 1})
        with pytest.raises(TypeError, match=f"^{re.escape(str(fast.value))}$"):
            module.dot_product_attention(x, x, x, **{name: 1})
    with pytest.raises(TypeError, match="'return_attention_scores'") as caught:
        module.dot_product_attention(x, x, x, return_attention_scores=True)
    assert ("return_weights" in str(caught.value)) == (module is not attnext.explain)


def test_hints_lead_to_arguments_that_are_there() -> None:
    """Each line of the table is for some function, and names none that this function takes."""
    functions = [getattr(attnext, name) for name in attnext.__all__ if name.islower()]
    known = {name for function in functions for name in inspect.signature(function).parameters}
    known |= {"need_weights", "softcap", "sink"}  # of layers; these two: modifiers of the score
    for foreign, here, _ in FOREIGN:
        assert here in known and foreign != here


# ---- lengths -------------------------------------------------------------------------------------

LENGTHS = {
    "valid_lens": lambda lens: dot(X, X, X, lens),
    "valid_len": lambda lens: attnext.sequence_mask(X, lens),
    "causal_offset": lambda lens: dot(X, X, X, causal=True, causal_offset=lens),
    "valid_lens ": lambda lens: attnext.torch.dot_product_attention(T, T, T, lens),
    "valid_len ": lambda lens: attnext.torch.sequence_mask(T, lens),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_float_lengths_are_told_how_they_become_integers(name: str) -> None:
    """In the words of whatever they came in."""
    own = name.strip()
    # attnext.torch's, where other functions have a mask
    of_torch = f": if they are whole numbers, pass {own}.long()" + (
        "; to add floats to the scores, use the argument bias of an attention function"
        * (name == "valid_lens ")
    )
    whole = "; all values are whole numbers, so pass "
    for lens, hint in (
        (torch.ones(2), of_torch if name != own else f"{whole}{own}.long()"),
        (np.ones(2), f"{whole}{own}.astype(int)"),
        (np.array([1.0, 1.5]), ""),
        (np.array([1.0, np.inf]), ""),
        ([1.0, 2.0], f"{whole}numpy.array({own}, int)"),
        ([1.0, 1.5], ""),
        (1.0, f"; the value is a whole number, so pass int({own})"),
    ):
        expected = rf"^{own} has dtype [a-z.]*float\d\d, expected integers{re.escape(hint)}$"
        with pytest.raises(TypeError, match=expected):
            LENGTHS[name](lens)


def test_swapped_arguments_are_noticed() -> None:
    lens: list[Any] = [[1, 2], (1, 2), np.array([1, 2]), torch.tensor([1, 2]), 2]
    for some in [*lens, np.ones((2, 3), dtype=int)]:
        message = "^X contains integers and valid_lens floats, expected .* masked_softmax.X, valid_"
        for scores in (X, X.astype(float), X.tolist(), T):
            with pytest.raises(TypeError, match=message):
                softmax(some, scores)
        if isinstance(some, torch.Tensor):
            with pytest.raises(TypeError, match=message):
                attnext.torch.masked_softmax(some, T)
    for some in lens:
        message = (
            "^X contains integers and valid_len floats, expected .* sequence_mask.X, valid_len."
        )
        with pytest.raises(TypeError, match=message):
            attnext.sequence_mask(some, X)
    with pytest.raises(TypeError, match="^X contains integers and valid_len floats"):
        attnext.torch.sequence_mask(torch.tensor([1, 2]), T)
    with pytest.raises(TypeError, match="^valid_lens has dtype float64, expected integers"):
        softmax([[1, 2]], [1.0])  # scores of whole numbers, and lengths that are floats


# ---- beginners' mistakes -------------------------------------------------------------------------

Q, K, V = (np.zeros((2, n, 4), dtype=np.float32) for n in (3, 5, 5))
K_T, V_T = K.swapaxes(-1, -2), V.swapaxes(-1, -2)
ONES = np.ones((2, 3, 5), int)
additive = attnext.AdditiveAttention(4, 4, 6)
heads = attnext.MultiHeadAttention(4, 4, 4, 6, 2)
english = " is the signature in d2l's English edition; in attnext the input sizes come first, "

MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: dot(Q, K_T, V),
     "keys has shape (2, 4, 5), expected (2, N, 4); if its last two axes are swapped, pass "
     "keys.swapaxes(-1, -2)"),
    (lambda: layer(Q, K_T, V),
     "keys has shape (2, 4, 5), expected (2, N, 4); if its last two axes are swapped, pass "
     "keys.swapaxes(-1, -2)"),
    (lambda: dot(Q, K, V_T),
     "values has shape (2, 4, 5), expected (2, 5, Dv); if its last two axes are swapped, pass "
     "values.swapaxes(-1, -2)"),
    (lambda: additive(Q, K_T, V),
     "keys has shape (2, 4, 5), expected (..., N, 4) because key_size is 4; if its last two "
     "axes are swapped, pass keys.swapaxes(-1, -2)"),
    (lambda: dot(Q, K_T[:, :3], V), "keys has shape (2, 3, 5), expected (2, N, 4)"),
    (lambda: dot(Q, K, V, mask=ONES),
     "mask has dtype int64, expected bools: True means attend; all values are 0 or 1, so pass "
     "mask.astype(bool)"),
    (lambda: dot(Q, K, V, mask=[0, 1, 1, 0, 1]),
     "mask has dtype int64, expected bools: True means attend; all values are 0 or 1, so pass "
     "numpy.array(mask, bool)"),
    (lambda: dot(Q, K, V, mask=torch.ones(5, dtype=torch.int64)),
     "mask has dtype int64, expected bools: True means attend; all values are 0 or 1, so pass "
     "mask.bool()"),
    (lambda: attnext.torch.dot_product_attention(T, T, T, mask=torch.ones(3, dtype=torch.int64)),
     "mask has dtype int64, expected bools: True means attend; all values are 0 or 1, so pass "
     "mask != 0"),
    (lambda: dot(Q, K, V, mask=2 * ONES),
     "mask has dtype int64, expected bools: True means attend"),
    (lambda: dot(Q, K, V, mask=ONES[:, 0] > 0),
     "mask has shape (2, 5), expected a shape that broadcasts to (2, 3, 5); if it has one value "
     "per key of each batch element, pass mask[:, None]"),
    (lambda: heads(Q, K, V, mask=ONES[:, 0] > 0),
     "mask has shape (2, 5), expected a shape that broadcasts to (2, 2, 3, 5); if it has one value "
     "per key of each batch element, pass mask[:, None, None]"),
    (lambda: attnext.AdditiveAttention(8, 0.1),
     "AdditiveAttention() missing required argument 'num_hiddens' (position 3): AdditiveAttention("
     f"num_hiddens, dropout){english}AdditiveAttention(key_size, query_size, 8, 0.1)"),
    (lambda: attnext.MultiHeadAttention(100, 5, 0.5, True),
     "MultiHeadAttention() missing required argument 'num_heads' (position 5): MultiHeadAttention("
     f"num_hiddens, num_heads, dropout, bias){english}MultiHeadAttention(key_size, query_size, "
     "value_size, 100, 5, 0.5, bias=True)"),
    (lambda: attnext.AdditiveAttention(num_hiddens=8, dropout=0.1),
     "AdditiveAttention() missing required argument 'key_size' (position 1): AdditiveAttention("
     f"num_hiddens, dropout){english}AdditiveAttention(key_size, query_size, 8, 0.1)"),
    (lambda: attnext.AdditiveAttention(8, 0.1, bais=True),
     "AdditiveAttention() got an unexpected keyword argument 'bais': did you mean bias?"),
    (lambda: dot(Q, K, V, weights=True),
     "dot_product_attention() got an unexpected keyword argument 'weights': use return_weights "
     "instead; it is a bool, False by default"),
    (lambda: dot(Q, layer.memory(K, V)),
     "keys is a Memory, expected an array: call the memory's layer, layer(queries, memory)"),
    (lambda: dot(Q, layer.memory(K, V), V),
     "keys is a Memory, expected an array: call the memory's layer, layer(queries, memory)"),
    (lambda: dot(Q, K, V, ONES[:, 0] > 0),
     "valid_lens has dtype bool, expected integers: valid_lens counts keys; to choose keys by "
     "bools, use the argument mask"),
    (lambda: dot(Q, [[1.0, 2.0], [3.0]], V),
     "keys cannot be read as an array: its lists have different lengths"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_a_beginners_mistake_is_told_its_remedy(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}$"):
        call()


# ---- names of modules and functions --------------------------------------------------------------

NAMES = {
    "attnext.MultiheadAttention": "MultiHeadAttention? For the signature of torch.nn, use "
    "attnext.torch.nn.MultiheadAttention.",
    "attnext.scaled_dot_product_attention": "dot_product_attention? For PyTorch's signature, use "
    "attnext.torch.scaled_dot_product_attention.",
    "attnext.AdditiveAtention": "AdditiveAttention?",
    "attnext.dotproductattention": "dot_product_attention?",
    "attnext.softmax": "masked_softmax?",
    "attnext.explian": "explain?",
    "attnext.dask.dot_product_atention": "dot_product_attention?",
    "attnext.explain.mask_softmax": "masked_softmax?",
    "attnext.kernel_regression.NadarayaWatson": "nadaraya_watson?",
    "attnext.lab.chek": "check?",
    "attnext.plot.show_heatmap": "show_heatmaps?",
    "attnext.reference.masked_sofmax": "masked_softmax?",
    "attnext.testing.numerical_grad": "numerical_gradient?",
    "attnext.torch.scaled_dot_product_atention": "scaled_dot_product_attention?",
    "attnext.view.shwo": "show?",
    "attnext.qwerty": None,
    "attnext.lab._chek": None,
}


@pytest.mark.parametrize("path", NAMES)
def test_a_misspelt_name(path: str) -> None:
    """AttributeError as ever, with the name that may have been meant, and no second guess."""
    home, _, name = path.rpartition(".")
    module, meant = importlib.import_module(home), NAMES[path]
    hint = "" if meant is None else f": did you mean {meant}"
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    assert str(caught.value) == f"module '{home}' has no attribute '{name}'{hint}"
    assert "".join(traceback.format_exception_only(caught.value)).count(meant or "no attr") == 1
    assert not hasattr(module, name) and name not in dir(module)
    assert getattr(module, name, 5) == 5
    with pytest.raises(ImportError, match=f"cannot import name '{name}'"):
        exec(f"from {home} import {name}")


def test_names_are_compared_only_when_one_is_missing() -> None:
    code = "import sys, attnext.explain, attnext.lab; print('difflib' in sys.modules)"
    assert run_python("-c", code).stdout.split() == ["False"]


# ---- numbers -------------------------------------------------------------------------------------


NUMBERS = [
    ("scale", "x", "scale must be a number, got str"),
    ("scale", {}, "scale must be a number, got dict"),
    ("scale", 1j, "scale must be a number, got complex"),
    ("scale", np.ones(2, complex), "scale has dtype complex128, expected real numbers "
     "(any float or integer dtype)"),
    ("scale", np.nan, "scale is nan, expected a finite float32 number"),
    ("dropout_p", 1.5, "dropout_p is 1.5, expected 0 <= dropout_p < 1"),
    ("dropout_p", "0.5", "dropout_p must be a number, got str"),
    ("dropout_p", 1 - 1e-12, "dropout_p is 0.999999999999, expected 0 <= dropout_p < 1 in "
     "float32"),
    ("seed", "x", "seed must be an int, got str"),
    ("seed", 10**5000, "seed is a huge int, expected 0 <= seed < 2**64"),
    ("causal", "yes", "causal must be a bool, got str"),
    ("causal", np.zeros(3), "causal must be a bool, got numpy.ndarray"),
    ("enable_gqa", 1, "enable_gqa must be a bool, got int"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "message"),
    NUMBERS,
    ids=lambda x: x if isinstance(x, str) else "",  # Python does not write out 10**5000
)
def test_numbers_and_flags_are_told_plainly(name: str, value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}$"):
        dot(X, X, X, **{name: value})


# ---- where a message is said ---------------------------------------------------------------------


def test_a_message_is_found_by_grep_as_it_is_shown() -> None:
    """Words of it that are neither names nor numbers stand together on one line of the source."""
    files = [*REPOSITORY.glob("csrc/[pt]*/*.[ch]"), *REPOSITORY.glob("attnext/*.py")]
    said = "\n".join(file.read_text(encoding="utf-8") for file in files)
    shown = [message for _, _, message in NUMBERS] + [
        UNKNOWN.format("dot_product_attention", "axis"),
        "keys has shape (2, 5, 3), expected (2, N, 4)",
        "out shares memory with queries, expected an array with its own memory",
        "valid_lens has dtype float64, expected integers: if they are whole numbers, pass",
        "X contains integers and valid_lens floats, expected the opposite order",
        "queries cannot be read as an array: its lists have different lengths",
    ]
    for message in shown:
        words = message.split()
        runs = {" ".join(words[i : i + 3]) for i in range(len(words) - 2)}
        runs |= {" ".join(words[i : i + 2]) for i in range(len(words) - 1)}
        assert [run for run in runs if len(run) >= 9 and run in said], message
