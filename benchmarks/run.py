"""Time attnext beside its peers: ``python benchmarks/run.py`` from outside the clone's root.

Every case is checked first: attnext's result must agree with ``attnext.reference`` on a few
batch entries, and with every peer in full. Then all of them run in turn, round after round, so
that a busy machine slows all alike; what counts is the ratio within a line. Peers that are not
installed are left out.

    python run.py                         all cases, one thread and all threads
    python run.py --case dot-dense        one case
    python run.py --markdown --json out.json
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import attnext
from attnext import reference

try:
    import torch
except ImportError:
    torch = None

Array = np.ndarray
Call = Callable[[], Any]


@dataclass
class Case:
    """One piece of work: who computes it, and the float64 truth of its first entries."""

    name: str
    shape: str
    calls: dict[str, Call]
    truth: Array


def normal(seed: int, *shapes: tuple[int, ...]) -> list[Array]:
    """Standard normal float32 arrays."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def dot_case(name: str, B: int, heads: int, M: int, N: int, D: int) -> Case:
    """Dense scaled dot-product attention, forward."""
    q, k, v = normal(1, (B, heads, M, D), (B, heads, N, D), (B, heads, N, D))
    out = np.empty((B, heads, M, D), np.float32)
    calls: dict[str, Call] = {
        "attnext": lambda: attnext.dot_product_attention(q, k, v),
        "attnext out=": lambda: attnext.dot_product_attention(q, k, v, out=out),
    }
    if torch is not None:
        tq, tk, tv = (torch.from_numpy(x) for x in (q, k, v))

        def eager() -> Any:
            weights = torch.softmax(tq @ tk.transpose(-1, -2) / D**0.5, dim=-1)
            return weights @ tv

        calls["torch SDPA"] = lambda: torch.nn.functional.scaled_dot_product_attention(tq, tk, tv)
        calls["torch eager"] = eager
    truth = reference.dot_product_attention(q[:1, :1], k[:1, :1], v[:1, :1])
    return Case(name, f"({B}, {heads}, {M}, {N}, d {D})", calls, truth)


def additive_case(name: str, B: int, M: int, N: int, H: int) -> Case:
    """Additive attention, forward, beside d2l's formula in PyTorch and NumPy."""
    q, k, v, W_q, W_k, w_v = normal(2, (B, M, H), (B, N, H), (B, N, H), (H, H), (H, H), (H,))
    W_q, W_k, w_v = (W / np.sqrt(H, dtype=np.float32) for W in (W_q, W_k, w_v))
    calls: dict[str, Call] = {"attnext": lambda: attnext.additive_attention(q, k, v, W_q, W_k, w_v)}
    if torch is not None:
        tensors = [torch.from_numpy(x) for x in (q, k, v, W_q, W_k, w_v)]

        def eager() -> Any:
            tq, tk, tv, tW_q, tW_k, tw_v = tensors
            features = torch.tanh((tq @ tW_q.T).unsqueeze(2) + (tk @ tW_k.T).unsqueeze(1))
            return torch.softmax(features @ tw_v, dim=-1) @ tv

        calls["torch eager"] = eager
    truth = reference.additive_attention(q[:1], k[:1], v[:1], W_q, W_k, w_v)
    return Case(name, f"({B}, {M}, {N}, h {H})", calls, truth)


CASES: dict[str, Callable[[str], Case]] = {
    "dot-toy": lambda name: dot_case(name, 2, 1, 1, 10, 2),
    "dot-dense": lambda name: dot_case(name, 8, 8, 512, 512, 64),
    "dot-long": lambda name: dot_case(name, 1, 8, 1024, 1024, 128),
    "additive-toy": lambda name: additive_case(name, 2, 1, 10, 8),
    "additive-seq2seq": lambda name: additive_case(name, 8, 64, 256, 128),
    "additive-long": lambda name: additive_case(name, 1, 512, 512, 128),
}


def check(case: Case) -> None:
    """Stop unless every call gives the truth to float32 accuracy."""
    for who, call in case.calls.items():
        got = np.asarray(call())[tuple(slice(0, n) for n in case.truth.shape)]
        error = float(np.abs(got - case.truth).max() / np.abs(case.truth).max())
        if not error < 1e-5:
            sys.exit(f"{case.name}: {who} is off the float64 reference by {error:.1e}")


def measure(case: Case, seconds: float) -> dict[str, dict[str, float]]:
    """Minimum and median milliseconds of each call, taken in turn for about `seconds`."""
    loops = {}
    for who, call in case.calls.items():
        start = time.perf_counter()
        call()
        loops[who] = max(1, int(0.002 / (time.perf_counter() - start + 1e-9)))
    times: dict[str, list[float]] = {who: [] for who in case.calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["attnext"]) < 5:
        for who, call in case.calls.items():
            start = time.perf_counter()
            for _ in range(loops[who]):
                call()
            times[who].append((time.perf_counter() - start) / loops[who] * 1e3)
    return {
        who: {"min": min(ms), "median": float(np.median(ms)), "runs": len(ms)}
        for who, ms in times.items()
    }


def cpu_name() -> str:
    """The CPU's model name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def show(rows: list[dict[str, Any]], markdown: bool) -> None:
    """Print the table: milliseconds (minimum), and how many times as long as attnext."""
    peers = ["attnext", "attnext out=", "torch SDPA", "torch eager"]
    head = ["case", "shape", "threads", *peers]
    lines = [head]
    for row in rows:
        ours = row["times"]["attnext"]["min"]
        cells = [row["case"], row["shape"], str(row["threads"])]
        for who in peers:
            ms = row["times"].get(who, {}).get("min")
            ratio = "" if who == "attnext" or ms is None else f" ({ms / ours:.1f}x)"
            cells.append("" if ms is None else f"{ms:.4g}{ratio}")
        lines.append(cells)
    if markdown:
        lines.insert(1, ["---"] * len(head))
        print("\n".join("| " + " | ".join(cells) + " |" for cells in lines))
        return
    widths = [max(len(cells[i]) for cells in lines) for i in range(len(head))]
    for cells in lines:
        print("  ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)).rstrip())


def main() -> None:
    """Run the cases asked for."""
    parser = argparse.ArgumentParser(description="Time attnext beside its peers.")
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--seconds", type=float, default=3.0, help="per case and thread count")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--json", type=Path, help="also write the times to this file")
    options = parser.parse_args()
    everyone = attnext.get_num_threads()
    rows = []
    for name in options.case or CASES:
        case = CASES[name](name)
        check(case)
        for threads in sorted({1, everyone}):
            attnext.set_num_threads(threads)
            if torch is not None:
                torch.set_num_threads(threads)
            times = measure(case, options.seconds)
            rows.append({"case": name, "shape": case.shape, "threads": threads, "times": times})
            print(f"  {name}, {threads} thread(s): done", file=sys.stderr)
    attnext.set_num_threads(everyone)
    config = attnext.show_config("dicts")
    versions = f"NumPy {np.__version__}" + (f", PyTorch {torch.__version__}" if torch else "")
    print(f"{cpu_name()}, {os.cpu_count()} CPUs; {time.strftime('%Y-%m-%d')}; {versions}")
    print("Milliseconds, minimum; in parentheses: how many times as long as attnext.\n")
    show(rows, options.markdown)
    if options.json:
        record = {"cpu": cpu_name(), "config": config, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
