"""Parts 1 to 6 of the tour: the book's small examples with their answers, and the gradients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import attnext
from attnext import reference
from attnext._tour.page import (
    Check,
    Page,
    Tour,
    largest_difference,
    numbers_text,
    weights_text,
)
from attnext._tour.peer import Array
from attnext.testing import numerical_gradient

Floats = NDArray[np.floating]

ROUNDED = 6e-5  # an answer known to four decimals
EXACT = 1e-5  # an answer known exactly, computed in float32


# ---- 1 and 2: leaving padding out ---------------------------------------------------------


def masked_softmax(tour: Tour) -> None:
    """Part 1: lengths for each batch entry, and for each query."""
    page = tour.page
    tour.title("Masked softmax: scores become weights")
    page.say(
        "A softmax turns a row of scores into weights that sum to 1. Keys beyond the valid length "
        "of a row are padding: they are never read, and their weight is exactly 0."
    )
    X = np.array(
        [
            [[0.8, 0.2, 0.9, 0.4], [0.1, 0.7, 0.3, 0.5]],
            [[0.6, 0.2, 0.7, 0.1], [0.9, 0.8, 0.3, 0.4]],
        ],
        np.float32,
    )
    page.line()
    page.code("masked_softmax(X, valid_lens)     X (2, 2, 4) -> weights (2, 2, 4)")
    _softmax_table(
        tour,
        X,
        [2, 3],
        "one length for each batch entry",
        known=[
            [0.6457, 0.3543, 0, 0],
            [0.3543, 0.6457, 0, 0],
            [0.3603, 0.2415, 0.3982, 0],
            [0.4076, 0.3688, 0.2237, 0],
        ],
    )
    _softmax_table(
        tour,
        X,
        [[1, 3], [2, 4]],
        "one length for each query",
        known=[
            [1, 0, 0, 0],
            [0.2473, 0.4506, 0.3021, 0],
            [0.5987, 0.4013, 0, 0],
            [0.3268, 0.2957, 0.1793, 0.1982],
        ],
    )
    page.line()
    poisoned = X.copy()
    poisoned[0, :, 2:] = poisoned[1, :, 3:] = np.nan
    tour.result(
        "NaN written into the padding changes no bit of the weights",
        Check(
            "weights with NaN in the padding",
            attnext.masked_softmax(poisoned, [2, 3]),
            attnext.masked_softmax(X, [2, 3]),
        ),
    )


def _softmax_table(
    tour: Tour,
    X: Array,
    valid_lens: list[int] | list[list[int]],
    title: str,
    known: list[list[float]],
) -> None:
    page = tour.page
    lens = np.broadcast_to(np.array(valid_lens).reshape(2, -1), X.shape[:2])
    theirs = tour.theirs("masked_softmax", X, valid_lens=valid_lens)
    page.line()
    page.line(f"      valid_lens = {valid_lens}: {title}")
    tour.table(
        "scores           valid",
        [
            f"{numbers_text(scores):<17}{valid:>3}"
            for scores, valid in zip(X.reshape(4, 4), lens.ravel(), strict=True)
        ],
        "weights of row",
        attnext.masked_softmax(X, valid_lens).reshape(4, 4),
        None if theirs is None else theirs.reshape(4, 4),
        known,
        tolerance=ROUNDED,
        show=weights_text,
        width=26,
    )


def sequence_mask(tour: Tour) -> None:
    """Part 2: the same lengths, on the data itself."""
    page = tour.page
    tour.title("Sequence mask: blank out the padding")
    page.say("The same lengths, applied to the data itself: what lies beyond is overwritten.")
    X, valid_len = np.array([[1, 2, 3], [4, 5, 6]], np.float32), [1, 2]
    page.line()
    page.code("sequence_mask(X, valid_len, value=0)     X (2, 3) -> (2, 3)")
    page.line()
    tour.table(
        "X        valid",
        [f"{numbers_text(X[i]):<9}{valid_len[i]:>3}" for i in range(2)],
        "row",
        attnext.sequence_mask(X, valid_len),
        tour.theirs("sequence_mask", X, valid_len=valid_len),
        [[1, 0, 0], [4, 5, 0]],
        show=numbers_text,
    )


# ---- 3 and 4: the two scores of the book -----------------------------------------------------


def additive_attention(tour: Tour) -> None:
    """Part 3: queries and keys of different sizes."""
    page = tour.page
    tour.title("Additive attention: queries and keys of different sizes")
    page.say(
        "score = w_v . tanh(W_q q + W_k k): a small network compares a query of 20 numbers with "
        "keys of 2. In the book's example all keys are alike, so whatever the network has learned, "
        "the weights are even over the valid keys and the output is the mean of their values."
    )
    rng = np.random.default_rng(20)
    layer = attnext.AdditiveAttention(2, 20, 8, dropout=0.1, rng=rng)
    layer.eval()
    W = (layer.W_q, layer.W_k, layer.w_v)
    queries = rng.standard_normal((2, 1, 20), dtype=np.float32)
    keys, values, lens = np.ones((2, 10, 2), np.float32), _book_values(), [2, 6]
    page.line()
    page.code("AdditiveAttention(key_size=2, query_size=20, num_hiddens=8, dropout=0.1)")
    page.code("queries (2, 1, 20), keys (2, 10, 2), values (2, 10, 4), valid_lens [2, 6]")
    page.code("-> output (2, 1, 4), attention_weights (2, 1, 10)")
    output = layer(queries, keys, values, lens)
    theirs = tour.theirs("additive", queries, keys, values, *W, valid_lens=lens)
    _book_table(tour, layer.attention_weights, output, theirs)

    keys = rng.standard_normal((2, 10, 2), dtype=np.float32)
    _differences(
        tour,
        "ten different keys",
        layer(queries, keys, values, lens),
        reference.additive_attention(queries, keys, values, *W, valid_lens=lens),
        "the float64 reference",
        tour.theirs("additive", queries, keys, values, *W, valid_lens=lens),
    )


def dot_product_attention(tour: Tour) -> None:
    """Part 4: scaled, as an object; and unscaled, in four steps."""
    page = tour.page
    tour.title("Dot-product attention: queries and keys of one size")
    page.say("score = q . k / sqrt(d): no parameters, one matrix product. The same example:")
    rng = np.random.default_rng(2)
    layer = attnext.DotProductAttention(dropout=0.5)
    layer.eval()
    queries = rng.standard_normal((2, 1, 2), dtype=np.float32)
    keys, values, lens = np.ones((2, 10, 2), np.float32), _book_values(), [2, 6]
    page.line()
    page.code("DotProductAttention(dropout=0.5)")
    page.code("queries (2, 1, 2), keys (2, 10, 2), values (2, 10, 4), valid_lens [2, 6]")
    output = layer(queries, keys, values, lens)
    theirs = tour.theirs("dot_product", queries, keys, values, valid_lens=lens)
    _book_table(tour, layer.attention_weights, output, theirs)
    page.line()
    page.say("Unscaled, of x1 (2, 3, 4) over x2 (2, 5, 4), in four steps:")
    page.line()
    _four_steps(tour, rng)
    page.line()
    row = np.array([[1.2474, -0.6254, 1.4849, 2.9333, -0.1787]], np.float32)
    theirs = tour.theirs("masked_softmax", row)
    tour.table(
        "scores of five keys",
        [numbers_text(row)],
        "weight of the 4th key",
        attnext.masked_softmax(row)[:, 3:4],
        None if theirs is None else theirs[:, 3:4],
        [[0.6697]],
        tolerance=ROUNDED,
        show=lambda weight: f"4th: {weights_text(weight)}",
    )


def _four_steps(tour: Tour, rng: np.random.Generator) -> None:
    page = tour.page
    x1 = rng.standard_normal((2, 3, 4), dtype=np.float32)
    x2 = rng.standard_normal((2, 5, 4), dtype=np.float32)
    scores = attnext.dot_product_scores(x1, x2, scale=1.0)
    weights = attnext.masked_softmax(scores)
    output = weights @ x2
    page.line(page.style(f"      {'step':<25}{'shape':<12}of x1[0, 0]", "dim"))
    for step, array, text in [
        ("1  x1", x1, numbers_text(x1[0, 0], 3)),
        ("2  scores = x1 x2^T", scores, numbers_text(scores[0, 0], 3)),
        ("3  weights = softmax", weights, weights_text(weights[0, 0])),
        ("4  output = weights x2", output, numbers_text(output[0, 0], 3)),
    ]:
        page.line(f"      {step:<25}{array.shape!s:<12}{text}")
    _differences(
        tour,
        "one call",
        attnext.dot_product_attention(x1, x2, x2, scale=1.0),
        output,
        "the four steps",
        tour.theirs("dot_product", x1, x2, x2, scale=1.0),
    )


def _book_values() -> Array:
    return np.tile(np.arange(40, dtype=np.float32).reshape(1, 10, 4), (2, 1, 1))


def _book_table(tour: Tour, weights: Array | None, output: Array, theirs: Array | None) -> None:
    """The answers of the book's example, which are the same for both scores."""
    page = tour.page
    rows = np.zeros((2, 10)) if weights is None else weights[:, 0]
    page.line()
    tour.table(
        "weights      keys",
        [f"{_bars(page, row)}   {np.count_nonzero(row)} of 10" for row in rows],
        "output of entry",
        output[:, 0],
        None if theirs is None else theirs[:, 0],
        [[2, 3, 4, 5], [10, 11, 12, 13]],
        tolerance=EXACT * 13,
        show=numbers_text,
    )
    tour.result(
        "the weights are 1/2 and 1/6 for valid keys, exactly 0 for padding",
        Check("weights of the valid keys of entry 0", rows[0, :2], [1 / 2] * 2, EXACT),
        Check("weights of the valid keys of entry 1", rows[1, :6], [1 / 6] * 6, EXACT),
        Check("weights of the padding of entry 0", rows[0, 2:], [0] * 8),
        Check("weights of the padding of entry 1", rows[1, 6:], [0] * 4),
    )


def _bars(page: Page, weights: Floats) -> str:
    """A bar for each weight, a dot for 0; 1/2 is a full bar."""
    return "".join(page.sparkline([w, 0.5])[0] if w > 0 else "·" for w in weights)


def _differences(
    tour: Tour, what: str, ours: Array, known: Floats, known_as: str, theirs: Array | None
) -> None:
    """One line: how far our result is from one that is known, and from the peer's."""
    off = largest_difference(ours, known)
    beside = "" if theirs is None else f", {largest_difference(ours, theirs):.0e} from torch"
    tour.result(
        f"{what}: {off:.0e} from {known_as}{beside}",
        Check(f"{what}, relative difference from {known_as}", off, 0, EXACT),
        *tour.beside(what, ours, theirs),
    )


# ---- 5: why the dot product is scaled -----------------------------------------------------------


def scaling(tour: Tour) -> None:
    """Part 5: the variance of the scores and the size of the softmax gradient against d."""
    page = tour.page
    tour.title("Why 1/sqrt(d)")
    page.say(
        "The dot product of two random vectors of d numbers has variance d. Large scores saturate "
        "the softmax: one key takes all, and hardly any gradient comes back, so nothing is "
        "learned. Divided by sqrt(d), the scores have variance 1 for every d."
    )
    page.line()
    page.say(
        "Measured on 400 random queries with 16 keys each. Top: the mean of the largest weights. "
        "Gradient: what masked_softmax_backward returns for the median query."
    )
    page.line()
    head = f"{'variance':>11}{'top':>8}{'gradient':>12}"
    page.line(page.style(f"      {'':>4}{'q . k':>20}{'q . k / sqrt(d)':>41}", "dim"))
    page.line(page.style(f"      {'d':>4}{head}{'':5}{head}", "dim"))
    rng = np.random.default_rng(5)
    raw_sizes, scaled_sizes, off = [], [], []
    for d in (4, 16, 64, 256, 1024):
        queries = rng.standard_normal((400, 1, d), dtype=np.float32)
        keys = rng.standard_normal((400, 16, d), dtype=np.float32)
        grad = rng.standard_normal((400, 1, 16), dtype=np.float32)
        raw, raw_off = _spread(tour, queries, keys, grad, 1.0)
        scaled, scaled_off = _spread(tour, queries, keys, grad, d**-0.5)
        raw_sizes.append(raw[2])
        scaled_sizes.append(scaled[2])
        off += [raw_off, scaled_off]
        numbers = [f"{v:>11.2f}{top:>8.2f}{size:>12.6f}" for v, top, size in (raw, scaled)]
        tour.result(
            f"{d:>4}{numbers[0]}{'':5}{numbers[1]}",
            Check(f"variance of the scores over d, d = {d}", raw[0] / d, 1, 0.1),
            Check(f"variance of the scaled scores, d = {d}", scaled[0], 1, 0.1),
        )
    page.line()
    fade, spread = raw_sizes[0] / raw_sizes[-1], max(scaled_sizes) / min(scaled_sizes)
    tour.result(
        f"from d = 4 to d = 1024 the gradient fades {fade:,.0f}-fold; scaled, it stays",
        Check("the unscaled gradient fades more than 1000-fold", fade > 1000, True),
        Check("sizes of the scaled gradient, largest over smallest", spread, 1, 0.25),
    )
    if tour.peer is not None:
        tour.result(
            f"torch's autograd finds the same gradients: at most {max(off):.0e} apart",
            Check("softmax gradients, beside PyTorch, relative", max(off), 0, EXACT),
        )


def _spread(
    tour: Tour, queries: Array, keys: Array, grad: Array, scale: float
) -> tuple[tuple[float, float, float], float]:
    """Variance of the scores, mean largest weight, median gradient; its distance from torch's."""
    scores = attnext.dot_product_scores(queries, keys, scale=scale)
    weights = attnext.masked_softmax(scores)
    gradient = attnext.masked_softmax_backward(grad, weights)
    size = float(np.median(np.linalg.norm(gradient, axis=-1)))
    off = 0.0
    if tour.peer is not None:
        (theirs,) = tour.peer.gradients(tour.peer.masked_softmax, grad, scores)
        off = largest_difference(gradient, theirs)
    return (float(scores.var()), float(weights.max(-1).mean()), size), off


# ---- 6: the backward pass --------------------------------------------------------------------


def backward(tour: Tour) -> None:
    """Part 6: every gradient of additive attention against finite differences."""
    page, peer = tour.page, tour.peer
    tour.title("The backward pass, checked without trusting anyone")
    page.say(
        "Nudge one input by h, see how the loss moves: (loss(x + h) - loss(x - h)) / 2h is the "
        "gradient, whatever the formulas say. Done in float64 for every input of additive "
        "attention, with padding, and compared with what layer.backward returns in float32."
    )
    page.line()
    rng = np.random.default_rng(6)
    layer = attnext.AdditiveAttention(3, 5, 4, rng=rng)
    arrays: dict[str, Array] = {
        "queries": rng.standard_normal((2, 3, 5), dtype=np.float32),
        "keys": rng.standard_normal((2, 6, 3), dtype=np.float32),
        "values": rng.standard_normal((2, 6, 4), dtype=np.float32),
        "W_q": layer.W_q,
        "W_k": layer.W_k,
        "w_v": layer.w_v,
    }
    lens, grad_output = [4, 6], rng.standard_normal((2, 3, 4), dtype=np.float32)
    layer(arrays["queries"], arrays["keys"], arrays["values"], lens)
    ours = dict(zip(arrays, layer.backward(grad_output), strict=False)) | layer.grads
    theirs = None
    if peer is not None:
        theirs = peer.gradients(peer.additive, grad_output, *arrays.values(), valid_lens=lens)
    page.code("loss = sum(grad_output * layer(queries, keys, values, valid_lens=[4, 6]))")
    page.line()
    page.line(
        page.style(f"      {'gradient of':<14}{'shape':<12}{'largest':>8}", "dim")
        + page.style(f"{'off the numerical':>21}{'off torch' if peer else '':>13}", "dim")
    )
    for i, name in enumerate(arrays):

        def loss(x: NDArray[np.float64], name: str = name) -> float:
            q, k, v, W_q, W_k, w_v = (arrays | {name: x}).values()
            output = reference.additive_attention(q, k, v, W_q, W_k, w_v, lens)
            return float(np.sum(grad_output * output))

        numerical = numerical_gradient(loss, arrays[name])
        off = largest_difference(ours[name], numerical)
        beside = None if theirs is None else theirs[i]
        tour.result(
            f"{name:<14}{arrays[name].shape!s:<12}{np.abs(ours[name]).max():>8.4f}{off:>21.0e}"
            + ("" if beside is None else f"{largest_difference(ours[name], beside):>13.0e}"),
            Check(f"gradient of {name}, relative error", off, 0, EXACT),
            *tour.beside(f"gradient of {name}", ours[name], beside),
        )
