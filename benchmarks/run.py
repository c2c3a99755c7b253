"""Time attnext beside its peers: ``python benchmarks/run.py``.

Every named shape, forward, backward and both, on one thread and on all. Each call's results,
gradients included, are checked first against ``attnext.reference``; then all calls run in turn,
round after round, so that a busy machine slows all alike: what counts is the ratio within a line.
Peers that are not installed are left out (pip install torch jax onnxruntime onnx).

    python benchmarks/run.py                            everything: about half an hour
    python benchmarks/run.py --case dot-dense --seconds 10
    python benchmarks/run.py --masks                    does the cost follow the pairs?
    python benchmarks/run.py --cpu generic              and attnext with ATTNEXT_CPU=generic
    python benchmarks/run.py --quick                    a short look, nothing that compiles
    python benchmarks/run.py --json out.json --paste    and put the tables into the documents
    python benchmarks/run.py --from out.json --paste    ... those of an earlier run
    python benchmarks/run.py --compare old.json new.json    what became slower; 1 if anything did
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

from suite import compare, report, worker
from suite.cases import CASES
from suite.paste import DOCUMENTS, NoMarkers, paste
from suite.peers import CPUS, PEERS, SLOW_TO_COMPILE

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
        "cases": list(CASES) if everything else options.case or [],
        "masks": everything or options.masks,
        "mask_shape": options.mask_shape,
        "seconds": options.seconds or (0.1 if options.quick else 3.0),
        "patience": options.patience,
        "cpu_time": options.cpu_time,
        "peers": ["attnext", *[name for name in PEERS if takes_part(name, options)]],
    }
    record: dict[str, Any] = {"cpu": cpu_name(), "cpus": cpus(), "date": time.strftime("%Y-%m-%d")}
    record |= {"cpu_time": options.cpu_time, "rows": [], "masks": [], "missing": {}}
    with tempfile.TemporaryDirectory() as folder:
        for threads in numbers_of_threads(options):
            result = in_a_child({**spec, "threads": threads, "folder": folder})
            record["rows"] += result["rows"]
            record["masks"] += result["masks"]
            record["missing"] |= result["missing"]
            record |= {key: result[key] for key in ("versions", "config")}
    return record


def read(file: Path) -> dict[str, Any]:
    """A record that --json wrote."""
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        record["rows"], record["masks"]  # noqa: B018
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{file} is no record that --json wrote: {error!r}")
    return record


def numbers_of_threads(options: argparse.Namespace) -> list[int]:
    """One and all, unless others are asked for."""
    return sorted(set(options.threads or ([1] if options.cpu_time else [1, cpus()])))


def takes_part(name: str, options: argparse.Namespace) -> bool:
    """Whether this peer was asked for."""
    module, cpu = PEERS[name]
    if module == "narrower":
        return cpu in (options.cpu or [])
    if options.peer:
        return name in options.peer
    return name != "attnext" and not (options.quick and name in SLOW_TO_COMPILE)


def parsed() -> argparse.Namespace:
    """The options."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--case", action="append", choices=CASES, help="this one; may be repeated")
    add("--masks", action="store_true", help="the masks alone")
    add("--mask-shape", type=int, nargs=4, default=(2, 8, 512, 64), metavar="n",
        help="batch entries, heads, queries = keys, features")  # fmt: skip
    add("--peer", action="append",
        choices=[x for x, (module, _) in PEERS.items() if x != "attnext" and module != "narrower"],
        help="only this one; may be repeated")  # fmt: skip
    add("--cpu", action="append", choices=CPUS,
        help="attnext with these vectors too, where its own are wider; may be repeated"
    )  # fmt: skip
    add("--threads", type=int, action="append", help="so many; may be repeated; default: 1, all")
    add("--seconds", type=float, help="for each case, direction and number of threads; default: 3")
    add("--patience", type=float, default=120.0, help="seconds a peer may take to get ready")
    add("--quick", action="store_true", help="a tenth of a second for each, nothing compiled")
    add("--cpu-time", action="store_true",
        help="CPU time of one thread: a first look on a busy machine")  # fmt: skip
    add("--markdown", action="store_true", help="print Markdown")
    add("--json", type=Path, metavar="FILE", help="also write all measurements there")
    add("--from", type=Path, metavar="FILE", dest="source", help="measure nothing: read --json's")
    add("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"),
        help="measure nothing: two of --json's; status 1 if something became slower")  # fmt: skip
    add("--paste", action="store_true", help="into the READMEs and docs/performance.md")
    add("--root", type=Path, default=CLONE, help="of these documents; default: the clone")
    add("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
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
    if options.compare:
        text, slower = compare.document(*(read(file) for file in options.compare))
        print(text, end="")
        sys.exit(slower)
    if options.source:
        record = read(options.source)
    else:
        record = measured(options)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1), encoding="utf-8")
    print(report.document(record, as_markdown=options.markdown))
    if options.paste:
        try:
            paste(
                {
                    options.root / name: report.document(record, short=short)
                    for name, short in DOCUMENTS.items()
                }
            )
        except NoMarkers as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
