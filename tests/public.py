"""What is public: modules, and by full name what they make public."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import attnext


def public_modules() -> list[str]:
    names = ["attnext"]
    for module in pkgutil.walk_packages(attnext.__path__, "attnext."):
        if not any(part.startswith("_") for part in module.name.split(".")) and (
            module.name != "attnext.torch.transformers" or find_spec("transformers") is not None
        ):  # where that is missing, its own tests fail
            names.append(module.name)
    return names


def public_objects(*modules: str) -> Iterator[str]:
    """Full names of all that these modules, or all, make public: of classes, methods and properties
    too."""
    for module_name in modules or public_modules():
        module = importlib.import_module(module_name)
        for name in getattr(module, "__all__", ()):
            yield f"{module_name}.{name}"
            value = getattr(module, name)
            if inspect.isclass(value) and not issubclass(value, tuple):
                for member in vars(value):  # some only say that they are not there
                    if not member.startswith("_") and hasattr(value, member):
                        yield f"{module_name}.{name}.{member}"


def resolve(name: str) -> Any:
    value: Any = attnext
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value
