"""Messages for those who come from elsewhere: they say what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
import torch

import attnext
import attnext.dask
import attnext.torch

X = np.zeros((2, 3, 4), dtype=np.float32)
T = torch.zeros(2, 3, 4)
layer = attnext.DotProductAttention()
dot, softmax = attnext.dot_product_attention, attnext.masked_softmax
UNKNOWN = "{}() got an unexpected keyword argument '{}'"

HINTS: list[tuple[Callable[..., Any], str, str]] = [
    (dot, "attn_mask",
     ": here it is bias, if it is of floats, and mask if of bools, True = attend "
     "(nn.MultiheadAttention's True = ignore: ~attn_mask)"),
    (softmax, "attn_mask",
     ": here it is mask, True = attend (nn.MultiheadAttention's True = ignore: ~attn_mask)"),
    (dot, "key_padding_mask",
     ": here it is mask, bools, True = attend: the opposite of key_padding_mask, so "
     "~key_padding_mask[:, None, :]"),
    (dot, "is_causal", ": here it is causal"),
    (softmax, "is_causal", ""),  # it takes none
    (dot, "valid_len", ": here it is valid_lens"),
    (attnext.sequence_mask, "valid_lens", ": here it is valid_len"),
    (dot, "window_size", ": here it is window, a pair (left, right), -1 for no bound"),
    (dot, "dropout_rate", ": here it is dropout_p, which needs a seed"),
    (layer, "dropout_rate", ""),
    (dot, "need_weights", ": here it is return_weights, a bool, False by default"),
    (layer, "return_weights",
     ": here it is need_weights, the weights are attention_weights, an attribute"),
    (dot, "query", ": here it is queries"),
    (softmax, "axis", ": here it is X, its last axis is the one that is normalised"),
    (attnext.gaussian_attention, "bandwidth", ": here it is sigma"),
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
    known = {n for f in functions for n in re.findall(r"\w+(?==|,|\))", f.__text_signature__)}
    known |= {"need_weights", "softcap", "sink"}  # of layers; these two: modifiers of the score
    for foreign, here, _ in attnext._core.FOREIGN:
        assert here in known and foreign != here
