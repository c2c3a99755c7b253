"""Signatures: everything public shows one, and in C it is that of the stub, attnext/_core*.pyi.

stubtest compares them too, but for overloads that take Unpack[...], of which it sees too little
(.ci/stubtest-allowlist.txt).
"""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Callable
from inspect import Parameter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from public import public_objects, resolve

import attnext
import attnext.torch
from attnext import _core, _options

# As torch.nn.Module.state_dict has it, whose callers of old gave everything by position.
WITH_REST = {
    "attnext.torch.MultiHeadAttention.state_dict": ["args"],
    "attnext.view.show": ["args", "arguments"],  # those of whatever is shown
}


def public_callables() -> list[str]:
    """Those of them that can be called; of a class, what calls its objects too."""
    objects = {name: resolve(name) for name in public_objects()}
    calls = [n for n, x in objects.items() if inspect.isclass(x) and "__call__" in vars(x)]
    return [*(n for n, x in objects.items() if callable(x)), *(f"{n}.__call__" for n in calls)]


def test_everything_public_has_a_signature() -> None:
    """Which says what is taken, argument by argument."""
    for name in public_callables():
        parameters = inspect.signature(resolve(name)).parameters.values()
        rest = [p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        assert rest == WITH_REST.get(name, []), name


@pytest.mark.parametrize(
    "make",
    [
        lambda: attnext.AdditiveAttention(2, 3, 4),
        lambda: attnext.DotProductAttention(),
        lambda: attnext.MultiHeadAttention(2, 2, 2, 4, 2),
        lambda: attnext.DotProductAttention().memory(np.ones((3, 2)), np.ones((3, 2))),
        lambda: attnext.torch.MultiHeadAttention(2, 2, 2, 4, 2),
    ],
)
def test_methods_of_an_object_show_what_is_left_to_give(make: Callable[[], Any]) -> None:
    """All but `self`; and the object itself what its call takes."""
    made = make()
    methods = {n: x for n, x in vars(type(made)).items() if n[0] != "_" and callable(x)}
    for name, method in methods.items():
        _, *others = inspect.signature(method).parameters.values()
        assert [*inspect.signature(getattr(made, name)).parameters.values()] == others
    if callable(made):
        assert inspect.signature(made) == inspect.signature(made.__call__)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (attnext.AdditiveAttention, (2, 3, 4, 0.5)),
        (attnext.DotProductAttention, (0.5,)),
        (attnext.MultiHeadAttention, (2, 3, 4, 8, 2, 0.5)),
    ],
)
def test_a_constructor_takes_what_it_shows(kind: type, given: tuple[Any, ...]) -> None:
    """These alone read their arguments by a list of their own."""
    parameters = inspect.signature(kind).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    by_name = kind(**dict(zip(positional, given, strict=True)), **keywords)
    assert repr(by_name) == repr(kind(*given))
    with pytest.raises(TypeError, match=f"takes at most {len(given)} positional"):
        kind(*given, *keywords.values())
    required = [p.name for p in parameters if p.default is p.empty]
    assert kind(*given[: len(required)]).dropout == 0.0


# ---- the stub ------------------------------------------------------------------------------------

FILES = sorted(Path(attnext.__file__).parent.glob("_core*.pyi"))
STUB = [node for file in FILES for node in ast.parse(file.read_text(encoding="utf-8")).body]
CLASSES = {node.name: node for node in STUB if isinstance(node, ast.ClassDef)}


def in_c() -> dict[str, Any]:
    """By name: every function, every class, which stands for its constructor, every method."""
    found = {}
    for name, value in vars(_core).items():
        if callable(value) and not name.startswith("_"):
            found[name] = value
            for member in vars(value) if inspect.isclass(value) else ():
                method = getattr(value, member, None)  # some only say that they are not there
                if callable(method) and (member[0] != "_" or member == "__call__"):
                    found[f"{name}.{member}"] = method
    return found


IN_C = in_c()


def defined(body: list[ast.stmt], name: str) -> list[ast.FunctionDef]:
    return [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]


def inherited(kind: ast.ClassDef, name: str) -> list[ast.FunctionDef]:
    """Those of the class or of the first base that has one."""
    bases = [CLASSES[ast.unparse(base)] for base in kind.bases if ast.unparse(base) in CLASSES]
    return defined(kind.body, name) or [node for base in bases for node in inherited(base, name)]


def options_of(name: str) -> set[str]:
    """The keys of a TypedDict of the stub, or of attnext/_options.py where the stub has it from."""
    if name in CLASSES:
        lines = [line for line in CLASSES[name].body if isinstance(line, ast.AnnAssign)]
        own = {ast.unparse(line.target) for line in lines}
        return own.union(*(options_of(ast.unparse(base)) for base in CLASSES[name].bases))
    return set(typing.get_type_hints(getattr(_options, name))) if name != "TypedDict" else set()


def parameter(arg: ast.arg, default: ast.expr | None, kind: Any) -> Parameter:
    value = Parameter.empty if default is None else ast.literal_eval(default)
    return Parameter(arg.arg, kind, default=value)


def parameters_of(node: ast.FunctionDef) -> list[Parameter]:
    """As the signature has them; the options of Unpack[...] with their defaults by the table."""
    args = node.args
    by_position = [(arg, Parameter.POSITIONAL_ONLY) for arg in args.posonlyargs]
    by_position += [(arg, Parameter.POSITIONAL_OR_KEYWORD) for arg in args.args]
    required = [None] * (len(by_position) - len(args.defaults))
    defaults = [*required, *args.defaults]
    made = [parameter(arg, x, kind) for (arg, kind), x in zip(by_position, defaults, strict=True)]
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        made.append(parameter(arg, default, Parameter.KEYWORD_ONLY))
    if args.kwarg is not None:
        assert isinstance(args.kwarg.annotation, ast.Subscript)
        for name in options_of(ast.unparse(args.kwarg.annotation.slice)):
            own = _options.own_options(node.name)
            default = own[name][0] if name in own else _options.OPTIONS[name].default
            made.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default))
    return made


def in_the_stub(name: str) -> list[list[Parameter]]:
    """The parameters of each overload; those of methods and constructors without `self`."""
    home, _, member = name.rpartition(".")
    if home:
        return [parameters_of(node)[1:] for node in inherited(CLASSES[home], member)]
    if name not in CLASSES:
        return [parameters_of(node) for node in defined(STUB, name)]
    if "NamedTuple" in map(ast.unparse, CLASSES[name].bases):
        fields = [line for line in CLASSES[name].body if isinstance(line, ast.AnnAssign)]
        kind = Parameter.POSITIONAL_OR_KEYWORD
        return [[Parameter(ast.unparse(line.target), kind) for line in fields]]
    return [parameters_of(node)[1:] for node in inherited(CLASSES[name], "__init__")] or [[]]


def told(parameters: list[Parameter]) -> tuple[list[str], set[str]]:
    """Those by position, in order, and the others; with kinds, and defaults but for types."""
    keyword = Parameter.KEYWORD_ONLY
    text = {p.name: f"{p.kind.name} {p.name} = {p.default!r}" for p in parameters}
    by_position = [text[p.name] for p in parameters if p.kind is not keyword]
    return by_position, {text[p.name] for p in parameters if p.kind is keyword}


@pytest.mark.parametrize("name", IN_C)
def test_the_stub_has_every_argument_and_its_default(name: str) -> None:
    """In each overload; one that asks for a result names the flag without a default."""
    shown = [*inspect.signature(IN_C[name]).parameters.values()]
    if "." in name:
        del shown[0]  # self
    overloads = in_the_stub(name)
    assert overloads
    for parameters in overloads:
        asked_for = {p.name for p in parameters if p.default is p.empty} if overloads[1:] else set()
        expected = [p.replace(default=p.empty) if p.name in asked_for else p for p in shown]
        assert told(parameters) == told(expected)
    for p in shown:  # what is required in all overloads is
        if all(p.name in {q.name for q in each if q.default is q.empty} for each in overloads):
            assert p.default is p.empty


def test_the_stub_has_every_function_and_class() -> None:
    functions = {node.name for node in STUB if isinstance(node, ast.FunctionDef)}
    classes = {name for name in CLASSES if not name.startswith("_")}
    assert functions | classes == {name for name in IN_C if "." not in name}
