"""Small models of every class of transformers, and inputs that they accept.

For tests/sweep_transformers.py. The fields of a configuration are made small by their names; HINTS
has what the names do not tell.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

PARAMETERS = 12_000_000  # a larger model was not made small
BATCH, TOKENS = 2, 10


# ---- small configurations ------------------------------------------------------------------------

# The value of a configuration's field, by the first pattern that matches all of its name.
SIZES: list[tuple[str, Any]] = [
    (r".*head_dim|d_kv", 8),
    (r"rotary_dim", 4),
    (r"num_key_value_heads|num_kv_heads|n_kv_heads|.*num_key_value_heads", 2),
    (r"(num_|n_)(attention_)?heads?|.*attention_heads|.*n_heads?|.*num_heads", 4),
    (r".*lora_rank", 16),
    (r"num_experts_per_tok|moe_topk|moe_k|num_experts_per_token|.*top_?k", 2),
    (r"n_group|topk_group|num_expert_groups?|n_shared_experts|num_shared_experts", 1),
    (r"first_k_dense_replace", 1),
    (r"num_(local_|routed_)?experts|n_routed_experts|.*num_experts", 4),
    (r".*intermediate_size|.*ffn_dim|d_ff|n_inner|.*mlp_dim|ffn_hidden_size", 40),
    (r"n_embd|dim|.*embed_dim|.*hidden_size|embedding_size|emb_dim", 32),
    (r".*hidden_dim|.*projection_dim|projection_size|.*proj_dim|.*d_model", 32),
    (r".*vocab_size.*|n_words", 99),
    (r"n_positions|n_ctx|.*max_position_embeddings|max_(source|target)_positions", 64),
    (r"image_size|.*img_size", 32),
    (r"patch_size", 8),
    (r"window_size", 4),
    (r"hidden_size_per_layer_input", 8),
    (r"sliding_window|attention_chunk_size|local_attention", 4),
    (r"num_mel_bins|num_mels|n_mels|feature_size", 16),
]  # fmt: skip
PATTERNS = [(re.compile(pattern), value) for pattern, value in SIZES]
LAYERS = re.compile(r"num_hidden_layers|(num_|n_)layers?|.*_layers|num_blocks|depth|.*_depth")
OF_ROPE = "ignore_keys_at_rope_validation"
HEADS_OF_LISTS = [2, 4, 8, 16, 32]


class NotCreated(Exception):
    """The class could not be made small, or no input was found."""


class NoAttention(Exception):
    """The class has no module of attention."""


def configurations(kind: Any, hints: dict[str, Any]) -> Iterator[Any]:
    """Yield small configurations; those with few layers first."""
    error: Exception | None = None
    for layers in (2, 3, 4, 6, 8, None):
        try:
            yield small(kind, hints, layers)
        except Exception as raised:
            error = error or raised
    if error is not None:
        raise error


def small(kind: Any, hints: dict[str, Any], layers: int | None, path: str = "") -> Any:
    """Return a small configuration; `hints` has values by "field" or "sub_config.field"."""
    default = kind()
    given: dict[str, Any] = {}
    for field in inspect.signature(kind.__init__).parameters:
        value = field_of(default, field)
        if field in kind.sub_configs:
            if value is not None:
                given[field] = small(type(value), hints, layers, f"{path}{field}.")
        elif f"{path}{field}" in hints or field in hints:
            given[field] = hints.get(f"{path}{field}", hints.get(field))
        elif field == "use_cache":
            given[field] = False
        elif field == "rope_parameters" and "mrope_section" in getattr(kind, OF_ROPE, ()):
            rope = value or {"rope_type": "default", "rope_theta": 10000.0}
            given[field] = {**rope, "mrope_section": [2, 1, 1]}
        elif field == "head_dim" and value is None:
            given[field] = 8
        elif field.endswith("num_key_value_heads") and value in (
            None,
            field_of(default, field.replace("key_value", "attention")),
        ):
            given[field] = 4
        elif type(value) is int and LAYERS.fullmatch(field):
            given[field] = value if layers is None else min(value, layers)
        else:
            smaller = shrink(field, value)
            if smaller is not value:
                given[field] = smaller
    made = kind(**given)
    types = {*(field_of(default, "layer_types") or ())}
    if types and layers is not None and types - {*(field_of(made, "layer_types") or types)}:
        raise NotCreated(f"{layers} layers are too few for {', '.join(sorted(types))}")
    return made


def field_of(config: Any, field: str) -> Any:
    try:
        return getattr(config, field, None)
    except Exception:  # some fields differ by layer and raise
        return None


def shrink(field: str, value: Any) -> Any:
    if isinstance(value, dict) and "mrope_section" in value:
        return {**value, "mrope_section": [2, 1, 1]}
    if type(value) in (list, tuple) and value and all(type(x) is int for x in value):
        if field in ("num_heads", "num_attention_heads"):
            return HEADS_OF_LISTS[: len(value)]
        return [min(x, 2) for x in value] if field == "depths" else value
    if type(value) is not int:
        return value
    if field.endswith(("_token_id", "_token_index")) or field in ("image_token", "video_token"):
        # Distinct, and none of the tokens that inputs() draws.
        return value if value < 3 else 60 + sum(map(ord, field)) % 39
    for pattern, smaller in PATTERNS:
        if pattern.fullmatch(field):
            return min(value, smaller) if value > 0 else value
    return value


# What the names of fields do not tell, by architecture or class.
HINTS: dict[str, dict[str, Any]] = {
    "glm4v_moe": {"head_dim": 16},
    "imagegpt": {"vocab_size": 99},
    "clvp": {"projection_dim": 8},
    "autoformer": {"prediction_length": 4, "context_length": 12},
    "informer": {"prediction_length": 4, "context_length": 12},
    "time_series_transformer": {"prediction_length": 4, "context_length": 12},
    "granite_speech5": {"context_size": 16},
    "xlm": {"emb_dim": 32, "n_words": 99, "n_heads": 4, "n_layers": 2},
    "flaubert": {"emb_dim": 32, "n_words": 99, "n_heads": 4, "n_layers": 2},
    "minimax_m3_vl": {
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "index_block_size": 2,
        "index_topk_blocks": 1,
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "esm": {"vocab_size": 99, "pad_token_id": 1, "mask_token_id": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "chameleon": {"vocabulary_map": {"<image>": 8}},
    "emu3": {"vocabulary_map": {"<image>": 8}},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "lilt": {"hidden_size": 48},
    "mllama": {"cross_attention_layers": [1]},
    "perceiver": {"num_latents": 8, "d_latents": 32, "d_model": 32, "image_size": 16},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [2, 5]},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "mgp_str": {"image_size": [32, 128]},
    "swin2sr": {"num_heads": [2, 2, 2, 2, 2, 2], "embed_dim": 32},
    "x_clip": {"mit_num_attention_heads": 4, "vision_config.mit_hidden_size": 32},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 6},
    "rf_detr": {"num_queries": 8},
}


# ---- inputs --------------------------------------------------------------------------------------


def inputs(model: Any) -> list[dict[str, Any]]:
    """Return the inputs to try, the plainest first; the first that eager accepts is used."""
    import torch

    generator = torch.Generator().manual_seed(1)
    signature = inspect.signature(model.forward).parameters
    config = model.config

    def of(name: str, default: int) -> int:
        for part in (config, *(getattr(config, sub, None) for sub in config.sub_configs)):
            value = getattr(part, name, None)
            if isinstance(value, (list, tuple)):
                value = value[0] if value else None
            if isinstance(value, int):
                return value
        return default

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    def tokens(length: int) -> Any:
        most = max(4, min(50, of("vocab_size", 50)))
        return torch.randint(3, most, (BATCH, length), generator=generator)

    size, channels = of("image_size", 32), of("num_channels", of("in_channels", 3))
    patch, hidden = of("patch_size", 8), of("hidden_size", 32)
    text: dict[str, Any] = {}
    if "input_ids" in signature:
        text["input_ids"] = tokens(TOKENS)
    if "decoder_input_ids" in signature:
        text["decoder_input_ids"] = tokens(6)
    for name, value in others(normal, tokens, hidden).items():
        if name in signature and (
            signature[name].default is inspect.Parameter.empty or name in OPTIONAL
        ):
            text[name] = value
    image = normal(BATCH, channels, size, size)
    mels = of("num_mel_bins", of("feature_size", 16))
    length = 2 * of("max_source_positions", 20)
    frames = of("num_frames", 2)
    patches = normal(32, channels * of("temporal_patch_size", 1) * patch**2)
    sounds = [normal(BATCH, mels, length), normal(BATCH, 1, 64, 64), normal(BATCH, mels, 3000)]
    sounds += [normal(BATCH, 40, width) for width in (mels, 80, 128, 160)]
    options: dict[str, list[Any]] = {
        "pixel_values": [image, image[:, None], normal(BATCH, frames, channels, size, size)],
        "pixel_values_videos": [normal(BATCH, frames, channels, size, size)],
        "input_features": sounds,
        "input_values": [normal(BATCH, 2000), normal(BATCH, 64, mels), normal(BATCH, 1, 2000)],
        "inputs_embeds": [normal(BATCH, TOKENS, hidden)],
        "hidden_states": [normal(BATCH, TOKENS, hidden), normal(BATCH, hidden, 8, 8)],
        "past_values": [normal(BATCH, of("context_length", 32), of("num_input_channels", 1))],
        "flattened_patches": [normal(BATCH, 16, 2 + 3 * patch**2)],
    }
    if "grid_thw" in signature:
        text["grid_thw"] = torch.tensor([[1, 4, 4], [1, 4, 4]])
        for name in ("pixel_values", "hidden_states"):
            cut = patches.reshape(32, -1, patch, patch)
            options[name] = [patches, patches[None], cut, cut[None]]
    tried = [text] if text else []
    if "encoder_hidden_states" in signature and "encoder_hidden_states" not in text:
        tried.append({**text, "encoder_hidden_states": normal(BATCH, 7, hidden)})
    for name, values in options.items():
        if name in signature:
            tried += [{**base, name: x} for x in values for base in ([text, {}] if text else [{}])]
    return tried


OPTIONAL = (
    "bbox",
    "visual_feats",
    "visual_pos",
    "cross_attention_states",
    "states",
    "actions",
    "rewards",
    "returns_to_go",
    "timesteps",
)  # given though not required


def others(normal: Any, tokens: Any, hidden: int) -> dict[str, Any]:
    """Return the inputs that some models require besides the usual ones."""
    import torch

    box = torch.tensor([1, 2, 5, 8]).expand(BATCH, TOKENS, 4)
    places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"), dim=-1)
    return {
        "bbox": box, "codebook_idx": 1, "attention_mask": torch.ones(BATCH, TOKENS).long(),
        "encoder_hidden_states": normal(BATCH, 7, hidden), "query_embeds": normal(BATCH, 5, hidden),
        "aspect_ratio_ids": torch.ones(BATCH, 1).long(), "num_patches": 16,
        "aspect_ratio_mask": torch.ones(BATCH, 1, 4).long(), "target_sizes": [(4, 4)] * BATCH,
        "pixel_position_ids": places.reshape(1, 16, 2).expand(BATCH, -1, -1),
        "image_position_ids": places.reshape(1, 16, 2).expand(BATCH, -1, -1),
        "pixel_attention_mask": torch.ones(BATCH, 16).long(),
        "spatial_shapes": torch.tensor([[4, 4]] * BATCH), "merge_sizes": torch.tensor([2, 2]),
        "states": normal(BATCH, 5, 17), "actions": normal(BATCH, 5, 4),
        "rewards": normal(BATCH, 5, 1), "returns_to_go": normal(BATCH, 5, 1),
        "timesteps": torch.arange(5).expand(BATCH, 5), "input_features_mask": torch.ones(BATCH, 40),
        "input_lengths": torch.full((BATCH,), 40), "feature_lens": torch.full((BATCH,), 40),
        "past_values_padding": torch.zeros(BATCH, 32), "freq": torch.zeros(BATCH, 1).long(),
        "past_time_features": normal(BATCH, 19, 1), "past_observed_mask": torch.ones(BATCH, 19),
        "visual_feats": normal(BATCH, 4, 2048), "visual_pos": normal(BATCH, 4, 4),
        "cross_attention_states": normal(BATCH, 7, hidden),
        "context": normal(BATCH, 9, hidden), "qformer_input_ids": tokens(5),
        "image_embeds_position_mask": torch.zeros(BATCH, TOKENS).long(),
    }  # fmt: skip


def padded(model: Any, given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the inputs without padding and with padding, where there are tokens."""
    import torch

    found = {"no padding": given}
    parameters = inspect.signature(model.forward).parameters
    if "input_ids" in given and "attention_mask" in parameters and "attention_mask" not in given:
        place = torch.arange(TOKENS)
        lengths = torch.tensor([[TOKENS], [6]])
        for name, real in (
            ("padding behind", place < lengths),
            ("padding in front", place >= TOKENS - lengths),
        ):
            found[name] = {**given, "attention_mask": real.long()}
    return found


# ---- models -------------------------------------------------------------------------------------


def build(kind: Any, architecture: str) -> Any:
    import torch

    hints = {**HINTS.get(architecture, {}), **HINTS.get(kind.__name__, {})}
    first: Exception | None = None
    try:
        for config in configurations(kind.config_class, hints):
            try:
                with torch.device("meta"):
                    model = kind._from_config(deepcopy(config))
                if not has_attention(model):
                    raise NoAttention
                count = sum(p.numel() for p in model.parameters())
                if count > PARAMETERS:
                    raise NotCreated(f"still {count / 1e6:.0f} million parameters")
                return kind._from_config(config, attn_implementation="eager").eval()
            except NoAttention:
                raise
            except Exception as error:
                first = first or error
    except NoAttention:
        raise
    except Exception as error:
        first = first or error
    raise first if isinstance(first, NotCreated) else NotCreated(f"build: {brief(first)}")


def has_attention(model: Any) -> bool:
    return any("attention" in type(module).__name__.lower() for module in model.modules())


def brief(error: BaseException | None) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]
