"""What a submodule that needs more than NumPy says where that is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(sentence: str, *modules: str) -> Iterator[None]:
    """Around the import of these modules: if one of them is missing, the error is this sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in modules:
            raise
        raise ImportError(sentence) from None
