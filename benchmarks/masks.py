"""Does the cost follow the pairs that take part? ``python benchmarks/masks.py``

Dot-product attention of one shape under every kind of mask, forward and backward, beside the
dense call and PyTorch's SDPA, all in turn in one run. Printed of each mask: the share of the pairs
that take part, the share of the tiles (32 queries by 128 keys) that hold any, the time as a part
of the dense time, and what the target allows, 1.1 times the share of the pairs plus one tile of
keys for each query. (A mask that leaves no tile empty, like the random one, cannot meet it.) Every
result is checked first: the first head against ``attnext.reference``, and PyTorch's against ours.

    python masks.py
    python masks.py --seconds 5 --shape 2 8 1024 64
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from run import Array, Call, Case, cpu_name, measure, normal, torch

import attnext
from attnext import reference

QUERIES, KEYS = 32, 128  # of a tile

# Of B entries of N queries and N keys: options of our functions, and the same as a bool mask.
Maker = Callable[[int, int], tuple[dict[str, Any], Array]]


def causal(B: int, N: int) -> tuple[dict[str, Any], Array]:
    """Each query attends to itself and what came before."""
    return {"causal": True}, np.tri(N, dtype=bool)


def causal_mask(B: int, N: int) -> tuple[dict[str, Any], Array]:
    """The same, written out as a mask."""
    return {"mask": np.tri(N, dtype=bool)}, np.tri(N, dtype=bool)


def window(B: int, N: int) -> tuple[dict[str, Any], Array]:
    """64 keys before each query and 64 after it."""
    distance = np.arange(N)[:, None] - np.arange(N)
    return {"window": (64, 64)}, np.abs(distance) <= 64


def lengths(B: int, N: int) -> tuple[dict[str, Any], Array]:
    """A padded batch."""
    lens = np.random.default_rng(3).integers(1, N + 1, size=B)
    return {"valid_lens": lens}, (np.arange(N) < lens[:, None])[:, None, None]


def padding_mask(B: int, N: int) -> tuple[dict[str, Any], Array]:
    """The same batch, its padding written out as a mask."""
    mask = lengths(B, N)[1]
    return {"mask": mask}, mask


def blocks(B: int, N: int) -> tuple[dict[str, Any], Array]:
    """Four documents packed into one sequence, each attending to itself."""
    document = np.arange(N) * 4 // N
    mask = document[:, None] == document
    return {"mask": mask}, mask


def random_pairs(B: int, N: int) -> tuple[dict[str, Any], Array]:
    """Four pairs in ten, anywhere: no tile can be left out."""
    mask = np.random.default_rng(4).random((N, N)) < 0.4
    return {"mask": mask}, mask


MASKS: dict[str, Maker] = {
    "causal": causal,
    "causal, as a mask": causal_mask,
    "window (64, 64)": window,
    "lengths": lengths,
    "lengths, as a mask": padding_mask,
    "4 documents": blocks,
    "random .4": random_pairs,
}


def forward_case(name: str, tensors: list[Array], options: dict[str, Any], mask: Array) -> Case:
    """The forward call under this mask, ours and PyTorch's, beside the dense call."""
    q, k, v, _ = tensors
    calls: dict[str, Call] = {
        "attnext": lambda: attnext.dot_product_attention(q, k, v, **options),
        "dense": lambda: attnext.dot_product_attention(q, k, v),
    }
    if torch is not None:
        tq, tk, tv, t_mask = (torch.from_numpy(np.ascontiguousarray(x)) for x in (q, k, v, mask))
        sdpa = torch.nn.functional.scaled_dot_product_attention
        how = {"is_causal": True} if options.get("causal") is True else {"attn_mask": t_mask}
        calls["torch SDPA"] = lambda: sdpa(tq, tk, tv, **how)
    first = np.broadcast_to(mask, (*q.shape[:-1], k.shape[-2]))[0, 0]
    truth = reference.dot_product_attention(q[0, 0], k[0, 0], v[0, 0], mask=first)
    return Case(name, "forward", calls, truth)


def backward_case(name: str, tensors: list[Array], options: dict[str, Any], mask: Array) -> Case:
    """The backward call under this mask beside the dense one; the truth is dq."""
    q, k, v, g = tensors
    calls: dict[str, Call] = {
        "attnext": lambda: attnext.dot_product_attention_backward(g, q, k, v, **options),
        "dense": lambda: attnext.dot_product_attention_backward(g, q, k, v),
    }
    first = np.broadcast_to(mask, (*q.shape[:-1], k.shape[-2]))[0, 0]
    truth, _, _ = reference.dot_product_attention_backward(
        g[0, 0], q[0, 0], k[0, 0], v[0, 0], mask=first
    )
    return Case(name, "backward", calls, truth)


def share_of_tiles(pairs: Array) -> float:
    """How many of the tiles hold a pair; pairs (..., M, N)."""
    M, N = pairs.shape[-2:]
    blocks = np.logical_or.reduceat(pairs, np.arange(0, M, QUERIES), axis=-2)
    return float(np.logical_or.reduceat(blocks, np.arange(0, N, KEYS), axis=-1).mean())


def check(case: Case) -> None:
    """Stop unless ours is the reference in the first head, and PyTorch's is ours everywhere."""
    ours = case.calls["attnext"]()
    ours = ours[0] if isinstance(ours, tuple) else ours
    error = float(np.abs(ours[0, 0] - case.truth).max() / np.abs(case.truth).max())
    if "torch SDPA" in case.calls:
        error = max(error, float(np.abs(ours - case.calls["torch SDPA"]().numpy()).max()))
    if not error < 2e-5:
        sys.exit(f"{case.name}, {case.shape}: off by {error:.1e}")


def main() -> None:
    """Time every mask and print the table."""
    parser = argparse.ArgumentParser(description="Time masks against their share of the pairs.")
    parser.add_argument("--seconds", type=float, default=2.0, help="per mask and direction")
    parser.add_argument("--shape", type=int, nargs=4, default=(2, 8, 512, 64), metavar="n",
                        help="batch entries, heads, queries = keys, features")  # fmt: skip
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    B, heads, N, D = options.shape
    attnext.set_num_threads(options.threads)
    if torch is not None:
        torch.set_num_threads(options.threads)
    tensors = normal(1, *[(B, heads, N, D)] * 4)
    print(f"{cpu_name()}; {time.strftime('%Y-%m-%d')}; ({B}, {heads}, {N}, {N}, d {D}), "
          f"{options.threads} thread(s); ms, minimum\n")  # fmt: skip
    print(f"{'mask':19} {'':8} {'pairs':>6} {'tiles':>6} {'time':>6} {'allowed':>8}   "
          f"{'ms':>7} {'dense':>7} {'torch SDPA':>11}")  # fmt: skip
    for name, make in MASKS.items():
        given, mask = make(B, N)
        pairs = np.broadcast_to(mask, (B, heads, N, N))
        share, tiles = float(pairs.mean()), share_of_tiles(pairs)
        for build in (forward_case, backward_case):
            case = build(name, tensors, given, mask)
            check(case)
            ms = {who: t["min"] for who, t in measure(case, options.seconds).items()}
            sdpa = f"{ms['torch SDPA']:11.2f}" if "torch SDPA" in ms else ""
            print(f"{name:19} {case.shape:8} {share:6.3f} {tiles:6.3f} "
                  f"{ms['attnext'] / ms['dense']:6.3f} {1.1 * share + KEYS / N:8.3f}   "
                  f"{ms['attnext']:7.2f} {ms['dense']:7.2f} {sdpa}".rstrip())  # fmt: skip


if __name__ == "__main__":
    main()
