"""What the tables of the compiled module say: `_core.OPTIONS`, SCORES, ATTENTIONS, and signatures.

OPTIONS has default and takers of each option that attentions share. SCORES has, of each score, the
names of its parameters and of what else has a gradient; these behind those of the inputs; the
keywords that are its own, and their defaults; and of each parameter its name, its shape in letters,
whether it is optional, and the letter of its fan-in. ATTENTIONS has the same of each attention, of
which multi-head is one more.

Which form of an attention takes an argument, py_options.def says in words of `_FORMS`: each form
that has one of them takes it. An argument of a LAYER is its call's if FORWARD stands there too, and
else its backward's; IF_... is what the score has to be for it besides.
"""

from collections import namedtuple
from functools import cache
from typing import Any

_TAKERS = ("FORWARD", "BACKWARD", "LAYER", "SCORES", "SCALED")  # which Python sees
_SCALES = ("", "IF_ROOT", "IF_ONE", "IF_BANDWIDTH")  # as attn_scale_kind
_BITS = {"0": 0, "|": 0}
for _word in (
    *_TAKERS,
    *("INPUTS", "POOLED", "BACKWARDS", "KEEPING", "KEEPING_BACKWARD", "LAYER_CALL"),
    *("LAYER_BACKWARD", "IF_HEADS", "IF_WHOLE", "IF_EPS", *_SCALES[1:]),
):
    _BITS[_word] = 1 << len(_BITS)


@cache
def _bits(words: str) -> int:
    found = 0
    for word in words.split():
        found |= _BITS[word]
    return found


_BITS["FUNCTIONS"] = _bits("FORWARD BACKWARD SCORES")
_IFS = _bits("IF_HEADS IF_WHOLE IF_EPS IF_ROOT IF_ONE IF_BANDWIDTH")
_FACTORS = _bits("IF_ROOT IF_ONE")

# What each score is exposed as, in the order of py_form, and what it takes. BACKWARDS: all but a
# layer's have INPUTS, too; SCALED: the backwards of a score whose scale is a factor.
_FORMS = (
    ("{}_attention", _bits("FORWARD INPUTS POOLED")),
    ("{}_attention_backward", _bits("BACKWARD INPUTS POOLED BACKWARDS")),
    ("{}_scores", _bits("SCORES INPUTS")),
    ("{}_scores_backward", _bits("SCORES INPUTS BACKWARDS")),
    ("_{}_attention", _bits("FORWARD INPUTS POOLED KEEPING")),
    ("_{}_attention_backward", _bits("BACKWARD INPUTS POOLED BACKWARDS KEEPING_BACKWARD")),
    ("__call__", _bits("INPUTS POOLED LAYER_CALL")),
    ("backward", _bits("BACKWARDS LAYER_BACKWARD")),
)
_METHODS = ("__call__", "backward")

_NUMBERS: dict[str | None, int] = {}  # of arguments, by name; None: of the first parameter
_ARGUMENTS: dict[int, tuple[str | None, str | None, int]] = {}  # name, default, whose: bits
# Arguments whose conditions are met, and their takers: inputs, others, what all attentions share.
_Rows = tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]]]
# Bits; arguments; the numbers of its parameters.
_ATTENTIONS: dict[str, tuple[int, _Rows, list[int], list[int]]] = {}
_PARAMETERS: dict[str, list[tuple[str, str, bool, str]]] = {}

_WORDS = {None: ..., "None": None, "True": True, "False": False}  # None: it is required


def _default(text: str | None) -> Any:
    """What the text of a default stands for."""
    if text is None or text in _WORDS:
        return _WORDS[text]
    if text[0] == "'":
        return text[1:-1]
    return int(text) if text.isdigit() else float(text)


def add_argument(
    core: Any, number: int, name: str | None, default: str | None, takers: str, shared: int
) -> None:
    """One of any function; shared: an option that attentions share."""
    bits = _bits(takers)
    if shared:
        seen = tuple([taker.lower() for taker in _TAKERS if _BITS[taker] & bits])
        vars(core).setdefault("OPTIONS", {})[name] = (_default(default), seen)
    if _BITS["LAYER"] & bits:
        bits |= _BITS["LAYER_CALL" if _BITS["FORWARD"] & bits else "LAYER_BACKWARD"]
    _NUMBERS.setdefault(name, number)
    _ARGUMENTS[number] = (name, default, bits)


def add_parameter(
    core: Any, attention: str, name: str, shape: str, optional: int, fan_in: str
) -> None:
    """The next one of an attention, which is added when all are there."""
    _PARAMETERS.setdefault(attention, []).append((name, shape, bool(optional), fan_in))


Signature = tuple[str, bytes, int, int, int]


def signature(title: str, form: int) -> Signature:
    """Name, arguments, how many are required, how many by position, a keyword that is required."""
    bits, rows, needed, optional = _ATTENTIONS[title]
    name, who = _FORMS[form]
    if who & _BITS["BACKWARDS"] and bits & _FACTORS:
        who |= _BITS["SCALED"]
    if name in _METHODS:  # a layer has its parameters itself
        needed, optional = [], []
    lens, heads = _NUMBERS["valid_lens"], _NUMBERS["num_heads"]
    inputs, others, options = [[i for i, whose in some if whose & who] for some in rows]
    required = len(inputs) + len(needed)
    args = bytes(inputs + needed + others + optional + options)
    by_position = required + (lens in others)
    required -= name == "__call__"  # which may have a memory in the place of values
    return name.format(title), args, required, by_position, heads if heads in others else 0


def _keywords(core: Any, title: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Those of an attention that are not those of all, and their defaults."""
    _, args, _, by_position, _ = signature(title, 0)
    found = {}
    for number in args[by_position:]:
        name, default, _ = _ARGUMENTS[number]
        name = names[number - _NUMBERS[None]] if name is None else name
        if name not in core.OPTIONS:
            found[name] = _default(default)
    return found


def add_attention(core: Any, title: str, scale: int, has_eps: int, has_heads: int) -> Any:
    """One whose parameters were told; the named tuple of its gradients, or None without one."""
    parameters = tuple(_PARAMETERS.pop(title, ()))
    bits = _BITS["IF_HEADS" if has_heads else "IF_WHOLE"] | _bits(_SCALES[scale])
    bits |= _BITS["IF_EPS"] if has_eps else 0
    numbers: tuple[list[int], list[int]] = ([], [])  # of parameters: needed; optional
    for i, (_, _, optional, _) in enumerate(parameters):
        numbers[optional].append(_NUMBERS[None] + i)
    lens, softcap = _NUMBERS["valid_lens"], _NUMBERS["softcap"]
    rows: _Rows = ([], [], [])
    for number, (_, _, whose) in _ARGUMENTS.items():
        if not whose & _IFS & ~bits:
            rows[(number >= lens) + (number >= softcap)].append((number, whose))
    _ATTENTIONS[title] = (bits, rows, *numbers)
    names = tuple([row[0] for row in parameters])
    of_inputs = ("queries", "keys", "values", *names)
    keywords = _keywords(core, title, names)
    w = ("w",) if "w" in keywords else ()
    facts = (names + w, of_inputs + w, keywords, parameters)
    vars(core).setdefault("ATTENTIONS", {})[title] = facts
    if not has_heads:  # which has no functions of its scores
        vars(core).setdefault("SCORES", {})[title] = facts
    if not names:
        return None
    kind_title = f"{title.title().replace('_', '')}Gradients"
    # of another module than this one, where pickle finds it
    kind = namedtuple(kind_title, of_inputs, module="attnext")  # type: ignore[misc]
    setattr(core, kind_title, kind)
    return kind
