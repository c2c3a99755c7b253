"""The Python of README.md as a file, for a type checker: python .ci/readme.py FILE"""

import doctest
import re
import sys
from pathlib import Path

page = Path(__file__).resolve().parent.parent / "README.md"
blocks = re.findall(r"(?ms)^```python\n(.*?)^```", page.read_text(encoding="utf-8"))
code = [doctest.script_from_examples(text) if ">>>" in text else text for text in blocks]
Path(sys.argv[1]).write_text("\n".join(code), encoding="utf-8")
