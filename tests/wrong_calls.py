"""Tables of calls that are wrong: what each raises, and what that says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

Call: TypeAlias = Callable[[], Any]
Wrong: TypeAlias = tuple[Call, type[Exception], str]

# What attnext.torch says of dtypes, behind what came and what was expected.
HALF = ": convert tensors and modules with .float()"
BOTH = (
    "expected the same dtype for all inputs: convert tensors and modules with .float() or .double()"
)


def each(table: list[Wrong]) -> pytest.MarkDecorator:
    """A test for each of them, whose name is the message."""
    ids = [message for _, _, message in table]
    return pytest.mark.parametrize(("call", "error", "message"), table, ids=ids)


def raised_by(call: Call, error: type[Exception]) -> str:
    """What the error of this kind says."""
    with pytest.raises(error) as raised:
        call()
    return str(raised.value)
