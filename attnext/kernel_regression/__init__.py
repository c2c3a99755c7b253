"""Nadaraya-Watson kernel regression: attention in its oldest and simplest form.

A prediction is an average of the training targets, weighted by how near each training input lies
to the query: the training inputs are the keys, the targets are the values. The names, calls and
shapes are those of *Dive into Deep Learning* (d2l). All the computing is done by
`attnext.gaussian_attention` and its backward, which also take inputs of more than one feature.

    kernels.py      the kernels as scores; average_pooling, nadaraya_watson
    bandwidth.py    leave_one_out, and the bandwidth with the smallest leave-one-out error
    learned.py      NWKernelRegression, whose bandwidth is learned by gradient descent
    inputs.py       the checking of arguments, used by all the others

Letters: n queries, N keys = values of each.
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
    """What completion offers: not the files that this is made of."""
    return __all__
