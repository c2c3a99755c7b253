"""The door to pages, csrc/web: its two halves agree on what crosses over. That the numbers are
those of Python is shown by the step wasm of .ci/run, which has a compiler and an engine for it.
"""

import re

import pytest
from helpers import REPOSITORY

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
