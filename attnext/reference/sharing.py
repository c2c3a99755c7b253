"""Arrays that several pairs share. The gradient of a shared number is the sum over its uses."""

from __future__ import annotations

import numpy as np

from .arguments import Array


def share_heads(x: Array, lead: tuple[int, ...]) -> Array:
    """Repeat the heads of keys or values, so that x has the leading axes of the queries.

    If there are fewer key heads than query heads, query head i uses key head i // group.
    """
    if x.shape[:-2] == lead:
        return x
    return np.repeat(x, lead[-1] // x.shape[-3], axis=-3)


def share_heads_backward(d_shared: Array, shape: tuple[int, ...]) -> Array:
    """Return the gradient of the x of `share_heads`, whose shape is given."""
    # forward was: shared[..., i, :, :] = x[..., i // group, :, :]
    if d_shared.shape == shape:
        return d_shared
    groups = d_shared.reshape(*shape[:-2], d_shared.shape[-3] // shape[-3], *shape[-2:])
    d_x: Array = np.sum(groups, axis=-3)
    return d_x


def broadcast_backward(d_broadcast: Array, shape: tuple[int, ...]) -> Array:
    """Return the gradient of an array of this shape that was broadcast."""
    # forward was: broadcast = np.broadcast_to(x, ...), which adds axes in front of those of x
    d_x = np.sum(d_broadcast, axis=tuple(range(d_broadcast.ndim - len(shape))))
    # and repeats x along its axes of size 1
    ones = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return np.asarray(np.sum(d_x, axis=ones, keepdims=True))
