"""attnext with narrower vectors than this machine's, beside attnext in one process.

Which instruction set it uses is decided when its compiled module is loaded. So a copy of the file
is loaded as a module of its own, with ATTNEXT_CPU set.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from attnext import _core

from .peer_attnext import of
from .peers import Maker


def __getattr__(cpu: str) -> Maker:
    """narrower.generic: its calls. Whoever looks for any other name finds none."""
    if reason := refused(cpu):
        raise AttributeError(reason)
    return partial(of, loaded(cpu))


def refused(cpu: str) -> str:
    """Why there is nothing to measure with this instruction set, or nothing."""
    sets = _core.show_config("dicts")["instruction_set"]
    own = sets["chosen"]
    narrower = sets["available"][: sets["available"].index(own)]
    if cpu in narrower:
        return ""
    return f"attnext uses {own} here, expected one of {', '.join(narrower) or 'none'}, got {cpu}"


def loaded(cpu: str) -> Any:
    """The compiled module once more, for this instruction set."""
    before = os.environ.get("ATTNEXT_CPU")
    os.environ["ATTNEXT_CPU"] = cpu
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            file = shutil.copy(_core.__file__, folder)
            spec = spec_from_file_location(_core.__name__, file)
            assert spec is not None and spec.loader is not None
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
    finally:
        del os.environ["ATTNEXT_CPU"]
        if before is not None:
            os.environ["ATTNEXT_CPU"] = before
    return module
