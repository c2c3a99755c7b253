"""The steps that all attention functions share: masks, softmax, dropout, pooling.

queries (..., M, Dq)   keys (..., N, Dk)   values (..., N, Dv)   pairs (..., M, N)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext import _core, reference
from attnext.explain.accuracy import HUGE, TINY, Array, gamma, relative_error
from attnext.explain.options import FORWARD
from attnext.explain.scores import SCORES, Inputs, number, without
from attnext.explain.steps import Arguments, Steps, as_float64, check_size, leading_axes
from attnext.explain.trace import Trace
from attnext.reference.attention import Pairs, all_pairs
from attnext.reference.band import OFFSET
from attnext.reference.options import Options
from attnext.reference.sharing import share_heads
from attnext.reference.softmax import empty_row_weight

COMMON: Arguments = {"valid_lens": None, **FORWARD.defaults}  # the keywords of all attentions


@dataclass(frozen=True)
class Problem:
    """The arguments of an attention, after the fast function has checked them."""

    inputs: Inputs
    values: Array  # (..., N, Dv), with the heads of the queries
    pairs: Pairs  # takes_part, bias, sink, keep, empty_rows
    group: int  # number of query heads that share one key head

    @property
    def empty(self) -> NDArray[np.bool_]:
        """Return the empty rows, (..., M): all keys are masked and there is no sink."""
        return without(self.inputs.live, -1) & np.isneginf(self.pairs.sink)

    def softmax(self, scores: Array, error: Array) -> tuple[Array, Array, Array]:
        """Return the weights (..., M, N), the weight of the sink (..., M), and the relative error
        (..., M, 1) of the weights in float32.

        A sink is one more column of the softmax, which is removed from the weights afterwards.
        """
        live = self.inputs.live
        sink = np.broadcast_to(self.pairs.sink, live.shape[:-1])[..., None]
        columns = [(scores, sink), (error, np.zeros(sink.shape)), (live, sink > -np.inf)]
        scores, error, live = (np.concatenate(pair, axis=-1) for pair in columns)
        weights = reference.masked_softmax(scores, mask=live, empty_rows="zero")
        fill = empty_row_weight(live.shape[-1] - 1, self.pairs.empty_rows)
        keys = np.where(self.empty[..., None], fill, weights[..., :-1])
        return keys, weights[..., -1], relative_error(scores, error, live)

    @property
    def pooled(self) -> NDArray[np.bool_]:
        """Return which values are read, (..., M, N): in empty rows all of them, unless "zero"."""
        if self.pairs.empty_rows == "zero":
            return self.inputs.live
        return self.inputs.live | self.empty[..., None]


def read_problem(arguments: Arguments) -> Problem:
    """Return the arguments as float64 arrays. Shared heads of keys and values are repeated."""
    q, k, v = (as_float64(arguments[name]) for name in ("queries", "keys", "values"))
    return problem_of(q, k, v, arguments)


def problem_of(q: Array, k: Array, v: Array, arguments: Arguments) -> Problem:
    """Return the problem for queries, keys and values in float64, and options."""
    lead = q.shape[:-2]
    options = {name: arguments[name] for name in COMMON}
    if options["bias"] is not None:
        options["bias"] = as_float64(options["bias"])
    if options["sink"] is not None:
        options["sink"] = as_float64(options["sink"])
    k, v, key_heads = share_heads(k, lead), share_heads(v, lead), k.shape[:-2]
    group = lead[-1] // key_heads[-1] if key_heads != lead else 1
    pairs = all_pairs(q, k, Options(**options))
    inputs = Inputs(q, k, pairs.takes_part, leading_axes(len(lead)))
    return Problem(inputs, v, pairs, group)


def explain_attention(function: str, arguments: Arguments, lang: str) -> Trace:
    """Return the steps of the attention function with this name."""
    steps = Steps(function, lang)
    # The fast function checks all arguments.
    output, weights = getattr(_core, function)(**arguments, return_weights=True)
    check_size(weights.shape)
    with np.errstate(all="ignore"):  # inf and NaN follow the rules of arithmetic, silently
        p = read_problem(arguments)
        if p.group > 1:
            x = p.inputs
            steps.add("shared_heads", x.keys, x.key_axes, x.idle_keys, group=p.group)
        scores, score_error = SCORES[function](p.inputs, steps, arguments)
        exact, error = softmax_steps(p, scores, score_error, arguments, steps, weights)
        pooled, pooled_error, rule = pool_steps(p, exact, error, arguments, steps)
        steps.add("output", output, p.inputs.query_axes, weights=rule)
        compared = [("weights", weights, exact, error), ("output", output, pooled, pooled_error)]
        return steps.trace(arguments, output, weights, compared)


def softcap_step(
    x: Inputs, scores: Array, error: Array, arguments: Arguments, steps: Steps
) -> tuple[Array, Array]:
    """Return the scores after the softcap, if there is one, and their error bound."""
    if arguments["softcap"] is None:
        return scores, error
    cap = number(arguments["softcap"])
    scores = cap * np.tanh(scores / cap)
    steps.add("softcap", scores, x.pairs, ~x.live, cap=cap)
    return scores, error + gamma(1) * np.abs(scores)  # the slope of tanh is at most 1


def softmax_steps(
    p: Problem,
    scores: Array,
    score_error: Array,
    arguments: Arguments,
    steps: Steps,
    weights: NDArray[np.float32],
) -> tuple[Array, Array]:
    """Add the steps from scores to weights. Return weights and error bounds, both (..., M, N)."""
    x = p.inputs
    scores, score_error = softcap_step(x, scores, score_error, arguments, steps)
    if arguments["bias"] is not None:
        biased = scores + p.pairs.bias
        score_error = score_error + gamma(1) * (np.abs(scores) + np.abs(p.pairs.bias))
        scores = biased
        steps.add("bias", scores, x.pairs, ~x.live)
    if conditions := mask_formula(arguments):
        live, pairs = int(x.live.sum()), x.live.size
        steps.add(
            "takes_part", x.live, x.pairs, ~x.live, conditions=conditions, live=live, pairs=pairs
        )
        steps.add("masked", np.where(x.live, scores, -np.inf), x.pairs, ~x.live)
    rows = (*x.lead, "query")
    if arguments["sink"] is not None:
        steps.add("sink", np.broadcast_to(p.pairs.sink, p.empty.shape), rows)
    add_empty_rows(steps, p.empty, x.live.shape[-1], rows, p.pairs.empty_rows)
    exact, _, relative = p.softmax(scores, score_error)
    words = None if arguments["sink"] is None else "weights_and_sink"
    steps.add("weights", weights, x.pairs, ~x.live & ~p.empty[..., None], words=words)
    return exact, exact * relative + TINY


def pool_steps(
    p: Problem, weights: Array, error: Array, arguments: Arguments, steps: Steps
) -> tuple[Array, Array, str]:
    """Add the steps from weights to output. Return output and error bound, both (..., M, Dv).

    The third result is the name of the pooled weights: "kept" after dropout, otherwise "weights".
    """
    x, keep = p.inputs, p.pairs.keep
    masked = ~x.live & ~p.empty[..., None]
    kept = weights * keep
    dropped = is_dropped(arguments)
    if dropped:
        stays, rule = keep != 0, dropout_rule(arguments)
        shown = stays & ~masked
        steps.add(
            "keep",
            stays,
            x.pairs,
            masked,
            rule=rule,
            kept=int(shown.sum()),
            pairs=int((~masked).sum()),
        )
        steps.add("kept", kept, x.pairs, masked, p=float(arguments["dropout_p"]))
    exact = pool(kept, p.values, p.pooled)
    sizes = np.abs(p.values)
    N = keep.shape[-1]
    bound = pool(error * keep + gamma(N) * kept, sizes, p.pooled) + (N + 16) * TINY
    overflows = pool(np.maximum(keep, 1), sizes, p.pooled) > HUGE
    return exact, np.where(overflows, np.inf, bound), "kept" if dropped else "weights"


def pool(weights: Array, values: Array, takes_part: NDArray[np.bool_]) -> Array:
    """Return sum_j weights[i, j] * values[j] over unmasked pairs. Other values are not read."""
    output = np.zeros((*weights.shape[:-1], values.shape[-1]))
    for row in np.ndindex(weights.shape[:-1]):
        live = takes_part[row]
        output[row] = weights[row][live] @ values[row[:-1]][live]
    return output


def add_empty_rows(
    steps: Steps, empty: NDArray[np.bool_], N: int, axes: tuple[str, ...], mode: str
) -> None:
    """Add the step that shows the empty rows (..., M), if there are any."""
    if empty.any():
        fill = {"uniform": f"1/{N}", "zero": "0", "nan": "NaN"}[mode]
        count = int(empty.sum())
        steps.add("empty_rows", empty, axes, empty=count, rows=empty.size, mode=mode, fill=fill)


def at_the_end(queries: ArrayLike, keys: NDArray[Any]) -> Arguments:
    """Return the default causal offset with a memory: the last query is at the last key."""
    *_, M, _ = (0, 0, *np.shape(queries))
    return {OFFSET: int(keys.shape[-2] - M)}


def mask_formula(arguments: Arguments) -> str:
    """Return the condition under which query i attends to key j; empty without masks."""
    offset = arguments[OFFSET]
    i = "i" if isinstance(offset, int) and offset == 0 else f"i + {OFFSET}"
    left, right = arguments["window"] or (-1, -1)
    bias = arguments["bias"]
    rules = {
        "j < valid_len": arguments["valid_lens"] is not None,
        "mask[i, j]": arguments["mask"] is not None,
        "bias[i, j] > -inf": bias is not None and bool(np.isneginf(as_float64(bias)).any()),
        f"j <= {i}": bool(arguments["causal"]),
        f"{i} - {left} <= j": left != -1,
        f"j <= {i} + {right}": right != -1,
    }
    return " and ".join(rule for rule, holds in rules.items() if holds)


def is_dropped(arguments: Arguments) -> bool:
    """True if dropout is active."""
    return arguments["dropout_mask"] is not None or float(arguments["dropout_p"]) != 0


def dropout_rule(arguments: Arguments) -> str:
    """Return the condition under which dropout keeps a weight."""
    if arguments["dropout_mask"] is not None:
        return "dropout_mask"
    p = float(arguments["dropout_p"])
    return f"philox(seed={int(arguments['seed'])}) >= {p:.6g}"
