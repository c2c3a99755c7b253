"""Time attnext beside its peers: ``python benchmarks/run.py``.

Every named shape, forward, backward and both, on one thread and on all. Each call's results,
gradients included, are checked first against ``attnext.reference``; then all calls run in turn,
round after round, so that a busy machine slows all alike: what counts is the ratio within a line.
Peers that are not installed are left out (pip install torch jax onnxruntime onnx).

    python benchmarks/run.py                            everything: some ten minutes
    python benchmarks/run.py --case dot-dense --seconds 10
    python benchmarks/run.py --masks                    does the cost follow the pairs?
    python benchmarks/run.py --cpu generic              and attnext with ATTNEXT_CPU=generic
    python benchmarks/run.py --quick                    a short look, nothing that compiles
    python benchmarks/run.py --processes 3 --paste      and make tables, pictures and record anew
    python benchmarks/run.py --from docs/performance.json --paste    ... of an earlier run
    python benchmarks/run.py --compare HEAD~1           what is slower than at that commit
    python benchmarks/run.py --compare old.json new.json    ... of two runs; 1 if anything is
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # which `python -P` leaves out

from suite import before, compare, record, report, worker
from suite.cases import CASES
from suite.paste import NoMarkers, publish
from suite.peers import CPUS, PEERS, SLOW_TO_COMPILE
from suite.timing import ROUNDS

from attnext._files import write_files

CLONE = Path(__file__).resolve().parent.parent


def cpu_name() -> str:
    """The CPU's model name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cpus() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_a_child(spec: dict[str, Any]) -> dict[str, Any]:
    """The results of one process with its own number of threads."""
    given, made = Path(spec["folder"], "spec.json"), Path(spec["folder"], "result.json")
    given.write_text(json.dumps(spec), encoding="utf-8")
    command = [sys.executable, __file__, "--worker", str(given), str(made)]
    if sys.flags.safe_path:
        command.insert(1, "-P")
    if subprocess.run(command).returncode:
        sys.exit(1)  # the child has said why
    result: dict[str, Any] = json.loads(made.read_text(encoding="utf-8"))
    return result


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """A record of all measurements: what --json writes."""
    everything = not options.case and not options.masks
    spec = {
        **asked(options),
        "cases": list(CASES) if everything else options.case or [],
        "masks": everything or options.masks,
        "mask_shape": options.mask_shape,
        "peers": ["attnext", *[name for name in PEERS if takes_part(name, options)]],
    }
    found: dict[str, Any] = {"cpu": cpu_name(), "cpus": cpus(), "date": time.strftime("%Y-%m-%d")}
    found |= {"cpu_time": options.cpu_time, "versions": {}, "config": {}, "missing": {}}
    found |= {"rows": [], "masks": []}
    with tempfile.TemporaryDirectory() as folder:
        for threads in numbers_of_threads(options):
            child = {**spec, "threads": threads, "folder": folder}
            result = record.best([in_a_child(child) for _ in range(options.processes)])
            found["rows"] += result["rows"]
            found["masks"] += result["masks"]
            found["missing"] |= result["missing"]
            found |= {key: result[key] for key in ("versions", "config")}
    rounded: dict[str, Any] = record.rounded(found)
    return rounded


def asked(options: argparse.Namespace) -> dict[str, Any]:
    """What any process is told of how to time."""
    return {
        "seconds": options.seconds or (0.1 if options.quick else 0.5),
        "rounds": ROUNDS,
        "patience": options.patience,
        "cpu_time": options.cpu_time,
    }


def beside_a_commit(revision: str, options: argparse.Namespace) -> tuple[str, bool]:
    """The table of --compare, and whether anything became slower."""
    commit = before.commit_of(revision)
    if commit is None:
        sys.exit(
            f"--compare takes a record that --json wrote or a commit of the clone, got {revision}"
        )
    old, found = before.built(commit), []
    spec = {**asked(options), "peers": ["attnext"], "rounds": 2}
    spec["seconds"] /= 4 * before.TURNS
    with tempfile.TemporaryDirectory() as folder:
        for threads in numbers_of_threads(options):
            given = {**spec, "threads": threads, "folder": folder}
            for row in before.rows(given, options.case or list(CASES), old):
                print(f"  {row.case}, {row.work}, {threads}: {row.factor:.3f}x", file=sys.stderr)
                found.append(row)
    return before.document(found, commit)


def compared(options: argparse.Namespace) -> tuple[str, bool]:
    """Two records, a record and a new run, or a commit and what is installed."""
    old, *new = options.compare
    if not new and not Path(old).is_file():
        return beside_a_commit(old, options)
    was = record.read(Path(old))
    return compare.document(was, record.read(Path(new[0])) if new else measured(options))


def numbers_of_threads(options: argparse.Namespace) -> list[int]:
    """Return the requested numbers of threads; by default 1 and all CPUs."""
    return sorted(set(options.threads or ([1] if options.cpu_time else [1, cpus()])))


def takes_part(name: str, options: argparse.Namespace) -> bool:
    """True if this peer is to be measured."""
    module, cpu = PEERS[name]
    if module == "narrower":
        return cpu in (options.cpu or [])
    if options.peer:
        return name in options.peer
    return name != "attnext" and not (options.quick and name in SLOW_TO_COMPILE)


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--case", action="append", choices=CASES, help="run this case only; may be repeated")
    add("--masks", action="store_true", help="run the cases with masks only")
    add("--mask-shape", type=int, nargs=4, default=(2, 8, 512, 64), metavar="n",
        help="shape of those: batch, heads, queries (= keys), features")  # fmt: skip
    add("--peer", action="append",
        choices=[x for x, (module, _) in PEERS.items() if x != "attnext" and module != "narrower"],
        help="compare with this library only; may be repeated")  # fmt: skip
    add("--cpu", action="append", choices=CPUS,
        help="also run attnext with this narrower instruction set; may be repeated"
    )  # fmt: skip
    add(
        "--threads",
        type=int,
        action="append",
        help="number of threads; may be repeated; default: 1 and all",
    )
    add(
        "--seconds",
        type=float,
        help="time for each case, direction and number of threads; default: 0.5",
    )
    add("--processes", type=int, choices=range(1, 10), default=1, metavar="n",
        help="run n processes one after another and take the shortest time of each call, because"
        " the place of its memory can make a whole process slow; default: 1")  # fmt: skip
    add(
        "--patience",
        type=float,
        default=120.0,
        help="seconds that a library may take to compile; default: 120",
    )
    add("--quick", action="store_true", help="a tenth of a second for each case; no torch.compile")
    add("--cpu-time", action="store_true",
        help="measure the CPU time of one thread, for a busy machine")  # fmt: skip
    add("--markdown", action="store_true", help="print Markdown")
    add("--json", type=Path, metavar="FILE", help="also write all measurements into FILE")
    add(
        "--from",
        type=Path,
        metavar="FILE",
        dest="source",
        help="read the measurements from FILE (written by --json)",
    )
    add("--compare", nargs="+", metavar=("OLD", "NEW"),
        help="list the cases that are slower in NEW than in OLD; OLD is a file of --json or a"
        " commit, NEW a file of --json or the installed attnext; exit status 1 if any")  # fmt: skip
    add("--paste", action="store_true",
        help="write the tables, the pictures and the record into docs/")  # fmt: skip
    add(
        "--root",
        type=Path,
        default=CLONE,
        help="the folder that contains docs/; default: the clone",
    )
    add("--worker", nargs=2, help=argparse.SUPPRESS)
    add("--turns", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if len(options.compare or ()) > 2:
        parser.error(f"argument --compare: expected OLD or OLD NEW, got {len(options.compare)}")
    for cpu in options.cpu or ():
        from suite.narrower import refused  # attnext: only for those who ask

        if reason := refused(cpu):
            parser.error(f"argument --cpu: {reason}")
    return options


def main() -> None:
    """Measure, or read, and show."""
    options = parsed()
    if options.worker:
        return worker.main(*options.worker)
    if options.turns:
        return worker.turns(options.turns)
    if options.compare:
        text, slower = compared(options)
        print(text, end="")
        sys.exit(slower)
    found = record.read(options.source) if options.source else measured(options)
    if options.json:
        write_files(options.json.parent, {options.json.name: record.text(found).encode()})
    print(report.document(found, as_markdown=options.markdown))
    if options.paste:
        try:
            publish(found, options.root)
        except NoMarkers as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
