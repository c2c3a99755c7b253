"""The named shapes. A case is one line of a registry: what is computed, not by whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A piece of work: an attention of (*lead, M, N) pairs, or a softmax of as many scores."""

    name: str
    score: str  # "dot", "additive", "multi-head" or "softmax"
    lead: tuple[int, ...]  # batch, or batch and heads
    M: int  # queries
    N: int  # keys
    D: int = 0  # features of a key, and of a query unless Dq says otherwise
    Dv: int = 0  # features of a value; 0: as many as D
    Dq: int = 0
    H: int = 0  # hidden units of the additive score
    heads: int = 0  # of multi-head attention: D features in all, between linear layers
    mask: str = "none"  # who takes part: a name in masks.MASKS
    weights: bool = False  # whether the weights are asked for
    steps: bool = False  # queries come one by one, as a decoder's do; keys are there before
    toy: bool = False  # so small that the call is what costs: no physical limit is given

    @property
    def shape(self) -> str:
        """The letters with their numbers, as printed."""
        lead = {1: "B{}", 2: "B{} heads{}"}[len(self.lead)].format(*self.lead)
        parts = [lead, f"m{f'1 {self.M} times' if self.steps else self.M} n{self.N}"]
        if self.D:
            parts.append(f"d{self.D}" if not self.H else f"h{self.H}")
        if self.heads:
            parts.append(f"heads{self.heads} and linear layers")
        if self.Dv and self.Dv != self.D:
            parts.append(f"dv{self.Dv}")
        if self.mask != "none":
            parts.append(f"({self.mask})")
        return " ".join(parts)


def dot(name: str, lead: tuple[int, ...], M: int, N: int, D: int, **other: object) -> Case:
    """Scaled dot-product attention."""
    return Case(name, "dot", lead, M, N, D, **other)  # type: ignore[arg-type]


def additive(name: str, B: int, M: int, N: int, H: int, **other: object) -> Case:
    """Additive attention, with as many features as hidden units unless `other` has them."""
    return Case(name, "additive", (B,), M, N, **{"D": H, "H": H, **other})  # type: ignore[arg-type]


def multi_head(name: str, B: int, rows: int, D: int, heads: int, **other: object) -> Case:
    """Attention of several heads between linear layers."""
    more: dict[str, object] = {"heads": heads, **other}
    return Case(name, "multi-head", (B,), rows, rows, D, **more)  # type: ignore[arg-type]


def softmax(name: str, B: int, M: int, N: int, **other: object) -> Case:
    """Masked softmax as a function of its own."""
    return Case(name, "softmax", (B,), M, N, **other)  # type: ignore[arg-type]


CASES = {
    case.name: case
    for case in (
        # the book's examples: two sequences of ten keys, two and six of them real
        dot("dot-toy", (2,), 1, 10, 2, Dv=4, mask="book", toy=True),
        additive("additive-toy", 2, 1, 10, 8, Dq=20, D=2, Dv=4, mask="book", toy=True),
        # one step of a decoder: one query, a long cache
        dot("dot-decoder", (8, 8), 1, 1024, 64),
        additive("additive-decoder", 64, 1, 50, 256, mask="lengths"),
        # twenty steps of it over the same keys
        additive("additive-decoder-loop", 64, 20, 50, 256, mask="lengths", steps=True),
        # additive attention of a whole batch, and of one long pair of sequences
        additive("additive-seq2seq", 8, 64, 256, 128),
        additive("additive-long", 1, 512, 512, 128),
        # dot products: what a small transformer does, and a larger one
        dot("dot-middle", (4, 8), 128, 128, 64),
        dot("dot-dense", (8, 8), 512, 512, 64),
        dot("dot-causal", (8, 8), 512, 512, 64, mask="causal"),
        dot("dot-masked", (8, 8), 512, 512, 64, mask="lengths, as a mask"),
        dot("dot-documents", (8, 8), 512, 512, 64, mask="4 documents"),
        dot("dot-long", (1, 8), 1024, 1024, 128),
        dot("dot-one-head", (1, 1), 2048, 2048, 64),
        # what falls off the fast path elsewhere
        dot("dot-ragged", (32, 4), 100, 77, 32),
        dot("dot-ragged-lengths", (32, 4), 100, 77, 32, mask="lengths"),
        dot("dot-3d", (64,), 512, 512, 64),
        dot("dot-dv", (8, 8), 512, 512, 64, Dv=32),
        dot("dot-weights", (8, 8), 512, 512, 64, weights=True),
        # heads between linear layers: the layer of a transformer
        multi_head("multi-head-toy", 2, 10, 32, 4, toy=True),
        multi_head("multi-head", 8, 512, 512, 8),
        # the softmax alone
        softmax("softmax-middle", 64, 128, 128, mask="lengths"),
        softmax("softmax", 64, 512, 512),
        softmax("softmax-lengths", 64, 512, 512, mask="lengths"),
    )
}
