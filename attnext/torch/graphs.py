"""What torch.compile is to leave alone, said without importing it.

torch.compiler.disable and assume_constant_result import torch._dynamo, which costs a program over a
second, though most compile nothing. What they leave are marks, and so do these: on a function, read
where its call would become part of a graph, and on its code, read where a frame would be compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import CodeType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def _leave(code: CodeType, and_its_calls: bool) -> None:
    """Has the frames of this code run as they are; and those of what it calls."""
    with suppress(ImportError):  # private: where a later torch lacks it, it compiles more
        from torch._C._dynamo import eval_frame

        skip, default = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        strategy = eval_frame._FrameExecStrategy(skip, skip if and_its_calls else default)
        eval_frame.set_code_exec_strategy(code, strategy)


def uncompiled(function: Function) -> Function:
    """Not compiled itself, where a graph has ended before it; what it calls may be."""
    _leave(function.__code__, False)
    return function


def breaks_graphs(function: Function) -> Function:
    """A graph ends at its call: it and all that it calls run as they are. As disable."""
    marked: Any = function
    marked._torchdynamo_disable = True
    _leave(function.__code__, True)
    return function


def constant(function: Function) -> Function:
    """Called while a graph is made, which has the result. As assume_constant_result."""
    marked: Any = function
    marked._dynamo_marked_constant = True
    return function
