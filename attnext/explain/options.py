"""The options that the functions of attnext.explain share, and the shared parts of their help()."""

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
    see="The function that is explained.",
    arguments={
        "lang": "lang : {'en', 'zh'}, optional\n    Language of the texts: English or Chinese."
    },
    returns="trace : Trace\n"
    "    The steps. `trace.output` is the result of `attnext.{name}`, bit for bit.",
    raises="TypeError, ValueError\n"
    "    The same errors as the function that is explained. Also ValueError if `lang` is\n"
    "    unknown, or if there are more than 2**22 query-key pairs, because every step is kept.",
)
_LAST = ("lang",)
OTHER = Taken({}, VOICE)  # for functions that list all their options
FORWARD = Taken(Shared.__annotations__, VOICE, behind=_LAST)
BACKWARD = Taken(Backward.__annotations__ | Scaled.__annotations__, VOICE, behind=_LAST)
HEADS = Taken(HeadsShared.__annotations__, VOICE, behind=_LAST)
CALL = Taken(Layer.__annotations__, VOICE, behind=_LAST)
HEADS_BACKWARD = Taken(MultiHeadBackward.__annotations__, VOICE, behind=_LAST)

_FIRST_STEPS = VOICE._replace(notes="These are the first steps of `{attention}`, without masks.")
_LAST_STEPS = VOICE._replace(notes="These are the last steps of `{attention}`, without masks.")
SCORES = Taken(Scores.__annotations__, _FIRST_STEPS, behind=_LAST)
UNSCALED_SCORES_BACKWARD = Taken(Scores.__annotations__, _LAST_STEPS, behind=_LAST)
SCORES_BACKWARD = Taken(Scores.__annotations__ | Scaled.__annotations__, _LAST_STEPS, behind=_LAST)
