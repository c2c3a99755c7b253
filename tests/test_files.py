"""attnext._files: what is written is complete or not there, and stays in its folder."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from attnext import _files
from attnext._files import write_files

needs_links = pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")


def everything(folder: Path) -> dict[str, bytes]:
    """The contents of all files below a folder, by their names."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_files_are_written_and_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    write_files(folder, {"a": b"one", "below/b": b"two"})
    assert everything(folder) == {"a": b"one", "below/b": b"two"}
    write_files(folder, {"a": b"three"})
    assert everything(folder) == {"a": b"three", "below/b": b"two"}


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    (tmp_path / "private").write_text("")
    (tmp_path / "private").chmod(0o600)
    write_files(tmp_path, {"new": b"", "private": b"x"})
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert modes["new"] == modes["plain"] and modes["private"] == 0o600


class FullDisk:
    """Stands for `open`: the file with the number `last` takes half of its bytes and fails."""

    def __init__(self, last: int) -> None:
        self.last = last

    def __call__(self, *args: Any) -> Any:
        file = open(*args)  # noqa: SIM115
        self.last -= 1
        if self.last < 0:
            write = file.write

            def half(content: bytes) -> None:
                write(content[: len(content) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            file.write = half
        return file


@pytest.mark.parametrize("last", [0, 1, 2])
@pytest.mark.parametrize("earlier", [{}, {"a": b"earlier", "b": b"one"}])
def test_a_full_disk_leaves_everything_as_it_was(
    last: int, earlier: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, earlier)

    def disk(name: Path, mode: str) -> Any:
        return full(name, mode, 0)  # without a buffer: `write` can be replaced

    full = FullDisk(last)
    monkeypatch.setattr(_files, "open", disk, raising=False)
    with pytest.raises(OSError, match="No space left"):
        write_files(tmp_path, {"a": b"new a", "b": b"new b", "below/c": b"new c"})
    assert everything(tmp_path) == earlier


@needs_links
def test_a_linked_file_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    folder, mine = tmp_path / "folder", tmp_path / "mine"
    folder.mkdir()
    mine.write_bytes(b"kept")
    (folder / "a").symlink_to(mine)
    (folder / "b").symlink_to(tmp_path / "missing")
    write_files(folder, {"a": b"new", "b": b"new"})
    assert everything(tmp_path) == {"mine": b"kept", "folder/a": b"new", "folder/b": b"new"}
    assert not (folder / "a").is_symlink()


@needs_links
@pytest.mark.parametrize("name", ["out/a", "out/below/a", "../a"])
def test_a_linked_folder_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    folder, mine = tmp_path / "folder", tmp_path / "mine"
    folder.mkdir()
    mine.mkdir()
    (folder / "out").symlink_to(mine, target_is_directory=True)
    with pytest.raises(OSError, match="a symbolic link leads out of the folder"):
        write_files(folder, {"first": b"1", name: b"2"})
    assert everything(tmp_path) == {}  # decided before the first file


@needs_links
def test_links_that_stay_inside_and_a_folder_that_is_a_link_are_welcome(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "one").mkdir(parents=True)
    (real / "two").symlink_to(real / "one", target_is_directory=True)
    (tmp_path / "link").symlink_to(real, target_is_directory=True)
    write_files(tmp_path / "link", {"two/a": b"x"})
    assert everything(real)["one/a"] == b"x"


def test_a_folder_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="exists and is not an ordinary file"):
        write_files(tmp_path, {"a": b"x"})
    assert (tmp_path / "a").is_dir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OSError, match="exists and is not an ordinary file"):
            write_files(tmp_path, {"pipe": b"x"})
        assert (tmp_path / "pipe").is_fifo()
