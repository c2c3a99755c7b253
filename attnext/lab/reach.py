"""What a student's function can reach: itself, what it calls, and the objects that its code names.

Types are compared, never isinstance: a student's object may raise when asked for its __class__.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_LIBRARIES = ("torch", "numpy")  # their functions are not entered


def uses_torch(function: Callable[..., Any]) -> bool:
    """True if the function is PyTorch's, or reaches something of PyTorch's."""
    return any(_library(value) == "torch" for value in reached(function))


def modules(function: Callable[..., Any]) -> list[Any]:
    """Return the instances of torch.nn.Module that the function reaches."""
    if "torch" not in sys.modules:
        return []
    return [x for x in reached(function) if _is(x, sys.modules["torch"].nn.Module)]


def reached(function: Callable[..., Any]) -> Iterator[Any]:
    """Yield the function, then what its code names, each object once."""
    seen: dict[int, Any] = {}
    waiting: list[Any] = [function]
    while waiting:
        value = waiting.pop()
        if id(value) not in seen:
            seen[id(value)] = value
            yield value
            waiting += _next(value, value is function)


def _is(value: Any, *kinds: type) -> bool:
    return issubclass(type(value), kinds)


def _next(value: Any, first: bool) -> list[Any]:
    """Return what an object names; attributes count only for the first object and for self."""
    if _is(value, FunctionType):
        return [] if _library(value) else [*_named(value), *_attributes(value)]
    if _is(value, MethodType):
        return [value.__func__, value.__self__, *_attributes(value.__self__)]
    if _is(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if first and not _is(value, type):
        return [vars(cls)["__call__"] for cls in type(value).__mro__ if "__call__" in vars(cls)][
            :1
        ] + _attributes(value)
    return []


def _attributes(value: Any) -> list[Any]:
    """Return the values of the object's __dict__; __wrapped__ of a decorated function is there."""
    try:
        return list(object.__getattribute__(value, "__dict__").values())
    except AttributeError:
        return []


def _named(function: FunctionType) -> Iterator[Any]:
    """Yield the globals and the variables of outer functions that are named in the code."""
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the outer function has not defined it
            continue


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that the code reads, functions inside of it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _library(value: Any) -> str | None:
    """Return the library that a module, a class, a function or an object's class comes from."""
    if _is(value, ModuleType):
        homes = [vars(value).get("__name__")]
    elif _is(value, FunctionType, BuiltinFunctionType):
        homes = [value.__module__]
    else:
        cls = value if _is(value, type) else type(value)
        homes = [vars(base).get("__module__") for base in type.mro(cls)]
    roots = [str(home).split(".")[0] for home in homes]
    return next((name for name in _LIBRARIES if name in roots), None)
