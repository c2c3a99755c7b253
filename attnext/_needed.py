"""The error of a submodule whose optional dependency is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(sentence: str, *modules: str) -> Iterator[None]:
    """Replace the error of a failed import of these modules by an ImportError with this text."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in modules:
            raise
        raise ImportError(sentence) from None
