"""What the functions here take beside their own arguments, and what help() says of all of them."""

from __future__ import annotations

from attnext._docs.wrapped import Voice
from attnext._options import (
    Backward,
    HeadsShared,
    Layer,
    MultiHeadBackward,
    Scaled,
    Scores,
    Shared,
    Taken,
)

VOICE = Voice(
    see="The function explained.",
    arguments={
        "lang": "lang : {'en', 'zh'}, optional\n"
        "    Language of the explanation: English or Chinese."
    },
    returns="trace : Trace\n"
    "    The steps; its `output` is what `attnext.{name}` returns, bit for bit.",
    raises="TypeError, ValueError\n"
    "    As from the function explained; ValueError also if `lang` is unknown or there are too\n"
    "    many numbers (2**22) to keep every step of.",
)
_LAST = ("lang",)
OTHER = Taken({}, VOICE)  # of functions that write their options out
FORWARD = Taken(Shared.__annotations__, VOICE, behind=_LAST)
BACKWARD = Taken(Backward.__annotations__ | Scaled.__annotations__, VOICE, behind=_LAST)
HEADS = Taken(HeadsShared.__annotations__, VOICE, behind=_LAST)
CALL = Taken(Layer.__annotations__, VOICE, behind=_LAST)
HEADS_BACKWARD = Taken(MultiHeadBackward.__annotations__, VOICE, behind=_LAST)

_FIRST_STEPS = VOICE._replace(notes="The first steps of `{attention}`, over all pairs.")
_LAST_STEPS = VOICE._replace(notes="The last steps of `{attention}`, over all pairs.")
SCORES = Taken(Scores.__annotations__, _FIRST_STEPS, behind=_LAST)
UNSCALED_SCORES_BACKWARD = Taken(Scores.__annotations__, _LAST_STEPS, behind=_LAST)
SCORES_BACKWARD = Taken(Scores.__annotations__ | Scaled.__annotations__, _LAST_STEPS, behind=_LAST)
