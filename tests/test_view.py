"""attnext.view without a browser: what is sent to a page, what comes back, what is saved.

`.ci/run browser` holds the page itself, in JupyterLab and in HTML made of a notebook.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import REPOSITORY
from numpy.testing import assert_array_equal

import attnext
from attnext import explain, view
from attnext.explain.words import AXES
from attnext.kernel_regression import nadaraya_watson
from attnext.view.module import module, order, source
from attnext.view.packing import MOST, as_json, pack_array, pack_trace, unpack_array

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4, 8)).astype(np.float32)
TOKENS = ["a", "b", "c", "d"]
FILES = sorted(path.stem for path in Path(view.__file__).parent.glob("static/*.js"))


def shown(**arguments: Any) -> view.View:
    return view.show("dot_product_attention", X, X, X, **arguments)


def numbers(step: dict[str, Any]) -> Any:
    return np.frombuffer(step["data"], "<f4").reshape(step["shape"])


def step(result: dict[str, Any], key: str) -> dict[str, Any]:
    (found,) = [each for each in result["steps"] if each["key"] == key]
    return found


def ask(of: view.View, *, lang: str = "en", arrays: Any = None, **options: Any) -> dict[str, Any]:
    """What the kernel answers, when a page asks for these options."""
    number = of._request.get("number", 0) + 1
    packed = {name: pack_array(np.asarray(x, np.float32)) for name, x in (arrays or {}).items()}
    of._request = {"number": number, "options": options, "lang": lang, "arrays": packed}
    result: dict[str, Any] = of._result
    assert result["number"] == number
    return result


# ---- what a page is given ------------------------------------------------------------------------


def test_the_first_result_is_what_attnext_computes() -> None:
    of = shown(valid_lens=[2, 3])
    output, weights = attnext.dot_product_attention(X, X, X, [2, 3], return_weights=True)
    assert_array_equal(numbers(step(of._result, "output")), output)
    assert_array_equal(numbers(step(of._result, "weights")), weights)
    masked = np.frombuffer(step(of._result, "weights")["masked"], np.uint8).reshape(2, 4, 4)
    assert_array_equal(masked, np.broadcast_to(np.arange(4) >= [[[2]], [[3]]], masked.shape))
    assert [each["key"] for each in of._result["steps"]] == [s.key for s in of.trace.steps]


def test_what_the_page_is_told() -> None:
    of = shown(valid_lens=[2, 3], scale=0.5, causal=True, window=(2, 0)).with_labels(keys=TOKENS)
    told = of._picture
    assert told["labels"] == {"queries": None, "keys": TOKENS}
    assert told["request"]["options"] == {
        "scale": 0.5,
        "valid_lens": [2, 3],
        "window": [2, 0],
        "causal": True,
    }
    assert {*told["request"]["arrays"]} == {"queries", "keys", "values"}
    assert_array_equal(unpack_array(told["request"]["arrays"]["keys"]), X)


@pytest.mark.parametrize(
    ("function", "arguments", "controls"),
    [
        ("masked_softmax", (X,), ["valid_lens"]),
        (
            "dot_product_attention",
            (X, X, X),
            ["scale", "valid_lens", "causal", "window", "softcap", "dropout_p"],
        ),
        (
            attnext.gaussian_attention,
            (X, X, X),
            ["sigma", "valid_lens", "causal", "window", "softcap", "dropout_p"],
        ),
        (nadaraya_watson, ([0.5], [0.0, 1.0], [2.0, 3.0]), ["sigma", "kernel"]),
        (explain.positional_encoding, (4, 6), []),
        (explain.masked_softmax_backward, (X, X), []),
        (
            attnext.MultiHeadAttention(8, 8, 8, 8, 2, rng=0),
            (X, X, X),
            ["valid_lens", "causal", "window", "softcap"],
        ),
        (
            attnext.DotProductAttention(),
            (X, X, X),
            ["scale", "valid_lens", "causal", "window", "softcap"],
        ),
        (attnext.kernel_regression.NWKernelRegression(), (X[0, :, 0], X[0], X[0]), []),
    ],
)
def test_sliders_are_for_what_the_function_takes(
    function: Any, arguments: Any, controls: list[str]
) -> None:
    of = view.show(function, *arguments)
    assert of._picture["controls"] == controls
    for name in controls:  # each of them is taken
        values = {"kernel": "boxcar", "causal": True, "window": [1, 1], "valid_lens": 1}
        value = values.get(name, 0.5)
        options = {name: value} | ({"seed": 3} if name == "dropout_p" else {})
        assert "error" not in ask(of, **options)


def test_a_memory_stays_in_the_kernel() -> None:
    attn = attnext.AdditiveAttention(8, 8, 5, rng=0)
    of = view.show(attn, X, attn.memory(X, X, [2, 3]))
    assert of._picture["controls"] == ["causal", "window", "softcap"]
    assert {*of._picture["request"]["arrays"]} == {"queries", "w_v"}
    assert "error" not in ask(of, softcap=0.5)


# ---- what sliders change -------------------------------------------------------------------------


def test_options_are_those_of_attnext() -> None:
    of = shown(valid_lens=[2, 3])
    for options in (
        {"scale": 0.01},
        {"valid_lens": [4, 1]},
        {"causal": True, "window": [1, 1]},
        {"softcap": 0.5},
        {"dropout_p": 0.5, "seed": 7},
    ):
        given = {"valid_lens": [2, 3], **options}
        expected = attnext.dot_product_attention(X, X, X, **given)
        assert_array_equal(numbers(step(ask(of, **options), "output")), expected)


def test_an_option_that_is_taken_back_is_the_default() -> None:
    of = shown(scale=0.25, softcap=2.0)
    plain = attnext.dot_product_attention(X, X, X)
    assert_array_equal(numbers(step(ask(of, scale=None, softcap=None), "output")), plain)
    capped = attnext.dot_product_attention(X, X, X, scale=0.25, softcap=2.0)
    assert_array_equal(numbers(step(ask(of), "output")), capped)


def test_points_that_are_dragged() -> None:
    x, x_train = np.linspace(0, 4, 9, dtype=np.float32), np.arange(5, dtype=np.float32)
    of = view.show("nadaraya_watson", x, x_train, x_train**2, sigma=0.5)
    moved = x_train.copy()
    moved[2] = 3.5
    result = ask(of, sigma=0.25, arrays={"x_train": moved})
    expected = nadaraya_watson(x, moved, x_train**2, 0.25)
    assert_array_equal(numbers(step(result, "output"))[:, 0], expected)
    result = ask(of, sigma=0.25)  # relative to where the points began
    expected = nadaraya_watson(x, x_train, x_train**2, 0.25)
    assert_array_equal(numbers(step(result, "output"))[:, 0], expected)
    assert result["call"].startswith("nadaraya_watson(x (9,), x_train (5,)")


def test_the_trace_follows() -> None:
    of = shown()
    ask(of, scale=2.0, lang="zh")
    assert of.trace.lang == "zh"
    assert_array_equal(of.trace.output, attnext.dot_product_attention(X, X, X, scale=2.0))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"softcap": -1.0}, "softcap is -1.0, expected softcap > 0"),
        ({"valid_lens": [1, 2, 3]}, "valid_lens has shape (3,), expected (2,) or (2, 4)"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_is_wrong_is_a_sentence(options: Any, sentence: str) -> None:
    of = shown()
    before = of.trace
    error = ask(of, **options)["error"]
    assert sentence in error and "\n" not in error
    assert of.trace is before
    assert "error" not in ask(of)


# ---- malformed messages --------------------------------------------------------------------------

JUNK = [
    *(
        None,
        True,
        -1,
        0.5,
        float("nan"),
        2**70,
        "",
        "abc",
        "en\n",
        b"12",
        [],
        [[]],
        [None],
        [-1, "x"],
    ),
    *({}, {"a": 1}, {1: 2}, {"shape": [2, 4, 8], "data": b"1"}, memoryview(b"12"), "x" * 10**5),
    *({"shape": [2**40, 2**40], "data": b""}, {"shape": "2", "data": None}, {"number": 1}),
]
GONE = object()  # the value is left out


def right_request() -> dict[str, Any]:
    queries = {"shape": [2, 4, 8], "data": np.ascontiguousarray(X).tobytes()}
    options = {"scale": 0.5, "valid_lens": [2, 3], "window": [1, 1], "softcap": 2.0, "seed": 3}
    options |= {"causal": True, "dropout_p": 0.25}
    return {"number": 1, "options": options, "lang": "en", "arrays": {"queries": queries}}


def right_place() -> dict[str, Any]:
    return {"lead": [1], "row": 2, "column": 1, "step": "masked"}


def paths_of(message: Any) -> list[tuple[str, ...]]:
    """The way to each value of nested dicts."""
    inner = message.items() if isinstance(message, dict) else ()
    return [(), *((name, *path) for name, value in inner for path in paths_of(value))]


def changed(message: Any, path: tuple[str, ...], value: Any) -> Any:
    """The message with another value there."""
    if not path:
        return value
    others = {name: x for name, x in message.items() if name != path[0]}
    inside = changed(message[path[0]], path[1:], value)
    return others if inside is GONE else {**others, path[0]: inside}


def malformed(right: dict[str, Any]) -> list[Any]:
    """Every value of the message as every odd one, left out, and beside one with another name."""
    paths = paths_of(right)
    found = [changed(right, path, value) for path in paths for value in JUNK]
    found += [changed(right, path, GONE) for path in paths if path]
    inner = [path for path in paths if path in ((), ("options",), ("arrays",))]
    for path in inner:
        whole = right
        for name in path:
            whole = whole[name]
        found.append(changed(right, path, {**whole, "misspelt": 1}))
    return found


def state_of(of: view.View) -> Any:
    at, request = of._at, of._request
    return of.trace, of._options, of._lang, at, request, of._picture, of._twin


SENT = {
    "trait": lambda of, name, x: setattr(of, name, x),
    "state": lambda of, name, x: of.set_state({name: x}),
    "comm": lambda of, name, x: of._handle_msg(comm({"method": "update", "state": {name: x}})),
}


def comm(data: Any, buffers: Any = ()) -> dict[str, Any]:
    return {"content": {"data": data}, "buffers": list(buffers)}


@pytest.mark.parametrize("way", SENT)
def test_every_malformed_request_is_answered(way: str) -> None:
    of = shown()
    SENT[way](of, "_request", right_request())
    refused = 0
    for message in malformed(right_request()):
        before, answer = state_of(of), of._result
        SENT[way](of, "_request", message)
        result = of._result
        assert result is not answer, message
        if "error" in result:
            refused += 1
            assert "\n" not in result["error"] and 10 < len(result["error"]) < 500, result
            assert all(a is b or a == b for a, b in zip(before, state_of(of), strict=True)), message
        else:
            assert of._request == message and result["number"] == message["number"]
    assert refused > 300
    assert of._saved()
    request = {**right_request(), "number": 7}  # and then a right one is computed
    SENT[way](of, "_request", request)
    assert of._result["number"] == 7 and "error" not in of._result


@pytest.mark.parametrize("way", SENT)
def test_every_malformed_place_is_answered(way: str) -> None:
    of = shown()
    SENT[way](of, "_at", right_place())
    refused = 0
    for message in malformed(right_place()):
        before, answer = state_of(of), of._result
        SENT[way](of, "_at", message)
        if of._result is answer:
            assert of._at == message
        else:
            refused += 1
            assert "_at" in of._result["error"]
            assert all(a is b or a == b for a, b in zip(before, state_of(of), strict=True)), message
    assert refused > 50


@pytest.mark.parametrize("data", [
    *JUNK,
    {"method": "update"},
    {"method": "update", "state": None},
    {"method": "update", "state": {"_result": {"error": "no"}}},
    {"method": "update", "state": {"_picture": {}}},
    {"method": "update", "state": {"_twin": "x"}},
    {"method": "update", "state": {"misspelt": 1}},
    {"method": "update", "state": {"_at": {}}, "buffer_paths": [["_at", "row"]]},
    {"method": "custom", "content": 1},
    {"method": ["update"], "state": {}},
    {"method": "misspelt"},
    {},
])  # fmt: skip
def test_every_malformed_envelope_is_answered(data: Any) -> None:
    of = shown()
    before, answer = state_of(of), of._result
    of._handle_msg(comm(data))
    assert of._result is not answer and "expected" in of._result["error"]
    assert all(a is b or a == b for a, b in zip(before, state_of(of), strict=True))


@pytest.mark.parametrize("path", [*JUNK, ["misspelt", "row", 1], ["_at", 0], ["_at", "row", "x"]])
def test_a_buffer_that_belongs_nowhere(path: Any) -> None:
    of = shown()
    data = {"method": "update", "state": {"_at": right_place()}, "buffer_paths": [path]}
    of._handle_msg(comm(data, [memoryview(b"1234")]))
    assert "expected paths into data.state" in of._result["error"]
    assert of._at == {}


def test_an_error_names_argument_rule_and_value() -> None:
    of = shown()
    for message, error in (
        ({"number": "x"}, f"_request.number: expected an int from 0 to {2**53 - 1}, got 'x'"),
        (3, "_request: expected a dict, got 3"),
        (
            {**right_request(), "arrays": {"queries": {"shape": [2, 4, 8], "data": b"123"}}},
            "_request.arrays.queries.data: expected 256 bytes, got 3",
        ),
    ):
        of._request = message
        assert of._result["error"] == error
        of._request = message  # the same once more is answered once more
        assert of._result["answer"] == of._answers and of._result["error"] == error


# ---- how it is called ----------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["softmax", attnext.set_num_threads, explain.Trace])
def test_a_function_that_explain_does_not_have(function: Any) -> None:
    with pytest.raises(ValueError, match="expected a layer or one of: .*dot_product_attention"):
        view.show(function, X)


def test_wrong_arguments_are_those_of_explain() -> None:
    with pytest.raises(TypeError, match="attn is of type int, expected an AdditiveAttention"):
        view.show(3, X, X, X)
    with pytest.raises(TypeError, match="missing a required argument: 'keys'"):
        view.show("dot_product_attention", X)
    with pytest.raises(ValueError, match="lang is 'fr'"):
        view.show("masked_softmax", X, lang="fr")
    with pytest.raises(ValueError, match="queries has length 1, expected 4"):
        shown().with_labels(queries=["one"])


def test_chinese() -> None:
    result = view.show("masked_softmax", X, 2, lang="zh")._result
    assert step(result, "softmax")["name"] == "注意力权重"
    assert ask(view.show("masked_softmax", X, 2, lang="zh"))["title"] == "Masked softmax"


# ---- what is packed ------------------------------------------------------------------------------


def test_axes_are_kinds_in_every_language() -> None:
    for lang in ("en", "zh"):
        packed = pack_trace(explain.dot_product_attention(X, X, X, lang=lang))
        assert step(packed, "weights")["axes"] == ["batch", "query", "key"]


def test_the_page_calls_axes_as_explain_does() -> None:
    text = source("words")
    for place, lang in enumerate(("en", "zh")):
        (block,) = re.findall(r"axes: \{(.*?)\}", text.split("const CHINESE")[place], re.DOTALL)
        words = dict(re.findall(r'(\w+): "(.*?)"', block))
        assert words == {kind: of_kind[lang] for kind, of_kind in AXES.items()}


def test_what_is_too_large_stays_in_the_kernel() -> None:
    x = np.zeros((1, 2, 4), np.float32)
    packed = pack_trace(explain.dot_product_attention(x, x, x), most=4)
    assert step(packed, "weights")["data"] is not None
    assert step(packed, "output")["data"] is None
    assert step(packed, "output")["shape"] == [1, 2, 4]
    assert MOST * 4 <= 2**20


def test_json_is_safe_in_a_script() -> None:
    text = as_json({"label": "</script><!--", "data": b"\x00\xff"})
    assert "</" not in text and "<!--" not in text
    assert base64.b64decode(json.loads(text.replace("<\\!", "<!"))["data"]) == b"\x00\xff"


# ---- what is saved -------------------------------------------------------------------------------


def test_what_is_saved_needs_nothing_from_elsewhere() -> None:
    of = shown(valid_lens=[2, 3]).with_labels(queries=TOKENS, keys=TOKENS)
    ask(of, scale=2.0)
    of._at = {"lead": [1], "row": 2, "column": 1, "step": "masked"}
    page = of._saved()
    assert "src=" not in page and "href=" not in page
    assert {*re.findall(r"https?://[^\"' ]*", page)} == {"http://www.w3.org/2000/svg"}
    assert of.trace._repr_html_() in page  # for whoever runs no scripts
    (saved,) = re.findall(r"^restore\(\"[\w-]+\", (.*)\);$", page, re.MULTILINE)
    state = json.loads(saved)
    assert state["request"]["options"]["scale"] == 2.0
    assert state["at"]["row"] == 2 and state["labels"]["queries"] == TOKENS
    weights = base64.b64decode(step(state["result"], "weights")["data"])
    assert weights == of.trace.weights.astype("<f4").tobytes()


def test_a_cell_shows_both(capsys: Any) -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    InteractiveShell.instance()
    of = shown()
    with capture_output() as captured:
        of._ipython_display_()
    living, saved = captured.outputs
    assert "application/vnd.jupyter.widget-view+json" in living.data
    assert saved.data["text/html"] == of._saved()
    assert saved.data["text/plain"] == repr(of) == f"<View of {of.trace.call}>"
    InteractiveShell.clear_instance()


# ---- the module ----------------------------------------------------------------------------------


def test_the_module_has_every_file_after_what_it_imports() -> None:
    assert sorted(order()) == FILES and order()[-1] == "widget"
    for place, name in enumerate(order()):
        imported = re.findall(r'^import .* from "\./(\w+)\.js"', source(name), re.MULTILINE)
        assert {*imported} <= {*order()[:place]}


def test_the_module_stands_alone() -> None:
    assert not re.findall(r"^\s*import\b|\bimport\(|\bfetch\(|XMLHttp", module(), re.MULTILINE)
    assert "export default { render };" in module()
    assert view.View._esm == module() or str(view.View._esm)


@pytest.mark.parametrize("name", FILES)
def test_files_are_short_and_say_what_they_are(name: str) -> None:
    text = source(name)
    assert text.startswith("/*") and text.count("\n") <= 450
    assert max(map(len, text.splitlines())) <= 120


def test_both_languages_say_the_same() -> None:
    english, chinese = source("words").split("const CHINESE")
    keys = [re.findall(r"^  (\w+):", text, re.MULTILINE) for text in (english, chinese)]
    assert keys[0] == keys[1] and len(keys[0]) > 40
    used = {*re.findall(r"\bsay\.(\w+)", "".join(map(source, FILES)))}
    assert used <= {*keys[0]} and {*keys[0]} - used <= {"axes", "windowText"}


@pytest.mark.skipif(not (REPOSITORY / ".ci").exists(), reason="an sdist has no CI")
def test_scripts_are_in_the_package() -> None:
    assert "view/static/*.js" in (REPOSITORY / "pyproject.toml").read_text("utf-8")
