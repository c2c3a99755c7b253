"""The options that all attentions share, as the caller gave them.

The table in attnext/_options.py lists the options and their help() texts. If this folder is used
without attnext, there is no table, and unknown option names are not rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import ArrayLike

from .arguments import Array

try:
    from .. import _options
    from .._docs.wrapped import Voice
except ImportError:  # the folder is used without attnext
    _IN_ATTNEXT = False
else:
    _IN_ATTNEXT = True

if TYPE_CHECKING:

    class Extras(_options.Extras, total=False):
        """The extra results of a forward function, and the array for its output."""

        out: Array | None

    class ForwardOptions(_options.Shared, Extras, total=False):
        """The options of a forward function, without those of its score."""

    class DotProductAttention(_options.DotProductForward, Extras, total=False): ...

    class CosineAttention(_options.CosineForward, Extras, total=False): ...

    class GaussianAttention(_options.GaussianForward, Extras, total=False): ...

    class AdditiveAttention(_options.AdditiveForward, Extras, total=False): ...

    class MultiHeadAttention(_options.MultiHeadForward, Extras, total=False): ...


F = TypeVar("F", bound=Callable[..., Any])


class Options:
    """The options of a call, by name; an option that was not given is None."""

    def __init__(self, valid_lens: ArrayLike | None = None, **given: Any) -> None:
        self.valid_lens = valid_lens
        vars(self).update(given)

    def __getattr__(self, name: str) -> Any:
        return None

    def get(self, name: str, default: Any) -> Any:
        """Return the option of this name, or the default if it was not given."""
        return vars(self).get(name, default)


class Kind:
    """The options that a function takes: those of these classes of `_options`, and `out`."""

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
        """Complete the function's signature and docstring, and return the function.

        help() then shows each option, and the sections of the fast function's docstring.
        """
        spelled: F = self._taken.spelled_out(function) if self._taken else function
        return spelled

    def read(
        self, function: str, valid_lens: ArrayLike | None, given: Mapping[str, Any]
    ) -> Options:
        """Check the option names of a call and return its options."""
        if self._taken:
            self._taken.check(function, given)
        return Options(valid_lens, **given)


if _IN_ATTNEXT:
    _VOICE = Voice(
        see="The fast function, in float32.",
        results=(("ndarray, float32", "ndarray of float64"), ("float32", "float64")),
    )
    _AGAIN = "The result of the forward pass. Only its shape is checked; it is computed again."
    _OTHERWISE = {  # options whose help() text differs from that of the fast functions
        "out": "Array for the result: float64, C-contiguous, writable, of the shape of the\n"
        "result, and without memory shared with an input.",
        **dict.fromkeys(("weights", "output", "lse"), _AGAIN),
    }

OTHER = Kind()  # for functions whose signature lists all options
FORWARD = Kind("Shared", "Extras", out=True)
BACKWARD = Kind("Backward", "Scaled")
HEADS_FORWARD = Kind("HeadsShared", "Extras", out=True)
HEADS_BACKWARD = Kind("HeadsShared", "Saved", "Chain", "Scaled")
SCORES = Kind("Scores")
SCORES_BACKWARD = Kind("Scores", "Scaled")
