"""attnext.dask: attention over keys in blocks is attention over all keys, on any cluster.

Every result is held against the textbook on whole arrays in float64. Beside the error of attnext
itself there is that of merging: a log-sum-exp l is rounded to |l| 2^-24, and with it the share
exp(l_r - l) of a part, once for each level of the tree. For the few levels and the |l| < 10 of
these problems that is below 2e-6 of the largest entry, once for the output and once more where
gradients come from it: the factor that `check` has.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from helpers import (
    EMPTY_ROWS,
    FUNCTION,
    SCORES,
    SHARED,
    Array,
    Problem,
    assert_accurate,
    assert_same_bits,
    bits,
    error_of,
    make_problem,
    random_masks,
    run_python,
    textbook,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import cases

import attnext
import attnext.dask

nan, inf = np.nan, np.inf
F32 = np.float32

# For entries of about 1, where positions matter more than digits: five times what a merge adds.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def synchronous() -> Iterator[None]:
    """One block after another in this thread, unless a test says otherwise."""
    with dask.config.set(scheduler="synchronous"):
        yield


def make(score: str, rng: np.random.Generator, **sizes_and_options: Any) -> Problem:
    """A random problem; no gradient flows into the weights, which attnext.dask does not take."""
    problem = make_problem(score, rng, **sizes_and_options)
    del problem.grads["grad_weights"]
    return problem


# ---- a problem, cut up ---------------------------------------------------------------------------


def pieces(rng: np.random.Generator, size: int, most: int = 4) -> tuple[int, ...]:
    """`size` as a sum of up to so many sizes of blocks, some of them 0 perhaps."""
    cuts = np.sort(rng.integers(0, size + 1, size=rng.integers(0, most)))
    return tuple(int(x) for x in np.diff([0, *cuts, size]))


def cut(problem: Problem, rng: np.random.Generator) -> Problem:
    """The same problem as Dask arrays; each is cut in its own way along every axis."""

    def array(x: Any) -> Any:
        most = [2] * (np.ndim(x) - 2) + [3, 3]  # along leading axes, and the last two
        chunks = (pieces(rng, size, n) for size, n in zip(np.shape(x), most, strict=False))
        return da.from_array(x, chunks=tuple(chunks))

    inputs, options = dict(problem.inputs), dict(problem.options)
    for name in ("queries", "keys", "values"):
        inputs[name] = array(inputs[name])
    for name in {"mask", "bias"} & options.keys():
        options[name] = array(options[name])
    grads = {name: array(x) for name, x in problem.grads.items()}
    return Problem(problem.score, inputs, options, grads)


def in_blocks(*arrays: Any, keys: int = 8) -> list[Any]:
    """Keys, values, or what has a row for each: (..., N, D), cut along N."""
    return [da.from_array(x, chunks=(*x.shape[:-2], keys, x.shape[-1])) for x in arrays]


def run(problem: Problem) -> dict[str, Array]:
    """Output, weights, lse and every gradient of a problem of Dask arrays, computed together."""
    output, weights, lse = problem.forward(attnext.dask, return_weights=True, return_lse=True)
    more = {f"return_grad_{name}": True for name in SHARED if problem.shares(name)}
    lazy = {"output": output, "weights": weights, "lse": lse}
    lazy |= problem.backward(attnext.dask, **more)
    (found,) = dask.compute(lazy)
    for name, x in found.items():
        assert lazy[name].shape == x.shape, name
        assert lazy[name].dtype == x.dtype == F32, name
    return found


def check(problem: Problem, found: dict[str, Array] | None = None, seed: int = 0) -> None:
    """As accurate as attention over all keys at once, but for the merges; zeros are exact."""
    exact, whole = textbook(problem, np.float64), problem.run()
    found = run(cut(problem, np.random.default_rng(seed))) if found is None else found
    assert found.keys() == exact.keys()
    for name in exact:
        peer = error_of(whole[name], exact[name])
        largest = np.max(np.abs(exact[name]), where=np.isfinite(exact[name]), initial=0)
        assert_accurate(found[name], exact[name], 2 * peer + 2e-6 * float(largest), name)
    np.testing.assert_array_equal(found["weights"] == 0, exact["weights"] == 0)


@pytest.mark.parametrize("case", cases(1, of=4))
@pytest.mark.parametrize("score", SCORES)
def test_blocks_of_any_size(score: str, case: int, rng: np.random.Generator) -> None:
    check(make(score, rng, lead=(2, 3), M=9, N=40), seed=case)


@pytest.mark.parametrize("case", cases(6, of=12))
def test_modifiers_of_the_whole(case: int) -> None:
    """The sink enters once, not in every block; rows without keys have it alone."""
    rng = np.random.default_rng(case)
    score = SCORES[case % 4]
    options: dict[str, Any] = {"valid_lens": rng.integers(0, 20, size=(2, 6))}
    options["sink"] = rng.standard_normal([(3, 1), (6,), (2, 3, 6)][case % 3]).astype(F32)
    if case % 2:
        options["sink"].flat[0] = -inf
    if score in ("dot", "cosine"):
        options["scale"] = rng.standard_normal([(3,), (2, 1)][case % 2]).astype(F32)
    if case % 3:
        options["softcap"] = 0.7
    mode = EMPTY_ROWS[(case + case // 3) % 3]
    check(make(score, rng, lead=(2, 3), M=6, N=19, empty_rows=mode, **options), seed=case)


def test_a_scale_that_is_a_number_and_a_sink_that_is_lazy() -> None:
    d = attnext.dask.dot_product_attention_backward(
        *in_blocks(*np.ones((4, 8, 2), F32), keys=3), scale=0.5, return_grad_scale=True
    )
    assert d[-1].shape == () and abs(d[-1].compute()) < 1e-6
    with pytest.raises(TypeError, match="sink is a Dask array, expected numbers in memory"):
        attnext.dask.dot_product_attention(*np.ones((3, 8, 2), F32), sink=da.ones(8))


@pytest.mark.parametrize("case", cases(6, of=12))
def test_masks_go_across_blocks(case: int, rng: np.random.Generator) -> None:
    """Every mask in every shape, shared heads, and rows that are empty in some blocks or in all."""
    score = SCORES[(case + case // 4) % 4]
    lead = [(2, 4), (3,), (), (2, 1, 2)][case % 4]
    kv_heads = [None, 1, 2][case % 3] if len(lead) > 1 else None
    masks = random_masks(rng, lead, 7, 30)
    problem = make(score, rng, lead=lead, M=7, N=30, kv_heads=kv_heads, **masks)
    check(problem.but(empty_rows=EMPTY_ROWS[case % 3]), seed=case)


@settings(max_examples=40)
@given(st.data())
def test_any_problem_cut_in_any_way(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**32 - 1), label="seed")
    rng = np.random.default_rng(seed)
    lead = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]), label="lead")
    M = data.draw(st.integers(1, 9), label="M")
    N = data.draw(st.integers(1, 70), label="N")
    score = data.draw(st.sampled_from(SCORES), label="score")
    empty_rows = data.draw(st.sampled_from(EMPTY_ROWS), label="empty_rows")
    masks = random_masks(rng, lead, M, N)
    check(make(score, rng, lead=lead, M=M, N=N, empty_rows=empty_rows, **masks), seed=seed)


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@pytest.mark.parametrize("shape", [(), (2,), (2, 5), (2, 3, 5)])
def test_lengths(shape: tuple[int, ...], empty_rows: str, rng: np.random.Generator) -> None:
    """0, within each block, at its ends, at N and beyond, in every shape they may come in."""
    lengths = [("dot", [0, 1, 7, 8, 9, 16, 23, 24, 25, 1000])]
    if shape == (2,):  # of which no row has a key
        lengths.append(("additive", [0]))
    for score, lens in lengths:
        problem = make(score, rng, lead=(2, 3), M=5, N=24, empty_rows=empty_rows)
        problem = problem.but(valid_lens=rng.choice(lens, size=shape))
        lazy = cut(problem, rng)
        lazy.inputs["keys"] = lazy.inputs["keys"].rechunk({2: 8})
        check(problem, run(lazy))


@pytest.mark.parametrize(
    "band",
    [
        {"causal": True},
        {"window": (3, 2)},
        {"window": (-1, 0)},
        {"window": (0, -1)},
        {"window": (3, 2), "causal": True},
    ],
    ids=str,
)
def test_the_diagonal_goes_across_blocks(band: dict[str, Any], rng: np.random.Generator) -> None:
    for offset in (0, -3, 13, [4, -20], [0, 10**15]):
        problem = make("dot", rng, lead=(2,), M=10, N=23)
        check(problem.but(**band, causal_offset=offset))


@pytest.mark.parametrize("offset", [2**80, -(2**80), 2**63, np.uint64(2**64 - 1)])
@pytest.mark.parametrize("window", [None, (5, 3), (-1, 0)])
def test_a_diagonal_beyond_every_integer(window: Any, offset: Any) -> None:
    """As attnext has it: every key lies before the first query, or after the last."""
    x = np.ones((8, 1), F32)
    more = {"causal": True, "causal_offset": offset, "window": window, "return_lse": True}
    found = attnext.dask.dot_product_attention(x, *in_blocks(x, x, keys=3), **more)
    whole = attnext.dot_product_attention(x, x, x, **more)
    np.testing.assert_allclose(dask.compute(*found)[1], whole[1], rtol=1e-6)


@pytest.mark.parametrize(
    "shape", [(), (30,), (1,), (7, 1), (2, 1, 1, 30), (4, 7, 30), (1, 4, 1, 1)]
)
def test_mask_and_bias_of_any_shape(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    score = SCORES[len(shape) % 4]  # each of them, in turn
    problem = make(score, rng, lead=(2, 4), M=7, N=30)
    if score == "additive":
        problem.options["b_h"] = rng.standard_normal(6, dtype=F32)
    check(problem.but(bias=rng.standard_normal(shape).astype(F32)))
    grouped = make(score, rng, lead=(2, 4), M=7, N=30, kv_heads=2)
    check(grouped.but(mask=rng.random(shape) < 0.7))


def test_a_mask_in_memory_is_cut_up_like_the_rest(rng: np.random.Generator) -> None:
    problem = make("gaussian", rng, lead=(2,), M=7, N=30)
    problem = problem.but(mask=rng.random((7, 30)) < 0.5, bias=rng.random((2, 1, 30), dtype=F32))
    lazy = cut(problem, rng)
    lazy.options = dict(problem.options)
    lazy.grads = dict(problem.grads)
    check(problem, run(lazy))


# ---- the rules that never bend -------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
def test_one_block_gives_the_very_bits(score: str, rng: np.random.Generator) -> None:
    problem = make(score, rng, lead=(2,), M=5, N=150, valid_lens=[0, 99])
    whole = problem.forward(return_lse=True)
    found = dask.compute(problem.forward(attnext.dask, return_lse=True))[0]
    np.testing.assert_array_equal(bits(found[1]), bits(whole[1]))
    np.testing.assert_array_equal(bits(found[0][1]), bits(whole[0][1]))  # entry 0 is a mean


@pytest.mark.parametrize("case", cases(6, of=12))
def test_padding_is_never_read(case: int, rng: np.random.Generator) -> None:
    """In the same block as keys that take part, and in blocks of nothing else."""
    score, empty_rows, bad = SCORES[case % 4], EMPTY_ROWS[case % 3], [nan, inf][case // 2 % 2]
    problem = make(score, rng, lead=(2,), M=3, N=40, empty_rows=empty_rows)
    problem = problem.but(valid_lens=[11, 3])
    clean, poisoned = (dict(problem.inputs) for _ in range(2))
    for name in ("keys", "values"):
        x = problem.inputs[name].copy()
        x[0, 11:], x[1, 3:] = bad, bad
        clean[name], poisoned[name] = in_blocks(problem.inputs[name], x)
    problem.inputs = clean
    expected = run(problem)
    problem.inputs = poisoned
    assert_same_bits(run(problem), expected)


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
def test_empty_rows(empty_rows: str, rng: np.random.Generator) -> None:
    """Exactly their rule, in all results; the other rows do not notice."""
    problem = make("dot", rng, lead=(2,), M=3, N=40, empty_rows=empty_rows)
    lens = np.array([[0, 40, 9], [8, 0, 17]])
    problem = problem.but(valid_lens=lens)
    lazy = Problem(problem.score, dict(problem.inputs), problem.options, problem.grads)
    lazy.inputs["keys"], lazy.inputs["values"] = in_blocks(
        problem.inputs["keys"], problem.inputs["values"]
    )
    found = run(lazy)
    empty = lens == 0
    assert np.isneginf(found["lse"][empty]).all() and np.isfinite(found["lse"][~empty]).all()
    mean = problem.inputs["values"].mean(axis=1, dtype=float)
    fill = {"uniform": 1 / 40, "zero": 0, "nan": nan}[empty_rows]
    np.testing.assert_array_equal(found["weights"][empty], np.full((2, 40), fill, F32))
    if empty_rows == "uniform":
        np.testing.assert_allclose(found["output"][empty], mean, rtol=0, atol=1e-6)
    else:
        np.testing.assert_array_equal(found["output"][empty], np.full((2, 3), fill, F32))
    d_empty = nan if empty_rows == "nan" else 0
    np.testing.assert_array_equal(found["d_queries"][empty], np.full((2, 4), d_empty, F32))
    assert np.isfinite(found["output"][~empty]).all() and np.isfinite(found["d_keys"]).all()
    spread = problem.grads["grad_output"][empty] / 40  # (2, Dv), for keys beyond every length
    beyond = spread[1] if empty_rows == "uniform" else np.zeros(3)
    np.testing.assert_allclose(
        found["d_values"][1, 17:], np.tile(beyond, (23, 1)), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("bad", [nan, inf])
def test_the_mean_of_all_values_reads_the_padding_as_attnext_does(bad: float) -> None:
    """The one exception to the rule that padding is not read."""
    values = np.ones((20, 2), F32)
    values[13, 0] = bad
    keys, V = in_blocks(np.ones((20, 1), F32), values)
    output = attnext.dask.dot_product_attention(np.ones((2, 1)), keys, V, [0, 5]).compute()
    np.testing.assert_array_equal(output, np.array([[bad, 1], [1, 1]], F32))


NOT_FINITE = {
    "NaN in a key": ("keys", (0, 13), nan),
    "NaN in a value": ("values", (1, 2, 0), nan),
    "inf in a value": ("values", (1, 2, 0), inf),
    "NaN in a query": ("queries", (1, 1), nan),
    "a score of +inf": ("keys", (0, 13, 0), inf),
    "scores of -inf": ("keys", (0, 13, 0), -inf),
}


@pytest.mark.parametrize("case", cases(6, of=18))
def test_what_takes_part_and_is_not_finite(case: int, rng: np.random.Generator) -> None:
    """NaN and infinities stand where they stand in the whole, and likewise in the gradients; which
    of the two a sum of both gives depends on its order, there.
    """
    name, place, value = list(NOT_FINITE.values())[case % 6]
    score = ["dot", "gaussian", "additive"][(case + case // 6) % 3]
    problem = make(score, rng, lead=(2,), M=3, N=30, valid_lens=[25, 19])
    problem.inputs["queries"] = np.abs(problem.inputs["queries"])  # so a score of inf has a sign
    problem.inputs[name][place] = value
    whole, found = problem.run(), run(cut(problem, rng))
    for name, x in whole.items():
        if name in ("output", "weights", "lse"):
            np.testing.assert_allclose(found[name], x, **CLOSE, err_msg=name)
        else:
            np.testing.assert_array_equal(np.isfinite(found[name]), np.isfinite(x), name)


@pytest.mark.parametrize("blocks", [3, 30])
@pytest.mark.parametrize("overflow", [slice(0, 30), slice(10, 20)])
@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
def test_scores_that_overflow_to_minus_infinity(
    empty_rows: str, overflow: slice, blocks: int, rng: np.random.Generator
) -> None:
    """In a block, no pair of which then has weight; in all blocks, which is NaN, but not empty."""
    problem = make("gaussian", rng, lead=(1,), M=2, N=30, w=1.0, empty_rows=empty_rows)
    problem = problem.but(valid_lens=[[20, 0]])
    problem.inputs["keys"][:, overflow] = 1e25  # far away: the square is beyond float32
    lazy = Problem(problem.score, dict(problem.inputs), problem.options, problem.grads)
    lazy.inputs["keys"], lazy.inputs["values"] = in_blocks(
        problem.inputs["keys"], problem.inputs["values"], keys=30 // blocks
    )
    whole, found = problem.run(), run(lazy)
    del whole["d_w"]  # 0 times infinity in the whole; a block without weight adds nothing to it
    for name in whole:
        np.testing.assert_allclose(found[name], whole[name], **CLOSE, err_msg=name)


@pytest.mark.parametrize("axis", ["B", "M", "N", "D", "Dv"])
@pytest.mark.parametrize("case", cases(2, of=4))
def test_sizes_of_zero(case: int, axis: str, rng: np.random.Generator) -> None:
    sizes = {"B": 2, "M": 3, "N": 4, "D": 5, "Dv": 6}
    score = SCORES[(list(sizes).index(axis) + case) % 4]
    sizes[axis] = 0
    lead = (sizes.pop("B"), 2)
    empty_rows = EMPTY_ROWS[SCORES.index(score) % 3]
    problem = make(score, rng, lead=lead, **sizes, empty_rows=empty_rows, causal=True)
    whole, found = problem.run(), run(cut(problem, rng))
    for name in whole:
        np.testing.assert_allclose(found[name], whole[name], **CLOSE)


@pytest.mark.parametrize("score", SCORES)
def test_self_attention_of_one_array(score: str, rng: np.random.Generator) -> None:
    """Queries, keys and values may be one Dask array, whose blocks then serve three times."""
    problem = make(score, rng, lead=(2,), M=20, N=20, D=4, Dk=4, Dv=4, causal=True)
    for name in ("keys", "values"):
        problem.inputs[name] = problem.inputs["queries"]
    lazy = Problem(problem.score, dict(problem.inputs), problem.options, problem.grads)
    (x,) = in_blocks(problem.inputs["queries"])
    lazy.inputs |= {"queries": x, "keys": x, "values": x}
    check(problem, run(lazy))


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.uint8, ">f4"])
def test_other_dtypes(dtype: Any, rng: np.random.Generator) -> None:
    problem = make("dot", rng, lead=(2,), M=3, N=30)
    for name in ("queries", "keys", "values"):
        problem.inputs[name] = np.abs(3 * problem.inputs[name]).astype(dtype)
    check(problem)


def test_lists_and_tensors_become_one_block() -> None:
    import torch

    q, k, v = [[1.0, 0.0]], torch.eye(2), [[10], [20]]
    output = attnext.dask.dot_product_attention(q, k, v, torch.tensor(2), scale=1)
    assert output.numblocks == (1, 1)
    np.testing.assert_allclose(output.compute(), [[12.6894]], atol=1e-4)


# ---- laziness, blocks, the graph -----------------------------------------------------------------


def never(*shape: int, chunks: Any) -> Any:
    """A Dask array that must not be computed."""

    def fail(block: Array) -> Array:
        raise AssertionError("computed")

    return da.zeros(shape, chunks=chunks, dtype=F32).map_blocks(fail, dtype=F32, meta=empty())


def empty() -> Array:
    return np.empty((0, 0, 0), F32)


PARAMETERS = {"W_q": np.ones((6, 4)), "W_k": np.ones((6, 4)), "w_v": np.ones(6)}


@pytest.mark.parametrize("score", SCORES)
def test_nothing_is_computed_by_the_call(score: str) -> None:
    """Shape, blocks, dtype and meta are known before."""
    q = never(4, 10, 4, chunks=(2, (3, 7), 4))
    k, v = never(4, 30, 4, chunks=(4, (10, 20), 2)), never(4, 30, 3, chunks=(4, 15, 3))
    more = PARAMETERS if score == "additive" else {}
    forward = getattr(attnext.dask, FUNCTION[score])
    output, weights, lse = forward(
        q, k, v, **more, valid_lens=[0, 1, 2, 99], causal=True, return_weights=True, return_lse=True
    )
    assert output.chunks == ((2, 2), (3, 7), (3,))
    assert weights.chunks == ((2, 2), (3, 7), (10, 5, 15))
    assert lse.chunks == ((2, 2), (3, 7))
    backward = getattr(attnext.dask, FUNCTION[score] + "_backward")
    g = never(4, 10, 3, chunks=(4, 10, 3))
    bias = never(4, 1, 30, chunks=(4, 1, 30))
    d = backward(g, q, k, v, **more, bias=bias, grad_lse=never(4, 10, 1, chunks=10)[..., 0],
                 return_grad_bias=True)  # fmt: skip
    d = (*d[0], d[1]) if score == "additive" else d
    assert d[0].chunks == ((2, 2), (3, 7), (4,))
    assert d[1].chunks == ((2, 2), (10, 5, 15), (4,))
    assert d[2].chunks == ((2, 2), (10, 5, 15), (3,))
    assert d[-1].chunks == ((2, 2), (1,), (10, 5, 15))
    if score == "gaussian":
        assert d[3].shape == ()
    if score == "additive":
        assert [x.shape for x in d[3:6]] == [(6, 4), (6, 4), (6,)] and d[6] is None
    for x in [output, weights, lse, *d]:
        if x is not None:
            assert isinstance(x, da.Array) and x.dtype == F32
            assert isinstance(x._meta, np.ndarray) and x._meta.ndim == x.ndim
    with pytest.raises(AssertionError, match="computed"):
        output.compute()


def test_grouped_heads_are_cut_where_those_of_the_keys_are() -> None:
    q = da.zeros((2, 12, 5, 4), chunks=(1, 5, 5, 4))
    k = da.zeros((2, 4, 30, 4), chunks=(2, (1, 3), 10, 4))
    output = attnext.dask.dot_product_attention(q, k, k, enable_gqa=True)
    assert output.chunks == ((1, 1), (3, 9), (5,), (4,))
    dq, dk, dv = attnext.dask.dot_product_attention_backward(q, q, k, k, enable_gqa=True)
    assert dq.chunks == output.chunks
    assert dk.chunks == dv.chunks == ((1, 1), (1, 3), (10, 10, 10), (4,))


class Recorder:
    """Stands in for functions of attnext, and notes the shapes of their first arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in names}
        for name in names:
            monkeypatch.setattr(attnext, name, self._recording(name, getattr(attnext, name)))

    def _recording(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def record(*args: Any, **kwargs: Any) -> Any:
            x = kwargs["keys"] if "keys" in kwargs else args[0]
            self.shapes[name].append(np.shape(x))
            return function(*args, **kwargs)

        return record


def test_nobody_ever_holds_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block of keys comes alone, and few parts at a time are merged."""
    keys = da.random.default_rng(0).random((100, 4), chunks=(5, 4), dtype=F32)
    queries = np.ones((8, 4), F32)
    held: list[tuple[int, ...]] = []

    def see(block: Array) -> Array:
        held.append(block.shape)
        return block

    keys = keys.map_blocks(see, dtype=F32, meta=np.empty((0, 0), F32))
    output = attnext.dask.dot_product_attention(queries, keys, keys, 50, causal=True)
    dq, dk, dv = attnext.dask.dot_product_attention_backward(
        queries, queries, keys, keys, 50, causal=True
    )
    names = "dot_product_attention", "dot_product_attention_backward", "merge_attention"
    recorder = Recorder(monkeypatch, *names)
    with dask.config.set(split_every=4):
        output = attnext.dask.dot_product_attention(queries, keys, keys, 50, causal=True)
        dask.compute(output, dq, dk, dv)
    assert set(held) == {(5, 4)}
    assert max(shape[-2] for shape in recorder.shapes[names[0]] if shape[-1] > 0) == 5
    assert len(recorder.shapes[names[1]]) == 20
    assert max(shape[0] for shape in recorder.shapes[names[2]]) <= 4


def test_forward_and_backward_share_what_they_can(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """The output over all keys is computed once for both, and a block's again in its backward."""
    x = rng.standard_normal((40, 4), dtype=F32)
    queries = x[:6]
    (keys,) = in_blocks(x)  # five blocks
    recorder = Recorder(monkeypatch, "dot_product_attention")
    output = attnext.dask.dot_product_attention(queries, keys, keys)
    dq, _, _ = attnext.dask.dot_product_attention_backward(queries, queries, keys, keys)
    recorder.shapes["dot_product_attention"].clear()  # the checks of the calls
    dask.compute(output, dq)
    assert recorder.shapes["dot_product_attention"] == [(8, 4)] * 10


def test_the_mean_is_computed_only_where_a_row_may_be_empty(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((16, 4), dtype=F32)
    (keys,) = in_blocks(x)  # two blocks
    recorder = Recorder(monkeypatch, "dot_product_attention")
    shapes = recorder.shapes["dot_product_attention"]
    cases: list[tuple[int, dict[str, Any]]] = [
        (2, {}),
        (2, {"valid_lens": 1}),
        (2, {"causal": True}),
        (2, {"valid_lens": 0, "empty_rows": "zero"}),
        (4, {"valid_lens": 0}),
        (4, {"causal": True, "causal_offset": -1}),
        (4, {"window": (0, 0)}),
        (4, {"mask": np.ones(16, bool)}),
        (4, {"bias": np.zeros(16)}),
    ]
    for calls, options in cases:
        output = attnext.dask.dot_product_attention(x[:3], keys, keys, **options)
        shapes.clear()
        output.compute()
        assert len(shapes) == calls, options


@pytest.mark.parametrize("split_every", [2, 3, 100])
def test_the_shape_of_the_tree_changes_the_rounding_alone(
    split_every: int, rng: np.random.Generator
) -> None:
    problem = make("dot", rng, lead=(2,), M=3, N=60, valid_lens=[0, 41])
    with dask.config.set(split_every=split_every):
        lazy = cut(problem, rng)
        lazy.inputs["keys"] = lazy.inputs["keys"].rechunk({1: 3})
        check(problem, run(lazy))


def test_the_same_bits_from_any_number_of_threads(rng: np.random.Generator) -> None:
    problem = make("additive", rng, lead=(3,), M=20, N=90, causal=True)
    lazy = cut(problem, np.random.default_rng(2))
    alone = run(lazy)
    for workers in (1, 2, 5):
        with dask.config.set(scheduler="threads", num_workers=workers):
            assert_same_bits(run(lazy), alone)


def test_the_same_call_has_the_same_names(rng: np.random.Generator) -> None:
    """Dask knows by the name of a task whether it has its result already."""
    q, k = rng.random((5, 4)), rng.random((9, 4))
    K = da.from_array(k, chunks=(4, 4))
    call = attnext.dask.dot_product_attention
    assert call(q, K, K, 3).name == call(q, K, K, 3).name
    assert call(q, K, K, 3).name != call(q, K, K, 4).name
    assert call(q, K, K, 3).name != call(q, K, K, 3, scale=2.0).name


def test_parameters_are_those_of_the_call(rng: np.random.Generator) -> None:
    """What is trained in place afterwards does not reach a result that is not computed yet."""
    problem = make("additive", rng, lead=(2,), M=3, N=20, b_h=np.ones(6, F32))
    whole, lens = problem.forward(valid_lens=[3, 17]), np.array([3, 17])
    output = problem.forward(attnext.dask, valid_lens=lens)
    for x in (problem.inputs["W_q"], problem.inputs["w_v"], problem.options["b_h"], lens):
        x[:] = 0
    np.testing.assert_array_equal(bits(output.compute()), bits(whole))


# ---- a cluster -----------------------------------------------------------------------------------


def test_on_a_cluster_of_processes(rng: np.random.Generator) -> None:
    """Two workers, each a process of its own: the bits are those of a single thread."""
    import distributed

    problem = make("dot", rng, lead=(2,), M=8, N=64, valid_lens=[0, 50], causal=True)
    problem = problem.but(bias=rng.standard_normal((8, 64), dtype=F32))
    lazy = cut(problem, np.random.default_rng(3))
    alone = run(lazy)
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        processes = client.run(lambda: __import__("os").getpid())
        assert len(set(processes.values())) == 2
        client.run(attnext.set_num_threads, 1)
        with dask.config.set(scheduler=client):
            found = run(lazy)
    assert_same_bits(found, alone)
    check(problem, found)


# ---- what is refused -----------------------------------------------------------------------------

Q, K, V = np.zeros((2, 5, 4), F32), np.zeros((2, 10, 4), F32), np.zeros((2, 10, 3), F32)
UNKNOWN = da.from_array(K, chunks=(2, 5, 4))[da.from_array(np.ones(2, bool), chunks=1)]
IN_MEMORY = "is a Dask array, expected numbers in memory: pass"
REAL = "expected real numbers (any float or integer dtype)"
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"queries": Q[0, 0]}, ValueError,
     "queries has shape (4,), expected two axes or more: (..., M, D)"),
    ({"keys": K[..., :3]}, ValueError, "keys has shape (2, 10, 3), expected (2, N, 4)"),
    ({"keys": K[:1]}, ValueError, "keys has shape (1, 10, 4), expected (2, N, 4)"),
    ({"values": V[:, :9]}, ValueError, "values has shape (2, 9, 3), expected (2, 10, Dv)"),
    ({"keys": UNKNOWN}, ValueError, "keys has unknown chunk sizes, expected known ones: call "
     "keys.compute_chunk_sizes() first"),
    ({"queries": Q[0], "enable_gqa": True}, ValueError, "queries has shape (5, 4), expected three "
     "axes or more with enable_gqa: (..., heads, M, D)"),
    ({"queries": Q.repeat(2, 0), "keys": K.repeat(2, 0)[:3], "enable_gqa": True}, ValueError,
     "keys has shape (3, 10, 4), expected a number of heads (axis -3) that divides the 4 of "
     "queries"),
    ({"queries": Q > 0}, TypeError, f"queries has dtype bool, {REAL}"),
    ({"keys": da.zeros((2, 10, 4), dtype=complex)}, TypeError,
     f"keys has dtype complex128, {REAL}"),
    ({"values": np.ma.masked_array(V)}, TypeError, "values is a numpy.ma.MaskedArray, expected "
     "a plain array: its mask would be lost, so use the argument valid_lens for padding"),
    ({"valid_lens": [1, 2, 3]}, ValueError, "valid_lens has shape (3,), expected (2,) or (2, 5)"),
    ({"valid_lens": [1, -2]}, ValueError,
     "valid_lens contains -2, expected lengths of 0 or more"),
    ({"valid_lens": [1.0, 2.5]}, TypeError, "valid_lens has dtype float64, expected integers"),
    ({"valid_lens": da.ones(2, dtype=int)}, TypeError, f"valid_lens {IN_MEMORY} "
     "valid_lens.compute()"),
    ({"mask": np.ones((5, 9), bool)}, ValueError,
     "mask has shape (5, 9), expected a shape that broadcasts to (2, 5, 10)"),
    ({"mask": np.ones((1, 2, 5, 10), bool)}, ValueError,
     "mask has shape (1, 2, 5, 10), expected a shape that broadcasts to (2, 5, 10)"),
    ({"mask": da.ones((5, 10), dtype=int)}, TypeError,
     "mask has dtype int64, expected bools: True means attend"),
    ({"bias": da.zeros((3, 10))}, ValueError,
     "bias has shape (3, 10), expected a shape that broadcasts to (2, 5, 10)"),
    ({"bias": np.ones((5, 10), bool)}, TypeError,
     "bias has dtype bool, expected floats: use the argument mask for a bool mask"),
    ({"causal": True, "causal_offset": [1, 2, 3]}, ValueError,
     "causal_offset has shape (3,), expected an int or (2,)"),
    ({"causal": True, "causal_offset": da.ones(2, dtype=int)}, TypeError,
     f"causal_offset {IN_MEMORY} causal_offset.compute()"),
    ({"window": (1, -2)}, ValueError, "window[1] is -2, expected 0 or more, or -1 for no bound"),
    ({"empty_rows": "mean"}, ValueError,
     "empty_rows is 'mean', expected 'uniform', 'zero' or 'nan'"),
    ({"scale": inf}, ValueError, "scale is inf, expected a finite float32 number"),
    ({"scale": da.ones(())}, TypeError, f"scale {IN_MEMORY} scale.compute()"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    WRONG,
    ids=[f"{i} {next(iter(x[0]))}" for i, x in enumerate(WRONG)],
)
def test_errors_are_raised_by_the_call(
    wrong: dict[str, Any], kind: type[Exception], message: str
) -> None:
    arguments = {"queries": Q, "keys": K, "values": V} | wrong
    with pytest.raises(kind) as error:
        attnext.dask.dot_product_attention(**arguments)
    assert str(error.value) == message
    with pytest.raises(kind) as error:
        attnext.dask.dot_product_attention_backward(np.zeros((2, 5, 3)), **arguments)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("name", "wrong", "kind", "message"),
    [
        ("additive", {"W_q": np.ones((6, 3))}, ValueError,
         "W_q has shape (6, 3), expected (H, 4)"),
        ("additive", {"w_v": da.ones(6)}, TypeError, f"w_v {IN_MEMORY} w_v.compute()"),
        ("additive", {"b_h": np.ones(5)}, ValueError, "b_h has shape (5,), expected (6,)"),
        ("gaussian", {"w": 1.0, "sigma": 1.0}, ValueError, None),
        ("gaussian", {"sigma": 0.0}, ValueError, None),
        ("cosine", {"eps": -1.0}, ValueError, None),
    ],
)  # fmt: skip
def test_errors_of_the_other_scores(
    name: str, wrong: dict[str, Any], kind: type[Exception], message: str | None
) -> None:
    """Where no message is given, that of attnext's own function."""
    arguments = {"queries": Q, "keys": K, "values": V} | (PARAMETERS if name == "additive" else {})
    arguments |= wrong
    if message is None:
        with pytest.raises(kind) as error:
            getattr(attnext, FUNCTION[name])(**arguments)
        message = str(error.value)
    with pytest.raises(kind) as error:
        getattr(attnext.dask, FUNCTION[name])(**arguments)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("grads", "kind", "message"),
    [
        ((Q, None), ValueError, "grad_output has shape (2, 5, 4), expected (2, 5, 3)"),
        ((V[:, :5], V[:, :5]), ValueError, "grad_lse has shape (2, 5, 3), expected (2, 5)"),
        ((V[:, :5] > 0, None), TypeError, f"grad_output has dtype bool, {REAL}"),
    ],
)
def test_errors_of_gradients(grads: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as error:
        attnext.dask.dot_product_attention_backward(grads[0], Q, K, V, grad_lse=grads[1])
    assert str(error.value) == message


def test_a_matrix_and_a_tensor_that_requires_grad() -> None:
    with pytest.raises(TypeError, match="queries is a numpy.matrix, expected a plain array"):
        attnext.dask.dot_product_attention(Q[0].view(np.matrix), K[0], V[0])
    import torch

    tensor = torch.zeros(2, 10, 4, requires_grad=True)
    with pytest.raises(TypeError, match="keys is a tensor that requires grad"):
        attnext.dask.dot_product_attention(Q, tensor, V)


# ---- the module ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", attnext.dask.__all__)
def test_names_order_and_defaults_are_those_of_attnext(name: str) -> None:
    """All but what is left out: dropout, out, and what saves a backward some work."""
    left_out = {"dropout_p", "seed", "dropout_mask", "out"}
    left_out |= {"grad_weights", "weights", "output", "lse"}

    def parameters(module: Any) -> list[tuple[str, Any, Any]]:
        signature = inspect.signature(getattr(module, name))
        return [
            (p.name, p.kind, p.default)
            for p in signature.parameters.values()
            if p.name not in left_out
        ]

    assert parameters(attnext.dask) == parameters(attnext)
    assert not left_out & set(inspect.signature(getattr(attnext.dask, name)).parameters)


def test_dask_is_imported_only_by_its_own_module() -> None:
    code = (
        "import sys, attnext; assert not {'dask', 'distributed'} & set(sys.modules); "
        "import attnext.dask; assert 'distributed' not in sys.modules"
    )
    run_python("-c", code)


def test_without_dask_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['dask'] = None; import attnext.dask"
    process = run_python("-c", code, check=False)
    assert process.returncode == 1
    last = process.stderr.strip().splitlines()[-1]
    assert last == (
        "ImportError: attnext.dask needs Dask, which is not installed: "
        "pip install 'dask[array]' distributed"
    )


def test_several_threads_may_compute_at_once(rng: np.random.Generator) -> None:
    """Two users of one process: neither disturbs the other."""
    x = rng.standard_normal((64, 4), dtype=F32)
    (keys,) = in_blocks(x)
    output = attnext.dask.dot_product_attention(x[:9], keys, keys, causal=True)
    expected = output.compute()
    found: list[Array] = []
    users = [
        threading.Thread(target=lambda: found.append(output.compute(scheduler="sync")))
        for _ in range(2)
    ]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert len(found) == 2
    for x in found:
        np.testing.assert_array_equal(bits(x), bits(expected))
