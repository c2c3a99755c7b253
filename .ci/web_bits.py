"""Are the numbers of a page those of Python? The same calls of both, compared bit for bit:

python -P .ci/web_bits.py FOLDER

runs under node what docs/site/playground.py wrote there. Masks, lengths and options of every kind
are tried on sizes around the lengths of vectors, on subnormal and on very large scores. Then the
steps that the playground shows are held against those of attnext.explain, in both languages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import attnext
from attnext import explain
from attnext.explain.words import AXES

ROOT = Path(__file__).resolve().parent.parent
Array = NDArray[Any]
Case = tuple[str, list[Any], dict[str, Any]]  # a function, its inputs, its options

SHAPES = [  # leading axes, M, N, D, Dv
    ((), 1, 1, 1, 1),
    ((), 5, 7, 3, 2),
    ((2,), 1, 300, 16, 5),
    ((2, 3), 17, 33, 8, 19),
    ((3,), 64, 129, 67, 4),
    ((1,), 8, 4, 300, 1),
]


def masks_of(rng: np.random.Generator, leading: tuple[int, ...], M: int, N: int) -> Iterator[Any]:
    """Options that say who takes part."""
    yield {}
    yield {"causal": True}
    yield {"causal": True, "causal_offset": N - M, "empty_rows": "zero"}
    yield {"window": (2, 1)}
    yield {"window": (3, -1), "causal_offset": -2}
    yield {"mask": rng.random((*leading, M, N)) < 0.6}
    yield {"mask": rng.random((M, N)) < 0.6, "empty_rows": "zero"}
    yield {"valid_lens": N // 2}
    yield {"window": (2**31 - 1, -1), "causal": True, "causal_offset": 2**31 - 1}
    yield {"window": (-1, 2**31 - 1), "causal_offset": -(2**31)}
    if not leading:
        yield {"valid_lens": rng.integers(0, 2 * N + 1, M).tolist()}
    if leading:
        yield {"valid_lens": rng.integers(0, N + 1, leading[0]).tolist(), "causal": True}
        yield {"valid_lens": rng.integers(0, N + 1, (leading[0], M)).tolist()}


def attentions(rng: np.random.Generator) -> Iterator[Case]:
    """Each scoring function with each mask; the other options in turn."""
    for leading, M, N, D, Dv in SHAPES:
        size = float(rng.choice([1e-20, 0.3, 1.0, 30.0]))
        queries, keys = rng.normal(0, size, (*leading, M, D)), rng.normal(0, size, (*leading, N, D))
        inputs = [queries, keys, rng.normal(size=(*leading, N, Dv))]
        parameters = [rng.normal(size=(12, D)), rng.normal(size=(12, D)), rng.normal(size=12)]
        shared = [{}, {"softcap": 2.5}, {"dropout_p": 0.25, "seed": 2**63 + 12345}]
        for at, masks in enumerate(masks_of(rng, leading, M, N)):
            options = {**masks, **shared[at % 3]}
            scaled = {**options, "scale": 1.7} if at % 2 else options
            yield "dot_product_attention", inputs, scaled
            yield "cosine_attention", inputs, scaled
            yield "gaussian_attention", inputs, {**options, "sigma": [0.07, 1.0, 9.0][at % 3]}
            bias = {"b_h": rng.normal(size=12)} if at % 2 else {}
            yield "additive_attention", inputs + parameters, {**options, **bias}


def softmaxes(rng: np.random.Generator) -> Iterator[Case]:
    for leading, M, N, _, _ in SHAPES:
        X = rng.normal(0, 10, (*leading, M, N))
        for masks in masks_of(rng, leading, M, N):
            if not masks.keys() & {"causal", "window"}:
                yield "masked_softmax", [X, masks.pop("valid_lens", None)], masks
    for length in (None, 0, 3, 99):
        yield "masked_softmax", [rng.normal(size=7), length], {}


def expected(name: str, inputs: list[Any], options: dict[str, Any]) -> dict[str, Array]:
    """What Python gives."""
    if name == "masked_softmax":
        return {"weights": attnext.masked_softmax(*inputs, **options)}
    output, weights, lse = getattr(attnext, name)(
        *inputs, **options, return_weights=True, return_lse=True
    )
    of_scores = {"scale", "softcap", "sigma", "b_h"} & options.keys()
    scores = getattr(attnext, name.replace("attention", "scores"))(
        *inputs[:2], *inputs[3:], **{key: options[key] for key in of_scores}
    )
    return {"scores": scores, "weights": weights, "output": output, "lse": lse}


def written(x: object) -> object:
    """For JSON; arrays by the bits of their float32 numbers."""
    if isinstance(x, np.ndarray):
        x = np.ascontiguousarray(x, np.float32)
        return {"shape": x.shape, "bits": x.ravel().view(np.uint32).tolist()}
    return str(x) if isinstance(x, int) and x > 2**53 else x  # a seed, for BigInt


def as_float32(x: Any) -> Any:
    """An input that float32 holds exactly; lengths, masks and numbers as they are."""
    floats = isinstance(x, np.ndarray) and x.dtype.kind == "f"
    return x.astype(np.float32) if floats else x


def cases() -> list[Case]:
    """All of them."""
    rng = np.random.default_rng(0)
    return [
        (name, [*map(as_float32, inputs)], {key: as_float32(x) for key, x in options.items()})
        for name, inputs, options in [*attentions(rng), *softmaxes(rng)]
    ]


def as_json(all_cases: list[Case]) -> list[dict[str, Any]]:
    return [
        {
            "call": name,
            "inputs": [written(x) for x in inputs],
            "options": {key: written(x) for key, x in options.items()},
        }
        for name, inputs, options in all_cases
    ]


def differences(all_cases: list[Case], results: list[Any]) -> int:
    """How many arrays differ, told one a line. A NaN equals any other NaN."""
    count = 0
    for (name, inputs, options), result in zip(all_cases, results, strict=True):
        for what, x in expected(name, inputs, options).items():
            bits = np.array(result[what]["bits"], np.uint32).reshape(result[what]["shape"])
            got = bits.view(np.float32) if bits.size else x
            same = (x.view(np.uint32) == bits) | (np.isnan(x) & np.isnan(got))
            if x.shape != got.shape or not same.all():
                print(f"{name}({options}): {what}: {np.sum(~same)} of {x.size} numbers differ")
                count += 1
    return count


# ---- the steps of the playground -----------------------------------------------------------------


def requests(rng: np.random.Generator) -> list[dict[str, Any]]:
    """What view.js would ask its engine, with arrays as they are."""
    options: list[dict[str, Any]] = [
        {},
        {"causal": True, "window": [2, -1]},
        {"valid_lens": 0, "softcap": 3.25},
        {"valid_lens": 4, "dropout_p": 0.25, "seed": 7},
    ]
    found = []
    for name in ("dot_product", "cosine", "additive", "gaussian"):
        for at, each in enumerate(options):
            shapes = {"queries": (5, 6), "keys": (7, 6), "values": (7, 3)}
            if name == "additive":
                shapes |= {"W_q": (4, 6), "W_k": (4, 6), "w_v": (4,)}
            own = {"gaussian": {"sigma": 0.7}, "cosine": {"scale": 3.5}}.get(name, {})
            own = {"scale": 0.375} if name == "dot_product" and at == 1 else own
            arrays = {n: as_float32(rng.normal(size=shape)) for n, shape in shapes.items()}
            function, lang = f"{name}_attention", ("en", "zh")[at % 2]
            options_of = {**each, **own}
            found.append(
                {"function": function, "arrays": arrays, "options": options_of, "lang": lang}
            )
    return found


def is_step(step: explain.Step, told: dict[str, Any]) -> bool:
    """Is what the page tells of a step what attnext.explain does? The core's numbers to the bit."""
    kinds = {said[step.lang]: kind for kind, said in AXES.items()}
    words = [step.key, step.name, step.formula, step.note, [kinds[axis] for axis in step.axes]]
    if words != [told[name] for name in ("key", "name", "formula", "note", "axes")]:
        return False
    got = np.array(told["bits"], np.uint32).view(np.float32).reshape(told["shape"])
    masked = np.zeros(step.shape, bool) if step.masked is None else step.masked
    page_masked = masked & False if told["masked"] is None else np.array(told["masked"], bool)
    if got.shape != step.shape or not np.array_equal(page_masked.reshape(got.shape), masked):
        return False
    expected, got = np.asarray(step.values, np.float32)[~masked], got[~masked]
    if step.key in ("weights", "output"):
        return np.array_equal(expected.view(np.uint32), got.view(np.uint32))
    return np.allclose(got, expected, rtol=2e-6, atol=2e-6)


def different_steps(asked: list[dict[str, Any]], results: list[Any]) -> int:
    """How many explanations differ, told one a line."""
    count = 0
    for request, result in zip(asked, results, strict=True):
        options = {n: tuple(x) if n == "window" else x for n, x in request["options"].items()}
        trace = getattr(explain, request["function"])(
            **request["arrays"], **options, lang=request["lang"]
        )
        wrong = [
            told["key"]
            for step, told in zip(trace.steps, result["steps"], strict=False)
            if not is_step(step, told)
        ]
        told = [result["title"], result["call"], len(result["steps"])]
        call = trace.call.replace(", eps=1e-08", "")  # as by default
        if wrong or told != [trace.title, call, len(trace.steps)]:
            print(f"{trace.call}\n{result['call']}: {wrong} of", [step.key for step in trace.steps])
            count += 1
    return count


def main(folder: str) -> int:
    (Path(folder) / "package.json").write_text('{"type": "module"}')  # node asks for it
    rng = np.random.default_rng(1)
    all_cases, asked = cases(), requests(rng)
    packed = [
        {**request, "arrays": {name: written(x) for name, x in request["arrays"].items()}}
        for request in asked
    ]
    done = subprocess.run(
        ["node", str(ROOT / ".ci" / "web_bits.mjs"), folder],
        input=json.dumps({"calls": as_json(all_cases), "requests": packed}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    results = json.loads(done.stdout)
    wrong = differences(all_cases, results["calls"])
    print(f"{len(all_cases)} calls in a page and in Python: {wrong or 'no'} arrays differ")
    unlike = different_steps(asked, results["requests"])
    print(f"{len(asked)} explanations in a page and in Python: {unlike or 'none'} differ")
    return int(wrong + unlike > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
