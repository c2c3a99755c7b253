"""attnext.torch.transformers: models of Hugging Face computed by attnext, beside "eager".

Every architecture of the table is a small one with random parameters; nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import pytest
import torch
from helpers import REPOSITORY
from torch import Tensor

if TYPE_CHECKING:
    import transformers as hf
    from transformers import masking_utils
    from transformers.modeling_utils import AttentionInterface

    import attnext.torch.transformers as ours

    _whole_mask = masking_utils.sdpa_mask


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """What takes seconds: all workers collect this file, and few of them run it."""
    hf = import_module("transformers")
    masking_utils = import_module("transformers.masking_utils")
    globals().update(
        hf=hf,
        masking_utils=masking_utils,
        AttentionInterface=import_module("transformers.modeling_utils").AttentionInterface,
        ours=import_module("attnext.torch.transformers"),
        _whole_mask=masking_utils.sdpa_mask,
    )


PAGE = (REPOSITORY / "docs/huggingface_models.md").read_text(encoding="utf-8")
B, T, VOCABULARY = 3, 10, 50


class Model(NamedTuple):
    """How a model is made, and what it is given beside tokens."""

    kind: str
    config: dict[str, Any]
    causal: bool = False
    given: str = "tokens"


_sizes = dict(
    hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
    vocab_size=VOCABULARY, max_position_embeddings=64, pad_token_id=0, bos_token_id=1,
    eos_token_id=2,
)  # fmt: skip
_grouped = dict(_sizes, num_key_value_heads=2, head_dim=8)
_ends = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)

MODELS = {
    "BERT": Model("BertModel", _sizes),
    "RoBERTa": Model("RobertaModel", _sizes),
    "DistilBERT": Model("DistilBertModel", dict(
        dim=32, hidden_dim=40, n_layers=2, n_heads=4, vocab_size=VOCABULARY)),
    "ModernBERT": Model("ModernBertModel", dict(
        **_sizes, local_attention=6, cls_token_id=1, sep_token_id=2)),
    "ViT": Model("ViTModel", dict(
        hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        image_size=12, patch_size=4), given="images"),
    "GPT-2": Model("GPT2LMHeadModel", dict(
        n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=64, bos_token_id=1,
        eos_token_id=2, pad_token_id=0), causal=True),
    "Llama": Model("LlamaForCausalLM", _grouped, causal=True),
    "Mistral": Model("MistralForCausalLM", dict(**_grouped, sliding_window=4),
                     causal=True),
    "Qwen 3": Model("Qwen3ForCausalLM", _grouped, causal=True),
    "Gemma 2": Model("Gemma2ForCausalLM", dict(
        **_grouped, sliding_window=4, attn_logit_softcapping=0.5, query_pre_attn_scalar=8),
        causal=True),
    "gpt-oss": Model("GptOssForCausalLM", dict(
        **_grouped, sliding_window=4, num_local_experts=2, num_experts_per_tok=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}), causal=True),
    "T5": Model("T5ForConditionalGeneration", dict(
        d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, vocab_size=VOCABULARY, **_ends),
        given="tokens twice"),
    "Whisper": Model("WhisperForConditionalGeneration", dict(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, num_mel_bins=8,
        max_source_positions=10, max_target_positions=32, vocab_size=VOCABULARY,
        suppress_tokens=[], begin_suppress_tokens=[], **_ends), given="sound"),
}  # fmt: skip
CAUSAL = [name for name, model in MODELS.items() if model.causal]
PADDED = {
    "no padding": None,
    "padding behind": torch.arange(T) < torch.tensor([[10], [6], [3]]),
    "padding in front": torch.arange(T) >= torch.tensor([[0], [4], [7]]),
}

_made: dict[str, Any] = {}


def model_of(name: str) -> Any:
    """One for all tests, in evaluation; with parameters that make the scores differ."""
    if name not in _made:
        torch.manual_seed(0)
        kind = getattr(hf, MODELS[name].kind)
        config = kind.config_class(**MODELS[name].config)
        model = kind._from_config(config, attn_implementation="eager")
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        _made[name] = model.eval()
    return _made[name]


def inputs_of(name: str, real: Tensor | None = None) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, VOCABULARY, (B, T), generator=generator)
    mask = {} if real is None else {"attention_mask": real.long()}
    given = MODELS[name].given
    if given == "images":
        return {"pixel_values": torch.randn(B, 3, 12, 12, generator=generator)}
    if given == "sound":
        sound = torch.randn(B, 8, 20, generator=generator)
        return {"input_features": sound, "decoder_input_ids": tokens[:, :6]}
    return {"input_ids": tokens, **mask} | (
        {"decoder_input_ids": tokens[:, :6]} if given == "tokens twice" else {}
    )


def by(implementation: str, name: str) -> Any:
    model = model_of(name)
    model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == implementation
    return model


@pytest.fixture
def nothing_formed() -> Iterator[None]:
    """No mask of (M, N) is made."""
    refused = AssertionError("a whole mask is formed")
    with mock.patch.object(masking_utils, "sdpa_mask", side_effect=refused):
        yield


# ---- the numbers of eager ------------------------------------------------------------------------


@pytest.mark.parametrize("padded", PADDED)
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_gradients(name: str, padded: str) -> None:
    """Of every output, by every parameter; no mask of (M, N) is formed on the way."""
    given = inputs_of(name, PADDED[padded])
    if padded != "no padding" and "attention_mask" not in given:
        given["pixel_values" if "pixel_values" in given else "input_features"] *= 0.5
    found = []
    for implementation in ("eager", "attnext"):
        model = by(implementation, name)
        whole = AssertionError("a whole mask is formed")
        with mock.patch.object(
            masking_utils,
            "sdpa_mask",
            masking_utils.sdpa_mask if implementation == "eager" else mock.Mock(side_effect=whole),
        ):
            output = model(**given)[0]
        model.zero_grad()
        loss = output * torch.linspace(-1, 1, output.numel()).reshape(output.shape)
        if "attention_mask" in given and output.shape[1] == T:  # of what is real
            loss = loss[given["attention_mask"] > 0]
        loss.sum().backward()
        found.append({"output": output.detach()} | {
            n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
        })  # fmt: skip
    assert found[0].keys() == found[1].keys()
    for part, expected in found[0].items():
        size = float(expected.abs().max())
        torch.testing.assert_close(found[1][part], expected, rtol=1e-4, atol=2e-5 * size + 1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_weights(name: str) -> None:
    given = inputs_of(name, PADDED["padding behind"])
    expected, got = (by(i, name)(**given, output_attentions=True) for i in ("eager", "attnext"))
    names = [n for n in expected if "attentions" in n and expected[n]]
    assert names
    for part in names:
        for a, b in zip(got[part], expected[part], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def generated(model: Any, name: str, **options: Any) -> Tensor:
    given = inputs_of(name, PADDED["padding in front"])
    given.pop("decoder_input_ids", None)
    with torch.no_grad():
        made: Tensor = model.generate(**given, max_new_tokens=8, min_new_tokens=8, **options)
    return made


@pytest.mark.parametrize("name", [*CAUSAL, "T5", "Whisper"])
def test_generate(name: str, nothing_formed: None) -> None:
    """With a cache, the windows of some full before the end, and padding in front."""
    with mock.patch.object(masking_utils, "sdpa_mask", _whole_mask):
        expected = generated(by("eager", name), name, do_sample=False)
    assert torch.equal(generated(by("attnext", name), name, do_sample=False), expected)
    assert expected.shape[1] >= 8


@pytest.mark.parametrize(
    "options",
    [{"num_beams": 3}, {"use_cache": False}, {"cache_implementation": "static"}],
    ids=str,
)
@pytest.mark.parametrize("name", ["Llama", "Gemma 2"])
def test_generate_in_other_ways(name: str, options: dict[str, Any]) -> None:
    options = {**options, "do_sample": False, "disable_compile": True}
    expected = generated(by("eager", name), name, **options)
    assert torch.equal(generated(by("attnext", name), name, **options), expected)


@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_masks_of_four_axes(name: str) -> None:
    """A user's own, of bools or of floats, are handed on as they are."""
    part = torch.rand(B, 1, T, T, generator=torch.Generator().manual_seed(2)) < 0.6
    part |= torch.eye(T, dtype=torch.bool)
    floats = torch.zeros(part.shape).masked_fill(~part, torch.finfo(torch.float32).min)
    tokens = inputs_of(name)["input_ids"]
    expected = by("eager", name)(tokens, attention_mask=floats)[0]
    for given in (part, floats, floats.masked_fill(~part, -torch.inf)):
        got = by("attnext", name)(tokens, attention_mask=given)[0]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_packed_sequences(name: str) -> None:
    """A rule that is no band: what transformers makes of it is used as it is."""
    tokens = inputs_of(name)["input_ids"]
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]]).expand(B, -1)
    given = {"position_ids": places, "use_cache": False}
    expected = by("eager", name)(tokens, **given)[0]
    torch.testing.assert_close(by("attnext", name)(tokens, **given)[0], expected)


def test_training() -> None:
    """Dropout draws from torch's generator, and acts in training alone."""
    model = hf.BertModel._from_config(
        hf.BertConfig(**_sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5),
        attn_implementation="attnext",
    )
    tokens = inputs_of("BERT")["input_ids"]
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(model(tokens)[0])
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])
    outputs[0].sum().backward()
    model.eval()
    assert torch.equal(model(tokens)[0], model(tokens)[0])


# ---- masks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CAUSAL)
def test_no_model_sees_what_comes_later(name: str) -> None:
    """If the mask function were not there, transformers would leave the causal mask out."""
    model = by("attnext", name)
    for padded in PADDED.values():
        given = inputs_of(name, padded)
        before = model(**given)[0]
        given["input_ids"][:, -1] = 3 + (given["input_ids"][:, -1] - 2) % (VOCABULARY - 3)
        after = model(**given)[0]
        real = slice(None) if padded is None else padded[:, :-1]
        assert torch.equal(before[:, :-1][real], after[:, :-1][real])
        assert not torch.equal(before[:, -1], after[:, -1])


def test_without_its_masks_it_does_not_compute() -> None:
    registered = masking_utils.AttentionMaskInterface._global_mapping
    mask = registered.pop("attnext")
    try:
        with pytest.raises(RuntimeError, match="AttentionMaskInterface has no 'attnext'"):
            by("attnext", "Llama")(**inputs_of("Llama"))
    finally:
        registered["attnext"] = mask


RULES: dict[str, Callable[[], Any]] = {
    "causal": lambda: masking_utils.causal_mask_function,
    "both ways": lambda: masking_utils.bidirectional_mask_function,
    "window": lambda: masking_utils.sliding_window_causal_mask_function(3),
    "window both ways": lambda: masking_utils.sliding_window_bidirectional_mask_function(2),
    "chunks": lambda: masking_utils.chunked_causal_mask_function(3, torch.zeros(B, dtype=int)),  # type: ignore[call-overload]
}
WHERE = [(T, T, 0, 0), (1, T, T - 1, 0), (4, T, T - 4, 0), (3, 5, 7, 5), (4, 16, 2, 0)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("padded", PADDED)
def test_a_mask_says_what_sdpas_says(rule: str, padded: str) -> None:
    """In attnext's words, and to whoever looks into it."""
    for M, N, q_offset, kv_offset in WHERE:
        given = {"mask_function": RULES[rule](), "attention_mask": PADDED[padded]}
        mask = ours._mask(B, M, N, q_offset, kv_offset, **given)
        whole = _whole_mask(B, M, N, q_offset, kv_offset, **given, allow_is_causal_skip=False)
        whole = whole.expand(B, 1, M, N)
        assert isinstance(mask, Tensor) and mask.shape == (B, 1, M, N)
        assert mask.dtype == torch.float32 and mask.dim() == len(mask.shape) == 4
        assert len(mask) == B and isinstance(mask, ours._Mask)
        assert ("mask" in mask.rule) == (
            rule == "chunks" or "mask" in ours._padding(PADDED[padded], kv_offset, N)
        )
        x, v = torch.zeros(B, 1, M, 2), torch.eye(N).expand(B, 1, N, N)
        weights, _ = ours._attention(
            torch.nn.Identity(), x, torch.zeros(B, 1, N, 2), v, mask, dropout=0.0
        )
        weights = weights.transpose(1, 2)
        some = whole.any(dim=-1)
        assert torch.equal(weights[some] > 0, whole[some])
        assert (weights[~some] > 0).all()  # as eager has it


@pytest.mark.parametrize("rule", RULES)
def test_a_model_that_computes_with_the_mask_gets_eagers(rule: str) -> None:
    given = {"attention_mask": PADDED["padding in front"], "mask_function": RULES[rule]()}
    mask = ours._mask(B, T, T, **given)
    whole = masking_utils.eager_mask(B, T, T, **given)
    assert isinstance(mask, ours._Mask) and mask.dtype == whole.dtype
    assert torch.finfo(mask.dtype).min == whole.min()
    for look in (
        lambda x: x.clone(), lambda x: x[..., :3], lambda x: x + 1, lambda x: 1 - x,
        lambda x: x == 0, lambda x: torch.where(x < 0, 0.0, 1.0), lambda x: x.bool(),
        lambda x: torch.cat([x, x]), lambda x: x.expand(B, 4, T, T), lambda x: x.contiguous(),
        lambda x: x.masked_fill(x < 0, 2.0), lambda x: torch.full((B, T, T), 2.0) * x[:, 0],
        lambda x: torch.tensor(x.tolist()), lambda x: torch.from_numpy(x.numpy()),
        lambda x: torch.nn.functional.pad(x, (0, 2)), lambda x: torch.stack((x, x), dim=0),
        lambda x: x.repeat_interleave(2, dim=0), lambda x: x.data, lambda x: x.detach(),
    ):  # fmt: skip
        seen = look(mask)  # type: ignore[no-untyped-call]
        assert not isinstance(seen, ours._Mask)
        assert torch.equal(seen, look(whole))  # type: ignore[no-untyped-call]


def test_a_model_that_computes_with_bools_is_refused() -> None:
    """logical_not of eager's floats is the opposite of what such a model means."""
    mask = ours._mask(B, T, T, config=hf.BertConfig())
    for look in (lambda x: x.logical_not(), torch.logical_not):
        message = "negated by the model of BertConfig as if .*implementation='sdpa'"
        with pytest.raises(TypeError, match=message):
            look(mask)  # type: ignore[no-untyped-call]
    for look in (lambda x: ~x, lambda x: x & True):
        with pytest.raises((TypeError, RuntimeError), match="only implemented|not implemented for"):
            look(mask)  # type: ignore[no-untyped-call]


def test_a_mask_that_is_changed_in_place_is_read_as_changed() -> None:
    x, module = torch.randn(B, 2, T, 8), torch.nn.Identity()
    added = torch.randn(B, 1, T, T, generator=torch.Generator().manual_seed(5))
    expected = masking_utils.eager_mask(B, T, T) + added
    mask, view = ours._mask(B, T, T), ours._mask(B, T, T)
    mask += added
    view[:, 0].add_(added[:, 0])
    assert isinstance(view, ours._Mask)
    for given in (mask, view):
        got, _ = ours._attention(module, x, x, x, given)
        assert torch.equal(got, ours._attention(module, x, x, x, expected)[0])


def test_a_mask_whose_own_memory_is_read_gives_nan() -> None:
    mask = ours._mask(B, T, T)
    assert isinstance(mask, ours._Mask)
    seen = Tensor.__torch_function__(Tensor.tolist, (), (mask,))  # past the conversion
    assert torch.isnan(torch.tensor(seen)).all()


def test_a_mask_made_for_other_inputs_broadcasts_or_does_not() -> None:
    """As the whole mask would: of one entry for all of them, of one query for many."""
    x, module = torch.randn(B, 2, 4, 8), torch.nn.Identity()
    for made_for in ((1, 4, 4), (B, 1, 4)):
        given = {"attention_mask": torch.tensor([[1, 1, 1, 0]] * made_for[0]) > 0}
        mask = ours._mask(*made_for, **given)
        assert isinstance(mask, ours._Mask)
        got, _ = ours._attention(module, x, x, x, mask)
        expected, _ = ours._attention(module, x, x, x, mask.whole())
        assert torch.equal(got, expected)
    with pytest.raises(ValueError, match=r"mask has shape \(3, 1, 4, 5\), expected a shape that"):
        ours._attention(module, x, x, x, ours._mask(B, 4, 5))


def test_a_rule_that_means_something_else_is_no_band() -> None:
    assert len(ours._BANDS) == len(ours._RULES)
    assert not ours._is_band(masking_utils.sliding_window_overlay(4), (2, -1))
    assert not ours._is_band(masking_utils.causal_mask_function, (-1, 1))
    assert ours._band_of(lambda *_: True) is None and ours._band_of(print) is None
    both = masking_utils.and_masks(masking_utils.causal_mask_function, lambda *_: True)
    assert ours._band_of(both) is None


# ---- calls without a mask, and arguments of the attention function ------------------------------


@pytest.mark.parametrize("of_module", [None, False, True])
@pytest.mark.parametrize("told", [None, False, True])
def test_without_a_mask_it_is_causal_if_the_call_says_so(
    told: bool | None, of_module: bool | None
) -> None:
    """As in eager, ``is_causal`` of a module is not read, whether it is there or not."""
    module = torch.nn.Identity()
    if of_module is not None:
        module.is_causal = of_module
    q, k, v = torch.randn(3, B, 2, T, 8, generator=torch.Generator().manual_seed(3)).unbind()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=told is True)
    got, _ = ours._attention(module, q, k, v, None, is_causal=told)
    torch.testing.assert_close(got.transpose(1, 2), expected)
    one, _ = ours._attention(module, q[:, :, :1], k, v, None, is_causal=told)
    expected = torch.nn.functional.scaled_dot_product_attention(q[:, :, :1], k, v)
    torch.testing.assert_close(one.transpose(1, 2), expected)


def test_selected_keys_and_sinks_of_each_query() -> None:
    """As eager: an indexer's keys (DeepSeek V3.2), a sink for each query (Inkling 2)."""
    generator = torch.Generator().manual_seed(4)
    q, k, v = torch.randn(3, B, 2, T, 8, generator=generator).unbind()
    sinks = torch.randn(B, 2, T, 1, generator=generator)
    indices = torch.rand(B, T, T, generator=generator).argsort(dim=-1)[..., :4]
    left_out = torch.ones(B, T, T, dtype=torch.bool).scatter(-1, indices, False)[:, None]
    for padded in PADDED.values():
        bools = torch.ones(B, T).bool() if padded is None else padded
        mask = masking_utils.eager_mask(B, T, T, attention_mask=bools)
        lowest = torch.finfo(torch.float32).min
        scores = q @ k.transpose(2, 3) * 8**-0.5 + mask.masked_fill(left_out, lowest)
        weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
        for given in (mask, ours._mask(B, T, T, attention_mask=bools)):
            got, _ = ours._attention(
                torch.nn.Identity(), q, k, v, given, indices=indices, sinks=sinks
            )
            torch.testing.assert_close(got.transpose(1, 2), weights @ v)


def test_an_argument_that_only_eager_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' files have eager functions of their own, whose arguments change the result."""

    def eager_attention_forward(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, slope: Any = None
    ) -> None: ...

    file = ModuleType("a_models_file")
    file.eager_attention_forward = eager_attention_forward  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_models_file", file)
    module = type("Alibi", (torch.nn.Identity,), {"__module__": "a_models_file"})()
    q = torch.zeros(1, 2, 3, 4)
    message = (
        "slope is of type torch.Tensor, expected None: attnext does not read this argument of Alibi"
    )
    with pytest.raises(TypeError, match=message):
        ours._attention(module, q, q, q, None, slope=q)
    ours._attention(module, q, q, q, None, slope=None, position_ids=q)


# ---- registering ---------------------------------------------------------------------------------


def test_registered() -> None:
    assert AttentionInterface()["attnext"] is ours._attention
    assert masking_utils.AttentionMaskInterface()["attnext"] is ours._mask


def test_what_cannot_be_served_says_so() -> None:
    q = torch.zeros(1, 2, 3, 4)
    module = torch.nn.Identity()
    message = "cache is of type int, expected None: attnext does not read this argument of Identity"
    with pytest.raises(TypeError, match=rf"^{message}. Use attn_implementation='paged\|eager'$"):
        ours._attention(module, q, q, q, None, cache=1)
    message = "^block_indices is of type torch.Tensor, expected None: .* Identity. Use .*='eager'$"
    with pytest.raises(TypeError, match=message):
        ours._attention(module, q, q, q, None, block_indices=q)
    with pytest.raises(TypeError, match="^query has dtype torch.bfloat16, expected torch.float32"):
        ours._attention(module, q.bfloat16(), q, q, None)
    with pytest.raises(TypeError, match="^attention_mask has dtype torch.int64, expected bools"):
        ours._attention(module, q, q, q, torch.ones(1, 1, 3, 3, dtype=torch.int64))


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_example_of_the_readme_runs(name: str) -> None:
    """Marked ``py``, the one that needs transformers; tests/test_docs.py runs the others."""
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    (block,) = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(block, name, "exec"), namespace)
    assert namespace["logits"].shape == (2, 8, 99)


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("attnext.torch.again", ours.__file__)
    assert spec is not None and spec.loader is not None
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="needs Hugging Face's transformers: pip install trans"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# ---- every class ---------------------------------------------------------------------------------

# Of each way to be unlike the models above: no is_causal, cross-attention, a mask computed with,
# an indexer, sinks for each query, sinks of heads, chunks, vision, sound, refused.
SAMPLE = {
    "clap.ClapTextModel": "equal", "align.AlignTextModel": "equal",
    "splinter.SplinterModel": "equal", "mllama.MllamaTextModel": "equal",
    "phi4_multimodal.Phi4MultimodalVisionModel": "equal",
    "bigbird_pegasus.BigBirdPegasusModel": "equal", "deepseek_v4.DeepseekV4Model": "equal",
    "git.GitModel": "no interface", "git.GitVisionModel": "equal",
    "gemma4.Gemma4AudioModel": "no interface", "deepseek_v32.DeepseekV32Model": "equal",
    "inkling2.Inkling2TextModel": "equal", "llama4.Llama4TextModel": "equal",
    "nemotron_asr_streaming.NemotronAsrStreamingEncoder": "refused",
    "minimax_m3_vl.MiniMaxM3VLTextModel": "refused",
}  # fmt: skip


@pytest.fixture(scope="module")
def swept() -> Iterator[Any]:
    """The sweep of tests/sweep_transformers.py and the state of its attention function."""
    sweep = import_module("sweep_transformers")
    _, state = sweep.attention_calls()
    yield sweep, state
    AttentionInterface.register("attnext", ours._attention)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_class_is_equal_to_eager_or_refused(name: str, swept: Any) -> None:
    sweep, state = swept
    ((architecture, path),) = sweep.jobs_of([name])
    result = sweep.examine(architecture, path, state)
    assert result.result == SAMPLE[name], result
    assert result.seen or result.result != "equal"
    rows = [
        line for line in PAGE.splitlines() if line.startswith(f"| {architecture} | {result[2]}")
    ]
    assert len(rows) == 1 and result.name in re.findall(r"\w+", rows[0])


@pytest.mark.slow
def test_every_class_is_equal_to_eager_or_refused() -> None:
    sweep = import_module("sweep_transformers")
    results = sweep.sweep(sweep.jobs_of([]))
    assert len(results) > 900
    assert not [result for result in results if result.result == "different"]
