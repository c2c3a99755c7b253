"""The checks of the assignments: the names that they read, their messages, and their verdicts."""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handouts import LANGUAGES, NAMES, cells, checks_that_fail, code, source

from attnext.lab.assignments import EXERCISES, check_of, definitions
from attnext.lab.handout import sources, write


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What students get, in each language."""
    found = {lang: tmp_path_factory.mktemp(lang) for lang in LANGUAGES}
    for lang, folder in found.items():
        write(folder, lang)
    return found


# ---- what a check reads --------------------------------------------------------------------------


def test_every_check_has_its_entry() -> None:
    checks = {
        f"{name} {cell['id'].removeprefix('check-')}"
        for name, _, solved in sources("en")
        for cell in solved["cells"]
        if cell["id"].startswith("check-")
    }
    assert checks == set(EXERCISES) and len(checks) > 40


def test_both_languages_define_the_same_names() -> None:
    for entry in EXERCISES.values():
        one, other = (definitions(entry[lang].split("\n")) for lang in LANGUAGES)
        assert [replace(x, line="") for x in one] == [replace(x, line="") for x in other] != []


def names_of(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {node.id for node in nodes if isinstance(node.ctx, context)}


def bound(tree: ast.AST) -> set[str]:
    """Every name that the code gives a value, imports, defines or takes as an argument."""
    found = names_of(tree, ast.Store)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(x.asname or x.name).split(".")[0] for x in node.names}
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_check_reads_only_what_its_answer_cell_lists(lang: str, name: str, folders: Any) -> None:
    """And what the first cell gives: no name of the solution, none of another exercise."""
    found = {cell["id"]: cell for cell in cells(folders[lang], name)}
    given = bound(ast.parse(code(found["setup"]))) | set(dir(builtins))
    defined: list[str] = []
    for key, cell in found.items():
        if not key.startswith("check-"):
            continue
        number = key.removeprefix("check-")
        entry = EXERCISES[f"{name} {number}"][lang].split("\n")
        wanted = {each.name for each in definitions(entry)}
        tree = ast.parse(code(cell))
        assert names_of(tree, ast.Load) - bound(tree) - given == wanted, key
        listed = " ".join(source(found[f"answer-{number}"]).replace("#", " ").split())
        for each in definitions(entry):
            assert "".join(each.line.split()) in listed.replace(" ", ""), key
        assert not wanted & given, f"{key}: names of the first cell"
        local = bound(tree) - names_in_scopes(tree)
        assert all(x.startswith("_") for x in local), f"{key} may overwrite {local}"
        defined += wanted
    assert len(defined) == len(set(defined)), "two exercises define one name"


def names_in_scopes(tree: ast.AST) -> set[str]:
    """Names inside of functions and comprehensions, which a check does not leave behind."""
    kinds = (ast.FunctionDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    scopes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    inner = {name for scope in scopes for name in bound(scope)}
    return inner - {scope.name for scope in scopes if isinstance(scope, ast.FunctionDef)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_assertion_of_a_check_has_a_message(lang: str, name: str, folders: Any) -> None:
    """In the language of the hand-out, and it begins with the exercise."""
    for cell in cells(folders[lang], name):
        if not cell["id"].startswith("check-"):
            continue
        number = cell["id"].removeprefix("check-")
        for node in ast.walk(ast.parse(code(cell))):
            if isinstance(node, ast.Assert):
                assert node.msg is not None, ast.unparse(node)
                said = ast.unparse(node.msg)
                begins = f"exercise {number}: " if lang == "en" else f"练习{number}："
                assert begins in said
                words = said.split(begins)[1]
                assert (re.search("[\u4e00-\u9fff]", words) is not None) == (lang == "zh"), said


ENTRY = ["x (2,): two floats", "f(a, b): a function", "y: anything", "! x sums to {sum(x)}, not 3"]
CHECK = "_total = sum(x)\nassert _total == 3  # the answer\ny"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(x=[1, 2], f=len, y=None), None),
        (dict(f=len, y=None), "exercise 7: x is not defined yet"),
        (dict(x=[1], f=len, y=None), "exercise 7: x has shape (1,), expected (2,)"),
        (dict(x=[1, 2], f=3, y=None), "exercise 7: f is of type int, expected a function"),
        (dict(x=[1, 2], f=len), "exercise 7: y is not defined yet"),
        (dict(x=[1, 3], f=len, y=None), "exercise 7: x sums to 4, not 3"),
    ],
)
def test_what_a_check_says(given: dict[str, Any], said: str | None) -> None:
    program = check_of(CHECK, ENTRY, 7, "en")
    assert "the answer" not in program
    if said is None:
        exec(program, {"np": np, **given})
    else:
        with pytest.raises(AssertionError, match=f"^{re.escape(said)}$"):
            exec(program, {"np": np, **given})


@pytest.mark.parametrize("messages", [[], ["! one", "! two"]])
def test_a_check_with_a_missing_message_is_not_made(messages: list[str]) -> None:
    with pytest.raises(ValueError, match="zip"):
        check_of("assert x == 3", ["x: a number", *messages], 1, "en")


@pytest.mark.parametrize("line", ["no colon", "two words: meaning", "x (2,:"])
def test_a_line_that_defines_nothing(line: str) -> None:
    with pytest.raises(ValueError, match="expected a name, its shape or arguments, and a text"):
        definitions([line])


# ---- right answers that are not the solutions ----------------------------------------------------

# Each is written from the task and the list of the answer cell alone.
OTHER_ANSWERS = {
    "01_scoring_functions 1": """
K = [[1, 0], [0, 1], [0.8, 0.8], [0, 0], [0.8, 0]]
V = [[110], [95], [125], [60], [200]]
Q = [[how_much, 0] for how_much in (0, 1, 2, 5, 100)]
before = attnext.dot_product_attention(Q, K[:4], V[:4], scale=1.0).ravel()
after = attnext.dot_product_attention(Q, K, V, scale=1.0).ravel()
never = [0.3, 0.3]
""",
    "01_scoring_functions 2": """
dot_factor, cosine_factor, gaussian_factor, gaussian_sigma = 3, 7, 3, 3
""",
    "01_scoring_functions 3": """
def with_infinity(X, valid_lens):
    E = np.array([[np.exp(x) if j < n else 0 for j, x in enumerate(row)]
                  for row, n in zip(X, valid_lens)])
    return E / E.sum(1)[:, None]

def with_rule(X, valid_lens):
    P = np.full(X.shape, 1 / X.shape[1])
    for i, n in enumerate(valid_lens):
        if n:
            P[i] = with_infinity(X[i:i + 1], [n])
    return P
""",
    "01_scoring_functions 4": """
scores = np.ones((2, 2, 4))
m = np.array([[[1, 0, 0, 0], [1, 1, 1, 0]], [[1, 1, 0, 0], [1, 1, 1, 1]]], bool)
by_mask = attnext.masked_softmax(scores, mask=m)
m[1, 1, 0] = False
first_masked = attnext.masked_softmax(scores, mask=m)
""",
    "01_scoring_functions 5": """
rng = np.random.default_rng(99)
S = rng.normal(size=(300, 1, 1024)) @ rng.normal(size=(300, 1024, 16)) / 1024
top = float(attnext.masked_softmax(S).max(-1).mean())
v = rng.normal(size=(200, 1024))
own = (v * v).sum(1).mean() / 1024
""",
    "01_scoring_functions 6": """
bias_of = lambda keys: 5 - np.linalg.norm(keys, axis=1) ** 2 / 2
""",
    "01_scoring_functions 8": """
rng = np.random.default_rng(77)
q, k, A, B, v = (rng.normal(size=s) for s in [(5, 6), (7, 6), (4, 6), (4, 6), 4])
as_drawn = attnext.additive_attention(q, k, k, A, B, v, return_weights=True)[1]
nearly_linear = attnext.additive_attention(q, k, k, A / 100, B / 100, v, return_weights=True)[1]
""",
    "03_backward_by_hand 4": """
d_lse = np.array([1.0, -2.0, 3.0])
S = Q @ K.T / 2
P = softmax(S)
dS = softmax_backward(dO @ V.T, P) + P * d_lse[:, None]
lse_grads = [dS @ K / 2, dS.T @ Q / 2, P.T @ dO]
""",
    "08_todays_models 2": """
six_weights = np.tri(9)[None].repeat(6, 0)
six_weights /= six_weights.sum(-1, keepdims=True)
possible = {6, 3, 2, 1}
""",
    "08_todays_models 4": """
cosine = attnext.cosine_attention(Q, K, V, scale=math.sqrt(D))
q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (Q, K))
normed = attnext.dot_product_attention(q, k, V, scale=math.sqrt(D))
""",
}


# Each with what the check must say.
WRONG_ANSWERS = {
    "01_scoring_functions 1": (
        OTHER_ANSWERS["01_scoring_functions 1"].replace("K, V, scale=1.0", "K, V"),
        "exercise 1: after does not hold the predictions for five films",
    ),
    "01_scoring_functions 3": (
        OTHER_ANSWERS["01_scoring_functions 3"].replace("j < n", "j <= n"),
        "exercise 3: with_infinity([...], [2, 3]) differs from attnext.masked_softmax",
    ),
    "01_scoring_functions 5": (
        OTHER_ANSWERS["01_scoring_functions 5"]
        .replace("/ 1024)", "/ 32)")
        .replace("(300, 1024, 16)) / 1024", "(300, 1024, 16)) / 32"),
        "exercise 5: top is ",
    ),
    "01_scoring_functions 6": ("bias_of = lambda keys: (keys**2).sum(-1) / 2", "exercise 6: dot"),
    "03_backward_by_hand 4": (
        OTHER_ANSWERS["03_backward_by_hand 4"].replace("P * d_lse", "-P * d_lse"),
        "exercise 4: lse_grads differs from",
    ),
    "08_todays_models 2": (
        OTHER_ANSWERS["08_todays_models 2"].replace("{6, 3, 2, 1}", "{6, 4, 3, 2, 1}"),
        "exercise 2: possible is {1, 2, 3, 4, 6}",
    ),
}


@pytest.fixture(scope="module")
def verdicts(folders: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What each check says of a right answer, of all in turn, and then of the wrong ones.

    A check runs after the first cell and its answer alone: no other exercise is done.
    """
    programs = []
    for key, answer in [*OTHER_ANSWERS.items(), *((k, x) for k, (x, _) in WRONG_ANSWERS.items())]:
        name, number = key.split()
        found = {cell["id"]: cell for cell in cells(folders["en"], name)}
        written = {**found["setup"], "id": "answer", "source": [answer]}
        programs.append([found["setup"], written, found[f"check-{number}"]])
    return checks_that_fail(*programs, path=tmp_path_factory.mktemp("answers") / "cells")


def test_right_answers_that_differ_from_the_solutions_pass(verdicts: list[dict[str, str]]) -> None:
    said = dict(zip(OTHER_ANSWERS, verdicts, strict=False))
    assert said == dict.fromkeys(OTHER_ANSWERS, {})


def test_wrong_answers_fail_with_their_message(verdicts: list[dict[str, str]]) -> None:
    of_wrong = verdicts[len(OTHER_ANSWERS) :]
    for said, (_, message) in zip(of_wrong, WRONG_ANSWERS.values(), strict=True):
        (got,) = said.values()
        assert got.startswith(f"AssertionError: {message}"), got
