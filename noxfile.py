#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox>=2025.10.14"]
# ///
"""The common tasks, each by its name: ``nox -l`` lists them, ``nox -s tests`` does one.

A task is a command of README.md or CONTRIBUTING.md, in an environment of its own, or steps of
.ci/run, which make theirs. What stands behind ``--`` goes to the command.
"""

from __future__ import annotations

import nox

nox.needs_version = ">=2025.10.14"
nox.options.default_venv_backend = "uv|virtualenv"


@nox.session
def tests(session: nox.Session) -> None:
    """The suite: pytest's arguments behind --."""
    session.install(".[test]")
    session.run("python", "-P", "-m", "pytest", *session.posargs)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """What must hold of every file: formats, types, the stub, the habits of repositories."""
    session.run(".ci/run", "lint", external=True)


@nox.session(default=False)
def types(session: nox.Session) -> None:
    """The type checkers alone."""
    session.install("-r", ".ci/requirements.txt", ".[test]")
    session.run("mypy")
    session.run("python", "-P", ".ci/notebooks.py", "code")
    session.run("python", "-P", ".ci/readme.py", "build/readme.py")
    session.run("pyright", *session.posargs)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """The site, as it is without the notebooks' results; the folder behind --."""
    session.install("-r", ".ci/site.txt", ".")
    folder = session.posargs or ["../site"]
    session.run("python", "-P", "-m", "sphinx", "-W", "-c", "docs/site", ".", *folder)


@nox.session(default=False, venv_backend="none")
def notebooks(session: nox.Session) -> None:
    """Those in examples/ from top to bottom, the assignments, and the site with what they gave."""
    session.run(".ci/run", "notebooks", "assignments", "site", external=True)


@nox.session(default=False)
def benchmark(session: nox.Session) -> None:
    """attnext beside its peers; a short look, or benchmarks/run.py's arguments behind --."""
    session.install(".[test]")
    session.run("python", "-P", "benchmarks/run.py", *(session.posargs or ["--quick"]))


@nox.session(default=False, venv_backend="none")
def ci(session: nox.Session) -> None:
    """Everything; or the steps behind --, which ``.ci/run help`` names."""
    session.run(".ci/run", *session.posargs, external=True)


if __name__ == "__main__":
    nox.main()
