"""The fuzzer of the door: its stored programs hold, and what it looks for it finds.

.ci/run fuzz has libFuzzer write programs, under AddressSanitizer; fuzz_door.py says how.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fuzz_door
import fuzz_layers
import numpy as np
import pytest
from fuzz_arguments import OTHER, SAME, Mine
from fuzz_door import DEEDS, STEPS, run
from fuzz_program import FUNCTIONS, LAYERS, NAMES, Broken, names_of, steps_of
from helpers import TESTS, settle

import attnext

PROGRAMS = sorted((TESTS / "fuzz" / "door").iterdir())


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """As fuzz_door.main has it, and back."""
    before = gc.get_threshold()
    settle()
    gc.disable()
    yield
    gc.set_threshold(*before)
    gc.enable()


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_stored_program_holds(path: Path) -> None:
    run(path.read_bytes())


def test_stored_programs_say_what_they_mean() -> None:
    """No word in them is one that a checksum has to explain."""
    words = {*SAME, *OTHER}
    private = "private", "late"  # what they name may be gone by now
    for path in PROGRAMS:
        for step in steps_of(path.read_bytes()):
            assert step.verb in STEPS, (path, step)
            assert step.verb != "late" or step.rest[0].partition(".")[0] in DEEDS, (path, step)
            if step.verb not in ("sizes", "copy", "layer", "set", *private):
                for name, changes in step.items():
                    assert name in {*NAMES, "mode"}, (path, step)
                    unknown = {word.partition("-")[0] for word in changes} - words
                    assert unknown <= {"acts", "is", "view"}, (path, step)


def test_every_text_is_a_program() -> None:
    draw = np.random.default_rng(0)
    for size in range(0, 200, 10):
        run(draw.integers(0, 256, size, dtype=np.uint8).tobytes())
        run(bytes(draw.choice(list(b" :,\n-.abcdefgh19"), size)))


def test_the_stored_dictionary_is_made_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Else: python tests/fuzz_door.py --words >tests/fuzz/door.dict"""
    fuzz_door.main(["", "--words"])
    assert capsys.readouterr().out == (TESTS / "fuzz" / "door.dict").read_text()


def test_every_function_and_layer_is_in_it() -> None:
    public = {name for name in attnext.__all__ if callable(getattr(attnext, name))}
    kinds = {kind.__name__ for kind in LAYERS.values()}
    made = {"AdditiveGradients", "MultiHeadGradients", "Memory"}  # by functions and layers
    assert set(FUNCTIONS) | kinds | made == public
    assert names_of(attnext.dot_product_attention)[1] == ["queries", "keys", "values"]


# ---- faults of each kind are found ---------------------------------------------------------------


def writes(X: Any, **more: Any) -> Any:
    X[:] = 0
    return attnext.masked_softmax(X, **more)


def raises(X: Any, **more: Any) -> Any:
    raise OverflowError


def accepts(X: Any, **more: Any) -> Any:
    return attnext.masked_softmax(np.asarray(X, np.float32))


def returns_its_own(X: Any, **more: Any) -> Any:
    return X


def is_off(X: Any, **more: Any) -> Any:
    return attnext.masked_softmax(X, **more) + np.float32(0.01)


def depends_on_threads(X: Any, **more: Any) -> Any:
    return attnext.masked_softmax(X, **more) * np.float32(1 + attnext.get_num_threads() * 2**-20)


def depends_on_its_reader(X: Any, **more: Any) -> Any:
    return attnext.masked_softmax(X, **more) * np.float32(1 + isinstance(X, np.ndarray) * 2**-20)


@pytest.mark.parametrize(
    ("fault", "program"),
    [
        (writes, "masked_softmax"),
        (raises, "masked_softmax"),
        (accepts, "masked_softmax mask:longer"),
        (returns_its_own, "masked_softmax"),
        (is_off, "masked_softmax X:columns"),
        (depends_on_threads, "masked_softmax"),
        (depends_on_its_reader, "masked_softmax X:swapped"),
    ],
    ids=lambda of: getattr(of, "__name__", ""),
)
def test_a_wrong_function_is_found(
    fault: Callable[..., Any], program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(program.encode())
    monkeypatch.setitem(FUNCTIONS, "masked_softmax", fault)
    monkeypatch.setattr(fuzz_door, "names_of", lambda f: (["X", "mask"], ["X"]))
    with pytest.raises(Broken):
        run(program.encode())


def test_a_layer_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    run(b"call queries:mine")
    monkeypatch.setattr(Mine, "owner", property(None, lambda self, layer: kept.append(layer)))
    with pytest.raises(Broken, match="does not go"):
        run(b"call queries:mine")


def test_rows_that_are_lost_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = b"append\nlate append.keys:list 9\nappend"
    run(program)
    monkeypatch.setattr(fuzz_layers, "rows_of", lambda keys: len(keys[0]) + 1)
    with pytest.raises(Broken, match="are lost"):
        run(program)
