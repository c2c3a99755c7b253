"""What the playground of the site is made of, put beside its pages: attnext.view's module, the C
core as WebAssembly, and the words of attnext.explain.

python -P docs/site/playground.py FOLDER

writes it without the site.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

from attnext.explain.words import STEPS, TITLES

SITE = Path(__file__).resolve().parent
ROOT = SITE.parent.parent


def words() -> str:
    """The words of explain as a module: of each step its formula, and name and note by language."""
    tables = {"STEPS": STEPS, "TITLES": TITLES}
    return "".join(
        f"export const {name} = {json.dumps(table, ensure_ascii=False)};\n"
        for name, table in tables.items()
    )


def module(cache: Path) -> Path:
    """The core as WebAssembly, compiled again where a file of it is newer."""
    target = cache / "attnext.wasm"
    newest = max(path.stat().st_mtime for path in (ROOT / "csrc").glob("*/*.*"))
    if not target.exists() or target.stat().st_mtime < newest:
        spec = importlib.util.spec_from_file_location("build", ROOT / "csrc" / "web" / "build.py")
        assert spec and spec.loader
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        build.build(target)
    return target


def write(static: Path, cache: Path) -> None:
    """Fills the folders view/, web/ and playground/ of the site's static files."""
    sources = {
        "view": ROOT / "attnext" / "view" / "static",
        "playground": SITE / "static/playground",
    }
    for folder, source in sources.items():
        shutil.copytree(source, static / folder, dirs_exist_ok=True)
    (static / "web").mkdir(exist_ok=True)
    for path in (ROOT / "csrc" / "web" / "attnext.js", module(cache)):
        shutil.copy(path, static / "web")
    (static / "playground" / "words.js").write_text(words(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[1]))
