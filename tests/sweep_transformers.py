"""Compare "attnext" with "eager" for every model class of the installed transformers.

    python tests/sweep_transformers.py                      # all classes, a table on stdout
    python tests/sweep_transformers.py bert clap.ClapModel  # these architectures or classes
    python tests/sweep_transformers.py --page               # writes docs/huggingface_models.md

A class is built small from its configuration with random parameters; nothing is downloaded. It runs
without padding and, where it takes tokens, with padding behind and in front. More runs make the
comparison sharp:

- eager with parameters changed by one part in 2^22 shows what rounding alone changes;
- attnext without any mask, and attnext with every missing mask replaced by a causal one, show that
  a wrong mask would be seen.

Child processes do the work, with a time limit for each class.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import multiprocessing as mp
import os
import re
import sys
import time
import warnings
from collections import Counter
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from model_results import PAGE, Result, describe, page, read
from small_transformers import (
    NoAttention,
    NotCreated,
    brief,
    build,
    has_attention,
    inputs,
    padded,
)

SECONDS = 120  # for one class


# ---- which classes -------------------------------------------------------------------------------


def architectures(names: list[str]) -> dict[str, list[str]]:
    """Return the model classes that each folder of transformers/models defines; [] is every one."""
    import transformers.models as models

    wanted = {name.partition(".")[0] for name in names}
    found: dict[str, list[str]] = {}
    for folder in sorted(Path(models.__path__[0]).iterdir()):
        if not names or folder.name in wanted:
            for file in sorted(folder.glob("modeling_*.py")):
                found.setdefault(folder.name, []).extend(classes_in(file))
    return {folder: classes for folder, classes in found.items() if classes}


def classes_in(file: Path) -> list[str]:
    """Return the classes of a modeling file that derive from a PreTrainedModel, by its text."""
    models: list[str] = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            bases = [getattr(base, "id", "") for base in node.bases]
            if any(base.endswith("PreTrainedModel") or base in models for base in bases):
                models.append(node.name)
    return [
        f"{file.stem}.{name}"
        for name in models
        if not re.search("Pre[Tt]rainedModel$|^(DPR)?Pretrained", name)
    ]


# A task's head adds no attention to the class that it contains.
HEADS = re.compile(r"For[A-Z]|LMHead|DoubleHeads|WithProjection|DecoderWrapper")


def class_of(architecture: str, path: str) -> Any:
    file, name = path.split(".")
    return getattr(importlib.import_module(f"transformers.models.{architecture}.{file}"), name)


# ---- one class -----------------------------------------------------------------------------------


def tensors(x: Any) -> list[Any]:
    """Return the float tensors of an output, caches excepted."""
    import torch

    if isinstance(x, torch.Tensor):
        return [x.detach().clone()] if x.is_floating_point() else []
    if isinstance(x, dict):
        x = [value for name, value in x.items() if "past" not in name and "cache" not in name]
    if isinstance(x, (list, tuple)):
        return [each for part in x for each in tensors(part)]
    return []


def run(model: Any, given: dict[str, Any]) -> list[Any]:
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        return tensors(model(**{n: clone(x) for n, x in given.items()}))


def clone(x: Any) -> Any:
    return x.clone() if hasattr(x, "clone") else x


def distance(a: list[Any], b: list[Any]) -> float:
    """Return the largest difference, compared with the largest element of its tensor."""
    import torch

    worst = 0.0
    if [x.shape for x in a] != [x.shape for x in b]:
        return float("inf")
    for x, y in zip(a, b, strict=True):
        if not x.numel():
            continue
        x, y = x.double(), y.double()
        odd = ~(torch.isfinite(x) & torch.isfinite(y))
        if not torch.equal(x[odd], y[odd]) and not (x[odd].isnan() & y[odd].isnan()).all():
            return float("inf")
        x, y = x.masked_fill(odd, 0), y.masked_fill(odd, 0)
        worst = max(worst, float((x - y).abs().max() / y.abs().max().clamp(min=1e-30)))
    return worst


def attention_calls() -> tuple[Any, dict[str, Any]]:
    """Register an attention function that counts attnext's calls; return the state it writes."""
    import torch
    from transformers import AttentionInterface

    import attnext.torch.transformers as ours

    state: dict[str, Any] = {"calls": 0, "unmasked": Counter(), "wrong": None}

    def counted(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **more: Any):
        state["calls"] += 1
        M, N = query.shape[2], key.shape[2]
        if attention_mask is None and M > 1:
            of_module = getattr(module, "is_causal", "absent")
            told = more.get("is_causal", "absent")
            square = "M = N" if M == N else "M != N"
            state["unmasked"][f"module {of_module}, call {told}, {square}"] += 1
        if state["wrong"] == "no mask":
            attention_mask = None
            more["is_causal"] = False
        elif state["wrong"] == "causal" and attention_mask is None:
            more["is_causal"] = True
        return ours._attention(module, query, key, value, attention_mask, **more)

    AttentionInterface.register("attnext", counted)
    return torch, state


def examine(architecture: str, path: str, state: dict[str, Any]) -> Result:
    """Compare one class."""
    name = path.split(".")[1]
    try:
        kind = class_of(architecture, path)
        for std in (0.3, 0.1, 0.03):
            result = compare(build(kind, architecture), std, state)
            if result["rounding"] < 2e-3:
                break
    except NotCreated as error:
        return Result(architecture, name, "not created", str(error))
    except NoAttention:
        return Result(architecture, name, "no attention")
    return Result(architecture, name, **{k: v for k, v in result.items() if k != "rounding"})


def compare(model: Any, std: float, state: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            torch.nn.init.normal_(parameter, std=std)
    given = accepted(model)
    cases = padded(model, given)
    eager = {}
    for case, each in cases.items():
        try:
            eager[case] = run(model, each)
        except Exception:
            if case == "no padding":
                raise
    if not any(x.numel() for x in eager["no padding"]):
        raise NotCreated("no output of floats")
    reference = "eager"
    if not all(torch.isfinite(x).all() for x in eager["no padding"]):
        model.set_attn_implementation("sdpa")
        with_sdpa = {case: run(model, cases[case]) for case in eager}
        if all(torch.isfinite(x).all() for x in with_sdpa["no padding"]):
            eager, reference = with_sdpa, "sdpa"
    state |= {"calls": 0, "unmasked": Counter(), "wrong": None}
    model.set_attn_implementation("attnext")
    switched = {}
    for case in eager:
        try:
            switched[case] = run(model, cases[case])
        except Exception as error:
            kind = "refused" if "Use attn_implementation=" in str(error) else "different"
            return dict(result=kind, detail=brief(error), calls=state["calls"], rounding=0.0)
    calls, unmasked = state["calls"], Counter(state["unmasked"])
    off = {case: distance(switched[case], eager[case]) for case in eager}
    wrong = []
    for mistake in ("no mask", "causal"):
        state["wrong"] = mistake
        try:
            wrong += [distance(run(model, cases[case]), switched[case]) for case in eager]
        except Exception:  # a wrong mask need not fit
            continue
    state["wrong"] = None
    rounding = rounding_of(model, given, reference, eager["no padding"])
    allowed = 20 * rounding + 2e-5
    worst = max(off, key=lambda case: off[case])
    detail = f"{off[worst]:.1e} ({worst}; rounding {rounding:.1e})"
    if reference == "sdpa":
        detail += "; compared with sdpa, because eager gives NaN"
    result = "equal" if off[worst] <= allowed else "different"
    if result == "equal" and calls == 0:
        result = "no interface" if has_attention(model) else "no attention"
    kinds = "; ".join(f"{n}x {kind}" for kind, n in sorted(unmasked.items()))
    seen = max(wrong, default=0.0) > 5 * allowed
    return dict(
        result=result, detail=detail, calls=calls, unmasked=kinds, seen=seen, rounding=rounding
    )


def accepted(model: Any) -> dict[str, Any]:
    """Return the first inputs that eager accepts."""
    errors = []
    for given in inputs(model):
        try:
            run(model, given)
            return given
        except Exception as error:
            errors.append(f"{'+'.join(given)}: {brief(error)}")
    raise NotCreated(
        f"inputs: {errors[0] if errors else list(inspect.signature(model.forward).parameters)[:5]}"
    )


def rounding_of(model: Any, given: dict[str, Any], by: str, before: list[Any]) -> float:
    """Return what a change of the parameters by one part in 2^22 changes in eager's output."""
    import torch

    model.set_attn_implementation(by)
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.mul_(1 + torch.randn_like(parameter) * 2.0**-22)
        after = run(model, given)
        for name, parameter in model.named_parameters():
            parameter.copy_(kept[name])
    return distance(after, before)


# ---- child processes -----------------------------------------------------------------------------


def child(pipe: Connection) -> None:
    warnings.simplefilter("ignore")
    os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch, state = attention_calls()
    torch.set_num_threads(1)
    while (job := pipe.recv()) is not None:
        try:
            result = examine(*job, state)
        except Exception as error:
            result = Result(job[0], job[1].split(".")[1], "not created", f"sweep: {brief(error)}")
        pipe.send(result)


class Worker:
    """A child process and the class that it examines."""

    def __init__(self) -> None:
        self.pipe, theirs = mp.Pipe()
        self.process = mp.get_context("spawn").Process(target=child, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.job: tuple[str, str] | None = None
        self.since = 0.0

    def start(self, job: tuple[str, str]) -> None:
        self.job, self.since = job, time.monotonic()
        self.pipe.send(job)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def sweep(
    jobs: list[tuple[str, str]], processes: int = 2, kept: Path | None = None
) -> list[Result]:
    """Examine every job; a class that takes too long, or ends its process, is not compared."""
    results: list[Result] = []
    left, workers = list(reversed(jobs)), [Worker() for _ in range(min(processes, len(jobs)))]
    while left or any(worker.job for worker in workers):
        for i, worker in enumerate(workers):
            if worker.job is None and left:
                worker.start(left.pop())
            if worker.job and time.monotonic() - worker.since > SECONDS:
                results.append(lost(worker, f"more than {SECONDS} seconds"))
                workers[i] = Worker()
        for pipe in wait([worker.pipe for worker in workers if worker.job], timeout=1):
            i = next(i for i, worker in enumerate(workers) if worker.pipe is pipe)
            try:
                results.append(workers[i].pipe.recv())
                workers[i].job = None
                if kept is not None:
                    with kept.open("a") as file:
                        file.write(json.dumps(results[-1]._asdict()) + "\n")
            except EOFError:
                results.append(lost(workers[i], "ends its process"))
                workers[i] = Worker()
    for worker in workers:
        worker.stop()
    return sorted(results)


def lost(worker: Worker, why: str) -> Result:
    worker.stop()
    assert worker.job is not None
    return Result(worker.job[0], worker.job[1].split(".")[1], "not created", why)


# ---- the command ---------------------------------------------------------------------------------


def jobs_of(names: list[str], heads: bool = False) -> list[tuple[str, str]]:
    """Return the jobs for architectures ("bert") and classes ("bert.BertModel").

    [] stands for all classes, those with the head of a task only if requested.
    """
    jobs = [(a, path) for a, paths in architectures(names).items() for path in paths]
    if names:
        return [(a, path) for a, path in jobs if {a, f"{a}.{path.split('.')[1]}"} & {*names}]
    bodies = {a for a, path in jobs if not HEADS.search(path)}
    return [job for job in jobs if heads or job[0] not in bodies or not HEADS.search(job[1])]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--kept", type=Path, help="a file of results, which are not found again")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--heads", action="store_true", help="models with a task's head, too")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    jobs = jobs_of(options.names, options.heads)
    before = read(options.kept)
    jobs = [job for job in jobs if (job[0], job[1].split(".")[1]) not in before]
    start = time.monotonic()
    results = sorted([*before.values(), *sweep(jobs, options.processes, options.kept)])
    for r in results:
        print(describe(r))
    print(Counter(r.result for r in results), f"{time.monotonic() - start:.0f} s")
    if options.page:
        PAGE.write_text(page(results), encoding="utf-8")
    return int(any(r.result == "different" for r in results))


if __name__ == "__main__":
    sys.exit(main())
