"""Reload every module of attnext, in several orders, and compare what objects compute.

Run as a program by test_reload.py: reloaded classes would disturb other tests of the process.
"""

from __future__ import annotations

import copy
import importlib
import pkgutil
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import torch
from torch import nn

import attnext

Results = dict[str, Any]

warnings.simplefilter("ignore")
torch.manual_seed(0)
X = torch.randn(2, 3, 8)
A = X.numpy()


def import_all() -> list[str]:
    """Import every module of attnext but the command, and return their names."""
    for module in pkgutil.walk_packages(attnext.__path__, "attnext."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return sorted(name for name in sys.modules if name.split(".")[0] == "attnext")


def create() -> dict[str, Any]:
    """Return objects of every kind that has a state, with parameters that a seed draws."""
    torch.manual_seed(1)
    at = attnext.torch
    objects: dict[str, Any] = {
        "additive": at.AdditiveAttention(8, 8, 6, bias=True),
        "dot": at.DotProductAttention(),
        "heads": at.MultiHeadAttention(8, 8, 8, 8, 2),
        "nn": at.nn.MultiheadAttention(8, 2, batch_first=True),
        "converted": at.convert(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)),
        "numpy additive": attnext.AdditiveAttention(8, 8, 6, rng=0),
        "numpy heads": attnext.MultiHeadAttention(8, 8, 8, 8, 2, rng=0),
        "regression": attnext.kernel_regression.NWKernelRegression(rng=0),
    }
    objects |= {f"memory {name}": objects[name].memory(X, X) for name in ("additive", "heads")}
    objects["memory numpy"] = objects["numpy additive"].memory(A, A)
    objects["compiled"] = torch.compile(objects["dot"], backend="aot_eager", fullgraph=True)
    objects["compiled"](X, X, X)
    objects["transformers"] = bert()
    return objects


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = BertConfig(vocab_size=30, num_hidden_layers=1, **sizes)
    return BertModel._from_config(config, attn_implementation="attnext").eval()


def gradient(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor = X) -> list[torch.Tensor]:
    """Return the output, and first and second derivatives."""
    x = x.clone().requires_grad_()
    output = f(x)
    (d,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
    return [output.detach(), d.detach(), *torch.autograd.grad(d.square().sum(), x)]


def use(objects: dict[str, Any]) -> Results:
    """Return what the objects compute, by name."""
    found: Results = {}
    for name in ("additive", "dot", "heads"):
        layer = objects[name]
        found[name] = gradient(lambda x, layer=layer: layer(x, x, x, torch.tensor([2, 3])))
        double = copy.deepcopy(layer).double()
        found[f"{name} in float64"] = gradient(lambda x, layer=double: layer(x, x, x), X.double())
        found[f"{name} explained"] = str(attnext.explain.layer(layer, A, A, A))
        found[f"{name} again"] = copy.deepcopy(layer)(X, X, X)
    for name in ("additive", "heads"):
        memory = objects[name].memory(X, X)
        memory.append(X, X)
        for each in (memory, objects[f"memory {name}"]):
            found[f"memory {name} of {len(each)}"] = objects[name](X, each)
        attnext.explain.layer(objects[name], A, memory)
    found["nn"] = [*objects["nn"](X, X, X), objects["converted"](X)]
    found["compiled"] = objects["compiled"](X, X, X)
    found["transformers"] = objects["transformers"](torch.arange(6).reshape(2, 3))[0]
    for name in ("numpy additive", "numpy heads"):
        layer = objects[name]
        output = layer(A, A, A)
        found[name] = [output, *layer.backward(output), repr(layer), str(layer.state_dict())]
        layer.load_state_dict(layer.state_dict())
        copy.deepcopy(layer).train().eval()
    found["memory numpy"] = objects["numpy additive"](A, objects["memory numpy"])
    keys = np.linspace(0, 1, 12, dtype=np.float32).reshape(2, 6)
    found["regression"] = objects["regression"](keys[:, 0], keys, keys)
    return found


def call() -> Results:
    """Return what functions compute, by name."""
    at, x = attnext.torch, X
    ragged = torch.tensor([2, 3])
    found: Results = {
        "torch": gradient(lambda x: at.gaussian_attention(x, x, x, ragged)),
        "scores": gradient(lambda x: at.cosine_scores(x, x)),
        "softmax": gradient(lambda x: at.masked_softmax(x, ragged)),
        "steps": gradient(lambda x: at.sequence_mask(x, ragged)),
        "merged": at.merge_attention([x, x], [x[..., 0], x[..., 1]]),
        "sdpa": at.scaled_dot_product_attention(x, x, x, is_causal=True),
        "compiled": torch.compile(at.masked_softmax, backend="aot_eager", fullgraph=True)(x),
        "numpy": attnext.dot_product_attention(A, A, A, [2, 3]),
        "reference": attnext.reference.dot_product_attention(A, A, A, [2, 3]),
        "explained": str(attnext.explain.masked_softmax(A, [2, 3])),
        "position": attnext.positional_encoding(3, 4),
        "view": repr(attnext.view.show("dot_product_attention", A, A, A)),
        "plot": len(attnext.plot.show_heatmaps(A[None], "k", "q").axes),
    }
    lazy = da.from_array(A, chunks=(1, 3, 8))
    found["dask"] = attnext.dask.dot_product_attention(lazy, lazy, lazy).compute()
    report = attnext.lab.check(dot_product_scores)
    found["lab"] = report.name
    try:
        attnext.lab.check(lambda queries, keys: queries @ keys.swapaxes(-1, -2), dot)
    except AssertionError as wrong:  # the class lab.Wrong may be one from before the reload
        found["wrong"] = vars(wrong)["misconception"]
    return found


dot = "dot_product_scores"


def dot_product_scores(queries: Any, keys: Any) -> Any:
    return queries @ keys.swapaxes(-1, -2) / np.sqrt(queries.shape[-1])


def differences(found: Any, expected: Any) -> list[str]:
    """Return the names of the results that differ."""
    return [name for name in expected if not same(found[name], expected[name])]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return bool(np.array_equal(a, b))


def main() -> None:
    names = import_all()
    old = create()
    expected, returned = use(old), call()
    for order in ("sorted", "reversed", "shuffled"):
        if order == "shuffled":
            random.Random(7).shuffle(names)
        for name in names[:: -1 if order == "reversed" else 1]:
            importlib.reload(sys.modules[name])
        for what, found in (("old objects", old), ("new objects", create())):
            if wrong := differences(use(found), expected):
                raise SystemExit(f"after a reload, {order}: {what} compute others: {wrong}")
        if wrong := differences(call(), returned):
            raise SystemExit(f"after a reload, {order}: functions compute others: {wrong}")
        for given in (old, create()):
            model = attnext.torch.revert(given["converted"])
            if type(model.self_attn) is not nn.MultiheadAttention:
                raise SystemExit(f"after a reload, {order}: revert left {type(model.self_attn)}")
            attnext.torch.convert(model)
    print("equal")


if __name__ == "__main__":
    main()
