"""Write files so that an error, a full disk or a symbolic link loses nothing."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write every file of `contents`, named relative to `folder`; replace files of these names.

    All bytes go to temporary files first, each in the folder of its target. Only when every one
    is complete are they renamed. An error before that, a full disk for instance, therefore leaves
    each target as it was. Missing folders are created, with the usual permissions.

    A target that is a symbolic link is replaced, never followed. A folder below `folder` that is
    a link to elsewhere raises OSError, and so does a target that is a folder or a device.
    """
    for name in contents:
        _check_target(folder, name)
    written: list[tuple[Path, Path]] = []
    try:
        for name, content in contents.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
            with open(temporary, "xb") as file:
                written.append((temporary, target))
                file.write(content)
            if target.exists() and not target.is_symlink():
                shutil.copymode(target, temporary)
        for temporary, target in written:
            os.replace(temporary, target)
    except BaseException:  # KeyboardInterrupt as well
        for temporary, _ in written:
            with suppress(OSError):
                temporary.unlink()
        raise


def _check_target(folder: Path, name: str) -> None:
    """Raise OSError if this file cannot be replaced without leaving `folder` or losing data."""
    target = folder / name
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise OSError(errno.EPERM, "a symbolic link leads out of the folder", str(target.parent))
    if target.exists() and not target.is_symlink() and not target.is_file():
        raise OSError(errno.EEXIST, "exists and is not an ordinary file", str(target))
