"""layer: the next call of an object, attnext's own or a torch module like it, step by step."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from attnext._options import Layer
from attnext.explain.attention import COMMON, at_the_end, explain_attention
from attnext.explain.memories import Memory, both, recall, remembered
from attnext.explain.multi_head import explain_heads
from attnext.explain.options import CALL, HEADS
from attnext.explain.steps import Arguments, Steps, call_text, is_default
from attnext.explain.trace import Trace
from attnext.explain.words import check_lang


@CALL.spelled_out
def layer(
    attn: Any,
    queries: ArrayLike,
    keys: ArrayLike | Memory,
    values: ArrayLike | None = None,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    lang: str = "en",
    **options: Unpack[Layer],
) -> Trace:
    """Explain what ``attn(queries, keys, values, valid_lens)`` is going to compute.

    Parameters
    ----------
    attn : layer
        An `attnext.AdditiveAttention`, `attnext.DotProductAttention` or
        `attnext.MultiHeadAttention`, an
        `attnext.kernel_regression.NWKernelRegression`, or a torch module of one of these names and
        parameters, such as those of `attnext.torch` and of Dive into Deep Learning. It is left as
        it is, its last call and its random numbers included.
    queries, keys, values, valid_lens : optional
        As in the call of the layer; tensors of a graph are taken without it. In the place of keys,
        values and lengths, a `Memory` of the layer.
    scale : float or array_like, optional
        As in the call of a DotProductAttention, whose own it is by default.

    Returns
    -------
    trace : Trace
        The steps; its `output` is what the layer will return to this call, bit for bit if it
        computes with attnext. In training this includes what dropout will drop.

    Raises
    ------
    TypeError, ValueError
        As from the call of the layer; TypeError also if `attn` is something else, ValueError if
        it is a torch module in training with dropout, whose draws cannot be foreseen.

    Notes
    -----
    The steps are those of the function that the layer calls, with the layer's parameters. Of a
    call with a memory, the first is what the memory has, and those that it made once say so.

    Examples
    --------
    >>> import numpy as np
    >>> import attnext
    >>> from attnext import explain
    >>> attn = attnext.AdditiveAttention(key_size=2, query_size=20, num_hiddens=8, rng=0)
    >>> queries, keys = np.ones((2, 1, 20)), np.ones((2, 10, 2))
    >>> values = np.arange(40).reshape(1, 10, 4).repeat(2, axis=0)
    >>> trace = explain.layer(attn, queries, keys, values, [2, 6])
    >>> trace["features"].shape
    (2, 1, 10, 8)
    >>> bool((trace.output == attn(queries, keys, values, [2, 6])).all())
    True

    A step of a decoder, whose keys stay:

    >>> trace = explain.layer(attn, queries, attn.memory(keys, values, [2, 6]))
    >>> trace.steps[0].name, trace["hidden_k"].note.partition(". ")[2]
    ('Memory', 'Made once, when the keys came into the memory.')
    """
    CALL.check("layer", options)
    arguments = {"queries": queries, "keys": keys, "values": values, "valid_lens": valid_lens}
    arguments |= {} if scale is None else {"scale": scale}
    if isinstance(keys, Memory):
        return _explain_step(attn, keys, {**arguments, **options}, lang)
    return _explain(attn, {**arguments, **CALL.defaults, **options}, lang)


def _explain_step(attn: Any, memory: Memory, given: Arguments, lang: str) -> Trace:
    """The steps of ``attn(queries, memory)``, as those of a call with what the memory has."""
    recalled, queries, mask = recall(attn, memory, given), given["queries"], given.get("mask")
    place = at_the_end(queries, recalled["keys"])
    arguments = {**CALL.defaults, **place, **given, **recalled, "mask": mask}
    if recalled["mask"] is not None:
        _explain(attn, arguments, lang)  # for its checks
        arguments["mask"] = both(recalled["mask"], mask, queries)
    trace = _explain(attn, arguments, lang)
    call = {"queries": queries, "memory": recalled["keys"], **given}
    call |= dict.fromkeys(("keys", "values", "valid_lens"))
    call = {name: _detached(x) for name, x in call.items()}
    text = call_text(type(attn).__name__, call, shown=place.keys() & given.keys())
    return remembered(replace(trace, call=text), recalled)


def _explain(attn: Any, arguments: Arguments, lang: str) -> Trace:
    """The steps of ``attn(**arguments)``, which is told from the name of its class."""
    check_lang(lang)
    inputs = {name: _detached(x) for name, x in arguments.items()}
    call = dict(inputs)
    classes = {each.__name__ for each in type(attn).__mro__}
    if "NWKernelRegression" in classes:
        trace = _regression(attn, inputs, lang)
    elif "AdditiveAttention" in classes:
        trace = _additive(attn, inputs, lang)
    elif "DotProductAttention" in classes:
        trace = _dot_product(attn, inputs, lang)
    elif "MultiHeadAttention" in classes:
        trace = _multi_head(attn, inputs, lang)
    else:
        raise TypeError(
            f"attn is of type {type(attn).__name__}, expected an AdditiveAttention, a "
            "DotProductAttention, a MultiHeadAttention or an NWKernelRegression"
        )
    return replace(trace, call=call_text(type(attn).__name__, call))


def _additive(attn: Any, inputs: Arguments, lang: str) -> Trace:
    state = _state(attn, {"W_q.weight", "W_k.weight", "w_v.weight"}, {"b_h"})
    if "scale" in inputs:
        raise TypeError(f"{type(attn).__name__} has no scale, got scale")
    parameters = {"b_h": None} | {name.removesuffix(".weight"): x for name, x in state.items()}
    arguments = {**COMMON, **inputs, **parameters, **_dropout(attn, inputs)}
    return explain_attention("additive_attention", arguments, lang)


def _dot_product(attn: Any, inputs: Arguments, lang: str) -> Trace:
    _state(attn, set(), set())
    own = {"scale": getattr(attn, "scale", None)}
    arguments = {**COMMON, **own, **inputs, **_dropout(attn, inputs)}
    return explain_attention("dot_product_attention", arguments, lang)


def _multi_head(attn: Any, inputs: Arguments, lang: str) -> Trace:
    weights = {f"W_{part}.weight": f"W_{part}" for part in "qkvo"}
    biases = {f"W_{part}.bias": f"b_{part}" for part in "qkvo"}
    state = _state(attn, set(weights), set(biases))
    if inputs.pop("enable_gqa"):
        raise TypeError(f"{type(attn).__name__} has heads of its own, got enable_gqa")
    names = weights | biases
    parameters: Arguments = dict.fromkeys(biases.values())
    parameters |= {names[name]: x for name, x in state.items()}
    heads = {"num_heads": attn.num_heads, "num_kv_heads": getattr(attn, "num_kv_heads", None)}
    drops = _dropout(attn, inputs)
    return explain_heads(
        {"scale": None, **HEADS.defaults, **inputs, **parameters, **heads, **drops}, lang
    )


def _regression(attn: Any, inputs: Arguments, lang: str) -> Trace:
    """n attentions of one query each, over N keys of its own."""
    for name in ("valid_lens", "scale", *CALL.defaults):
        if not is_default(inputs.pop(name, None), CALL.defaults.get(name)):
            raise TypeError(f"{type(attn).__name__} takes queries, keys and values, got {name}")
    copy.deepcopy(attn)(**inputs)  # its checks are the ones for these arguments
    q, k, v = (np.asarray(x, np.float32) for x in inputs.values())
    arrays = {"queries": q[:, None, None], "keys": k[:, :, None], "values": v[:, :, None]}
    arguments = {**COMMON, **arrays, "w": _detached(attn.w), "sigma": None}
    trace = explain_attention("gaussian_attention", arguments, lang)
    last = Steps("gaussian_attention", lang)
    output = trace.output.reshape(-1)
    last.add("predictions", output, ("query",))
    return replace(trace, steps=(*trace.steps, *last.steps), output=output)


def _state(attn: Any, names: set[str], optional: set[str]) -> Arguments:
    """The parameters by name, which must be these and no others but the optional ones."""
    state = attn.state_dict() if hasattr(attn, "state_dict") else {}
    if names - state.keys() or state.keys() - names - optional:
        expected = ", ".join(sorted(names)) or "none"
        raise TypeError(
            f"attn has parameters {', '.join(sorted(state)) or 'none'}, expected {expected}"
        )
    return {name: _detached(x) for name, x in state.items()}


def _dropout(attn: Any, inputs: Arguments) -> Arguments:
    """What dropout will do in the next call; the layer stays as it is."""
    if not hasattr(attn, "context"):  # torch's modules
        holder = attn if hasattr(attn, "dropout") else getattr(attn, "attention", attn)
        dropout = getattr(holder, "dropout", 0.0)  # a number or a torch.nn.Dropout
        p = getattr(dropout, "p", dropout)
        if getattr(attn, "training", False) and p:
            raise ValueError(
                f"attn is in training with dropout {p:g}, whose draws torch keeps to itself: call "
                "attn.eval() first"
            )
        return {}
    twin = copy.deepcopy(attn)  # with its generator, which draws the seed the layer will draw
    twin(**inputs, need_weights=False)
    return {"dropout_p": twin.context.dropout_p, "seed": twin.context.seed}


def _detached(x: Any) -> Any:
    """A tensor without its graph; anything else as it is."""
    return x.detach() if hasattr(x, "detach") else x
