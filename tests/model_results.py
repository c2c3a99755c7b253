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
of transformers that asks its AttentionInterface. We compared attnext with "eager" for each model
class of transformers {transformers}. The last table shows the results. Each model was created
from a small configuration, with random parameters, and was run in evaluation mode. It was run
without padding, with padding at the end, and with padding at the start. Classes with a head for a
task are not listed, because they contain the classes below.

`python tests/sweep_transformers.py --page` (in a clone, with PyTorch and transformers) writes this
page again. The results below are for attnext {attnext}, PyTorch {torch}, {date}.

| result | classes | meaning |
| --- | --- | --- |
{counts}

We change all parameters of a model by one part in 2^22 and measure how much the output changes. Two
results are called *equal* if they differ by at most 20 times this amount, plus 2e-5 of the largest
element.

We also tested whether this comparison notices a wrong mask. For this test we removed the masks, or
made the calls without a mask causal. For {seen} of the {equal} equal classes, the output
then changed by more than 5 times the allowed difference. So the comparison would notice a wrong
mask in these classes.

In "eager", a call without a mask is never causal, because none of its functions reads `is_causal`.
A model that needs causal attention passes a mask. So in attnext a query of a call without a mask
also attends to later keys, even if the module has `is_causal = True`. Only `is_causal=True` in the
call itself makes it causal. Some classes make calls without a mask and with several queries. This
table counts them by the value of `is_causal` in the module and in the call:

| `is_causal` of the module, of the call | lengths | classes |
| --- | --- | --- |
{unmasked}

Some models do arithmetic with their mask. They get the same float mask as in "eager", which
contains 0 for pairs that are attended to and the smallest float for masked pairs. attnext does not
support two kinds of models. The first kind negates the mask as if it contained bools. The second
kind selects blocks of keys by other means than the mask. Both raise an error that says what to use
instead.

A class that does not use the interface keeps its own attention. A few of these classes (Git, SAM
and others that look up a class by name) raise `KeyError: 'attnext'` if they are created with
`attn_implementation="attnext"`. Call `model.set_attn_implementation("attnext")` after the creation
instead. It switches those parts of the model that use the interface.

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
