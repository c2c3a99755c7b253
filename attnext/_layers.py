"""Methods of the layers that need not be fast. They are added to the compiled types.

The call, the backward pass, `memory`, `zero_grad` and the attributes are written in C. So are the
members that the functions here use, which a subclass cannot override:

    _install(...)               sets everything that a constructor or a copy has read
    _live                       the dict of the parameters by name, not a copy
    _rng                        the generator of the seeds
    _write(values)              copies all values into the parameters, or none if one is invalid;
                                None: only checks the parameters
    _read(value, name, shape)   returns the value as float32 of this shape
    _training                   True if dropout is active

No comprehension here uses a variable of its function: without memory for the cell, CPython 3.11
loses a reference to the argument.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import cache
from typing import Any, NoReturn

import numpy as np

from attnext import _core, _layouts

Array = np.ndarray[Any, Any]

# `fill` fills these tables once, when attnext._core is loaded, so importlib.reload keeps them.
_OWN: _layouts.Layout = globals().get("_OWN", {})  # of all parameters of all layers
_VECTORS: set[str] = globals().get("_VECTORS", set())  # matrices of one row in a state dict
_OPTIONAL: set[str] = globals().get("_OPTIONAL", set())  # those of a layer with bias alone

# ---- attributes --------------------------------------------------------------------------------


class Absent:
    """A missing attribute that other libraries have; the error says what to use instead."""

    def __init__(self, name: str, here: str) -> None:
        self._name, self._here = name, here

    def __get__(self, instance: object, owner: type) -> NoReturn:
        missing = f"'{owner.__name__}' object has no attribute '{self._name}'"
        raise AttributeError(f"{missing}: {self._here}")


_forward = Absent("forward", "call the layer itself, layer(queries, keys, values)")


def __dir__(self: Any) -> list[str]:
    return [name for name in object.__dir__(self) if name != "forward"]


def _own(self: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return compiled attributes by name, even if a subclass overrides them."""
    compiled, found = vars(_kind(type(self))), {}
    for name in names:
        if name == "_bias":
            try:
                live = compiled["_live"].__get__(self)
            except RuntimeError:  # __init__ has not been called
                live = {}
            found["bias"] = not _OPTIONAL.isdisjoint(live)
        elif name in compiled:
            found[name.lstrip("_")] = compiled[name].__get__(self)
    return found


# ---- training ----------------------------------------------------------------------------------


def train(self: Any, mode: Any = True) -> Any:
    if type(mode) is not bool:
        from attnext import _reading  # not at import: it is seldom needed

        mode = _reading.flag("mode", mode)
    self._training = mode
    return self


def eval(self: Any) -> Any:
    self._training = False
    return self


def parameters(self: Any) -> Any:
    return self._live.copy()


def _checked(layer: Any) -> dict[str, Array]:
    """Return the parameters after a check, because users can change the arrays in place."""
    layer._write(None)
    live: dict[str, Array] = layer._live
    return live.copy()


def _set(self: Any, name: str, *value: Any) -> None:
    """Set the values of a parameter, or refuse to delete it."""
    if not value:
        raise AttributeError(f"{name} cannot be deleted")
    if name not in self._live:
        raise AttributeError(f"{name} cannot be set: the layer was created with bias=False")
    self._write({name: value[0]})


# ---- copies ------------------------------------------------------------------------------------


def _gradient(entry: Any, name: str, shape: tuple[int, ...]) -> Array:
    """Return an entry of `grads` as a new array; None means zeros, as in torch."""
    if entry is None:
        return np.zeros(shape, np.float32)
    found: Array = _core.AdditiveAttention._read(entry, f"grads[{name!r}]", shape)
    return found.copy()


def _accumulator(grads: dict[str, Any], name: str, shape: tuple[int, ...], afresh: int) -> Array:
    """Replace an entry of `grads` to which C cannot add by a new array."""
    grads[name] = fresh = _gradient(None if afresh else grads.get(name), name, shape)
    return fresh


_SIZES = ("key_size", "query_size", "value_size", "num_hiddens", "num_heads", "num_kv_heads")


def __reduce__(self: Any) -> tuple[Any, ...]:
    """Return what pickle and copy need to create an equal object.

    That is everything a constructor sets, and the result of ``__getstate__``: the attributes of a
    subclass, which may define ``__getstate__`` and ``__setstate__`` as usual. The results of the
    last call, `context` and `attention_weights`, are not included.
    """
    parameters = _checked(self)
    saved: dict[str, Any] = dict.fromkeys(("key_size", "query_size", "num_hiddens"), 0)
    saved["scale"] = None
    saved |= _own(self, (*_SIZES, "dropout", "scale", "_bias", "training", "_rng", "grads"))
    grads = {}
    for name, live in parameters.items():
        grads[name] = _gradient(saved["grads"].get(name), name, live.shape)
    saved |= {"parameters": parameters, "grads": grads}
    return type(self)._rebuild, (saved,), self.__getstate__()


def _restored(
    score: str,
    *,
    key_size: Any,
    query_size: Any,
    num_hiddens: Any,
    bias: Any,
    dropout: Any,
    scale: Any,
    training: Any,
    rng: Any,
    parameters: Any,
    grads: Any,
    value_size: Any = 0,
    num_heads: Any = 0,
    num_kv_heads: Any = 0,
) -> tuple[Any, ...]:
    from attnext import _constructors, _wrong  # not at import: they are seldom needed

    options = _constructors.options(dropout, scale)
    if _constructors.generator("rng", rng) is not rng:  # another object: not what __reduce__ saved
        raise _wrong.kind("rng", rng, "a numpy.random.Generator")
    sizes, taken, summed = _constructors.no_sizes(), {}, {}
    if score != "dot_product":
        sizes = _constructors.sizes(key_size, query_size, num_hiddens)
    if score == "multi_head":
        _constructors.add_heads(sizes, value_size, num_heads, num_kv_heads)
    for name, shape, _ in _constructors.shapes(score, sizes, bool(bias)):
        taken[name] = _core.AdditiveAttention._read(parameters[name], name, shape).copy()
        summed[name] = _core.AdditiveAttention._read(grads[name], f"grads[{name!r}]", shape).copy()
    return tuple(sizes.values()), *options, bool(training), rng, taken, summed


def _rebuild(cls: Any, saved: Any, /) -> Any:
    """Create a layer from what __reduce__ saved."""
    if not isinstance(saved, dict):
        from attnext import _wrong

        raise _wrong.kind("saved", saved, "a dict")
    kind = _kind(cls)
    layer = kind.__new__(cls)
    layer._install(*_restored(_SCORES[kind], **saved))
    return layer


# ---- repr --------------------------------------------------------------------------------------

_SHOWN = {
    "additive": ("key_size", "query_size", "num_hiddens", "dropout", "_bias"),
    "dot_product": ("dropout", "scale"),
    "multi_head": ("key_size", "query_size", "value_size", "num_hiddens", "num_heads", "dropout")
    + ("_bias", "num_kv_heads"),
}


def __repr__(self: Any) -> str:
    facts, shown = _own(self, _SHOWN[_SCORES[_kind(type(self))]]), []
    for name, value in facts.items():
        usual = name == "scale" and value is None
        usual |= name == "num_kv_heads" and value == facts["num_heads"]
        if not usual:
            shown.append(f"{name}={value!r}")
    return f"{type(self).__name__}({', '.join(shown)})"


# ---- state dicts -------------------------------------------------------------------------------

# For each entry: its parameters, and True if the entry has an additional leading axis of size 1.
_Entries = dict[str, tuple[tuple[str, ...], bool]]


@cache
def _entries(parameters: tuple[str, ...], torch: bool, packed: bool) -> _Entries:
    """Return the entries for these parameters, in torch's or d2l's layout."""
    entries = {}
    for entry, names in (_layouts.of_torch(packed) if torch else _OWN).items():
        if names[0] in parameters:
            entries[entry] = names, names[0] in _VECTORS
    return entries


def _is_packed(layer: Any, live: dict[str, Any]) -> bool:
    """True if torch's layout joins W_q, W_k and W_v. Refuse sizes that torch's class lacks."""
    width = live["W_q"].shape[1]
    _layouts.check_torch(layer, width)
    return bool(live["W_k"].shape[1] == live["W_v"].shape[1] == width)


def _state(live: dict[str, Any], entries: _Entries) -> dict[str, Any]:
    state = {}
    for entry, (names, is_matrix) in entries.items():
        if len(names) > 1:
            state[entry] = np.concatenate([*map(live.__getitem__, names)])
        elif is_matrix:
            state[entry] = live[names[0]].reshape(1, -1).copy()
        else:
            state[entry] = live[names[0]].copy()
    return state


def _absent(names: Iterable[str], container: Container[str]) -> list[str]:
    absent = []
    for name in names:
        if name not in container:
            absent.append(name)
    return absent


def state_dict(self: Any) -> dict[str, Any]:
    live = _checked(self)
    return _state(live, _entries(tuple(live), False, False))


def state_dict_of_heads(self: Any, layout: str = "d2l") -> dict[str, Any]:
    torch = _layouts.is_torch(layout)
    live = _checked(self)
    return _state(live, _entries(tuple(live), torch, torch and _is_packed(self, live)))


def load_state_dict(self: Any, state_dict: Any, /) -> None:
    live = _checked(self)
    if not isinstance(state_dict, dict) and not hasattr(state_dict, "keys"):
        from attnext import _wrong

        raise _wrong.kind("state_dict", state_dict, "a mapping of names to arrays")
    given = dict(state_dict)
    torch = "W_o" in live and not _layouts.OF_TORCH.keys().isdisjoint(given)
    packed = torch and _is_packed(self, live) and "q_proj_weight" not in given
    entries = _entries(tuple(live), torch, packed)
    if given.keys() != entries.keys():
        missing, unexpected = _absent(entries, given), _absent(given, entries)
        names = f"missing {missing!r}, unexpected {unexpected!r}"
        hint = _layouts.bias_hint(entries, unexpected)
        raise KeyError(f"state_dict has the wrong names: {names}{hint}")
    values: dict[str, Any] = {}
    for entry, (parts, is_matrix) in entries.items():
        shape = live[parts[0]].shape
        whole = (1, *shape) if is_matrix else (shape[0] * len(parts), *shape[1:])
        array = _core.AdditiveAttention._read(given[entry], f"state_dict[{entry!r}]", whole)
        for i, name in enumerate(parts):  # copies: a value may be a live array of another parameter
            part = array if len(parts) == 1 else array[i * shape[0] : (i + 1) * shape[0]]
            values[name] = part.reshape(shape).copy()
    self._write(values)


# ---- memories and contexts ---------------------------------------------------------------------


def _of(
    cls: Any,
    score: str,
    sizes: tuple[int, ...],
    parameters: dict[str, Array],
    keys: Any,
    values: Any,
    valid_lens: Any,
    mask: Any,
    /,
) -> Any:
    kind: Any
    for kind, name in _SCORES.items():
        if name == score:
            H, Dk, Dv, *heads = sizes
            layer = kind.__new__(kind)
            live = parameters.copy()
            layer._install((Dk, 0, Dv, H, *heads), 0.0, None, False, None, live, {})
            return layer.memory(keys, values, valid_lens, mask=mask)
    raise ValueError(f"score is {score!r}, expected one of {[*_SCORES.values()]}")


def _shape(array: Any, rows: int) -> tuple[int, ...]:
    """Return the shape of the array's first `rows` rows."""
    shape: tuple[int, ...] = array.shape
    return shape[:-2] + (rows, shape[-1])


def _repr_of_memory(self: Any) -> str:
    keys, values, _, _, N = self._parts(False)
    return f"<Memory: keys {_shape(keys, N)}, values {_shape(values, N)}>"


def _given_to(self: Any, layer: object, /) -> tuple[Any, ...]:
    """Return copies of keys, values, valid_lens and mask (or None) for attnext.explain.

    layer: the layer that attnext.explain reads, or None for a memory that belongs to no layer.
    """
    if self._layer is not None and (layer is None or self._layer() is not layer):
        from attnext import _wrong

        raise _wrong.sentence("memory_of_another")
    keys, values, lens, mask, N = self._parts(True)
    lens = lens if lens is None else lens.copy()
    mask = mask if mask is None else mask[..., :N, :].copy()
    return keys[..., :N, :].copy(), values[..., :N, :].copy(), lens, mask


def _no_copy_of_memory(self: Any) -> Any:
    """Raise TypeError, because a memory belongs to one layer."""
    raise TypeError(
        "a Memory cannot be copied or pickled because it belongs to one layer: create another with "
        "layer.memory(keys, values)"
    )


def _repr_of_context(self: Any) -> str:
    beside = f"memory of {self._N} keys"
    if self._memory is None:
        beside = f"keys {self._keys.shape}, values {self._values.shape}"
    return f"<Context: queries {self._queries.shape}, {beside}>"


def _seed_of_context(self: Any) -> int | None:
    seed: int = self._seed
    return seed if self.dropout_p > 0.0 else None


def _no_copy_of_context(self: Any) -> Any:
    """Raise TypeError, because a context belongs to one layer."""
    kind = "attnext._core.Context"
    raise TypeError(f"cannot pickle '{kind}' object because it belongs to one layer")


# ---- into the types ----------------------------------------------------------------------------

_SCORES: dict[type, str] = globals().get("_SCORES", {})  # of each compiled type; see `_OWN`


def _kind(cls: type) -> Any:
    """Return the compiled type that the class is or inherits from."""
    for kind in cls.__mro__:
        if kind in _SCORES:
            return kind


def _put(kind: Any, **methods: Any) -> None:
    for name, method in methods.items():
        method.__annotations__ = {}  # so that help() shows them like methods in C
        method.__name__ = method.__qualname__ = name
        setattr(kind, name, method)


def fill(core: Any) -> None:
    """Add the methods to the compiled types."""
    for *_, rows in core.ATTENTIONS.values():
        shapes = {name: letters for name, letters, *_ in rows}
        _OWN.update(_layouts.of_d2l(shapes))
        _VECTORS.update(name for name, letters in shapes.items() if letters[0] == "1")
        _OPTIONAL.update(name for name, _, optional, _ in rows if optional)
    for score in _SHOWN:
        kind = getattr(core, score.title().replace("_", "") + "Attention")
        _SCORES[kind] = score
        states: Any = state_dict_of_heads if score == "multi_head" else state_dict
        _put(kind, state_dict=states, load_state_dict=load_state_dict, __reduce__=__reduce__)
        _put(kind, __repr__=__repr__, __dir__=__dir__)
        _put(kind, train=train, eval=eval, parameters=parameters)
        kind.forward = _forward
        kind._rebuild = classmethod(_rebuild)
    _put(core.Memory, __repr__=_repr_of_memory, __reduce__=_no_copy_of_memory, _given_to=_given_to)
    core.Memory._of = classmethod(_of)
    _put(core.Context, __repr__=_repr_of_context, __reduce__=_no_copy_of_context)
    core.Context.seed = property(_seed_of_context)
