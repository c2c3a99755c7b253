"""Errors for calls that do not fit a signature, with hints for names of other libraries.

The hints help users to translate a call from PyTorch, JAX, Keras, flash-attn or d2l.
"""

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn

# Arguments that have another name in other libraries and the same meaning.
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

_MULTIHEAD = "; True means attend, so for a mask of nn.MultiheadAttention pass ~attn_mask"
_PAIR = "; it is a pair (left, right)"
_NO_BOUND = "; it is a pair (left, right), and -1 means no bound"
_LAST_AXIS = ": the softmax is over the last axis of X, so move your axis to the end"
_ATTRIBUTE = "; the layer stores the weights in its attribute attention_weights"
_IS_BOOL = "; it is a bool, False by default"


def _of_keys(name: str) -> str:
    """Return how to pass one bool per key, (B, N), for all heads and queries."""
    return f"pass {name}[:, None, None, :] if there is an axis of heads, {name}[:, None, :] if not"


def _opposite(name: str) -> str:
    return f"; True means attend, the opposite of {name}: {_of_keys(f'~{name}')}"


# The name in another library, the argument of attnext, and how the two differ. If a name has
# several entries, the first one counts whose argument the function has.
_DIFFERENT = [
    ("attn_mask", "bias", f" if it has floats, or mask if it has bools{_MULTIHEAD}"),
    ("attn_mask", "mask", _MULTIHEAD),
    ("key_padding_mask", "mask", _opposite("key_padding_mask")),
    ("src_key_padding_mask", "mask", _opposite("src_key_padding_mask")),
    ("padding_mask", "mask", f"; True means attend: {_of_keys('padding_mask')}"),
    (
        "attention_mask",
        "mask",
        "; True means attend: if its shape is (B, M, N) and there is an axis of heads, pass "
        f"attention_mask[:, None]; if its shape is (B, N), {_of_keys('attention_mask')}",
    ),
    (
        "window_size",
        "window",
        f"{_NO_BOUND}; the diagonal of flash_attn ends at the last key, so also pass "
        "causal_offset=N - M",
    ),
    ("local_window_size", "window", f"{_NO_BOUND}: for a number w, pass (w, w)"),
    ("sliding_window", "window", f"{_PAIR}: for the last n keys, pass (n - 1, 0) and causal=True"),
    ("axis", "X", _LAST_AXIS),
    ("dim", "X", _LAST_AXIS),
    ("gamma", "w", "; pass w=sqrt(2 * gamma)"),
    ("s_aux", "sink", "; for one number per head, pass s_aux[:, None]"),
    ("sinks", "sink", "; for one number per head, pass sinks[:, None]"),
    ("dropout", "dropout_p", "; it needs a seed"),
    ("dropout_rate", "dropout_p", "; it needs a seed"),
    ("dropout_rng", "seed", "; it is an int"),
    ("generator", "seed", "; it is an int"),
    ("need_weights", "return_weights", _IS_BOOL),
    ("weights", "return_weights", _IS_BOOL),
    ("weights", "need_weights", _ATTRIBUTE),
    ("return_weights", "need_weights", _ATTRIBUTE),
    ("return_attention_scores", "need_weights", _ATTRIBUTE),
]

# Names of functions and classes in other libraries, the name in attnext, and a second sentence.
_ELSEWHERE = {
    "MultiheadAttention": (
        "MultiHeadAttention",
        " For the signature of torch.nn, use attnext.torch.nn.MultiheadAttention.",
    ),
    "scaled_dot_product_attention": (
        "dot_product_attention",
        " For PyTorch's signature, use attnext.torch.scaled_dot_product_attention.",
    ),
    "softmax": ("masked_softmax", ""),
}

FOREIGN = [(name, here, "") for here, names in _SAME.items() for name in names.split()]
FOREIGN += _DIFFERENT


def hint(name: str, taken: Collection[str], notes: Mapping[str, str] | None = None) -> str:
    """Return a hint about the unknown argument `name` of a function with the arguments `taken`.

    If another library has this argument, the hint names the argument of attnext; otherwise it
    names the most similar argument, if there is one. notes: texts that replace those of the table.
    """
    for foreign, here, differs in FOREIGN:
        if foreign == name and here in taken:
            differs = (notes or {}).get(here, differs)
            return differs if differs.startswith(":") else f": use {here} instead{differs}"
    near = nearest(name, taken)
    return f": did you mean {near}?" if near else ""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of the names, or None."""
    from difflib import get_close_matches  # not at import: it is seldom needed

    known = sorted(names)
    near = get_close_matches(name, known, 1, cutoff=0.75)
    if near:
        return near[0]
    plain = {one.casefold().replace("_", ""): one for one in known}
    near = get_close_matches(name.casefold().replace("_", ""), plain, 1, cutoff=0.75)
    return plain[near[0]] if near else None


def no_attribute(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the AttributeError for a missing attribute of a module that has `names`."""
    missing = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):  # tools look these up; they are not misspelt
        return AttributeError(missing, name=name)
    meant: str | None
    meant, more = _ELSEWHERE.get(name, (None, ""))
    if meant not in (names := set(names)):
        meant, more = nearest(name, names), ""
    # Without obj, Python's traceback does not add a second suggestion.
    hint = f": did you mean {meant}?{more}" if meant else ""
    return AttributeError(f"{missing}{hint}", name=name)


def suggest_names(module: str, names: Collection[str]) -> None:
    """Make the module suggest one of `names` when an unknown attribute is read."""

    def missing(name: str) -> NoReturn:
        raise no_attribute(module, name, names)

    # Set here, because type checkers accept any attribute of a module that defines __getattr__.
    vars(sys.modules[module])["__getattr__"] = missing


def call(signature: str, count: int, keywords: tuple[str, ...]) -> TypeError | None:
    """Return the error if the arguments do not fit the signature, otherwise None.

    signature: text such as ``name(a, b=None, *, c=0``; count: the number of positional arguments.
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
    for name in map(str.__str__, keywords):  # the text itself, also of a subclass
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
