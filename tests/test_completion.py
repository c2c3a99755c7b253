"""What Tab offers behind a module: the public names, and not what the module is made of."""

from __future__ import annotations

from importlib import import_module

import pytest

MODULES = ("dask", "explain", "kernel_regression", "lab", "plot", "reference", "testing", "torch")


@pytest.mark.parametrize("name", MODULES)
def test_completion_offers_the_public_names(name: str) -> None:
    module = import_module(f"attnext.{name}")
    offered = [word for word in dir(module) if not word.startswith("__")]
    assert offered == sorted(module.__all__)
    assert all(hasattr(module, word) for word in offered)
