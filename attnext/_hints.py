"""Calls that a signature does not fit, in words, and what other libraries call an argument.

For those who bring a call along from PyTorch, JAX, Keras, flash-attn or d2l.
"""

from collections.abc import Collection, Mapping

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
    ("return_weights", "need_weights", _ATTRIBUTE),
    ("return_attention_scores", "need_weights", _ATTRIBUTE),
]

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
    from difflib import get_close_matches  # not at import: it is seldom needed

    near = get_close_matches(name, sorted(taken), 1, cutoff=0.75)
    return f": did you mean {near[0]}?" if near else ""


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
