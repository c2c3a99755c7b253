"""docs/accuracy.md holds what benchmarks/accuracy.py gives: its rows, within the bounds below.

The numbers of a run depend on the problems and on PyTorch's kernels, so they are not compared.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from helpers import REPOSITORY

sys.path.append(str(REPOSITORY / "benchmarks"))

accuracy: Any = pytest.importorskip("suite.accuracy", reason="needs PyTorch")

# Times PyTorch's root mean square error: in the document, and of the few problems here. Here, of 24
# problems of each kind any three in a row gave at most 1.26, and the mean of their logarithms with
# four deviations is at most that of 1.37. In the document it is 1.34; the worst row, Gaussian
# scores with a sink, gave 1.07 to 1.47 for four sets of problems, and a tenth is added.
IN_THE_DOCUMENT, HERE = 1.6, 1.4
# Gradients of a number for each problem, head, query or unit: ratios of few errors.
FEW, FEW_IN_THE_DOCUMENT, FEW_HERE = {"d_w", "d_scale", "d_sink", "d_b_h"}, 1.7, 2.0
KNOWN = {"gaussian, softcap"}  # above: the document says why

KINDS = [kind for kind in accuracy.kinds() if kind.H <= 16]
TEXT = (REPOSITORY / "docs/accuracy.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|") and line.count("|") == 7
]


def test_the_document_has_every_row_and_is_within_its_bound() -> None:
    head, _, *rows = ROWS
    assert head == ["function", "result", *accuracy.REGIMES]
    assert list(dict.fromkeys(row[0] for row in rows)) == [kind.name for kind in accuracy.kinds()]
    for row in (row for row in rows if row[0] not in KNOWN):
        bound = FEW_IN_THE_DOCUMENT if row[1] in FEW else IN_THE_DOCUMENT
        assert all(float(cell.split(" ")[0]) <= bound for cell in row[2:]), row


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_every_result_is_about_as_exact_as_pytorchs(kind: Any) -> None:
    found = accuracy.measured(kind, "tame", 3)
    assert list(found) == [row[1] for row in ROWS if row[0] == kind.name]
    for name, ratios in found.items():
        assert ratios["rms"] <= (FEW_HERE if name in FEW else HERE), (name, ratios)
