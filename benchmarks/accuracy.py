"""How exact attnext is beside PyTorch: ``python benchmarks/accuracy.py``.

For every function and gradient, with scores of four kinds, the error against float64 as a multiple
of the error of PyTorch's float32, which computes the same formula: its root mean square and, in
parentheses, the largest. Needs PyTorch (pip install torch).

    python benchmarks/accuracy.py                everything: some minutes
    python benchmarks/accuracy.py --kind dot     what has this in its name
    python benchmarks/accuracy.py --paste        and put the tables into docs/accuracy.md
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # which `python -P` leaves out

from run import CLONE, cpu_name
from suite import accuracy
from suite.paste import NoMarkers, paste

import attnext

DOCUMENT = "docs/accuracy.md"
LENGTHS = (16, 64, 512, 4096)


def same_bits() -> str:
    """Which of this CPU's instruction sets give the results of the chosen one."""
    found = attnext.show_config("dicts")["instruction_set"]
    ours, same = accuracy.digest(), [found["chosen"]]
    for name in found["available"]:
        if name != found["chosen"]:
            command = [sys.executable, *["-P"] * sys.flags.safe_path, __file__, "--digest"]
            done = subprocess.run(
                command, env={**os.environ, "ATTNEXT_CPU": name}, capture_output=True, text=True
            )
            same += [name] if done.stdout.strip() == ours else []
    return f"bit for bit the same with: {', '.join(sorted(same))}"


def head() -> str:
    """Where and with what."""
    return (
        f"{cpu_name()}; {time.strftime('%Y-%m-%d')}; attnext {attnext.__version__}, PyTorch "
        f"{accuracy.torch.__version__}; attnext's results are {same_bits()}."
    )


def ratios(kinds: list[accuracy.Kind], repeats: int | None) -> list[str]:
    """A line for each result of each kind."""
    lines = [f"| function | result | {' | '.join(accuracy.REGIMES)} |", "| --- " * 6 + "|"]
    for kind in kinds:
        columns = [
            accuracy.measured(kind, regime, repeats or kind.repeats) for regime in accuracy.REGIMES
        ]
        for name in columns[0]:
            cells = [f"{c[name]['rms']:.2f} ({c[name]['largest']:.2f})" for c in columns]
            lines.append(f"| {kind.name} | {name} | {' | '.join(cells)} |")
        print(*lines[-len(columns[0]) :], sep="\n", file=sys.stderr)
    return lines


def softmax() -> list[str]:
    """Units in the last place."""
    lines = ["| masked_softmax of | attnext | PyTorch |", "| --- | --- | --- |"]
    for n in LENGTHS:
        found = accuracy.ulps(n)
        lines.append(f"| {n} numbers | {found['attnext']:.1f} ulp | {found['PyTorch']:.1f} ulp |")
    return lines


def main() -> None:
    """Measure and show."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--kind", default="", help="only rows that have this in their name")
    add("--repeats", type=int, help="problems of each kind; default: by how long they take")
    add("--paste", action="store_true", help=f"into {DOCUMENT}")
    add("--root", type=Path, default=CLONE, help="of the document; default: the clone")
    add("--digest", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.digest:
        print(accuracy.digest())
        return
    kinds = [kind for kind in accuracy.kinds() if options.kind in kind.name]
    parts = [[head()], ratios(kinds, options.repeats), softmax()]
    text = "\n\n".join("\n".join(lines) for lines in parts)
    print(text)
    if options.paste:
        try:
            paste(options.root, {DOCUMENT: text})
        except NoMarkers as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
