"""What torch.jit.script is told: it cannot compile a call into C.

torch.jit.script calls `__prepare_scriptable__` of each module and function that it meets.
"""

from __future__ import annotations

from functools import partial
from inspect import isfunction
from typing import NoReturn


def refuse_script(name: str) -> NoReturn:
    """Raise the error of torch.jit.script for an object of this name."""
    raise RuntimeError(
        f"torch.jit.script cannot compile {name}, which computes in C: use torch.jit.trace, "
        "torch.compile or torch.export instead"
    )


def refuse_scripts_of(function: object, name: str) -> None:
    """Let torch.jit.script of a function raise that error; leave any other object alone."""
    if isfunction(function):
        vars(function)["__prepare_scriptable__"] = partial(refuse_script, name)
