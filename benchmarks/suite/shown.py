"""The cases in the picture of README, and their titles in both languages."""

from __future__ import annotations

from typing import Any, NamedTuple

from .peers import OTHERS


class Shown(NamedTuple):
    """A case in one direction, with its title in two languages."""

    case: str
    work: str
    en: str
    zh: str


SHOWN = (
    Shown("dot-toy", "forward",
          "Dot product, 10 keys (d2l's example)", "点积，书中的 10 个键"),
    Shown("dot-dense", "forward",
          "Dot product, 8 × 8 heads of 512 × 512", "点积，8 × 8 个头，各 512 × 512"),
    Shown("additive-seq2seq", "forward",
          "Additive, 8 × 64 queries, 256 keys", "加性，8 × 64 个查询，256 个键"),
    Shown("softmax-lengths", "forward",
          "Masked softmax, 64 × 512 × 512", "掩蔽 softmax，64 × 512 × 512"),
    Shown("additive-toy", "forward+backward",
          "Additive, 10 keys (d2l's example), with gradients", "加性，书中的 10 个键，含梯度"),
    Shown("dot-causal", "forward+backward",
          "Causal, 8 × 8 heads of 512 × 512, with gradients",
          "因果掩码，8 × 8 个头，各 512 × 512，含梯度"),
    Shown("additive-decoder-loop", "forward+backward",
          "20 steps of an additive decoder, with gradients", "加性解码器的 20 个时间步，含梯度"),
    Shown("multi-head", "forward+backward",
          "Multi-head layer, 8 × 512 words, with gradients", "多头层，8 × 512 个词元，含梯度"),
)  # fmt: skip

# Who stands for whom: of PyTorch's ways the fastest.
FAMILIES = {
    "PyTorch": tuple(name for name in OTHERS if name.startswith("torch")),
    "JAX": ("JAX jit",),
    "ONNX Runtime": ("ONNX Runtime",),
    "NumPy": ("NumPy",),
}


def rows_shown(record: dict[str, Any], threads: int) -> list[tuple[Shown, dict[str, Any]]]:
    """Those that this record has, in their order."""
    found = {(row["case"], row["work"]): row for row in record["rows"] if row["threads"] == threads}
    return [(one, found[one[:2]]) for one in SHOWN if one[:2] in found]


def fastest(row: dict[str, Any], family: str) -> str | None:
    """Of this family in this row."""
    there = [name for name in FAMILIES[family] if name in row["times"]]
    return min(there, key=lambda name: float(row["times"][name]["min"])) if there else None
