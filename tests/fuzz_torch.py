"""Hostile tensors in random calls of attnext.torch: python tests/fuzz_torch.py SECONDS [SEED]

A round calls a function with tensors that lie anywhere: turned, inside others, of another class,
with and without gradients. It gives the bits of attnext itself, the gradients have those of plain
tensors, and the derivatives of gradients are differences of gradients. A memory gives the same from
any thread, and while a finaliser calls with it. What has no such numbers, a storage given back,
say, is refused. A round is what its seed makes of it, and the seed of one that fails is printed.
"""

from __future__ import annotations

import gc
import random
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import fuzz_rounds
import numpy as np
import torch
from fuzz_arguments import Sizes, well_formed
from fuzz_program import Broken, must, names_of
from test_attacks_finalisers import collected_during
from torch import Tensor, nn

import attnext
import attnext.torch as ours

KINDS = "_attention", "_scores", "_softmax"
FUNCTIONS = [name for name in ours.__all__ if name.endswith(KINDS) and name in attnext.__all__]
OPTIONS = {"valid_lens", "mask", "bias", "sink", "scale", "softcap", "causal", "window", "b_h"}
REFUSALS = TypeError, ValueError, RuntimeError
Given = dict[str, Any]


class Mine(Tensor):
    """A class of its own, which does as tensors do."""


def given_back(x: Tensor, kept: int) -> Tensor:
    x = x.detach().clone()
    x.untyped_storage().resize_(kept)
    return x


# The same numbers, elsewhere; and what has none that could be read.
SAME: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "another's second half": lambda x: torch.stack([x, x])[1],
    "turned": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "every second": lambda x: torch.stack([x, x], -1)[..., 0],
    "reversed twice": lambda x: x.flip(0).flip(0),
    "a class of its own": lambda x: x.as_subclass(Mine),
    "negative bit": lambda x: -torch._neg_view(x) if x.is_floating_point() else x,
    "spread": lambda x: x[:1].expand(x.shape) if bool((x == x[:1]).all()) else x,
}
REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "storage given back": lambda x: given_back(x, 0),
    "half of it given back": lambda x: given_back(x, x.numel() * x.element_size() // 2),
    "meta": lambda x: x.detach().to("meta"),
    "complex": lambda x: x.detach().to(torch.complex64),
    "sparse": lambda x: x.detach().to_sparse(),
    "nested": lambda x: torch.nested.nested_tensor([x.detach()]),
}


# ---- calls ---------------------------------------------------------------------------------------


def problem(r: random.Random) -> tuple[str, Given]:
    """A function, and arguments for it."""
    name = r.choice(FUNCTIONS)
    lead = tuple(r.randint(1, 3) for _ in range(r.randint(0, 2)))
    M, N, D, Dv, H = (r.randint(1, 9) for _ in range(5))
    sizes = Sizes(lead, M, N, D, Dv, 2 * H)
    names, needed = names_of(getattr(attnext, name))
    asked = frozenset(n for n in r.sample(names, min(len(names), 6)) if n in OPTIONS)
    wanted = [*needed, *asked, *({"w"} & set(names))]
    return name, {n: well_formed(n, name, sizes, asked, r.randrange(64)) for n in wanted}


def tensors_of(given: Given) -> Given:
    return {
        name: torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x
        for name, x in given.items()
    }


def leaves_of(given: Given, learned: set[str]) -> Given:
    """Its tensors with new ones in the place of those that learn."""
    return {n: x.clone().requires_grad_() if n in learned else x for n, x in given.items()}


def floats_of(given: Given) -> list[str]:
    return [n for n, x in given.items() if isinstance(x, Tensor) and x.is_floating_point()]


def flow_of(result: Any) -> Tensor:
    """One number that all of a result is in."""
    parts = result if isinstance(result, tuple) else (result,)
    flows = [(x * torch.linspace(-1, 1, x.numel()).reshape(x.shape)).sum() for x in parts]
    return torch.stack(flows).sum()


def gradients(function: Any, given: Given, leaves: Given, **how: Any) -> list[Tensor]:
    learned = [x for x in leaves.values() if isinstance(x, Tensor) and x.requires_grad]
    return list(torch.autograd.grad(flow_of(function(**given)), learned, **how)) if learned else []


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, tuple | list):
        return len(found) == len(expected) and all(map(same, found, expected))
    found, expected = (torch.as_tensor(x).detach() for x in (found, expected))
    return found.shape == expected.shape and bool(torch.allclose(found, expected, 0, 0, True))


# ---- rounds --------------------------------------------------------------------------------------


def any_tensors(r: random.Random) -> None:
    """The bits of attnext, and the gradients of plain tensors."""
    name, arrays = problem(r)
    expected = getattr(attnext, name)(**arrays)
    plain, function = tensors_of(arrays), getattr(ours, name)
    learned = {n for n in floats_of(plain) if r.random() < 0.5}
    leaves = leaves_of(plain, learned)
    given = {
        n: SAME[r.choice(list(SAME))](x) if isinstance(x, Tensor) and x.dim() > 0 else x
        for n, x in leaves.items()
    }
    must(same(function(**given), expected), "other bits than attnext's", name)
    twins = leaves_of(plain, learned)
    must(
        same(gradients(function, given, leaves), gradients(function, twins, twins)),
        "other gradients than plain tensors'",
        name,
    )


def no_tensors(r: random.Random) -> None:
    """What has no numbers is refused, wherever it is."""
    name, arrays = problem(r)
    given = leaves_of(tensors_of(arrays), set())
    victims = [
        n for n, x in given.items() if isinstance(x, Tensor) and x.dim() > 0 and x.numel() > 1
    ]
    victim, word = r.choice(victims), r.choice(list(REFUSED))
    if r.random() < 0.3:
        given = leaves_of(given, set(floats_of(given)))
    given[victim] = REFUSED[word](given[victim])
    try:
        made = getattr(ours, name)(**given)
    except REFUSALS:
        return
    parts = made if isinstance(made, tuple) else (made,)
    inputs = [x for n, x in given.items() if isinstance(x, Tensor) and n in floats_of(given)]
    if word == "meta" and all(x.is_meta for x in (*inputs, *parts)):
        return  # shapes, computed from shapes
    raise Broken(f"{word} is accepted", name, victim)


def second_derivatives(r: random.Random) -> None:
    """Of float32, beside differences of gradients in float64."""
    name, arrays = problem(r)
    plain, function = tensors_of(arrays), getattr(ours, name)
    learned = set(r.sample(floats_of(plain), 1))
    leaves = leaves_of(plain, learned)
    first = gradients(function, leaves, leaves, create_graph=True)[0]
    x = next(leaves[n] for n in learned)
    along = torch.linspace(-1, 1, x.numel()).reshape(x.shape)
    found = torch.zeros_like(x)
    if first.requires_grad:  # else it is the same everywhere
        found = torch.autograd.grad((first * along).sum(), x, materialize_grads=True)[0]
    near = []
    for step in (1e-5, -1e-5):
        double = {n: x.double() if n in floats_of(plain) else x for n, x in plain.items()}
        for n in learned:
            double[n] = double[n] + step * along
        double = leaves_of(double, learned)
        near += gradients(function, double, double)
    expected = (near[0] - near[1]) / 2e-5
    off = (found - expected).abs().max()
    must(off <= 1e-3 * max(1.0, float(expected.abs().max())), "second derivatives", name, off)


MAKERS: dict[str, Callable[[], Any]] = {
    "additive": lambda: ours.AdditiveAttention(4, 4, 6, 0.0),
    "dot": lambda: ours.DotProductAttention(0.0),
    "multi": lambda: ours.MultiHeadAttention(4, 4, 4, 6, 2, 0.0),
}


def with_memory(r: random.Random) -> None:
    """From any thread, and in a finaliser of itself; what is recorded in it is right as well."""
    layer: nn.Module = MAKERS[r.choice(list(MAKERS))]()
    inputs = {
        n: torch.randn(2, r.choice([1, 3]), 4, requires_grad=True) for n in ("queries", "keys")
    }
    values = torch.randn(2, inputs["keys"].shape[1], 4, requires_grad=True)
    memory: Any = layer.memory(inputs["keys"], values)  # type: ignore[operator]
    call = partial(layer, inputs["queries"], memory)
    learned = [inputs["queries"], *layer.parameters()]

    def all_of_it() -> list[Tensor]:
        output = call()
        grads = torch.autograd.grad(
            output.sum(), learned, retain_graph=True, materialize_grads=True
        )
        return [output, *grads]

    expected = all_of_it()
    with ThreadPoolExecutor(3) as pool:
        for found in [pool.submit(all_of_it) for _ in range(3)]:
            must(same(found.result(), expected), "other bits in a thread")
    deeds: list[Callable[[], Any]] = [call, all_of_it]
    deed = r.choice(deeds)
    first = 20 * r.randint(0, 9)  # a lock, say, is held for a few objects only
    for late in range(first + 1, first + 21):
        must(same(collected_during(all_of_it, deed, late), expected), "in a finaliser")


ROUNDS = any_tensors, no_tensors, second_derivatives, with_memory


def one_round(number: int) -> None:
    r = random.Random(number)
    torch.manual_seed(number)
    r.choice(ROUNDS)(r)


def main(seconds: float, first: int = 0) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    gc.disable()
    fuzz_rounds.run(one_round, seconds, first)


if __name__ == "__main__":
    main(float(sys.argv[1]), *map(int, sys.argv[2:]))
