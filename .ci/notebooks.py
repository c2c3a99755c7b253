"""The outputs of the notebooks in examples/: stored, so that they can be read without running.

    python -P .ci/notebooks.py write [NOTEBOOK...]    run them and store what they give
    python -P .ci/notebooks.py check [NOTEBOOK...]    run them and compare that with what is stored
    python -P .ci/notebooks.py code [NOTEBOOK...]     their code into build/notebooks, for pyright

in an environment of ``pip install '.[lab]'``, code in one of '.[test]' too; without a NOTEBOOK it
is all of them. A notebook runs from top to bottom in a kernel of its own. Of what it gives, `light`
keeps text, HTML and pictures, in bounded sizes, and nothing that is different every time. A
comparison allows for other machines, whose libraries add in another order; a cell whose results
differ by more than that has a tag:

    trained    what training makes of other roundings: the same words, numbers and curves near by
    varies     times, and what else the machine decides: only the kinds of its outputs are compared

examples/zh-CN has the same notebooks with their prose in Chinese: ``write`` copies code and outputs
into them. What holds of all that is stored, without running it, is in tests/test_notebooks.py.
"""

from __future__ import annotations

import re
import sys
import time
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from PIL import Image

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
CHINESE = EXAMPLES / "zh-CN"
MODULES = EXAMPLES.parent / "build" / "notebooks"

# The most that is stored: a picture's bytes, an explanation's HTML (or else there is its name),
# what is printed, and a whole file.
PICTURE, HTML, TEXT, NOTEBOOK = 60_000, 40_000, 10_000, 600_000
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
COLOURS = 128  # of a picture; each pixel within 8 of 255 of what it was, which is not seen

# How far numbers may be apart, measured by themselves or by 1, and pictures, measured by their ink.
# A rounding of float32 is 6e-8, and a result has some hundred. Trainings on other instruction sets,
# with another order of sums, end within the second pair. Pictures of different things are 0.4 apart
# and more, of the same things with other fonts or in fewer colours 0.01.
NUMBERS = {"": 1e-5, "trained": 0.1}
PICTURES = {"": 0.03, "trained": 0.25}
TAGS = {*NUMBERS, "varies"}
KINDS = {"text/plain", "text/html", "image/png"}

NUMBER = re.compile(r"[-+−]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?|[-+]?\b(?:inf|nan)\b")

Notebook = Any  # nbformat's
Outputs = list[dict[str, Any]]  # of one cell


def notebooks() -> list[Path]:
    """All that run: those of examples/ in their order, then the solutions."""
    return [*sorted(EXAMPLES.glob("*.ipynb")), *sorted(EXAMPLES.glob("solutions/*.ipynb"))]


def code_cells(notebook: Notebook) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tag_of(cell: Any) -> str:
    """The one tag of a cell, or none."""
    (tag,) = cell.metadata.get("tags", [""])
    if tag not in TAGS:
        raise ValueError(f"cell {cell.id} has the tag {tag!r}, expected one of {TAGS}")
    return tag


# ---- from what a kernel gives to what is stored --------------------------------------------------


def run(path: Path) -> list[Outputs]:
    """What each code cell of a notebook gives, executed from top to bottom."""
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    ).execute()
    return [light(cell.outputs) for cell in code_cells(notebook)]


def light(outputs: Outputs) -> Outputs:
    """Outputs without what differs from run to run or is large; text in one piece. Nothing of
    stderr, where libraries talk about the machine: it is new, or lacks a widget."""
    kept: Outputs = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if output["output_type"] == "stream":
            if kept and kept[-1].get("name") == output["name"]:
                kept[-1]["text"] += output["text"]
            else:
                kept.append({k: output[k] for k in ("output_type", "name", "text")})
        else:
            data, metadata = dict(output["data"]), {}
            if "image/png" in data:
                data["image/png"] = light_picture(data["image/png"])
                metadata = output["metadata"].get("image/png", {})
            if len(data.get("text/html", "")) > HTML:
                del data["text/html"]
            kept.append(
                {
                    "output_type": "display_data",
                    "data": {k: data[k] for k in sorted(KINDS & set(data))},
                    "metadata": {"image/png": metadata} if metadata else {},
                }
            )
    return kept


def light_picture(png: str) -> str:
    """The same picture in as many colours as look the same, a third as large."""
    few = dict(colors=COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    picture = decoded(png).quantize(**few)
    file = BytesIO()
    picture.save(file, "PNG", optimize=True)
    return b64encode(file.getvalue()).decode()


def decoded(png: str) -> Image.Image:
    picture = Image.open(BytesIO(b64decode(png))).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


def faults(path: Path) -> list[str]:
    """What is not light in a stored notebook."""
    notebook, found = nbformat.read(path, as_version=4), []
    if path.stat().st_size > NOTEBOOK:
        found.append(f"the file has {path.stat().st_size} bytes, more than {NOTEBOOK}")
    if notebook.metadata != METADATA:
        found.append(f"its metadata are {notebook.metadata}, expected {METADATA}")
    for cell in notebook.cells:
        if set(cell.metadata) - {"tags"} or cell.get("execution_count"):
            found.append(f"cell {cell.id} keeps its count, or metadata: {cell.metadata}")
    for cell in code_cells(notebook):
        tag_of(cell)
        for name, content in (item for o in cell.outputs for item in contents(o).items()):
            size = len(b64decode(content)) if name == "image/png" else len(content)
            most = {"image/png": PICTURE, "text/html": HTML}.get(name, TEXT)
            if size > most:
                found.append(f"cell {cell.id}: {name} of {size} bytes, more than {most}")
            if name not in {*KINDS, "stdout"}:
                found.append(f"cell {cell.id} gives {name}: {content[:200]}")
    return found


# ---- comparing -----------------------------------------------------------------------------------


def differences(notebook: Notebook, fresh: list[Outputs]) -> list[str]:
    """What of the stored outputs is not what the code gives now: a line for each cell."""
    found = []
    for cell, outputs in zip(code_cells(notebook), fresh, strict=True):
        what = difference(cell.outputs, outputs, tag_of(cell))
        if what:
            found.append(f"cell {cell.id}: {what}")
    return found


def difference(stored: Outputs, fresh: Outputs, tag: str) -> str:
    """How two lists of outputs differ, or nothing."""
    if list(map(kind, stored)) != list(map(kind, fresh)):
        return f"stored {list(map(kind, stored))}, now {list(map(kind, fresh))}"
    if tag == "varies":
        return ""
    for old, new in zip(map(contents, stored), map(contents, fresh), strict=True):
        for name in old:
            if name == "image/png":
                apart = distance(old[name], new[name])
                if apart > PICTURES[tag]:
                    return f"the pictures are {apart:.3f} apart, more than {PICTURES[tag]}"
            elif not same_text(old[name], new[name], NUMBERS[tag]):
                return f"stored\n{old[name][:2000]}\nnow\n{new[name][:2000]}"
    return ""


def kind(output: dict[str, Any]) -> str:
    """What an output is, whatever it says."""
    return " ".join([output["output_type"], *contents(output)])


def contents(output: dict[str, Any]) -> dict[str, str]:
    """What is in an output, by names: stdout, text/plain, image/png, ..."""
    if output["output_type"] == "stream":
        return {output["name"]: output["text"]}
    return dict(sorted(output["data"].items()))


def same_text(old: str, new: str, bound: float) -> bool:
    """The same words, and between them numbers that are no farther apart than the bound."""
    if NUMBER.sub("0", old).split() != NUMBER.sub("0", new).split():
        return False
    numbers = (map(number, NUMBER.findall(text)) for text in (old, new))
    return all(near(a, b, bound) for a, b in zip(*numbers, strict=True))


def near(a: float, b: float, bound: float) -> bool:
    return a == b or (a != a and b != b) or abs(a - b) <= bound * max(1, abs(a))


def number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def distance(old: str, new: str) -> float:
    """How far two pictures are apart, as a part of their ink."""
    a, b = decoded(old), decoded(new)
    if np.abs(np.subtract(a.size, b.size)).max() > 0.02 * max(a.size):
        return np.inf
    return apart(ink(a), ink(b.resize(a.size)))


def ink(picture: Image.Image) -> np.ndarray:
    """How dark a picture is, seen from where letters are grey."""
    width, height = picture.size
    size = max(1, width // 8), max(1, height // 8)
    return 1 - np.asarray(picture.resize(size, Image.Resampling.BOX)) / 255


def apart(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(a), np.linalg.norm(b), 1e-9))


# ---- the Chinese ones ----------------------------------------------------------------------------


def in_chinese(english: Notebook, chinese: Notebook) -> Notebook:
    """The Chinese notebook with the code and outputs of the English one: cells go by their ids."""
    prose = {cell.id: cell for cell in chinese.cells if cell.cell_type == "markdown"}
    ids = {cell.id for cell in english.cells}
    only_here = [cell.id for cell in chinese.cells if cell.id not in ids]
    only_there = [c.id for c in english.cells if c.cell_type == "markdown" and c.id not in prose]
    if only_here or only_there:
        raise ValueError(
            f"only in the Chinese notebook: {only_here}; only in English: {only_there}"
        )
    cells = [prose[c.id] if c.cell_type == "markdown" else c for c in english.cells]
    return nbformat.from_dict({**english, "cells": cells})


# ---- for a type checker --------------------------------------------------------------------------

# What a notebook may do: show a value by a line of its own, go on with what a loop has left, and
# import what only '.[lab]' brings.
ALLOWED = ("UnusedExpression", "PossiblyUnboundVariable", "MissingImports")
# And where it goes through the layers of a model of transformers': torch says of a part of a
# module no more than that it is a tensor or a module.
ALLOWED_IN_MODELS = ("AttributeAccessIssue", "CallIssue", "IndexIssue", "ArgumentType")


def as_module(notebook: Notebook) -> str:
    """The code of a notebook in one piece, without its magics."""
    cells = [f"# cell {cell.id}\n{cell.source}\n" for cell in code_cells(notebook)]
    models = any("import transformers" in cell for cell in cells)
    allowed = ALLOWED + ALLOWED_IN_MODELS * models
    rules = ", ".join(f"report{rule}=false" for rule in allowed)
    return "\n".join([f"# pyright: {rules}\n", *(re.sub("(?m)^%", "# %", cell) for cell in cells)])


# ---- the three commands --------------------------------------------------------------------------


def write(path: Path) -> list[str]:
    notebook, fresh = nbformat.read(path, as_version=4), run(path)
    for cell, outputs in zip(code_cells(notebook), fresh, strict=True):
        cell.outputs, cell.execution_count = nbformat.from_dict(outputs), None
    nbformat.write(notebook, path)
    chinese = CHINESE / path.relative_to(EXAMPLES)
    if chinese.exists():
        nbformat.write(in_chinese(notebook, nbformat.read(chinese, as_version=4)), chinese)
    return faults(path)


def check(path: Path) -> list[str]:
    return faults(path) + differences(nbformat.read(path, as_version=4), run(path))


def code(path: Path) -> list[str]:
    module = MODULES / path.relative_to(EXAMPLES).with_suffix(".py")
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text(as_module(nbformat.read(path, as_version=4)), encoding="utf-8")
    return []


def main(command: str, *names: str) -> int:
    failed = 0
    for path in [Path(name).resolve() for name in names] or notebooks():
        start = time.perf_counter()
        found = {"write": write, "check": check, "code": code}[command](path)
        failed |= bool(found)
        verdict = "FAILED" if found else "ok"
        print(f"{verdict:<7}{time.perf_counter() - start:5.0f} s", path.relative_to(EXAMPLES))
        print(*found, sep="\n", end="\n" * bool(found), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
