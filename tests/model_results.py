"""The results of tests/sweep_transformers.py, and the page that shows them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "huggingface_models.md"


class Result(NamedTuple):
    """What became of one class. `result` is one of RESULTS."""

    architecture: str
    name: str
    result: str
    detail: str = ""
    calls: int = 0  # of attnext's attention
    unmasked: str = ""  # the kinds of calls without a mask: is_causal of the module, of the call
    seen: bool = False  # a wrong mask would be seen


RESULTS = {
    "equal": "the same numbers as eager up to rounding",
    "refused": "attnext refuses it by name",
    "no interface": "attnext is not called: the class computes its attention itself",
    "no attention": "has no attention",
    "not created": "not made small, or no input found: not compared",
    "different": "a fault",
}


def describe(r: Result) -> str:
    unmasked = f"; without a mask: {r.unmasked}" if r.unmasked else ""
    sharp = "" if r.seen else "not "
    text = f"{r.architecture}.{r.name}: {r.result}, {r.detail}; {r.calls} calls, {sharp}sharp"
    return text + unmasked


def read(kept: Path | None) -> dict[tuple[str, str], Result]:
    """Return the results of a file, those of classes that could not be created excepted."""
    if kept is None or not kept.exists():
        return {}
    found = [Result(**json.loads(line)) for line in kept.read_text().splitlines()]
    return {
        (r.architecture, r.name): r for r in found if r.result not in ("not created", "different")
    }


PREFACE = """# Hugging Face models

`import attnext.torch.transformers` makes `attn_implementation="attnext"` available to every model
of transformers that asks its AttentionInterface. The last table has the result of each model class
of transformers {transformers}: made small from its configuration with random parameters, in
evaluation, without padding and with padding behind and in front, compared with "eager". Classes
with the head of a task are left out; they contain the classes below.

`python tests/sweep_transformers.py --page` (in a clone, with PyTorch and transformers) makes the
page again. It was made with attnext {attnext}, PyTorch {torch}, {date}.

| result | classes | meaning |
| --- | --- | --- |
{counts}

*Equal* is within 20 times what a change of the parameters by one part in 2^22 changes, plus 2e-5
of the largest element. For {seen} of the {equal} equal classes the comparison would have seen a
wrong mask: leaving out the masks, or making calls without a mask causal, changed the output by
more than 5 times that bound.

When is a call without a mask causal? Never in "eager": none of its functions reads `is_causal`,
and a model that means causality gives a mask. So in attnext a call without a mask attends both
ways, even if its module has `is_causal = True`. Only `is_causal=True` in the call itself makes it
causal. This table counts the classes that make a call without a mask
and with several queries, by what the module and the call say:

| `is_causal` of the module, of the call | lengths | classes |
| --- | --- | --- |
{unmasked}

A model that computes with its mask gets the mask of "eager": floats, 0 or the smallest float. Two
kinds of models cannot be served and raise an error that says what to use instead: those that
negate the mask as if it had bools, and those that select blocks of keys outside the mask.

A class without the interface keeps its own attention. A few of them raise `KeyError: 'attnext'`
when they are made with `attn_implementation="attnext"` (Git, SAM and others that look up a class
by name); `model.set_attn_implementation("attnext")` works, and switches the parts that ask the
interface.

## Every class

| architecture | result | classes |
| --- | --- | --- |
"""


def page(results: list[Result]) -> str:
    """Return the page of the results."""
    from datetime import date
    from importlib.metadata import version

    number = Counter(r.result for r in results)
    equal = [r for r in results if r.result == "equal"]
    unmasked = Counter(
        kind.partition("x ")[2] for r in results for kind in filter(None, r.unmasked.split("; "))
    )
    counts = [f"| {name} | {number[name]} | {text} |" for name, text in RESULTS.items()]
    kinds = [
        f"| {', '.join(k.split(', ')[:2])} | {k.split(', ')[2]} | {n} |"
        for k, n in sorted(unmasked.items())
    ]
    head = PREFACE.format(
        transformers=version("transformers"), attnext=version("attnext"), torch=version("torch"),
        date=date.today(), counts="\n".join(counts), unmasked="\n".join(kinds), equal=len(equal),
        seen=sum(r.seen for r in equal),
    )  # fmt: skip
    rows: dict[tuple[str, str], list[str]] = {}
    for r in results:
        reason = r.detail if r.result in ("refused", "not created", "different") else ""
        rows.setdefault((r.architecture, r.result), []).append(named(r.name, reason))
    return head + "".join(
        f"| {architecture} | {result} | {', '.join(names)} |\n"
        for (architecture, result), names in rows.items()
    )


def named(name: str, reason: str) -> str:
    text = re.sub(r"[|`<>*_\[\]]", " ", reason)
    return f"{name} ({text[:90].strip()})" if reason else name
