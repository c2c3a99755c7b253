"""Compare the times of attnext.torch and torch: ``python benchmarks/torch_calls.py``.

Small, medium and large calls of scaled_dot_product_attention and masked_softmax, forward and with
gradients, on one thread, all in turn in one run: what counts is the ratio within a line.

    python benchmarks/torch_calls.py --seconds 1
    python benchmarks/torch_calls.py --paste    and write the table into docs/performance_tables.md
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # which `python -P` leaves out

from suite.paste import between_markers
from suite.timing import Timer

import attnext
import attnext.torch
from attnext._files import write_files

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "performance_tables.md"
MARKERS = "<!-- torch table: begin -->", "<!-- torch table: end -->"
SHAPES = [(1, 1, 8, 8), (2, 4, 32, 16), (4, 8, 128, 64), (8, 8, 512, 64)]  # batch, heads, rows, D


def masked_softmax(X: Any, valid_lens: Any) -> Any:
    """What d2l's comes to in torch."""
    masked = torch.arange(X.shape[-1]) >= valid_lens[:, None, None]
    return torch.softmax(X.masked_fill(masked, -1e6), dim=-1)


def with_gradients(call: Callable[..., Any], inputs: list[Any], grad: Any) -> Any:
    """Forward and backward."""
    return torch.autograd.grad(call(*inputs), inputs, grad)


Pairs: TypeAlias = dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any]]]


def pairs() -> Pairs:
    """By name: attnext's call, torch's, and what both take."""
    generator = torch.Generator().manual_seed(0)
    ours, theirs = attnext.torch.scaled_dot_product_attention, torch.nn.functional
    found: Pairs = {}
    for shape in SHAPES:
        x = [torch.randn(shape, generator=generator) for _ in range(3)]
        name = "attention " + " x ".join(map(str, shape))
        found[name] = ours, theirs.scaled_dot_product_attention, x
    for shape in [(2, 2, 4), (64, 128, 128)]:
        lens = torch.randint(1, shape[-1] + 1, shape[:1], generator=generator)
        mine, plain = attnext.torch.masked_softmax, masked_softmax
        name = "masked softmax " + " x ".join(map(str, shape))
        x = [torch.randn(shape, generator=generator)]
        found[name] = partial(mine, valid_lens=lens), partial(plain, valid_lens=lens), x
    return found


def shown(ms: float) -> str:
    """A time in words."""
    return f"{ms:.3g} ms" if ms >= 1 else f"{1e3 * ms:.3g} us"


def table(timer: Timer, calls_of: Pairs) -> str:
    """Markdown: a line for each call and work."""
    lines = ["| call | work | attnext.torch | torch | torch / attnext |", "|---|---|--:|--:|--:|"]
    for name, (ours, theirs, x) in calls_of.items():
        inputs = [one.clone().requires_grad_() for one in x]
        grad = torch.ones_like(theirs(*x))
        torch.testing.assert_close(ours(*x), theirs(*x), rtol=1e-4, atol=1e-5)
        for work in ("forward", "with gradients"):
            calls = {
                who: partial(call, *x)
                if work == "forward"
                else partial(with_gradients, call, inputs, grad)
                for who, call in (("ours", ours), ("theirs", theirs))
            }
            ours_ms, theirs_ms = (times["min"] for times in timer.measure(calls).values())
            times = f"{shown(ours_ms)} | {shown(theirs_ms)} | {theirs_ms / ours_ms:.2f}x"
            lines.append(f"| {name} | {work} | {times} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or paste it."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line (2)")
    parser.add_argument(
        "--paste", action="store_true", help="write the table into docs/performance_tables.md"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    attnext.set_num_threads(1)
    found = table(Timer(options.seconds), pairs())
    print(found)
    if options.paste:
        text = DOCUMENT.read_text(encoding="utf-8")
        pasted = between_markers(text, found, DOCUMENT.name, *MARKERS)
        write_files(DOCUMENT.parent, {DOCUMENT.name: pasted.encode()})


if __name__ == "__main__":
    main()
