"""Nadaraya-Watson kernel regression: attention in its oldest and simplest form.

A prediction is a weighted average of the training targets. A training input near the query has a
large weight. In terms of attention, the training inputs are the keys and the targets are the
values. The names, calls and shapes are those of *Dive into Deep Learning* (d2l). The functions call
`attnext.gaussian_attention`, which also accepts inputs with more than one feature.

    kernels.py      the kernels as scores; average_pooling, nadaraya_watson
    bandwidth.py    leave_one_out, and the bandwidth with the smallest leave-one-out error
    learned.py      NWKernelRegression, which learns its bandwidth by gradient descent
    inputs.py       check the arguments

Sizes: n queries, N keys and values for each query.
"""

from attnext._hints import suggest_names as _suggest_names

from .bandwidth import BandwidthChoice, choose_bandwidth, leave_one_out, leave_one_out_error
from .kernels import average_pooling, nadaraya_watson
from .learned import NWKernelRegression

__all__ = [
    "BandwidthChoice",
    "NWKernelRegression",
    "average_pooling",
    "choose_bandwidth",
    "leave_one_out",
    "leave_one_out_error",
    "nadaraya_watson",
]

_suggest_names(__name__, __all__)


def __dir__() -> list[str]:
    """Return the public names, so that completion does not offer the modules of the package."""
    return __all__
