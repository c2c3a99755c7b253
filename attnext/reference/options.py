"""The options that all attentions share, as the caller gave them.

Which there are, and what help() says of them, attnext's own table says. This folder on its own does
without: then nobody refuses a name that no function knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import ArrayLike

from .arguments import Array

try:
    from .. import _options
    from .._docs.wrapped import Voice
except ImportError:  # this folder on its own
    _IN_ATTNEXT = False
else:
    _IN_ATTNEXT = True

if TYPE_CHECKING:

    class Extras(_options.Extras, total=False):
        """What a forward returns beside the output, and where it puts that."""

        out: Array | None

    class ForwardOptions(_options.Shared, Extras, total=False):
        """The options of a forward, but for those that are its score's own."""

    class DotProductAttention(_options.DotProductForward, Extras, total=False): ...

    class CosineAttention(_options.CosineForward, Extras, total=False): ...

    class GaussianAttention(_options.GaussianForward, Extras, total=False): ...

    class AdditiveAttention(_options.AdditiveForward, Extras, total=False): ...

    class MultiHeadAttention(_options.MultiHeadForward, Extras, total=False): ...


F = TypeVar("F", bound=Callable[..., Any])


class Options:
    """What a function was called with, by name; None for what it was not given."""

    def __init__(self, valid_lens: ArrayLike | None = None, **given: Any) -> None:
        self.valid_lens = valid_lens
        vars(self).update(given)

    def __getattr__(self, name: str) -> Any:
        return None

    def get(self, name: str, default: Any) -> Any:
        """What was given under this name, or else what it is without."""
        return vars(self).get(name, default)


class Kind:
    """Which options a function takes: those of these classes of `_options`, and `out`."""

    def __init__(self, *classes: str, out: bool = False) -> None:
        self._taken: Any = None
        if _IN_ATTNEXT:
            types = {"out": "Array | None"} if out else {}
            for name in classes:
                types |= getattr(_options, name).__annotations__
            table = _options.OPTIONS
            own = {name: table[name]._replace(doc=doc) for name, doc in _OTHERWISE.items()}
            self._taken = _options.Taken(types, _VOICE, own)

    def spelled_out(self, function: F) -> F:
        """The function itself; help() shows each option, and all that is said of its twin."""
        spelled: F = self._taken.spelled_out(function) if self._taken else function
        return spelled

    def read(
        self, function: str, valid_lens: ArrayLike | None, given: Mapping[str, Any]
    ) -> Options:
        """What the function of this name was called with."""
        if self._taken:
            self._taken.check(function, given)
        return Options(valid_lens, **given)


if _IN_ATTNEXT:
    _VOICE = Voice(
        see="The same in float32, fast.",
        results=(("ndarray, float32", "ndarray of float64"), ("float32", "float64")),
    )
    _AGAIN = "What the forward returned. Only its shape is looked at: it is computed again."
    _OTHERWISE = {  # than in the fast functions
        "out": "Where to put the result: float64, C-contiguous, writable, of its shape, and\n"
        "sharing no memory with an input.",
        **dict.fromkeys(("weights", "output", "lse"), _AGAIN),
    }

OTHER = Kind()  # of functions that write their options out
FORWARD = Kind("Shared", "Extras", out=True)
BACKWARD = Kind("Backward", "Scaled")
HEADS_FORWARD = Kind("HeadsShared", "Extras", out=True)
HEADS_BACKWARD = Kind("HeadsShared", "Saved", "Chain", "Scaled")
SCORES = Kind("Scores")
SCORES_BACKWARD = Kind("Scores", "Scaled")
