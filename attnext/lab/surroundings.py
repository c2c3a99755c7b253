"""Keep what a student's code may change outside of itself: generators, options, modes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from attnext.lab.reach import modules


@contextmanager
def kept(function: Callable[..., Any]) -> Iterator[None]:
    """Put everything back at the end; in between, the function's modules are in eval mode."""
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state(legacy=False))  # noqa: NPY002
        stack.callback(np.seterrcall, np.geterrcall())
        stack.enter_context(np.errstate())
        stack.enter_context(np.printoptions())
        if "torch" in sys.modules:
            _keep_torch(stack, sys.modules["torch"])
        for module in modules(function):
            _evaluate(stack, module)
        stack.callback(setattr, sys, "stdin", sys.stdin)
        sys.stdin = _Unclosable(sys.stdin) if sys.stdin else None
        yield


def _keep_torch(stack: ExitStack, torch: Any) -> None:
    stack.callback(torch.set_rng_state, torch.get_rng_state())
    stack.callback(torch.set_grad_enabled, torch.is_grad_enabled())
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    # PyTorch sets these options in public, but reads them only here.
    options = getattr(torch._tensor_str, "get_printoptions", None)
    if options:
        stack.callback(torch.set_printoptions, **options())


def _evaluate(stack: ExitStack, module: Any) -> None:
    """Set eval mode, where dropout does nothing, until the end. No code of the module runs."""
    try:
        parts = list(module.modules())
    except AttributeError:  # super().__init__() is missing: the call will say so
        return
    for part in parts:
        stack.callback(setattr, part, "training", part.training)
        part.training = False


class _Unclosable:
    """sys.stdin without close(): exit() and quit() close it, which ends an interactive Python."""

    def __init__(self, stdin: Any) -> None:
        self._stdin = stdin

    def close(self) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdin, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stdin)
