"""The door to pages, csrc/web: its two halves agree on what crosses over. That the numbers are
those of Python is shown by the step wasm of .ci/run, which has a compiler and an engine for it.
"""

import inspect
import re

import pytest
from helpers import REPOSITORY

import attnext

WEB = REPOSITORY / "csrc" / "web"
HEADER = re.sub(r"/\*.*?\*/", "", (WEB / "web.h").read_text("utf-8"), flags=re.DOTALL)
SCRIPT = (WEB / "attnext.js").read_text("utf-8")
CORE = (REPOSITORY / "csrc" / "core" / "attn.h").read_text("utf-8")


def declared() -> list[tuple[str, str]]:
    """Each field of web_call: its type, and its name."""
    (body,) = re.findall(r"typedef struct \{(.*?)\} web_call;", HEADER, re.DOTALL)
    found = []
    for declaration in filter(None, (text.strip() for text in body.split(";"))):
        match = re.fullmatch(r"(?:const )?(\w+) (.*)", declaration, re.DOTALL)
        assert match
        for name in re.split(r",\s*", match[2]):
            kind = f"{match[1]} *" if name.startswith("*") else match[1]
            count = 4 if "[WEB_PARAMETERS]" in name else None
            stem = name.strip("*").partition("[")[0]
            found += (
                [(kind, stem)] if count is None else [(kind, f"{stem}{i}") for i in range(count)]
            )
    return found


def words(pattern: str) -> list[str]:
    """The strings of a list in attnext.js."""
    (block,) = re.findall(pattern, SCRIPT, re.DOTALL)
    return re.findall(r'"(\w+)"', block)


def test_both_halves_have_the_fields_in_one_order() -> None:
    assert "enum { WEB_PARAMETERS = 4 };" in HEADER
    assert words(r"FIELDS = \[(.*?)\]") == [name for _, name in declared()]


def test_every_field_has_four_bytes_there() -> None:
    assert {kind for kind, _ in declared() if not kind.endswith("*")} == {
        *("int32_t", "uint32_t", "float")
    }


def test_which_fields_are_floats() -> None:
    assert words(r"FLOATS = new Set\((.*?)\)") == [
        name for kind, name in declared() if kind == "float"
    ]


@pytest.mark.parametrize(
    ("names", "pattern"),
    [("SCORES", r"X\((\w+)\) +/\*"), ("EMPTY_ROWS", r"^ +ATTN_EMPTY_(\w+),")],
)
def test_lists_have_the_order_of_the_core(names: str, pattern: str) -> None:
    of_core = [name.lower() for name in re.findall(pattern, CORE, re.MULTILINE)]
    assert len(of_core) >= 3
    of_page = words(rf"{names} = \[(.*?)\]")
    assert [name.removesuffix("_product") for name in of_page] == of_core


# ---- the table of arguments ----------------------------------------------------------------------

# Python's arguments that the page's functions do not have.
NOT_THERE = {
    *("bias", "sink", "enable_gqa", "dropout_mask", "return_weights", "return_lse", "out"),
}


def block(pattern: str) -> str:
    (found,) = re.findall(pattern, SCRIPT, re.DOTALL | re.MULTILINE)
    return str(found)


def options_of(function: str) -> set[str]:
    """The options of a function in the table of attnext.js."""
    shared = {*re.findall(r'"(\w+)"', block(r"^const SHARED = \[(.*?)\];"))}
    entry = re.search(rf"^  {function}: \{{.*?options: (\[.*?\]|SHARED)", SCRIPT, re.S | re.M)
    assert entry
    return {*re.findall(r'"(\w+)"', entry[1])} | (shared if "SHARED" in entry[1] else set())


@pytest.mark.parametrize("function", ["dot_product", "cosine", "additive", "gaussian"])
def test_options_are_those_of_python(function: str) -> None:
    parameters = inspect.signature(getattr(attnext, f"{function}_attention")).parameters
    inputs = {"queries", "keys", "values", "W_q", "W_k", "w_v"}
    assert options_of(function) == {*parameters} - inputs - NOT_THERE


def test_every_option_has_one_check() -> None:
    checked = re.findall(r"^  (\w+): \{ expected:", block(r"^const OPTIONS = \{\n(.*?)^\};"), re.M)
    functions = ("dot_product", "cosine", "additive", "gaussian", "masked_softmax")
    assert sorted(checked) == sorted(set().union(*map(options_of, functions)))


@pytest.mark.skipif(not (REPOSITORY / ".ci").exists(), reason="an sdist has no CI")
def test_odd_arguments_are_tried_in_a_page() -> None:
    """By .ci/web_hostile.mjs, which has every option and every function of the table."""
    hostile = (REPOSITORY / ".ci" / "web_hostile.mjs").read_text("utf-8")
    assert "web_hostile.mjs" in (REPOSITORY / ".ci" / "steps" / "wasm").read_text("utf-8")
    tried = {
        *re.findall(r'"(\w+)"', re.findall(r"^const OPTIONS = \[(.*?)\];", hostile, re.S | re.M)[0])
    }
    assert tried - {"misspelt"} == {*re.findall(r"^  (\w+): \{ expected:", SCRIPT, re.M)}
    for function in re.findall(r"^  (\w+)\((?:queries|X), ", SCRIPT, re.M):
        assert re.search(rf"^  {function}: ", hostile, re.M), function
