"""The same bits everywhere: instruction sets, threads, places, padding, alignment, extras.

Comparisons are exact, but for NaN: any NaN equals any other.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import (
    FUSED_GENERIC,
    SCORES,
    TESTS,
    Array,
    Once,
    Problem,
    assert_same_bits,
    bits,
    make_problem,
    run_python,
)

import attnext

# Of everything workload.py computes, by what its names have before a colon. A change of one is a
# change of the project's results in their last digits: the failure prints the new one, and the
# commit that takes it over says why.
CHECKSUMS = {"": "da54b82b61ed0e25", "softcap": "0f7d74facf8ef5d0", "sink": "e5e384f27e84d271"}


# ---- instruction sets ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def results(instruction_sets: list[str], once: Once) -> dict[str, dict[str, Array]]:
    """What workload.py computes on each instruction set."""

    def compute(folder: Path) -> None:
        for name in instruction_sets:
            run_python(TESTS / "workload.py", folder / f"{name}.npz", ATTNEXT_CPU=name)

    folder = once("bits", compute)
    every = {}
    for name in instruction_sets:
        with np.load(folder / f"{name}.npz") as arrays:
            every[name] = dict(arrays)
    return every


def test_every_set_gives_the_bits_of_the_scalar_specification(
    results: dict[str, dict[str, Array]],
) -> None:
    exact = [name for name in results if name not in ("scalar", "generic") or FUSED_GENERIC]
    for name in exact:
        if name != "scalar":
            assert_same_bits(results[name], results["scalar"])


def test_the_workload_is_not_trivial(results: dict[str, dict[str, Array]]) -> None:
    numbers = results["scalar"]
    assert sum(x.size for x in numbers.values()) > 500_000
    for name, x in numbers.items():
        assert "nasty" in name or "nan" in name or np.isfinite(x[x > -np.inf]).all(), name
        assert np.any(x) or name in ("softmax 1 d_X", "softmax mask 1 d_X"), name


def test_generic_kernels_have_infinities_and_nan_in_the_same_places(
    results: dict[str, dict[str, Array]],
) -> None:
    for name, x in results["scalar"].items():
        y = results["generic"][name]
        np.testing.assert_array_equal(np.isnan(y), np.isnan(x), err_msg=name)
        np.testing.assert_array_equal(np.isinf(y), np.isinf(x), err_msg=name)


def test_generic_kernels_are_accurate() -> None:
    """They may round product-sums twice, but the usual tolerance holds for them too."""
    code = """
import attnext, numpy as np
from helpers import SCORES, check, make_problem, random_masks
assert attnext.show_config("dicts")["instruction_set"]["chosen"] == "generic"
for score in SCORES:
    sizes = [(1, 1, 1), (3, 5, 7), (17, 33, 5), (40, 140, 30), (65, 20, 260)]
    for seed, (M, N, D) in enumerate(sizes):
        rng = np.random.default_rng(seed)
        lens = rng.integers(0, N + 1, size=(2, M))
        check(make_problem(score, rng, M=M, N=N, D=D, Dv=M, H=N, valid_lens=lens))
        masks = random_masks(rng, (2, 4), M, N)
        check(make_problem(score, rng, lead=(2, 4), M=M, N=N, D=D, kv_heads=2, **masks))
"""
    run_python("-c", code, ATTNEXT_CPU="generic")


def test_checksums(results: dict[str, dict[str, Array]]) -> None:
    digests = {group: hashlib.sha256() for group in CHECKSUMS}
    for name in sorted(results["scalar"]):
        digest = digests[name.rpartition(": ")[0]]
        digest.update(name.encode())
        digest.update(bits(results["scalar"][name]).astype("<u4").tobytes())
    found = {group: digest.hexdigest()[:16] for group, digest in digests.items()}
    assert found == CHECKSUMS, (
        f"the results have other bits than before. If that is meant, set CHECKSUMS = {found} in "
        f"{Path(__file__).name} and say why in the commit"
    )


# ---- threads -------------------------------------------------------------------------------------


def large_problem(score: str, rng: np.random.Generator, **options: Any) -> Problem:
    """Enough work for several threads; queries in more groups than one."""
    lens = rng.integers(0, 260, size=(3, 300))
    return make_problem(
        score, rng, lead=(3,), M=300, N=259, D=24, Dv=20, H=16, valid_lens=lens, **options
    )


@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
@pytest.mark.parametrize("score", SCORES)
def test_any_number_of_threads(
    score: str, dropout_p: float, rng: np.random.Generator, threads: None
) -> None:
    problem = large_problem(score, rng, dropout_p=dropout_p, seed=1)
    attnext.set_num_threads(1)
    expected = problem.run()
    for n in (2, 3, 5):
        attnext.set_num_threads(n)
        for _ in range(3):
            assert_same_bits(problem.run(), expected)


BIASES = [(4, 300, 259), (300, 1), (2, 1, 1, 259), (2, 4, 300, 259)]


@pytest.mark.parametrize("kv_heads", [None, 1, 2])
@pytest.mark.parametrize("bias", BIASES, ids=str)
def test_any_number_of_threads_under_masks(
    bias: tuple[int, ...], kv_heads: int | None, rng: np.random.Generator, threads: None
) -> None:
    """Gradients of a bias and of shared keys are sums over heads, entries, rows or keys."""
    score = SCORES[(BIASES.index(bias) + (kv_heads or 0)) % 4]
    masks: dict[str, Any] = {
        "mask": rng.random((300, 259)) < 0.7,
        "bias": rng.standard_normal(bias, dtype=np.float32),
        "causal": True,
        "causal_offset": [0, -40],
    }
    problem = make_problem(
        score, rng, lead=(2, 4), M=300, N=259, D=5, H=3, kv_heads=kv_heads, **masks
    )
    attnext.set_num_threads(1)
    expected = problem.run()
    weights = problem.forward(return_weights=True)[1]
    handed = problem.backward(weights=weights)
    for n in (2, 3, 5):
        attnext.set_num_threads(n)
        assert_same_bits(problem.run(), expected)
        assert_same_bits(problem.backward(weights=weights), handed)


@pytest.mark.parametrize("score", SCORES)
def test_any_number_of_threads_with_many_queries(
    score: str, rng: np.random.Generator, threads: None
) -> None:
    """So many that shares of a thread each would be larger than the fewest worth a sum."""
    problem = make_problem(score, rng, M=1200, N=40, D=5, Dv=3, H=3)
    attnext.set_num_threads(1)
    expected = problem.run()
    for n in (2, 3, 5):
        attnext.set_num_threads(n)
        assert_same_bits(problem.run(), expected)


def test_any_number_of_threads_in_softmax(rng: np.random.Generator, threads: None) -> None:
    X = rng.standard_normal((7, 300, 301), dtype=np.float32)
    lens, mask = rng.integers(0, 302, size=(7, 300)), rng.random((300, 301)) < 0.5
    expected = None
    for n in (1, 2, 3, 5):
        attnext.set_num_threads(n)
        weights = attnext.masked_softmax(X, lens)
        found = {
            "weights": weights,
            "d_X": attnext.masked_softmax_backward(X, weights, lens),
            "copy": attnext.sequence_mask(X, lens[:, 0], 2.5),
        }
        weights = attnext.masked_softmax(X, lens, mask=mask)
        found["masked"] = weights
        found["d_masked"] = attnext.masked_softmax_backward(X, weights, lens, mask=mask)
        expected = expected or found
        assert_same_bits(found, expected)


# ---- place, padding, alignment, extras -----------------------------------------------------------

PER_QUERY = ("output", "weights", "lse", "d_queries")
PER_KEY = ("d_keys", "d_values")


MASKED = pytest.mark.parametrize("masked", [False, True], ids=["lens", "masks"])


def masks_of(rng: np.random.Generator, *pairs: int) -> dict[str, Any]:
    """A mask and a bias of their own for every pair; a row is empty, a key is nobody's."""
    mask = rng.random(pairs) < 0.6
    mask[:, 3] = mask[..., 70] = False
    bias = rng.standard_normal(pairs, dtype=np.float32)
    return {"mask": mask, "bias": np.where(rng.random(pairs) < 0.1, np.float32(-np.inf), bias)}


@MASKED
@pytest.mark.parametrize("score", SCORES)
def test_place_in_the_batch(score: str, masked: bool, rng: np.random.Generator) -> None:
    lens = rng.integers(0, 141, size=(5, 20))
    masks = masks_of(rng, 5, 20, 140) if masked else {}
    problem = make_problem(score, rng, lead=(5,), M=20, N=140, valid_lens=lens, **masks)
    whole = problem.run()
    for b in range(5):
        alone = entries(problem, [b]).run()
        for name in PER_QUERY + PER_KEY:
            np.testing.assert_array_equal(bits(alone[name][0]), bits(whole[name][b]), err_msg=name)
    order = rng.permutation(5)
    moved = entries(problem, order).run()
    for name in PER_QUERY + PER_KEY:
        np.testing.assert_array_equal(bits(moved[name]), bits(whole[name][order]), err_msg=name)


def entries(problem: Problem, which: Any) -> Problem:
    """The problem of these batch entries."""
    batched = ("queries", "keys", "values")
    inputs = {n: x[which] if n in batched else x for n, x in problem.inputs.items()}
    grads = {name: x[which] for name, x in problem.grads.items()}
    own = {"valid_lens", "mask", "bias"} & problem.options.keys()
    options = {**problem.options, **{name: problem.options[name][which] for name in own}}
    return Problem(problem.score, inputs, options, grads)


@MASKED
@pytest.mark.parametrize("score", SCORES)
def test_place_among_the_queries(score: str, masked: bool, rng: np.random.Generator) -> None:
    lens = rng.integers(0, 141, size=(2, 83))
    masks = masks_of(rng, 2, 83, 140) if masked else {}
    problem = make_problem(score, rng, M=83, N=140, valid_lens=lens, **masks)
    whole = problem.run()
    for which in (rng.permutation(83), np.arange(40, 83), np.arange(60)):
        problem_of_those = Problem(
            score,
            {**problem.inputs, "queries": problem.inputs["queries"][:, which]},
            {
                **problem.options,
                **{n: x[:, which] for n, x in masks.items()},
                "valid_lens": lens[:, which],
            },
            {name: x[:, which] for name, x in problem.grads.items()},
        )
        found = problem_of_those.run()
        for name in PER_QUERY:
            np.testing.assert_array_equal(
                bits(found[name]), bits(whole[name][:, which]), err_msg=name
            )


@pytest.mark.parametrize("score", SCORES)
def test_place_among_the_heads(score: str, rng: np.random.Generator) -> None:
    """Heads that share keys: what each of them finds is what it finds with keys of its own."""
    masks = masks_of(rng, 2, 6, 20, 140)
    problem = make_problem(score, rng, lead=(2, 6), M=20, N=140, kv_heads=2, **masks)
    shared = problem.run()
    alone = Problem(score, dict(problem.inputs), dict(problem.options), problem.grads)
    alone.options["enable_gqa"] = False
    for name in ("keys", "values"):
        alone.inputs[name] = problem.inputs[name].repeat(3, axis=1)
    own = alone.run()
    for name in (*PER_QUERY, "d_bias"):
        np.testing.assert_array_equal(bits(shared[name]), bits(own[name]), err_msg=name)


@pytest.mark.parametrize("padding", [1, 15, 16, 100, 300])
@pytest.mark.parametrize("score", SCORES)
def test_amount_of_padding_behind(score: str, padding: int, rng: np.random.Generator) -> None:
    for filling in (0.0, np.nan, np.inf):
        N, lens = 130, rng.integers(1, 131, size=(2, 20))
        problem = make_problem(score, rng, M=20, N=N, valid_lens=lens)
        padded = Problem(score, dict(problem.inputs), problem.options, dict(problem.grads))
        for name in ("keys", "values"):
            x = problem.inputs[name]
            padded.inputs[name] = np.pad(x, ((0, 0), (0, padding), (0, 0)), constant_values=filling)
        grad = problem.grads["grad_weights"]
        padded.grads["grad_weights"] = np.pad(
            grad, ((0, 0), (0, 0), (0, padding)), constant_values=filling
        )
        expected, found = problem.run(), padded.run()
        assert not np.any(found["weights"][..., N:])
        found["weights"] = found["weights"][..., :N]
        for name in PER_KEY:
            assert not np.any(found[name][:, N:])
            found[name] = found[name][:, :N]
        assert_same_bits(found, expected)


@pytest.mark.parametrize("how", ["mask", "keys mask", "bias", "causal", "window"])
@pytest.mark.parametrize("score", SCORES)
def test_amount_of_padding_that_a_mask_forbids(
    score: str, how: str, rng: np.random.Generator
) -> None:
    for padding in (1, 16, 100, 300):
        M, N = 20, 130
        masks = masks_of(rng, 2, M, N)
        if how == "causal":
            masks |= {"causal": True, "causal_offset": N - M}
        elif how == "window":
            masks |= {"window": (50, 3), "causal_offset": N - M - 3}
        problem = make_problem(score, rng, M=M, N=N, empty_rows="zero", **masks)
        grads, options = dict(problem.grads), dict(problem.options)
        widths = ((0, 0), (0, 0), (0, padding))
        allowed = how != "mask" and how != "keys mask"
        options["mask"] = np.pad(options["mask"], widths, constant_values=allowed)
        filling = -np.inf if how == "bias" else 0.5
        options["bias"] = np.pad(options["bias"], widths, constant_values=np.float32(filling))
        grads["grad_weights"] = np.pad(grads["grad_weights"], widths, constant_values=np.nan)
        inputs = dict(problem.inputs)
        for name in ("keys", "values"):
            behind = ((0, 0), (0, padding), (0, 0))
            inputs[name] = np.pad(inputs[name], behind, constant_values=np.nan)
        expected, found = problem.run(), Problem(score, inputs, options, grads).run()
        for name in ("weights", "d_bias"):
            assert not np.any(found[name][..., N:])
            found[name] = found[name][..., :N]
        for name in PER_KEY:
            assert not np.any(found[name][:, N:])
            found[name] = found[name][:, :N]
        assert_same_bits(found, expected)


def shifted(x: Array, floats: int) -> Array:
    """A copy of x that starts `floats` floats after a multiple of 64 bytes."""
    memory = np.empty(x.size + 32, dtype=np.float32)
    start = (-memory.ctypes.data // 4) % 16 + floats
    copy = memory[start : start + x.size].reshape(x.shape)
    copy[...] = x
    assert copy.ctypes.data % 64 == 4 * floats and copy.flags.c_contiguous
    return copy


@pytest.mark.parametrize("floats", [1, 3, 4, 7, 8, 15])
@pytest.mark.parametrize("score", SCORES)
def test_alignment(score: str, floats: int, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=35, N=140, D=17, valid_lens=[77, 140])
    expected = problem.run()
    moved = Problem(
        score,
        {name: shifted(x, floats) for name, x in problem.inputs.items()},
        problem.options,
        {name: shifted(x, floats) for name, x in problem.grads.items()},
    )
    assert_same_bits(moved.run(), expected)
    out = shifted(expected["output"], floats)
    out[...] = np.nan
    assert_same_bits({"output": moved.forward(out=out)}, {"output": expected["output"]})


@pytest.mark.parametrize("bytes_further", [1, 3, 15, 17])
@pytest.mark.parametrize("score", SCORES)
def test_alignment_and_layout_of_masks(
    score: str, bytes_further: int, rng: np.random.Generator
) -> None:
    masks = masks_of(rng, 2, 35, 140)
    masks["dropout_mask"] = rng.random((2, 35, 140)) < 0.5
    problem = make_problem(score, rng, M=35, N=140, **masks)
    expected = problem.run()
    further = dict(masks)
    for name in ("mask", "dropout_mask"):
        x = masks[name]
        memory = np.zeros(x.size + bytes_further, dtype=bool)
        further[name] = memory[bytes_further:].reshape(x.shape)
        further[name][...] = x
    further["bias"] = shifted(masks["bias"], bytes_further % 16)
    assert_same_bits(problem.but(**further).run(), expected)
    for layout in (
        np.asfortranarray,
        lambda x: x[..., ::-1].copy()[..., ::-1],
        lambda x: x.repeat(2, axis=-1)[..., ::2],
        lambda x: x.repeat(3, axis=1)[:, ::3],
        lambda x: x[::-1].copy()[::-1],
    ):
        moved = {name: layout(x) for name, x in masks.items()}
        assert_same_bits(problem.but(**moved).run(), expected)


@pytest.mark.parametrize("empty_rows", ["uniform", "zero", "nan"])
@MASKED
@pytest.mark.parametrize("score", SCORES)
def test_extras_asked_for(
    score: str, masked: bool, empty_rows: str, rng: np.random.Generator
) -> None:
    lens = rng.integers(0, 141, size=(2, 35))
    masks = masks_of(rng, 2, 35, 140) if masked else {}
    options: dict[str, Any] = {"valid_lens": lens, "empty_rows": empty_rows, **masks}
    problem = make_problem(score, rng, M=35, N=140, **options)
    output, weights, lse = problem.forward(return_weights=True, return_lse=True)
    expected = {"output": output, "weights": weights, "lse": lse}
    for wanted in (("weights",), ("lse",), ()):
        more: dict[str, Any] = {f"return_{name}": True for name in wanted}
        found = problem.forward(**more)
        found = dict(zip(("output", *wanted), found if wanted else (found,), strict=True))
        assert_same_bits(found, {name: expected[name] for name in found})
    out = np.empty_like(output)
    problem.forward(out=out, return_weights=True)
    np.testing.assert_array_equal(bits(out), bits(output))
    if masked:
        with_bias = problem.backward(return_grad_bias=True)
        assert with_bias.pop("d_bias").shape == masks["bias"].shape
        assert_same_bits(with_bias, problem.backward())


@pytest.mark.parametrize("score", SCORES)
def test_weights_that_wait_for_their_rows_and_those_that_do_not(
    score: str, rng: np.random.Generator
) -> None:
    """P of few keys is kept, that of many, of one query or under dropout is written at once."""
    problem = make_problem(score, rng, lead=(), M=20, N=17_000)

    def weights(n: int, **more: Any) -> Array:
        cut = {name: problem.inputs[name][:n] for name in ("keys", "values")}
        inputs = problem.inputs | cut | more.pop("inputs", {})
        found: Array = replace(problem, inputs=inputs).forward(return_weights=True, **more)[1]
        return bits(found)

    for n in (300, 5000, 17_000):
        expected = weights(n)
        padded = weights(17_000, valid_lens=n)
        np.testing.assert_array_equal(padded[:, :n], expected)
        assert not padded[:, n:].any()
        np.testing.assert_array_equal(weights(n, dropout_p=0.5, seed=1), expected)
        alone = {"queries": problem.inputs["queries"][7:8]}
        np.testing.assert_array_equal(weights(n, inputs=alone), expected[7:8])


@pytest.mark.parametrize("score", SCORES)
def test_the_same_call_twice(score: str, rng: np.random.Generator) -> None:
    problem = large_problem(score, rng)
    assert_same_bits(problem.run(), problem.run())
