"""What the layers do that need not be fast: methods that are put into the compiled types.

Their call and backward, `memory`, `parameters`, `zero_grad` and the attributes are in C; and so is
what the methods here use, which does not see what a subclass may have changed:

    _live()                     the parameters by name, checked
    _write(values)              copies values into all of them, or into none
    _read(value, name, shape)   as float32 in this shape
    _saved()                    all that a copy takes over, by name
    _shown()                    what repr() shows, by name

Nothing here is captured by a comprehension: where there is no memory for a cell of an argument,
CPython 3.11 loses the argument.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import numpy as np

from attnext import _layouts

# Of all parameters of all layers: the letters of their shapes, and their entries.
_LETTERS: dict[str, str] = {}
_OWN: _layouts.Layout = {}


def _is_packed(layer: Any, live: dict[str, Any]) -> bool:
    """In the layout of torch's class, which has to have such a layer."""
    width = live["W_q"].shape[1]
    _layouts.check_torch(layer, width)
    return bool(live["W_k"].shape[1] == live["W_v"].shape[1] == width)


def _there(layout: _layouts.Layout, live: dict[str, Any]) -> _layouts.Layout:
    """Those of the entries that the layer has."""
    there = {}
    for entry, names in layout.items():
        if names[0] in live:
            there[entry] = names
    return there


def _state(live: dict[str, Any], layout: _layouts.Layout) -> dict[str, Any]:
    state = {}
    for entry, (name, *others) in _there(layout, live).items():
        if others:
            state[entry] = np.concatenate([live[name], *map(live.__getitem__, others)])
        elif _LETTERS[name][0] == "1":  # w_v is a matrix there
            state[entry] = live[name].reshape(1, -1).copy()
        else:
            state[entry] = live[name].copy()
    return state


def _absent(names: Iterable[str], container: Container[str]) -> list[str]:
    absent = []
    for name in names:
        if name not in container:
            absent.append(name)
    return absent


def _parts(layer: Any, live: dict[str, Any], entry: str, given: Any) -> dict[str, Any]:
    """Copies of the parameters that an entry has: one may be given as the live array of another."""
    names = (_OWN | _layouts.OF_TORCH)[entry]
    first = live[names[0]]
    rows, *columns = (1, *first.shape) if _LETTERS[names[0]][0] == "1" else first.shape
    array = layer._read(given, f"state_dict['{entry}']", (rows * len(names), *columns))
    parts = {}
    for i, name in enumerate(names):
        parts[name] = array[i * rows : (i + 1) * rows].reshape(first.shape).copy()
    return parts


def state_dict(self: Any) -> dict[str, Any]:
    """Copies of the parameters, with the names and shapes of a PyTorch state dict.

    Returns
    -------
    state_dict : dict
        Of float32 arrays. AdditiveAttention: ``W_q.weight`` (H, Dq), ``W_k.weight`` (H,
        Dk), ``w_v.weight`` (1, H) and, with a bias, ``b_h`` (H,). DotProductAttention:
        empty.

    See Also
    --------
    load_state_dict : The way back.
    parameters : The live arrays.

    Notes
    -----
    ``module.load_state_dict({k: torch.from_numpy(v) for k, v in
    attn.state_dict().items()})`` gives them to the AdditiveAttention of *Dive into Deep
    Learning*.

    Examples
    --------
    >>> from attnext import AdditiveAttention, DotProductAttention
    >>> attn = AdditiveAttention(key_size=2, query_size=20, num_hiddens=8)
    >>> {name: array.shape for name, array in attn.state_dict().items()}
    {'W_q.weight': (8, 20), 'W_k.weight': (8, 2), 'w_v.weight': (1, 8)}
    >>> DotProductAttention().state_dict()
    {}
    """
    live = self._live()
    return _state(live, _OWN)


def state_dict_of_heads(self: Any, layout: str = "d2l") -> dict[str, Any]:
    """Copies of the parameters, with the names and shapes of a PyTorch state dict.

    Parameters
    ----------
    layout : {'d2l', 'torch'}, optional
        Whose: those of the MultiHeadAttention of *Dive into Deep Learning*, or those of
        torch.nn.MultiheadAttention.

    Returns
    -------
    state_dict : dict
        Of float32 arrays. 'd2l': ``W_q.weight``, ``W_k.weight``, ``W_v.weight``,
        ``W_o.weight`` and, with a bias, ``W_q.bias`` and so on. 'torch': ``in_proj_weight``
        (3 H, H), or ``q_proj_weight``, ``k_proj_weight`` and ``v_proj_weight`` if the
        sizes of queries, keys and values differ, ``out_proj.weight`` and, with a bias,
        ``in_proj_bias`` and ``out_proj.bias``.

    Raises
    ------
    ValueError
        torch's class has no such layer: heads share keys, or `query_size` is not
        `num_hiddens`.

    See Also
    --------
    load_state_dict : The way back, from either.
    parameters : The live arrays.

    Examples
    --------
    >>> from attnext import MultiHeadAttention
    >>> mha = MultiHeadAttention(8, 8, 8, num_hiddens=8, num_heads=2)
    >>> list(mha.state_dict())
    ['W_q.weight', 'W_k.weight', 'W_v.weight', 'W_o.weight']
    >>> {name: a.shape for name, a in mha.state_dict(layout="torch").items()}
    {'in_proj_weight': (24, 8), 'out_proj.weight': (8, 8)}
    """
    torch = _layouts.is_torch(layout)
    live = self._live()
    if torch:
        return _state(live, _layouts.of_torch(_is_packed(self, live)))
    return _state(live, _OWN)


def load_state_dict(self: Any, state_dict: Any, /) -> None:
    """Set the parameters from a state dict, of this package or of PyTorch.

    Parameters
    ----------
    state_dict : mapping
        Array_likes or torch tensors with exactly the names and shapes that `state_dict`
        gives; of a MultiHeadAttention, in either layout. They are converted to float32
        and copied into the live arrays.

    Raises
    ------
    KeyError
        Names are missing or unexpected. In this case and the others nothing is changed.
    TypeError
        `state_dict` is no mapping, or an entry is of the wrong dtype, or a tensor that
        requires grad (those in the state dict of a torch module do not).
    ValueError
        An entry has the wrong shape; or the names are those of
        torch.nn.MultiheadAttention, which has no such layer.

    See Also
    --------
    state_dict : The way out.

    Examples
    --------
    >>> import numpy as np
    >>> from attnext import AdditiveAttention
    >>> a = AdditiveAttention(key_size=2, query_size=20, num_hiddens=8, rng=0)
    >>> b = AdditiveAttention(key_size=2, query_size=20, num_hiddens=8, rng=1)
    >>> a.load_state_dict(b.state_dict())
    >>> np.array_equal(a.W_q, b.W_q)
    True
    """
    live = self._live()
    if not isinstance(state_dict, dict) and not hasattr(state_dict, "keys"):
        from attnext._options import type_name

        kind = type_name(state_dict)
        raise TypeError(f"state_dict must be a mapping of names to arrays, got {kind}")
    given = dict(state_dict)
    layout = _OWN
    if "W_o" in live and not _layouts.OF_TORCH.keys().isdisjoint(given):
        layout = _layouts.of_torch(_is_packed(self, live) and "q_proj_weight" not in given)
    layout = _there(layout, live)
    missing, unexpected = _absent(layout, given), _absent(given, layout)
    if missing or unexpected:
        names = f"missing {missing!r}, unexpected {unexpected!r}"
        raise KeyError(f"state_dict has the wrong names: {names}")
    values: dict[str, Any] = {}
    for entry in layout:
        values |= _parts(self, live, entry, given[entry])
    self._write(values)


def __reduce__(self: Any) -> tuple[Any, ...]:
    """What pickle and copy need to make another object like this one.

    What a constructor makes, and what Python's own ``__getstate__`` gives: the attributes of a
    subclass, which may define ``__getstate__`` and ``__setstate__`` for them as usual. What belongs
    to the last call, `context` and `attention_weights`, stays behind.
    """
    return type(self)._rebuild, (self._saved(),), self.__getstate__()


def __repr__(self: Any) -> str:
    return f"{type(self).__name__}({', '.join([f'{k}={v!r}' for k, v in self._shown().items()])})"


def fill(core: Any) -> None:
    """Put the methods into the types."""
    for *_, parameters in core.ATTENTIONS.values():
        _LETTERS.update((name, letters) for name, letters, *_ in parameters)
    _OWN.update(_layouts.of_d2l(_LETTERS))
    for kind in (core.AdditiveAttention, core.DotProductAttention, core.MultiHeadAttention):
        of_heads = "num_heads" in vars(kind)
        methods: list[Any] = [state_dict_of_heads if of_heads else state_dict]
        for method in [*methods, load_state_dict, __reduce__, __repr__]:
            method.__annotations__ = {}  # help() shows what it shows of those in C
            method.__name__ = method.__qualname__ = method.__name__.removesuffix("_of_heads")
            setattr(kind, method.__name__, method)
