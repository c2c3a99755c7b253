"""layer: explain the next call of a layer of attnext or of a similar torch module."""

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
    """Explain the call ``attn(queries, keys, values, valid_lens)`` of a layer.

    Parameters
    ----------
    attn : layer
        An `attnext.AdditiveAttention`, `attnext.DotProductAttention`, `attnext.MultiHeadAttention`
        or `attnext.kernel_regression.NWKernelRegression`. A torch module with one of these class
        names and the same parameters works too, such as the modules of `attnext.torch` and of Dive
        into Deep Learning. Its last call and its random state do not change.
    queries, keys, values, valid_lens : optional
        The arguments of the layer's call. Tensors are detached from their graph. A `Memory` of the
        layer can be passed as `keys`, instead of keys, values and lengths.
    scale : float or array_like, optional
        The same as in the call of a DotProductAttention. Default: the layer's own scale.

    Returns
    -------
    trace : Trace
        The steps. `trace.output` is what the layer will return for this call, bit for bit if the
        layer computes with attnext. In training mode, this includes the next dropout mask.

    Raises
    ------
    TypeError, ValueError
        The same errors as the call of the layer. Also TypeError if `attn` is not such a layer, and
        ValueError if `attn` is a torch module in training mode with dropout, because its dropout
        mask is not known before the call.

    Notes
    -----
    The steps are those of the function that the layer calls, with the layer's parameters. With a
    memory, the first step shows the stored keys, and the note of a step that was computed only
    once says so.

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

    One step of a decoder, with the keys in a memory:

    >>> trace = explain.layer(attn, queries, attn.memory(keys, values, [2, 6]))
    >>> trace.steps[0].name, trace["hidden_k"].note.partition(". ")[2]
    ('Memory', 'Computed once, when the keys were stored in the memory.')
    """
    CALL.check("layer", options)
    arguments = {"queries": queries, "keys": keys, "values": values, "valid_lens": valid_lens}
    arguments |= {} if scale is None else {"scale": scale}
    if isinstance(keys, Memory):
        return _explain_step(attn, keys, {**arguments, **options}, lang)
    return _explain(attn, {**arguments, **CALL.defaults, **options}, lang)


def _explain_step(attn: Any, memory: Memory, given: Arguments, lang: str) -> Trace:
    """Return the steps of ``attn(queries, memory)``: a call with the keys of the memory."""
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
    """Return the steps of ``attn(**arguments)``, chosen by the class name of attn."""
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
        raise TypeError(f"scale is not an option of {type(attn).__name__}, expected no scale")
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
        raise TypeError(
            f"enable_gqa is not an option of {type(attn).__name__}: set the layer's num_kv_heads"
        )
    names = weights | biases
    parameters: Arguments = dict.fromkeys(biases.values())
    parameters |= {names[name]: x for name, x in state.items()}
    heads = {"num_heads": attn.num_heads, "num_kv_heads": getattr(attn, "num_kv_heads", None)}
    drops = _dropout(attn, inputs)
    return explain_heads(
        {"scale": None, **HEADS.defaults, **inputs, **parameters, **heads, **drops}, lang
    )


def _regression(attn: Any, inputs: Arguments, lang: str) -> Trace:
    """Return the steps of n attentions, each of one query over N keys."""
    for name in ("valid_lens", "scale", *CALL.defaults):
        if not is_default(inputs.pop(name, None), CALL.defaults.get(name)):
            raise TypeError(
                f"{name} is not an option of {type(attn).__name__}, expected only queries, "
                "keys and values"
            )
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
    """Return the parameters by name. Raise TypeError if some are missing or unknown."""
    state = attn.state_dict() if hasattr(attn, "state_dict") else {}
    if names - state.keys() or state.keys() - names - optional:
        expected = ", ".join(sorted(names)) or "none"
        raise TypeError(
            f"attn has parameters {', '.join(sorted(state)) or 'none'}, expected {expected}"
        )
    return {name: _detached(x) for name, x in state.items()}


def _dropout(attn: Any, inputs: Arguments) -> Arguments:
    """Return the dropout options of the next call, without changing the layer."""
    if not hasattr(attn, "context"):  # torch's modules
        holder = attn if hasattr(attn, "dropout") else getattr(attn, "attention", attn)
        dropout = getattr(holder, "dropout", 0.0)  # a number or a torch.nn.Dropout
        p = getattr(dropout, "p", dropout)
        if getattr(attn, "training", False) and p:
            raise ValueError(
                f"attn is in training mode with dropout {p:g}, expected evaluation mode because "
                "torch's dropout mask is not known before the call: call attn.eval() first"
            )
        return {}
    twin = copy.deepcopy(attn)  # the copied generator draws the seed that the layer will draw
    twin(**inputs, need_weights=False)
    return {"dropout_p": twin.context.dropout_p, "seed": twin.context.seed}


def _detached(x: Any) -> Any:
    """Return a tensor detached from its graph; return anything else unchanged."""
    return x.detach() if hasattr(x, "detach") else x
