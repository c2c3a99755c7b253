"""The documentation site: the documents and notebooks of the repository, where they lie, and the
API from the docstrings. ``sphinx-build -W -c docs/site . SITE`` in the clone builds it; the links
between documents are those that work in the repository too.

Who publishes it says where, in the environment: ATTNEXT_SITE is its address, which cards of social
networks need; ATTNEXT_VERSIONS that of a list of versions, in the form of pydata-sphinx-theme's
switcher.json, and then there is a switch.
"""

import os
import posixpath
import re
import sys
from functools import cache
from gettext import NullTranslations, translation
from html import escape
from pathlib import Path
from typing import Any

import pydata_sphinx_theme
import sphinx
from docutils import nodes

import attnext

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import chinese_search
import notebooks
import playground
from suite.record import read
from suite.report import best_peer, number, ratio

project = "attnext"
author = "The attnext developers"
copyright = "The attnext developers"
version = release = attnext.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",  # or the formulas wait for a server that not every country reaches
]
root_doc = "docs/site/home"
include_patterns = [
    "README*.md",
    "CHANGELOG.md",
    "CONTRIBUTING*.md",
    "SECURITY.md",
    "docs/*.md",
    "csrc/*.md",
    "docs/site/*.md",
    "docs/site/api/*.md",
    "docs/site/api/generated/*.rst",
    "examples/*.ipynb",
    "examples/**/*.ipynb",
]

# ---- documents -----------------------------------------------------------------------------------

myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath", "amsmath"]
nb_execution_mode = "off"  # notebooks are shown with the outputs that are stored in them

# README.md stays as GitHub and PyPI show it. The first pages have the contents, home.zh-CN.md of
# what there is in Chinese.
CONTENTS = {
    "docs/site/home": """

```{toctree}
:hidden:
:maxdepth: 1

Playground <playground>
Use <../../README>
Functions <../functions>
API <api/index>
Notebooks <notebooks>
Guides <guides>
简体中文 <home.zh-CN>
```
""",
    "docs/site/home.zh-CN": """

```{toctree}
:hidden:
:maxdepth: 1

试一试 <playground.zh-CN>
使用 <../../README.zh-CN>
安装 <../install.zh-CN>
函数与选项 <../functions.zh-CN>
笔记本 <notebooks.zh-CN>
语义 <../semantics.zh-CN>
教学 <../teachers.zh-CN>
参与 <../../CONTRIBUTING.zh-CN>
C 代码 <../../csrc/README.zh-CN>
```
""",
}


PAGE_OF = {  # on the site a folder has no page
    "examples/": "docs/site/notebooks.md",
    "examples/solutions/": "docs/site/solutions.md",
    "examples/zh-CN/": "docs/site/notebooks.zh-CN.md",
    "examples/zh-CN/solutions/": "docs/site/solutions.zh-CN.md",
}


# What the first page shows of docs/performance.json: how many times as long the best peer takes,
# forward on one thread. The words say what a case computes; tests/test_site.py compares their
# numbers with the sizes in the record.
SHOWN = {
    "dot-causal": {
        "en": "causal attention, 8 × 8 heads, 512 tokens",
        "zh": "因果注意力，8 × 8个头，512个词元",
    },
    "dot-masked": {
        "en": "padded sentences with a mask, 8 × 8 heads, 512 tokens",
        "zh": "带掩蔽的填充句子，8 × 8个头，512个词元",
    },
    "dot-documents": {
        "en": "4 documents in a row of 512 tokens, 8 × 8 heads",
        "zh": "512个词元的一行中有4篇文档，8 × 8个头",
    },
    "additive-decoder-loop": {
        "en": "additive attention in a decoder, 64 sentences of 50 tokens, 20 steps",
        "zh": "解码器中的加性注意力，64个句子，每句50个词元，20步",
    },
}


def figures(lang: str) -> str:
    """Return the times of SHOWN, relative to the best peer, as HTML."""
    record = read(Path(__file__).parents[1] / "performance.json")
    rows = {
        row["case"]: row
        for row in record["rows"]
        if row["threads"] == 1 and row["work"] == "forward"
    }
    made = []
    for case, words in SHOWN.items():
        row, peer = rows[case], best_peer(rows[case])
        assert peer
        ours = number(row["times"]["attnext"]["min"])
        comma = "，" if lang == "zh" else ", "
        times = ratio(row, peer).removesuffix("x")
        told = escape(f"{words[lang]}{comma}{ours}")
        made.append(f"<div><strong>{times}×</strong>{peer}<br><small>{told}</small></div>")
    return f'<div class="figures">{"".join(made)}</div>'


def one_for_each_mode(found: re.Match[str]) -> str:
    """The two files of README's <picture>: the theme shows that of the mode that is chosen."""
    of_dark, of_light = re.findall(r'src(?:set)?="([^"]+)"', found[0])
    (alt,) = re.findall(r'alt="([^"]+)"', found[0])
    return "\n".join(
        f"```{{image}} {file}\n:class: only-{mode}\n:alt: {alt}\n```\n"
        for mode, file in (("light", of_light), ("dark", of_dark))
    )


def adapt(_app: object, docname: str, source: list[str]) -> None:
    """What pages are completed with, and where links to folders lead."""
    lang = "zh" if "zh-CN" in docname else "en"
    html = {
        "<!-- figures -->": lambda: figures(lang),
        "<!-- notebooks -->": lambda: notebooks.cards(lang),
    }
    for mark, make in html.items():
        if mark in source[0] and docname.startswith("docs/site/"):
            source[0] = source[0].replace(mark, f"```{{raw}} html\n{make()}\n```")
    if docname.startswith("README"):
        for folder, page in PAGE_OF.items():
            source[0] = source[0].replace(f"]({folder})", f"]({page})")
        source[0] = re.sub(r"<picture>.*?</picture>", one_for_each_mode, source[0], flags=re.S)
    source[0] += CONTENTS.get(docname, "")


# ---- API -----------------------------------------------------------------------------------------


def examples_of_a_module(
    _app: object, what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """What numpydoc does to the sections of functions and classes, but not of modules."""
    if what == "module" and "Examples" in lines:
        at = lines.index("Examples")
        lines[at : at + 2] = [".. rubric:: Examples", ""]


def link_names(app: Any, doctree: nodes.document, docname: str) -> None:
    """`attnext.masked_softmax` in a text or a notebook leads to its page."""
    known = app.env.domains["py"].objects
    for literal in list(doctree.findall(nodes.literal)):
        name = literal.astext().partition("(")[0]
        if name in known and name != "attnext" and not isinstance(literal.parent, nodes.reference):
            place = known[name]
            uri = app.builder.get_relative_uri(docname, place.docname)
            link = nodes.reference("", "", refuri=f"{uri}#{place.node_id}", internal=True)
            literal.replace_self(link)
            link += literal


autosummary_generate = True
templates_path = ["templates"]
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
suppress_warnings = ["ref.python"]  # W_q is an attribute of several classes

# ---- pages ---------------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "attnext"
html_extra_path = ["root"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_logo = html_favicon = "static/logo.svg"
html_baseurl = os.environ.get("ATTNEXT_SITE", "")
html_sidebars = {f"docs/site/{page}*": [] for page in ("home", "playground", "notebooks")}
html_sidebars["README*"] = []  # a page without pages below it: the theme would head an empty list
html_theme_options: dict[str, Any] = {
    "show_toc_level": 2,
    "navbar_align": "left",
    "show_prev_next": True,
    "navbar_center": ["menu.html"],
    "logo": {"text": "attnext", "alt_text": "attnext"},
}
if versions := os.environ.get("ATTNEXT_VERSIONS"):
    html_theme_options["switcher"] = {"json_url": versions, "version_match": release}
    html_theme_options["navbar_start"] = ["navbar-logo", "version-switcher"]

# What is copied is what one types: neither prompts nor what they answered.
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

DESCRIPTION = {
    "en": "Attention for Python, written in C, with forward and backward passes. You can look at "
    "every step.",
    "zh": "用 C 实现的 Python 注意力库，提供前向传播和反向传播，计算的每一步都可以查看。",
}


def card(lang: str, pagename: str) -> str:
    """What a social network shows of a page; the picture needs an address."""
    said = {"og:title": "attnext", "og:description": DESCRIPTION[lang], "og:type": "website"}
    if html_baseurl:
        root = html_baseurl.rstrip("/")
        said |= {"og:url": f"{root}/{pagename}.html", "og:image": f"{root}/_static/social.png"}
    tags = (f'<meta property="{n}" content="{escape(x)}">' for n, x in said.items())
    return "\n".join([*tags, f'<meta name="description" content="{escape(DESCRIPTION[lang])}">'])


@cache
def words_of_the_theme(lang: str) -> NullTranslations:
    """What the theme and Sphinx say themselves, in the language of a page."""
    if lang == "en":
        return NullTranslations()
    folders = [Path(str(module.__file__)).parent for module in (sphinx, pydata_sphinx_theme)]
    of_sphinx, of_theme = (
        translation("sphinx", str(folder / "locale"), ["zh_CN", "zh"]) for folder in folders
    )
    of_sphinx.add_fallback(of_theme)
    return of_sphinx


def menu_in_chinese() -> list[tuple[str, str]]:
    """Titles and pages of what there is in Chinese, for the menu of its pages."""
    entries = re.findall(r"^(.+) <(.+)>$", CONTENTS["docs/site/home.zh-CN"], re.MULTILINE)
    pages = [(title, posixpath.normpath(f"docs/site/{page}")) for title, page in entries]
    return [*pages, ("English", "docs/site/home")]


def speak(
    app: Any, pagename: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    """The language of a page: its glyphs, which a browser chooses, its menu, the theme's words."""
    lang = "zh" if "zh-CN" in pagename else "en"
    if lang == "zh":
        context["language"] = "zh-CN"
        context["menu"] = menu_in_chinese()
    app.builder.templates.environment.install_gettext_translations(words_of_the_theme(lang))
    context["metatags"] = context.get("metatags", "") + card(lang, pagename)
    if pagename.startswith("examples/"):
        body = context.get("body", "")
        if "data-attnext=" in body:  # a picture that moves
            script = context["pathto"]("_static/playground/playground.js", True)
            body += f'<script type="module" src="{script}"></script>'
        context["body"] = notebooks.buttons(pagename) + body


def add_files(app: Any, error: Exception | None) -> None:
    """What is made of other files of the repository: the playground, notebooks to be downloaded."""
    if error is None and app.builder.format == "html":
        playground.write(Path(app.outdir, "_static"), Path(app.doctreedir))
        notebooks.write(Path(app.outdir))


def leave_out(_app: object, _what: str, name: str, *_other: object) -> bool | None:
    """The layers' `forward`, which is there to say that there is none."""
    return True if name == "forward" else None


def setup(app: object) -> None:
    app.add_search_language(chinese_search.Search)  # type: ignore[attr-defined]
    app.connect("build-finished", add_files)  # type: ignore[attr-defined]
    app.connect("doctree-resolved", link_names)  # type: ignore[attr-defined]
    app.connect("html-page-context", speak)  # type: ignore[attr-defined]
    app.connect("source-read", adapt)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", examples_of_a_module)  # type: ignore[attr-defined]
    app.connect("autodoc-skip-member", leave_out)  # type: ignore[attr-defined]
