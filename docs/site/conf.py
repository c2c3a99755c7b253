"""The documentation site: the documents and notebooks of the repository, where they lie, and the
API from the docstrings. ``sphinx-build -W -c docs/site . SITE`` in the clone builds it; the links
between documents are those that work in the repository too.
"""

import attnext

project = "attnext"
author = "The attnext developers"
copyright = "The attnext developers"
version = release = attnext.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",  # or the formulas wait for a server that not every country reaches
]
root_doc = "README"
include_patterns = [
    "README*.md",
    "CHANGELOG.md",
    "CONTRIBUTING*.md",
    "SECURITY.md",
    "docs/*.md",
    "docs/site/*.md",
    "docs/site/api/*.md",
    "examples/*.ipynb",
    "examples/**/*.ipynb",
]

# ---- documents -----------------------------------------------------------------------------------

myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath", "amsmath"]
nb_execution_mode = "off"  # notebooks are shown with the outputs that are stored in them

# README.md stays as GitHub and PyPI show it; here it is the first page, with the contents, and
# README.zh-CN.md is that of what there is in Chinese.
CONTENTS = {
    "README": """

```{toctree}
:hidden:
:maxdepth: 1

API <docs/site/api/index>
Notebooks <docs/site/notebooks>
Guides <docs/site/guides>
简体中文 <README.zh-CN>
```
""",
    "README.zh-CN": """

```{toctree}
:hidden:
:maxdepth: 1

笔记本 <docs/site/notebooks.zh-CN>
docs/semantics.zh-CN
docs/teachers.zh-CN
CONTRIBUTING.zh-CN
```
""",
}


PAGE_OF = {  # on the site a folder has no page
    "examples/": "docs/site/notebooks.md",
    "examples/solutions/": "docs/site/notebooks.md#solutions",
    "examples/zh-CN/": "docs/site/notebooks.zh-CN.md",
    "examples/zh-CN/solutions/": "docs/site/notebooks.zh-CN.md#参考答案",
}


def adapt(_app: object, docname: str, source: list[str]) -> None:
    if docname in CONTENTS:
        for folder, page in PAGE_OF.items():
            source[0] = source[0].replace(f"]({folder})", f"]({page})")
        source[0] += CONTENTS[docname]


# ---- API -----------------------------------------------------------------------------------------


def examples_of_a_module(
    _app: object, what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """What numpydoc does to the sections of functions and classes, but not of modules."""
    if what == "module" and "Examples" in lines:
        at = lines.index("Examples")
        lines[at : at + 2] = [".. rubric:: Examples", ""]


autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
suppress_warnings = ["ref.python"]  # W_q is an attribute of several classes

# ---- pages ---------------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "attnext"
html_extra_path = ["root"]
html_theme_options = {"show_toc_level": 2, "navbar_align": "left", "show_prev_next": True}


def speak(
    _app: object, pagename: str, _template: str, context: dict[str, object], _doctree: object
) -> None:
    """A browser chooses the glyphs by the language of the page."""
    if "zh-CN" in pagename:
        context["language"] = "zh-CN"


def setup(app: object) -> None:
    app.connect("html-page-context", speak)  # type: ignore[attr-defined]
    app.connect("source-read", adapt)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", examples_of_a_module)  # type: ignore[attr-defined]
