"""The docstrings of the attention functions: attention.txt, completed by the file of a score."""

from __future__ import annotations

from collections.abc import Mapping, Set

from attnext._docs import read
from attnext._docs.options import OF_SCORES, OPTIONS, SHARED, in_a_backward, paragraphs

TEXTS = read("attention")
OPERANDS = paragraphs(TEXTS["operands"]) | paragraphs(SHARED["valid_lens"])
OF_FORWARD = OPERANDS.keys() - {"grad_output"}
# Default texts for a score whose file has no such section.
GENERAL = {
    "pooling": "the softmax of the scores of queries and keys",
    "scores": "The score of every query with every key",
    "formula": "score(q, k)",
}
SECTIONS = {
    "Notes": ("notes", "backward_notes", "scores_notes"),
    "Examples": ("example", "backward_example", "scores_example", "scores_backward_example"),
}
_LETTERS = {"1": "1", "H": "H", "G": "Hk", "Q": "Dq", "K": "Dk", "V": "Dv"}


def shape_of(letters: str) -> str:
    """Return a shape from its letters (attn.h): ``(H, Dq)`` for HQ, ``(H,) or (1, H)`` for 1H."""
    dims = ", ".join(_LETTERS[letter] for letter in letters)
    if letters[0] == "1":
        return f"{shape_of(letters[1:])} or ({dims})"
    return f"({dims})" if len(letters) > 1 else f"({dims},)"


class Score:
    """The docstrings of one score.

    page: the sections of the file of the score; parameters: those of its entry in
    _core.ATTENTIONS; of_forward: the names of the options that forward functions take.
    """

    def __init__(
        self,
        name: str,
        page: Mapping[str, str],
        parameters: tuple[tuple[str, str, bool, str], ...],
        of_forward: Set[str],
    ) -> None:
        self.parameters = {parameter[0]: parameter[1:] for parameter in parameters}
        self._page = page
        self._of_forward = of_forward
        self._options = OPTIONS | OF_SCORES | paragraphs(page.get("options", ""))
        letters = "".join(shape for _, shape, *_ in parameters)
        heads = "V" in letters  # values are projected
        self._words = {**GENERAL, **SHARED, **page}
        for title, entries in SECTIONS.items():
            for entry in entries:
                text = page.get(entry)
                rule = "-" * len(title)
                self._words[entry] = f"\n{title}\n{rule}\n{text}\n" if text else ""
        self._words |= {
            "name": name,
            "Gradients": name.title().replace("_", "") + "Gradients",
            "Dq": "Dq" if "K" in letters else "D",
            "Dk": "Dk" if "K" in letters else "D",
            "width": "H" if heads else "Dv",
            "heads": "num_heads, " if heads else "",
            "scores_alone": "" if heads else f"{name}_scores : The scores alone.\n",
            "see_also": page["see_also"] + "\n" if "see_also" in page else "",
            "or_none": "" if heads else ", or None",
            "none_from": "" if heads else f"; None from `{name}_scores_backward`",
        }

    def _arguments(self, taken: Mapping[str, bool], words: dict[str, str], backward: bool) -> str:
        """Return one paragraph per argument."""
        text = ""
        for name in taken:
            if name in self.parameters:
                letters, optional, _ = self.parameters[name]
                kind = f"array_like, shape {shape_of(letters)}" + ", optional" * optional
                said = self._page.get(name, "A parameter of the score.")
                text += f"{name} : {kind}\n    {said}\n"
                continue
            said = OPERANDS[name].format_map(words) if name in OPERANDS else self._options[name]
            told = backward and (name in self._of_forward or name in OF_FORWARD)
            text += in_a_backward(said) if told else said
        return text

    def _gradients(self, words: dict[str, str], scores: bool) -> str:
        if self.parameters:
            names = [f"`{name}`" for name in self.parameters]
            lines = [", ".join(names[:4]), ", ".join(names[4:])]
            words = words | {
                "parameters": ",\n    ".join(line for line in lines if line),
                "none": "`values`, and for a parameter" if scores else "a parameter",
            }
            return TEXTS["gradients in a tuple"].format_map(words) + "\n"
        text = TEXTS["gradients of scores" if scores else "gradients of attentions"] + "\n"
        return text + TEXTS["gradient of w"] + "\n" if "sigma" in words["names"] else text

    def page(self, verb: str, taken: Mapping[str, bool]) -> str:
        """Return the docstring of a function; taken: its arguments, and True for required ones."""
        scores, backward = verb.startswith("scores"), verb.endswith("_backward")
        words = self._words | {
            "of": "N" if scores else self._words["width"],
            "result": "scores" if scores else "output",
            "names": " ".join(taken),
        }
        words["arguments"] = self._arguments(taken, words, backward)
        if backward:
            words["gradients"] = self._gradients(words, scores)
            scale = "return_grad_scale" in taken
            words["gradient_of_scale"] = TEXTS["gradient of scale"] + "\n" if scale else ""
        return TEXTS[verb].format_map(words)

    def gradients(self) -> str:
        """Return the docstring of the named tuple of the gradients."""
        text = TEXTS["gradients"].format_map(self._words)
        for name, (letters, optional, _) in self.parameters.items():
            kind = f"ndarray, float32, shape {shape_of(letters)}" + ", or None" * optional
            none = "; None if it was not given" * optional
            text += f"\n{name} : {kind}\n    Gradient with respect to `{name}`{none}."
        return text

    def parameter(self, name: str) -> str:
        """Return the docstring of a layer's attribute for this parameter."""
        letters, optional, _ = self.parameters[name]
        kind = "ndarray or None" if optional else "ndarray"
        shape = shape_of(letters)
        array = (
            f"The layer's own array, of shape {shape}. A value assigned to it is copied into it."
        )
        return f"{kind}: {self._page[name]}\n{array}"
