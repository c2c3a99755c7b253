"""The backward pass of each attention function, in the order of the chain rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnext import _core
from attnext._gradients import asked_for, by_name
from attnext.explain.attention import is_dropped, read_problem
from attnext.explain.chain import (
    Incoming,
    forward,
    multiplied,
    of_scale,
    of_values,
    shared_steps,
    softcap_backward,
    softmax_steps,
)
from attnext.explain.gradients import score_backward
from attnext.explain.scores import SCORES
from attnext.explain.steps import Arguments, Steps, as_float64, check_size
from attnext.explain.trace import Trace


def explain_attention_backward(function: str, arguments: Arguments, lang: str) -> Trace:
    """Return the steps of the backward pass of the attention function with this name."""
    name = f"{function}_backward"
    steps = Steps(name, lang)
    returned: Any = getattr(_core, name)(**arguments)  # checks all arguments
    results = by_name(function, returned, False, *asked_for(arguments))
    with np.errstate(all="ignore"):
        p = read_problem(arguments)
        check_size(p.inputs.live.shape)
        # discard the steps of the forward pass
        scores = SCORES[function](p.inputs, Steps(function, "en"), arguments)
        of, g = forward(p, *scores, arguments), Incoming(as_float64(arguments["grad_output"]))
        d_scores, d_sink = softmax_steps(p, of, g, arguments, steps)
        d_raw = softcap_backward(p, d_scores, of.slope, arguments, steps)
        compared = score_backward(function, p, d_raw, arguments, steps, results)
        shown = "kept" if is_dropped(arguments) else "weights"
        steps.add("d_values", results["values"], p.inputs.key_axes, weights=shown, g=g.name)
        d_values = of_values(p, of, g).shared(results["values"].shape)
        compared.append(d_values.compared("v", results["values"]))
        of_shared = {"bias": d_scores, "sink": d_sink}
        products, *vectors = multiplied(function.removesuffix("_attention"), p, arguments)
        if "scale" in arguments:
            of_shared["scale"] = of_scale(p, d_raw, *vectors)
        compared += shared_steps(p, of_shared, products, arguments, steps, results)
        return steps.trace(arguments, returned, of.weights, compared)
