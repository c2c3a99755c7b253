"""Calls that a signature does not fit, in words, and what other libraries call an argument.

For those who bring a call along from PyTorch, JAX, Keras, flash-attn or d2l.
"""

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn

# What is the same under another name.
_SAME = {
    "queries": "query q",
    "keys": "key k",
    "values": "value v",
    "X": "scores input",
    "valid_lens": "valid_len valid_length enc_valid_lens lengths key_value_seq_lengths "
    "nonpad_kv_seqlen",
    "valid_len": "valid_lens valid_length lengths sequence_length",
    "mask": "where",
    "bias": "attn_bias attention_bias",
    "causal": "is_causal use_causal_mask",
    "scale": "softmax_scale sm_scale scaling",
    "sigma": "bandwidth",
    "softcap": "logits_soft_cap soft_cap",
    "return_weights": "return_attention_scores",
    "return_lse": "return_residual",
}

_MULTIHEAD = "True = attend (nn.MultiheadAttention's True = ignore: ~attn_mask)"
_PAIR = "a pair (left, right)"
_LAST_AXIS = "its last axis is the one that is normalised"
_FOR_EACH_HEAD = "[:, None] for one number for each head"
_ATTRIBUTE = "the weights are attention_weights, an attribute"


def _of_keys(name: str) -> str:
    """One bool a key, (B, N), for every head and query."""
    return f"{name}[:, None, None, :] where there are heads, {name}[:, None, :] where not"


def _opposite(name: str) -> str:
    return f"bools, True = attend, so the opposite: {_of_keys(f'~{name}')}"


# A name there, the argument here, and what differs. Of several lines with one name, a function gets
# the first whose argument it takes.
_DIFFERENT = [
    ("attn_mask", "bias", f"if it is of floats, and mask if of bools, {_MULTIHEAD}"),
    ("attn_mask", "mask", _MULTIHEAD),
    ("key_padding_mask", "mask", _opposite("key_padding_mask")),
    ("src_key_padding_mask", "mask", _opposite("src_key_padding_mask")),
    ("padding_mask", "mask", f"bools, True = attend: {_of_keys('padding_mask')}"),
    (
        "attention_mask",
        "mask",
        "bools, True = attend: of (B, M, N), attention_mask[:, None] where there are heads; of "
        f"(B, N), {_of_keys('attention_mask')}",
    ),
    (
        "window_size",
        "window",
        f"{_PAIR}, -1 for no bound; flash_attn's diagonal ends at the last key: "
        "causal_offset=N - M",
    ),
    ("local_window_size", "window", f"{_PAIR}, -1 for no bound: (w, w) for one number w"),
    ("sliding_window", "window", f"{_PAIR}: (n - 1, 0) for the last n keys, with causal"),
    ("axis", "X", _LAST_AXIS),
    ("dim", "X", _LAST_AXIS),
    ("gamma", "w", "sqrt(2 * gamma)"),
    ("s_aux", "sink", f"s_aux{_FOR_EACH_HEAD}"),
    ("sinks", "sink", f"sinks{_FOR_EACH_HEAD}"),
    ("dropout", "dropout_p", "which needs a seed"),
    ("dropout_rate", "dropout_p", "which needs a seed"),
    ("dropout_rng", "seed", "an int"),
    ("generator", "seed", "an int"),
    ("need_weights", "return_weights", "a bool, False by default"),
    ("weights", "return_weights", "a bool, False by default"),
    ("weights", "need_weights", _ATTRIBUTE),
    ("return_weights", "need_weights", _ATTRIBUTE),
    ("return_attention_scores", "need_weights", _ATTRIBUTE),
]

# Names of modules' attributes in other libraries, and what attnext has instead.
_ELSEWHERE = {
    "MultiheadAttention": (
        "MultiHeadAttention",
        " As in torch.nn it is attnext.torch.nn.MultiheadAttention.",
    ),
    "scaled_dot_product_attention": (
        "dot_product_attention",
        " With PyTorch's own signature it is attnext.torch.scaled_dot_product_attention.",
    ),
    "softmax": ("masked_softmax", ""),
}

FOREIGN = [(name, here, "") for here, names in _SAME.items() for name in names.split()]
FOREIGN += _DIFFERENT


def hint(name: str, taken: Collection[str], notes: Mapping[str, str] | None = None) -> str:
    """What a function that takes these has in the place of another library's argument.

    Or which of them may have been meant, where no library is known to have that name.
    notes: what is to be said of an argument here, where it is not what the table says.
    """
    for foreign, here, differs in FOREIGN:
        if foreign == name and here in taken:
            differs = (notes or {}).get(here, differs)
            return f": here it is {here}" + (differs and f", {differs}")
    near = nearest(name, taken)
    return f": did you mean {near}?" if near else ""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that may have been meant, or None."""
    from difflib import get_close_matches  # not at import: it is seldom needed

    known = sorted(names)
    near = get_close_matches(name, known, 1, cutoff=0.75)
    if near:
        return near[0]
    plain = {one.casefold().replace("_", ""): one for one in known}
    near = get_close_matches(name.casefold().replace("_", ""), plain, 1, cutoff=0.75)
    return plain[near[0]] if near else None


def no_attribute(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error of a module that has no attribute of this name, and `names`."""
    missing = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):  # asked for by tools, not misspelt
        return AttributeError(missing, name=name)
    meant: str | None
    meant, more = _ELSEWHERE.get(name, (None, ""))
    if meant not in (names := set(names)):
        meant, more = nearest(name, names), ""
    # With a name and no obj, Python's traceback adds no guess of its own.
    hint = f": did you mean {meant}?{more}" if meant else ""
    return AttributeError(f"{missing}{hint}", name=name)


def suggest_names(module: str, names: Collection[str]) -> None:
    """Let the module, which has these names, say of another which of them may have been meant."""

    def missing(name: str) -> NoReturn:
        raise no_attribute(module, name, names)

    # Put in from outside: a type checker takes any name of a module that defines __getattr__.
    vars(sys.modules[module])["__getattr__"] = missing


def call(signature: str, count: int, keywords: tuple[str, ...]) -> TypeError | None:
    """What is wrong with a call of so many positional arguments and of these keywords, if it is.

    signature: as text, ``name(a, b=None, *, c=0``.
    """
    function, _, rest = signature.partition("(")
    by_position, star, by_keyword = rest.removeprefix("$self, ").partition("*, ")
    before = [entry for entry in by_position.removesuffix(", ").split(", ") if entry]
    behind = by_keyword.split(", ") if star else []
    names = [entry.partition("=")[0] for entry in before + behind]
    if count > len(before):
        plural = "" if len(before) == 1 else "s"
        at_most = f"at most {len(before)} positional argument{plural}"
        return TypeError(f"{function}() takes {at_most}, got {count}")
    given = names[:count]
    for name in map(str.__str__, keywords):  # of a subclass, as it is
        if name not in names:
            unexpected = f"got an unexpected keyword argument '{name}'"
            return TypeError(f"{function}() {unexpected}{hint(name, names)}")
        if name in given:
            return TypeError(f"{function}() got multiple values for argument '{name}'")
        given.append(name)
    for entry in behind:
        if "=" not in entry and entry not in given:
            return TypeError(f"{function}() missing required keyword-only argument '{entry}'")
    for i, entry in enumerate(before):
        if "=" not in entry and entry not in given:
            where = f"'{entry}' (position {i + 1})"
            return TypeError(f"{function}() missing required argument {where}")
    return None
