"""attnext.torch, the layers: beside d2l's written in plain torch, with the same parameters.

Parameters are exchanged both ways, training runs side by side, and dropout, copies, hooks and
errors are those a user of torch expects.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import d2l_layers
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint
from wrong_calls import BOTH, Call, Wrong, each, raised_by

import attnext
import attnext.torch as ours

SIZES = {"key_size": 5, "query_size": 4, "num_hiddens": 6}
KINDS = ("additive", "additive with bias", "dot")


def make_pair(kind: str, dropout: float = 0.0) -> tuple[Any, Any]:
    """Our layer and the plain one, with equal parameters."""
    if kind == "dot":
        return ours.DotProductAttention(dropout), d2l_layers.DotProductAttention(dropout)
    layer = ours.AdditiveAttention(**SIZES, dropout=dropout, bias="bias" in kind)
    plain = d2l_layers.AdditiveAttention(**SIZES, dropout=dropout, bias="bias" in kind)
    plain.load_state_dict(layer.state_dict())
    return layer, plain


def inputs(kind: str, rng: np.random.Generator, M: int = 7, N: int = 9) -> dict[str, Any]:
    """The arguments of a call; valid_lens (3,)."""

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).requires_grad_()

    return {
        "queries": normal(3, M, 4),
        "keys": normal(3, N, 4 if kind == "dot" else 5),
        "values": normal(3, N, 2),
        "valid_lens": torch.tensor([N, 4, 1]),
    }


def converted(call: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The same arguments as leaves of their own."""
    return {
        name: x.detach().to(dtype, copy=True).requires_grad_() if x.is_floating_point() else x
        for name, x in call.items()
    }


# ---- the same numbers as d2l's -------------------------------------------------------------------


def run(layer: nn.Module, call: dict[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """Output, weights and every gradient of a loss that looks at both of them."""
    layer = copy.deepcopy(layer).to(dtype)
    x = converted(call, dtype)
    output = layer(**x)
    weights: Any = layer.attention_weights
    (output.square().sum() + (weights * torch.arange(weights.shape[-1])).sum()).backward()
    made = {"output": output, "weights": weights}
    leaves = {**dict(layer.named_parameters()), **x}
    made |= {f"d_{name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return {name: tensor.detach() for name, tensor in made.items()}


@pytest.mark.parametrize("lens", ["none", "1-D", "2-D"])
@pytest.mark.parametrize("case", range(8))
@pytest.mark.parametrize("kind", KINDS)
def test_the_layers_are_d2ls(kind: str, case: int, lens: str) -> None:
    """The error against float64 is at most twice float32 torch's, plus 2e-6 of the largest."""
    torch.manual_seed(case)
    rng = np.random.default_rng([3, case])
    layer, plain = make_pair(kind)
    call = inputs(kind, rng, M=int(rng.integers(1, 20)), N=int(rng.integers(5, 40)))
    N = call["keys"].shape[1]
    call["valid_lens"] = {
        "none": None,
        "1-D": torch.from_numpy(rng.integers(1, N + 3, 3)),
        "2-D": torch.from_numpy(rng.integers(0, N + 1, (3, call["queries"].shape[1]))),
    }[lens]
    if lens == "none":
        del call["valid_lens"]
    got = run(layer, call, torch.float32)
    if lens == "none":
        call["valid_lens"] = torch.tensor([N] * 3)
    exact, peer = run(plain, call, torch.float64), run(plain, call, torch.float32)
    assert got.keys() == exact.keys()
    for name in exact:
        error = (got[name] - exact[name]).abs().max()
        of_peer = (peer[name] - exact[name]).abs().max()
        assert error <= 2 * of_peer + 2e-6 * exact[name].abs().max(), name


@pytest.mark.parametrize("kind", ["additive", "dot"])
def test_the_toy_of_the_book(kind: str) -> None:
    queries, keys = torch.normal(0, 1, (2, 1, 20)), torch.ones(2, 10, 2)
    values = torch.arange(40, dtype=torch.float32).reshape(1, 10, 4).repeat(2, 1, 1)
    valid_lens = torch.tensor([2, 6])
    if kind == "additive":
        attention: Any = ours.AdditiveAttention(
            key_size=2, query_size=20, num_hiddens=8, dropout=0.1
        )
    else:
        attention, queries = ours.DotProductAttention(dropout=0.5), torch.normal(0, 1, (2, 1, 2))
    attention.eval()
    output = attention(queries, keys, values, valid_lens)
    expected = torch.tensor([[[2.0, 3, 4, 5]], [[10, 11, 12, 13]]])
    torch.testing.assert_close(output.detach(), expected, rtol=1e-6, atol=0)
    weights = torch.zeros(2, 1, 10)
    weights[0, 0, :2], weights[1, 0, :6] = 1 / 2, 1 / 6
    torch.testing.assert_close(attention.attention_weights.detach(), weights, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_training_side_by_side_gives_the_same_losses(kind: str, rng: np.random.Generator) -> None:
    """Thirty steps of Adam; a difference of rounding grows, but slowly."""
    torch.manual_seed(1)
    layer, plain = make_pair(kind)
    call, losses = inputs(kind, rng), {}
    target = torch.randn(3, 7, 2)
    for name, model in (("ours", layer), ("plain", plain)):
        head = nn.Linear(2, 2)
        head.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
        optimiser = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.05)
        losses[name] = []
        for _ in range(30):
            optimiser.zero_grad()
            loss = (head(model(**call)) - target).square().mean()
            loss.backward()
            optimiser.step()
            losses[name].append(loss.item())
    assert losses["ours"][-1] < losses["ours"][0]
    np.testing.assert_allclose(losses["ours"], losses["plain"], rtol=1e-4)


def test_a_loss_of_the_weights_trains_the_scores(rng: np.random.Generator) -> None:
    """They stay in the graph, as d2l's do."""
    layer, _ = make_pair("additive")
    layer(**inputs("additive", rng))
    entropy = -(layer.attention_weights.clamp_min(1e-9).log() * layer.attention_weights).sum()
    entropy.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())


def test_lengths_as_multi_head_attention_repeats_them(rng: np.random.Generator) -> None:
    """d2l folds the heads into the batch, and repeats valid_lens for them."""
    heads = 4
    x = torch.from_numpy(rng.standard_normal((2 * heads, 5, 3), dtype=np.float32))
    lens = torch.repeat_interleave(torch.tensor([2, 4]), repeats=heads, dim=0)
    layer, plain = make_pair("dot")
    torch.testing.assert_close(layer(x, x, x, lens), plain(x, x, x, lens), rtol=1e-5, atol=1e-6)


def test_mask_and_causal(rng: np.random.Generator) -> None:
    layer, _ = make_pair("dot")
    x = torch.from_numpy(rng.standard_normal((2, 5, 3), dtype=np.float32))
    below = torch.ones(5, 5, dtype=torch.bool).tril()
    output = layer(x, x, x, causal=True)
    assert not layer.attention_weights[:, ~below].any()
    assert torch.equal(output, layer(x, x, x, mask=below))
    sdpa = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    torch.testing.assert_close(output, sdpa, rtol=1e-5, atol=1e-6)


def test_scale(rng: np.random.Generator) -> None:
    x = torch.from_numpy(rng.standard_normal((2, 5, 3), dtype=np.float32))
    got = ours.DotProductAttention(scale=1.0)(x, x, x)
    torch.testing.assert_close(got, torch.softmax(x @ x.mT, -1) @ x, rtol=1e-5, atol=1e-6)


def test_hints_of_a_layers_call() -> None:
    x = torch.randn(2, 5, 4)
    layer, heads = ours.DotProductAttention(), ours.MultiHeadAttention(4, 4, 4, 4, 2)
    for call in (layer, heads):
        for name in ("valid_len", "enc_valid_lens"):
            with pytest.raises(TypeError, match=f"'{name}': use valid_lens instead$"):
                call(x, x, x, **{name: torch.tensor([1, 2])})
        with pytest.raises(TypeError, match="'casual': did you mean causal"):
            call(x, x, x, casual=True)
        with pytest.raises(
            TypeError, match="to add floats to the scores, use the argument bias of"
        ):
            call(x, x, x, torch.zeros(5, 5))


def test_a_scale_of_the_call_takes_the_place_of_the_layers() -> None:
    x = torch.randn(2, 5, 4)
    layer, heads = ours.DotProductAttention(scale=1.0), ours.MultiHeadAttention(4, 4, 4, 4, 2)
    assert torch.equal(layer(x, x, x, scale=0.3), ours.DotProductAttention(scale=0.3)(x, x, x))
    each = torch.tensor([0.3, 2.0], requires_grad=True)
    weights = [heads.state_dict()[f"W_{letter}.weight"] for letter in "qkvo"]
    expected = ours.multi_head_attention(x, x, x, *weights, num_heads=2, scale=each)
    assert torch.equal(heads(x, x, x, scale=each), expected)
    for attention in (layer, heads):
        memory = attention.memory(x, x)
        results = [attention(x, *rest, scale=each) for rest in ((x, x), (memory,))]
        d = [torch.autograd.grad(y.square().sum(), each)[0] for y in results]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*d)


# ---- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_attention_weights(kind: str, rng: np.random.Generator) -> None:
    layer, _ = make_pair(kind)
    assert layer.attention_weights is None
    call = inputs(kind, rng)
    output = layer(**call)
    assert layer.attention_weights.shape == (3, 7, 9)
    assert torch.equal(layer(**call, need_weights=False), output)
    assert layer.attention_weights is None
    with torch.no_grad():
        layer(**call)
    assert not layer.attention_weights.requires_grad


def test_weights_that_are_not_needed_are_not_formed(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    function = attnext._core._dot_product_attention

    def spied(**arguments: Any) -> Any:
        asked.append(arguments.get("return_weights", False))
        return function(**arguments)

    monkeypatch.setattr(attnext._core, "_dot_product_attention", spied)
    layer, _ = make_pair("dot")
    layer(**inputs("dot", rng))
    layer(**inputs("dot", rng), need_weights=False)
    assert asked == [True, False]


# ---- dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_acts_in_training_only(kind: str, rng: np.random.Generator) -> None:
    layer, plain = make_pair(kind, dropout=0.5)
    call = inputs(kind, rng)
    assert layer.training
    trained = layer(**call)
    weights = layer.attention_weights
    layer.eval(), plain.eval()
    torch.testing.assert_close(layer(**call), plain(**call), rtol=1e-5, atol=1e-6)
    assert torch.equal(layer.attention_weights, weights)  # those before dropout
    assert not torch.equal(layer(**call), trained)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_manual_seed_makes_training_repeatable(kind: str, rng: np.random.Generator) -> None:
    layer, _ = make_pair(kind, dropout=0.5)
    call = inputs(kind, rng)
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        runs.append([layer(**call).detach() for _ in range(3)])
    assert all(map(torch.equal, *runs))
    assert not torch.equal(runs[0][0], runs[0][1])  # a fresh pattern for each call


@pytest.mark.parametrize(("dropout", "training"), [(0.5, False), (0.0, True)])
def test_without_dropout_the_generator_is_left_alone(
    dropout: float, training: bool, rng: np.random.Generator
) -> None:
    layer = ours.DotProductAttention(dropout).train(training)
    before = torch.get_rng_state()
    layer(**inputs("dot", rng))
    assert torch.equal(torch.get_rng_state(), before)


def test_how_much_is_dropped() -> None:
    """Values 1 and equal weights: the output is 1 / (1 - p) times the share that is kept."""
    torch.manual_seed(0)
    p, n = 0.3, 400
    layer = ours.DotProductAttention(p)
    kept = layer(torch.zeros(1, n, 2), torch.zeros(1, n, 2), torch.ones(1, n, 1)) * (1 - p)
    # A mean of n*n independent trials: five standard deviations, one chance in two million.
    assert abs(kept.mean().item() - (1 - p)) < 5 * (p * (1 - p)) ** 0.5 / n
    # And of each row's n trials the variance is p (1 - p) / n, to five of its own deviations.
    ratio = kept.var().item() / (p * (1 - p) / n)
    assert abs(ratio - 1) < 5 * (2 / n) ** 0.5


def test_dropout_has_the_gradient_of_the_pattern_that_was_drawn(rng: np.random.Generator) -> None:
    layer, _ = make_pair("dot", dropout=0.5)
    call = inputs("dot", rng)
    torch.manual_seed(3)
    output = layer(**call)
    output.sum().backward()
    # With values the unit vectors the output is what multiplies the values.
    torch.manual_seed(3)
    kept = layer(call["queries"], call["keys"], torch.eye(9).expand(3, 9, 9), call["valid_lens"])
    expected = kept.detach().sum(1)[..., None].expand(3, 9, 2)
    torch.testing.assert_close(call["values"].grad, expected, rtol=1e-5, atol=1e-6)


def test_the_submodule_decides_as_in_d2l(rng: np.random.Generator) -> None:
    """Monte-Carlo dropout: the model in eval mode, its nn.Dropout modules in training mode."""
    layer = ours.DotProductAttention(0.5).eval()
    call = inputs("dot", rng)
    for module in layer.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    assert not torch.equal(layer(**call), layer(**call))
    layer.dropout.p = 0.0
    assert torch.equal(layer(**call), layer(**call))


@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_draws_the_same_dropout_again(kind: str, rng: np.random.Generator) -> None:
    layer, _ = make_pair(kind, dropout=0.5)
    call = inputs(kind, rng)
    grads = []
    for run_layer in (
        lambda: layer(**call),
        lambda: checkpoint(layer, **call, use_reentrant=False),
    ):
        torch.manual_seed(11)
        grads.append(torch.autograd.grad(run_layer().square().sum(), call["queries"])[0])
    assert torch.equal(*grads)


# ---- state dicts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_state_dicts_go_both_ways(kind: str, rng: np.random.Generator) -> None:
    layer, plain = make_pair(kind)
    call = inputs(kind, rng)
    for source, target in ((plain, layer), (layer, plain)):
        for parameter in source.parameters():
            nn.init.normal_(parameter)
        target.load_state_dict(source.state_dict(), strict=True)
        torch.testing.assert_close(layer(**call), plain(**call), rtol=1e-5, atol=1e-6)
    assert {name: x.shape for name, x in layer.state_dict().items()} == {
        name: x.shape for name, x in plain.state_dict().items()
    }


def test_names_and_shapes() -> None:
    layer = ours.AdditiveAttention(**SIZES, bias=True)
    assert {name: tuple(x.shape) for name, x in layer.state_dict().items()} == {
        "b_h": (6,),
        "W_k.weight": (6, 5),
        "W_q.weight": (6, 4),
        "w_v.weight": (1, 6),
    }
    assert not ours.DotProductAttention().state_dict()


@pytest.mark.parametrize("bias", [False, True])
def test_state_dicts_of_the_numpy_object(bias: bool, rng: np.random.Generator) -> None:
    layer = ours.AdditiveAttention(**SIZES, bias=bias)
    twin = attnext.AdditiveAttention(**SIZES, bias=bias, rng=3)
    call = inputs("additive", rng)
    arrays = {name: x.detach().numpy() for name, x in call.items()}

    layer.load_state_dict({name: torch.from_numpy(x) for name, x in twin.state_dict().items()})
    np.testing.assert_array_equal(layer(**call).detach(), twin(**arrays))
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    twin.load_state_dict(layer.state_dict())
    np.testing.assert_array_equal(layer(**call).detach(), twin(**arrays))


def test_missing_and_unexpected_names_are_torchs_error() -> None:
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: \"b_h\""):
        ours.AdditiveAttention(**SIZES).load_state_dict(
            ours.AdditiveAttention(**SIZES, bias=True).state_dict()
        )


def test_a_seed_draws_the_parameters_that_d2ls_class_would() -> None:
    torch.manual_seed(5)
    layer = ours.AdditiveAttention(**SIZES)
    torch.manual_seed(5)
    plain = d2l_layers.AdditiveAttention(**SIZES, dropout=0)
    for name, x in plain.state_dict().items():
        assert torch.equal(layer.state_dict()[name], x)


def test_the_bias_is_drawn_as_that_of_a_linear_layer_of_the_query_size() -> None:
    layer = ours.AdditiveAttention(key_size=3, query_size=16, num_hiddens=2000, bias=True)
    bias = layer.b_h.detach().abs()
    assert bias.max() <= 0.25
    assert bias.max() > 0.24  # 2000 draws: all below 0.24 once in 10**35


# ---- copies --------------------------------------------------------------------------------------


def through_torch_save(layer: Any) -> Any:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
    "torch.save": through_torch_save,
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", KINDS)
def test_copies_after_a_forward(kind: str, how: str, rng: np.random.Generator) -> None:
    """The last weights are in a graph, which cannot be copied: they stay behind."""
    layer, _ = make_pair(kind, dropout=0.25)
    call = inputs(kind, rng)
    layer(**call)
    twin = COPIES[how](layer.eval())
    assert twin.attention_weights is None and layer.attention_weights is not None
    assert repr(twin) == repr(layer) and not twin.training and twin.dropout.p == 0.25
    assert torch.equal(twin(**call), layer(**call))
    for ours_, theirs in zip(layer.parameters(), twin.parameters(), strict=True):
        assert ours_ is not theirs


def test_a_state_dict_through_a_file_of_weights_only(rng: np.random.Generator) -> None:
    layer, _ = make_pair("additive with bias")
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    twin = ours.AdditiveAttention(**SIZES, bias=True)
    twin.load_state_dict(torch.load(file, weights_only=True))
    call = inputs("additive", rng)
    assert torch.equal(layer(**call), twin(**call))


@pytest.mark.parametrize("kind", ["additive", "dot"])
def test_repr_is_that_of_d2ls_layer(kind: str) -> None:
    layer, plain = make_pair(kind, dropout=0.1)
    assert repr(layer).split("\n")[1:] == repr(plain).split("\n")[1:]
    assert repr(layer).startswith(type(layer).__name__ + "(")


def test_repr_says_what_else_was_asked_for() -> None:
    assert "  bias=True\n" in repr(ours.AdditiveAttention(**SIZES, bias=True))
    assert "  scale=0.5\n" in repr(ours.DotProductAttention(scale=0.5))


# ---- projections that are more than their weight -------------------------------------------------


def compare_with_plain(layer: nn.Module, plain: nn.Module, rng: np.random.Generator) -> None:
    """Output, weights and the gradients of all parameters and inputs."""
    call = inputs("additive", rng)
    got, expected = run(layer, call, torch.float32), run(plain, call, torch.float32)
    assert got.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-4, atol=1e-5, msg=name)


class Lora(nn.Module):
    """A low-rank change beside a linear layer, whose weight it shows."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.down = nn.Parameter(torch.randn(2, linear.in_features))
        self.up = nn.Parameter(torch.randn(linear.out_features, 2))

    @property
    def weight(self) -> Tensor:
        return self.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x) + x @ self.down.T @ self.up.T
        return result


def with_bias(name: str) -> Callable[[Any], None]:
    def change(layer: Any) -> None:
        old = getattr(layer, name)
        new = nn.Linear(old.in_features, old.out_features)
        setattr(layer, name, new)

    return change


def with_hook(name: str) -> Callable[[Any], None]:
    def change(layer: Any) -> None:
        getattr(layer, name).register_forward_hook(lambda module, args, output: output * 1.5)

    return change


def with_lora(layer: Any) -> None:
    layer.W_q = Lora(layer.W_q)


def lora_of_w_v(layer: Any) -> None:
    layer.w_v = Lora(layer.w_v)


def several_layers_as_w_v(layer: Any) -> None:
    layer.w_v = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def with_parametrization(layer: Any) -> None:
    parametrizations.weight_norm(layer.W_q)
    parametrizations.weight_norm(layer.w_v)


def tied(layer: Any) -> None:
    layer.W_k = nn.Linear(5, 6, bias=False)
    layer.W_q = nn.Sequential(nn.Linear(4, 5, bias=False), layer.W_k)


CHANGES = {
    "a bias of W_q": with_bias("W_q"),
    "a bias of W_k": with_bias("W_k"),
    "a hook of W_q": with_hook("W_q"),
    "a hook of W_k": with_hook("W_k"),
    "a hook of w_v": with_hook("w_v"),
    "LoRA": with_lora,
    "LoRA of w_v": lora_of_w_v,
    "several layers as w_v": several_layers_as_w_v,
    "weight norm": with_parametrization,
    "tied weights": tied,
}


@pytest.mark.parametrize("change", CHANGES)
def test_layers_that_users_change(change: str, rng: np.random.Generator) -> None:
    torch.manual_seed(2)
    layer, plain = make_pair("additive")
    CHANGES[change](layer)
    CHANGES[change](plain)
    plain.load_state_dict(layer.state_dict())
    compare_with_plain(layer, plain, rng)


def test_a_bias_of_w_v_changes_nothing(rng: np.random.Generator) -> None:
    """It adds the same number to every score. Its gradient is 0, and so stays None here."""
    layer, _ = make_pair("additive")
    call = inputs("additive", rng)
    expected = layer(**call)
    weight = layer.w_v.weight
    layer.w_v = nn.Linear(6, 1)
    layer.w_v.weight = weight
    assert torch.equal(layer(**call), expected)
    layer.w_v.register_forward_hook(lambda module, args, output: None)
    torch.testing.assert_close(layer(**call), expected, rtol=1e-5, atol=1e-6)


def test_spectral_norm_divides_by_the_largest_singular_value(rng: np.random.Generator) -> None:
    layer, plain = make_pair("additive")
    parametrizations.spectral_norm(layer.W_q)
    layer.eval()
    assert parametrize.is_parametrized(layer.W_q)
    plain.load_state_dict(
        {f"{name}.weight": getattr(layer, name).weight for name in ("W_q", "W_k", "w_v")}
    )
    call = inputs("additive", rng)
    torch.testing.assert_close(layer(**call), plain(**call), rtol=1e-5, atol=1e-6)
    layer(**call).square().sum().backward()
    assert layer.W_q.parametrizations.weight.original.grad is not None


def test_pruning(rng: np.random.Generator) -> None:
    """A pre-hook makes the weight afresh from what is trained, at each call."""
    layer, plain = make_pair("additive")
    call, results = inputs("additive", rng), []
    torch.manual_seed(4)
    prune.random_unstructured(layer.W_q, "weight", 0.5)
    prune.custom_from_mask(plain.W_q, "weight", layer.W_q.weight_mask)
    for model in (layer, plain):
        with torch.no_grad():
            model.W_q.weight_orig.add_(0.5)  # a step of training
        output = model(**call)
        (gradient,) = torch.autograd.grad(output.square().sum(), model.W_q.weight_orig)
        results.append((output, gradient))
    assert not results[0][1][layer.W_q.weight_mask == 0].any()
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_functional_call(rng: np.random.Generator) -> None:
    layer, plain = make_pair("additive")
    call = inputs("additive", rng)
    other = {name: torch.randn_like(x) for name, x in layer.state_dict().items()}
    torch.testing.assert_close(
        torch.func.functional_call(layer, other, (), call),
        torch.func.functional_call(plain, other, (), call),
        rtol=1e-5,
        atol=1e-6,
    )


def test_frozen_parameters_get_no_gradient(rng: np.random.Generator) -> None:
    layer, _ = make_pair("additive")
    layer.W_q.requires_grad_(False)
    layer(**inputs("additive", rng)).sum().backward()
    assert layer.W_q.weight.grad is None and layer.W_k.weight.grad is not None


# ---- what is refused -----------------------------------------------------------------------------

additive = ours.AdditiveAttention(**SIZES)
dot = ours.DotProductAttention()
Q, K, V = torch.zeros(2, 3, 4), torch.zeros(2, 5, 5), torch.zeros(2, 5, 6)


def call_with(**changes: Any) -> Any:
    """The layer with something put in the place of its own."""
    layer = ours.AdditiveAttention(**SIZES)
    for name, module in changes.items():
        setattr(layer, name, module)
    return layer(Q, K, V)


WRONG: list[Wrong] = [
    (
        lambda: additive(Q.double(), K, V),
        TypeError,
        "keys has dtype torch.float32 and queries has torch.float64, " + BOTH,
    ),
    (
        lambda: additive(Q.double(), K.double(), V.double()),
        TypeError,
        "W_q has dtype torch.float32 and queries has torch.float64, " + BOTH,
    ),
    (
        lambda: copy.deepcopy(additive).double()(Q, K, V),
        TypeError,
        "W_q has dtype torch.float64 and queries has torch.float32, " + BOTH,
    ),
    (
        lambda: copy.deepcopy(additive).to("meta")(Q, K, V),
        TypeError,
        "W_q is on device meta, expected cpu",
    ),
    (lambda: additive(Q, K.to("meta"), V), TypeError, "keys is on device meta, expected cpu"),
    (
        lambda: additive(Q.numpy(), K, V),
        TypeError,
        "queries is of type numpy.ndarray, expected a torch.Tensor",
    ),
    (lambda: dot(Q, Q, None), TypeError, "values is of type NoneType, expected a torch.Tensor"),
    (
        lambda: additive(torch.zeros(2, 3, 7), K, V),
        ValueError,
        "queries has shape (2, 3, 7), expected (..., M, 4) because query_size is 4",
    ),
    (
        lambda: additive(Q, torch.zeros(2, 5, 7), V),
        ValueError,
        "keys has shape (2, 5, 7), expected (..., N, 5) because key_size is 5",
    ),
    (
        lambda: additive(Q, K, V, torch.tensor([1, 2, 3])),
        ValueError,
        "valid_lens has shape (3,), expected (2,) or (2, 3)",
    ),
    (lambda: dot(Q, K, V), ValueError, "keys has shape (2, 5, 5), expected (2, N, 4)"),
    (
        lambda: ours.AdditiveAttention(5, 4, 6, 1.0),
        ValueError,
        "dropout is 1.0, expected 0 <= dropout < 1",
    ),
    (
        lambda: ours.DotProductAttention(-0.1),
        ValueError,
        "dropout is -0.1, expected 0 <= dropout < 1",
    ),
    (
        lambda: ours.DotProductAttention(scale=float("inf")),
        ValueError,
        "scale is inf, expected a finite float32 number",
    ),
    (
        lambda: ours.AdditiveAttention(5.0, 4, 6),  # type: ignore[arg-type]
        TypeError,
        "key_size must be an int, got float",
    ),
    (
        lambda: ours.AdditiveAttention(5, True, 6),
        TypeError,
        "query_size must be an int, got bool",
    ),
    (
        lambda: ours.AdditiveAttention(5, -1, 6),
        ValueError,
        "query_size is -1, expected query_size >= 0",
    ),
    (
        lambda: ours.AdditiveAttention(5, 4, 0),
        ValueError,
        "num_hiddens is 0, expected num_hiddens >= 1",
    ),
]


@each(WRONG)
def test_wrong_calls(call: Call, error: type[Exception], message: str) -> None:
    assert raised_by(call, error) == message


@pytest.mark.parametrize(
    ("make", "twin"),
    [
        (lambda kind: kind(5, 4, 6, 1.0), "AdditiveAttention"),
        (lambda kind: kind(5, 4, 6.0), "AdditiveAttention"),
        (lambda kind: kind(-5, 4, 6), "AdditiveAttention"),
        (lambda kind: kind(5, 4, 0), "AdditiveAttention"),
        (lambda kind: kind("a lot"), "DotProductAttention"),
        (lambda kind: kind(scale=np.nan), "DotProductAttention"),
    ],
    ids=["dropout 1", "a float", "below 0", "no units", "a str", "NaN"],
)
def test_constructors_refuse_in_the_words_of_the_numpy_classes(
    make: Callable[[Any], Any], twin: str
) -> None:
    messages = []
    for module in (ours, attnext):
        with pytest.raises((TypeError, ValueError)) as caught:
            make(getattr(module, twin))
        messages.append((caught.type, str(caught.value)))
    assert messages[0] == messages[1]
