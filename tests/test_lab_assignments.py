"""`attnext lab DIR`: what is handed out; solutions pass, and blanks fail with a sentence."""

from __future__ import annotations

import ast
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from handouts import LANGUAGES, NAMES, cells, checks_that_fail, code, source
from helpers import REPOSITORY, run_python

from attnext.__main__ import main
from attnext.lab.handout import sources, write


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Path]:
    """What is written in each language, without and with solutions."""
    found = {}
    for lang in LANGUAGES:
        for solutions in (False, True):
            folder = found[lang, solutions] = tmp_path_factory.mktemp(f"{lang}{solutions}")
            assert write(folder, lang, solutions) == 2 * len(NAMES) + 2
    return found


def grader(cell: Any) -> dict[str, Any]:
    found: dict[str, Any] = cell["metadata"]["nbgrader"]
    return found


# ---- what is written -----------------------------------------------------------------------------


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_folder(lang: str, folders: Any) -> None:
    folder = folders[lang, False]
    assert sorted(path.stem for path in folder.glob("notebooks/*")) == NAMES
    assert sorted(path.stem for path in folder.glob("assignments/*/*.ipynb")) == NAMES
    csv = (REPOSITORY / "attnext" / "data" / "motorcycle.csv").read_text("utf-8")
    assert (folder / "data" / "motorcycle.csv").read_text("utf-8") == csv
    readme = (folder / "README.md").read_text("utf-8")
    assert ("练习" in readme) == (lang == "zh")
    assert "    pip install '.[lab]'\n" in readme  # in a clone; attnext is in no package index
    assert "    pip install --no-index --find-links wheelhouse 'attnext[lab]'\n" in readme
    assert "pip install attnext" not in readme.replace("'", "").replace('"', "")
    for path in folder.glob("notebooks/*"):
        notebook = json.loads(path.read_text("utf-8"))
        assert not any(cell.get("outputs") for cell in notebook["cells"])
        assert "solutions" not in {cell["id"] for cell in notebook["cells"]}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", str(tmp_path / "new" / "folder"), "--lang", "zh"]) == 0
    assert capsys.readouterr().out.startswith("18个文件，保存在 ")
    assert "练习 1" in source(cells(tmp_path / "new" / "folder", NAMES[0])[2])


def test_a_folder_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as left:
        main(["lab", str(tmp_path / "file")])
    assert left.value.code == 2 and "cannot write into the folder" in capsys.readouterr().err


def attnext_lab(*words: object, code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Run `attnext lab WORDS`, which ends with this code; return all that it says."""
    try:
        ended = main(["lab", *map(str, words)])
    except SystemExit as left:
        ended = left.code
    assert ended == code
    return "".join(capsys.readouterr())


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_run_over_an_untouched_folder_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attnext_lab(tmp_path, code=0, capsys=capsys)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    (tmp_path / "README.md").unlink()
    attnext_lab(tmp_path, code=0, capsys=capsys)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert before.keys() == after.keys()  # what was missing is back
    files = [path for path in before if path.is_file() and path.name != "README.md"]
    assert [before[path] for path in files] == [after[path] for path in files]


@pytest.mark.parametrize("again", [[], ["--lang", "zh"], ["--solutions"]])
def test_answers_are_kept_and_nothing_else_is_changed(
    again: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In no language: all is decided before the first file is written."""
    attnext_lab(tmp_path, code=0, capsys=capsys)
    work = tmp_path / "assignments" / NAMES[-1] / f"{NAMES[-1]}.ipynb"
    work.write_text(work.read_text("utf-8") + "an afternoon", "utf-8")
    (tmp_path / "notebooks" / f"{NAMES[0]}.ipynb").unlink()  # it would be written first
    before = contents(tmp_path)
    said = attnext_lab(tmp_path, *again, code=2, capsys=capsys)
    assert str(work) in said and "--force" in said
    assert str(tmp_path / "notebooks" / NAMES[0]) not in said  # only what is in the way
    assert ("内容不同" in said) == ("zh" in again)
    assert contents(tmp_path) == before
    assert "18" in attnext_lab(tmp_path, *again, "--force", code=0, capsys=capsys)
    assert "an afternoon" not in work.read_text("utf-8")


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
@pytest.mark.parametrize("to", ["a file", "the same contents", "nothing"])
def test_a_link_is_not_followed(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, elsewhere = tmp_path / "hw", tmp_path / "elsewhere"
    folder.mkdir()
    if to == "a file":
        elsewhere.write_text("mine")
    elif to == "the same contents":
        write(tmp_path / "other")
        elsewhere.write_bytes((tmp_path / "other" / "README.md").read_bytes())
    (folder / "README.md").symlink_to(elsewhere)
    before = contents(tmp_path)
    assert str(folder / "README.md") in attnext_lab(folder, code=2, capsys=capsys)
    assert contents(tmp_path) == before and list(folder.iterdir()) == [folder / "README.md"]
    attnext_lab(folder, "--force", code=0, capsys=capsys)
    assert not (folder / "README.md").is_symlink()
    assert not elsewhere.exists() or elsewhere.read_bytes() == before[elsewhere]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_that_leads_elsewhere_is_refused(
    force: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, elsewhere = tmp_path / "hw", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "data").symlink_to(elsewhere, target_is_directory=True)
    said = attnext_lab(folder, *force, code=2, capsys=capsys)
    assert f"{folder / 'data'}: a symbolic link leads out of the folder" in said
    assert contents(tmp_path) == {}


def test_the_notebooks_come_with_the_package() -> None:
    """And not from the clone beside it: asked in another folder, of what is installed."""
    program = (
        "from attnext.lab.handout import _examples, sources\n"
        "print(len(list(sources('en'))), len(list(sources('zh'))), type(_examples()).__name__)"
    )
    assert run_python("-c", program).stdout.split()[:2] == ["8", "8"]


# ---- assignments ---------------------------------------------------------------------------------


# What a check asserts of a name before anything else.
GUARD = re.compile(
    r"assert ('\w+' in globals\(\)|callable\(\w+\)|np\.shape\(\w+\) == \([\d, ]*\))$"
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_everything_of_a_solution_is_there_once(lang: str, name: str, folders: Any) -> None:
    """With solutions: the statements of the solutions notebook, and nothing else but guards."""
    solved = next(solved for n, _, solved in sources(lang) if n == name)
    wanted = Counter(s for c in solved["cells"] if c["cell_type"] == "code" for s in statements(c))
    made = cells(folders[lang, True], name)
    got = Counter(s for c in made if c["cell_type"] == "code" for s in statements(c))
    assert not wanted - got
    assert all(GUARD.match(statement) for statement in got - wanted)


def statements(cell: Any) -> list[str]:
    """The statements of a cell, without the messages of its assertions."""
    body = ast.parse(code(cell)).body
    for statement in body:
        if isinstance(statement, ast.Assert):
            statement.msg = None
    return [ast.unparse(statement) for statement in body]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_nothing_of_a_solution_is_handed_out(lang: str, name: str, folders: Any) -> None:
    handed, solved = (cells(folders[lang, solutions], name) for solutions in (False, True))
    assert [c["id"] for c in handed] == [c["id"] for c in solved]
    for blank, full in zip(handed, solved, strict=True):
        if grader(blank)["solution"]:
            assert "BEGIN SOLUTION" in source(full) and "BEGIN SOLUTION" not in source(blank)
            kept = [x for x in source(blank).split("\n") if x in source(full).split("\n")]
            assert all(line.startswith("#") for line in kept)
        else:
            assert source(blank) == source(full)


@pytest.mark.parametrize("name", NAMES)
def test_every_exercise_is_asked_and_most_are_checked(name: str, folders: Any) -> None:
    ids = [cell["id"] for cell in cells(folders["en", False], name)]
    asked = [x for x in ids if x.startswith("task-")]
    assert len(asked) >= 5 and asked == [f"task-{i + 1}" for i in range(len(asked))]
    assert sum(x.startswith("check-") for x in ids) >= 3
    for number in range(1, len(asked) + 1):
        assert f"answer-{number}" in ids or f"words-{number}" in ids


@pytest.mark.parametrize("name", NAMES)
def test_marks_for_nbgrader(name: str, folders: Any) -> None:
    """As its schema, version 3, has them, and its rules for cells of text."""
    ids = []
    for cell in cells(folders["zh", False], name):
        marks = grader(cell)
        kind = cell["cell_type"]
        keys = {"cell_type", "grade", "grade_id", "locked", "schema_version", "solution", "task"}
        assert set(marks) == keys | ({"points"} if marks["grade"] else set())
        assert marks["schema_version"] == 3 and marks["cell_type"] == kind
        assert marks["locked"] != marks["solution"]
        assert kind == "code" or marks["grade"] == marks["solution"]
        ids.append(marks["grade_id"])
    assert len(ids) == len(set(ids))


def test_solutions_pass_every_check(folders: Any, tmp_path: Path) -> None:
    """Here those of the first notebook, in a second; the step assignments of .ci/run does all."""
    solved = cells(folders["en", True], NAMES[0])
    assert checks_that_fail(solved, path=tmp_path / "cells") == [{}]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("lang", "sentence"),
    [("en", r"exercise \d+: \w+ is not defined yet"), ("zh", r"练习\d+：还没有定义\w+")],
)
def test_an_empty_answer_fails_with_a_sentence(
    lang: str, sentence: str, name: str, folders: Any
) -> None:
    for cell in cells(folders[lang, False], name):
        if cell["id"].startswith("check-"):
            with pytest.raises(AssertionError, match=f"^{sentence}$"):
                exec(code(cell), {})
