"""Compare "attnext" with "eager" for every model class of the installed transformers.

    python tests/sweep_transformers.py                      # all classes, a table on stdout
    python tests/sweep_transformers.py bert clap.ClapModel  # these architectures or classes
    python tests/sweep_transformers.py --page docs/huggingface_models.md

A class is built small from its configuration with random parameters; nothing is downloaded. It runs
without padding and, where it takes tokens, with padding behind and in front. More runs make the comparison sharp:

- eager with parameters changed by one part in 2^22 shows what rounding alone changes;
- attnext without any mask, and attnext with every missing mask replaced by a causal one, show that
  a wrong mask would be seen.

Child processes do the work, with a time limit for each class.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import multiprocessing as mp
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

SECONDS = 120  # for one class
PARAMETERS = 12_000_000  # a larger model was not made small
BATCH, TOKENS = 2, 10


class Result(NamedTuple):
    """What became of one class. `result` is one of RESULTS."""

    architecture: str
    name: str
    result: str
    detail: str = ""
    calls: int = 0  # of attnext's attention
    unmasked: str = ""  # the kinds of calls without a mask: is_causal of the module, of the call
    seen: bool = False  # a wrong mask would be seen


RESULTS = {
    "equal": "the same numbers as eager up to rounding",
    "refused": "attnext refuses it by name",
    "no interface": "attnext is not called: the class computes its attention itself",
    "no attention": "has no attention",
    "not created": "not made small, or no input found: not compared",
    "different": "a fault",
}


# ---- which classes -------------------------------------------------------------------------------


def architectures() -> dict[str, list[str]]:
    """Return the model classes that each folder of transformers/models defines."""
    import transformers.models as models

    found: dict[str, list[str]] = {}
    for folder in sorted(Path(models.__path__[0]).iterdir()):
        for file in sorted(folder.glob("modeling_*.py")):
            found.setdefault(folder.name, []).extend(classes_in(file))
    return {folder: names for folder, names in found.items() if names}


def classes_in(file: Path) -> list[str]:
    """Return the classes of a modeling file that derive from a PreTrainedModel, by its text."""
    models: list[str] = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            bases = [getattr(base, "id", "") for base in node.bases]
            if any(base.endswith("PreTrainedModel") or base in models for base in bases):
                models.append(node.name)
    return [
        f"{file.stem}.{name}"
        for name in models
        if not re.search("Pre[Tt]rainedModel$|^Pretrained|PretrainedModel$", name)
    ]


HEADS = re.compile(r"For[A-Z]|LMHead|DoubleHeads|WithProjection|DecoderWrapper")


def class_of(architecture: str, path: str) -> Any:
    file, name = path.split(".")
    return getattr(importlib.import_module(f"transformers.models.{architecture}.{file}"), name)


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
    heads = field_of(default, "num_attention_heads")
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
        elif field == "num_key_value_heads" and (value is None or value == heads):
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
    if type(value) is list and value and all(type(x) is int for x in value):
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
    "pix2struct": {},
    "perceiver": {"num_latents": 8, "d_latents": 32, "d_model": 32, "image_size": 16},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [2, 5]},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "mgp_str": {"image_size": [32, 128]},
    "swin2sr": {"num_heads": [2, 2, 2, 2, 2, 2], "embed_dim": 32},
    "x_clip": {"mit_num_attention_heads": 4, "vision_config.mit_hidden_size": 32},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 6},
    "rf_detr": {"num_queries": 8},
    "blt": {},
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
            signature[name].default is inspect.Parameter.empty or name in ("bbox", "visual_feats")
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
            cut = patches.reshape(32, channels, patch, patch)
            options[name] = [patches, patches[None], cut, cut[None]]
    tried = [text] if text else []
    for name, values in options.items():
        if name in signature:
            tried += [{**base, name: x} for x in values for base in ([text, {}] if text else [{}])]
    return tried


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


# ---- one class -----------------------------------------------------------------------------------


def build(kind: Any, architecture: str) -> Any:
    import torch

    hints = {**HINTS.get(architecture, {}), **HINTS.get(kind.__name__, {})}
    first: Exception | None = None
    try:
        for config in configurations(kind.config_class, hints):
            try:
                with torch.device("meta"):
                    count = sum(p.numel() for p in kind._from_config(deepcopy(config)).parameters())
                if count > PARAMETERS:
                    raise NotCreated(f"still {count / 1e6:.0f} million parameters")
                return kind._from_config(config, attn_implementation="eager").eval()
            except Exception as error:
                first = first or error
    except Exception as error:
        first = first or error
    raise first if isinstance(first, NotCreated) else NotCreated(f"build: {brief(first)}")


def brief(error: BaseException | None) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


def tensors(x: Any) -> list[Any]:
    """Return the float tensors of an output, caches excepted."""
    import torch

    if isinstance(x, torch.Tensor):
        return [x.detach().clone()] if x.is_floating_point() else []
    if isinstance(x, dict):
        x = [value for name, value in x.items() if "past" not in name and "cache" not in name]
    if isinstance(x, (list, tuple)):
        return [each for part in x for each in tensors(part)]
    return []


def run(model: Any, given: dict[str, Any]) -> list[Any]:
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        return tensors(model(**{n: clone(x) for n, x in given.items()}))


def clone(x: Any) -> Any:
    return x.clone() if hasattr(x, "clone") else x


def distance(a: list[Any], b: list[Any]) -> float:
    """Return the largest difference, compared with the largest element of its tensor."""
    import torch

    worst = 0.0
    if [x.shape for x in a] != [x.shape for x in b]:
        return float("inf")
    for x, y in zip(a, b, strict=True):
        if not x.numel():
            continue
        x, y = x.double(), y.double()
        odd = ~(torch.isfinite(x) & torch.isfinite(y))
        if not torch.equal(x[odd], y[odd]) and not (x[odd].isnan() & y[odd].isnan()).all():
            return float("inf")
        x, y = x.masked_fill(odd, 0), y.masked_fill(odd, 0)
        worst = max(worst, float((x - y).abs().max() / y.abs().max().clamp(min=1e-30)))
    return worst


def attention_calls() -> tuple[Any, dict[str, Any]]:
    """Register an attention function that counts attnext's calls; return the state it writes."""
    import torch
    from transformers import AttentionInterface

    import attnext.torch.transformers as ours

    state: dict[str, Any] = {"calls": 0, "unmasked": Counter(), "wrong": None}

    def counted(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **more: Any):
        state["calls"] += 1
        M, N = query.shape[2], key.shape[2]
        if attention_mask is None and M > 1:
            of_module = getattr(module, "is_causal", "absent")
            told = more.get("is_causal", "absent")
            square = "M = N" if M == N else "M != N"
            state["unmasked"][f"module {of_module}, call {told}, {square}"] += 1
        if state["wrong"] == "no mask":
            attention_mask = None
            more["is_causal"] = False
        elif state["wrong"] == "causal" and attention_mask is None:
            more["is_causal"] = True
        return ours._attention(module, query, key, value, attention_mask, **more)

    AttentionInterface.register("attnext", counted)
    return torch, state


def examine(architecture: str, path: str, state: dict[str, Any]) -> Result:
    """Compare one class."""
    name = path.split(".")[1]
    try:
        kind = class_of(architecture, path)
        for std in (0.3, 0.1, 0.03):
            result = compare(build(kind, architecture), std, state)
            if result["rounding"] < 2e-3:
                break
    except NotCreated as error:
        return Result(architecture, name, "not created", str(error))
    return Result(architecture, name, **{k: v for k, v in result.items() if k != "rounding"})


def compare(model: Any, std: float, state: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            torch.nn.init.normal_(parameter, std=std)
    given = accepted(model)
    cases = padded(model, given)
    eager = {}
    for case, each in cases.items():
        try:
            eager[case] = run(model, each)
        except Exception:
            if case == "no padding":
                raise
    if not any(x.numel() for x in eager["no padding"]):
        raise NotCreated("no output of floats")
    reference = "eager"
    if not all(torch.isfinite(x).all() for x in eager["no padding"]):
        model.set_attn_implementation("sdpa")
        with_sdpa = {case: run(model, cases[case]) for case in eager}
        if all(torch.isfinite(x).all() for x in with_sdpa["no padding"]):
            eager, reference = with_sdpa, "sdpa"
    state |= {"calls": 0, "unmasked": Counter(), "wrong": None}
    model.set_attn_implementation("attnext")
    switched = {}
    for case in eager:
        try:
            switched[case] = run(model, cases[case])
        except Exception as error:
            kind = "refused" if "Use attn_implementation=" in str(error) else "different"
            return dict(result=kind, detail=brief(error), calls=state["calls"], rounding=0.0)
    calls, unmasked = state["calls"], state["unmasked"]
    off = {case: distance(switched[case], eager[case]) for case in eager}
    wrong = []
    for mistake in ("no mask", "causal"):
        state["wrong"] = mistake
        try:
            wrong += [distance(run(model, cases[case]), switched[case]) for case in eager]
        except Exception:  # a wrong mask need not fit
            continue
    state["wrong"] = None
    rounding = rounding_of(model, given, reference, eager["no padding"])
    allowed = 20 * rounding + 2e-5
    worst = max(off, key=lambda case: off[case])
    detail = f"{off[worst]:.1e} ({worst}; rounding {rounding:.1e})"
    if reference == "sdpa":
        detail += "; compared with sdpa, because eager gives NaN"
    result = "equal" if off[worst] <= allowed else "different"
    if result == "equal" and calls == 0:
        result = "no interface" if has_attention(model) else "no attention"
    kinds = "; ".join(f"{n}x {kind}" for kind, n in sorted(unmasked.items()))
    seen = max(wrong, default=0.0) > 5 * allowed
    return dict(
        result=result, detail=detail, calls=calls, unmasked=kinds, seen=seen, rounding=rounding
    )


def accepted(model: Any) -> dict[str, Any]:
    """Return the first inputs that eager accepts."""
    errors = []
    for given in inputs(model):
        try:
            run(model, given)
            return given
        except Exception as error:
            errors.append(f"{'+'.join(given)}: {brief(error)}")
    raise NotCreated(
        f"inputs: {errors[0] if errors else list(inspect.signature(model.forward).parameters)[:5]}"
    )


def rounding_of(model: Any, given: dict[str, Any], by: str, before: list[Any]) -> float:
    """Return what a change of the parameters by one part in 2^22 changes in eager's output."""
    import torch

    model.set_attn_implementation(by)
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.mul_(1 + torch.randn_like(parameter) * 2.0**-22)
        after = run(model, given)
        for name, parameter in model.named_parameters():
            parameter.copy_(kept[name])
    return distance(after, before)


def has_attention(model: Any) -> bool:
    return any("attention" in type(module).__name__.lower() for module in model.modules())


# ---- child processes -----------------------------------------------------------------------------


def child(pipe: Connection) -> None:
    warnings.simplefilter("ignore")
    os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch, state = attention_calls()
    torch.set_num_threads(1)
    while (job := pipe.recv()) is not None:
        try:
            result = examine(*job, state)
        except Exception as error:
            result = Result(job[0], job[1].split(".")[1], "not created", f"sweep: {brief(error)}")
        pipe.send(result)


class Worker:
    """A child process and the class that it examines."""

    def __init__(self) -> None:
        self.pipe, theirs = mp.Pipe()
        self.process = mp.get_context("spawn").Process(target=child, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.job: tuple[str, str] | None = None
        self.since = 0.0

    def start(self, job: tuple[str, str]) -> None:
        self.job, self.since = job, time.monotonic()
        self.pipe.send(job)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def sweep(
    jobs: list[tuple[str, str]], processes: int = 2, kept: Path | None = None
) -> list[Result]:
    """Examine every job; a class that takes too long, or ends its process, is not compared."""
    results: list[Result] = []
    left, workers = list(reversed(jobs)), [Worker() for _ in range(min(processes, len(jobs)))]
    while left or any(worker.job for worker in workers):
        for i, worker in enumerate(workers):
            if worker.job is None and left:
                worker.start(left.pop())
            if worker.job and time.monotonic() - worker.since > SECONDS:
                results.append(lost(worker, f"more than {SECONDS} seconds"))
                workers[i] = Worker()
        for pipe in wait([worker.pipe for worker in workers if worker.job], timeout=1):
            i = next(i for i, worker in enumerate(workers) if worker.pipe is pipe)
            try:
                results.append(workers[i].pipe.recv())
                workers[i].job = None
                if kept is not None:
                    with kept.open("a") as file:
                        file.write(json.dumps(results[-1]._asdict()) + "\n")
            except EOFError:
                results.append(lost(workers[i], "ends its process"))
                workers[i] = Worker()
    for worker in workers:
        worker.stop()
    return sorted(results)


def lost(worker: Worker, why: str) -> Result:
    worker.stop()
    assert worker.job is not None
    return Result(worker.job[0], worker.job[1].split(".")[1], "not created", why)


# ---- the command ---------------------------------------------------------------------------------


def describe(r: Result) -> str:
    unmasked = f"; without a mask: {r.unmasked}" if r.unmasked else ""
    sharp = "" if r.seen else "not "
    text = f"{r.architecture}.{r.name}: {r.result}, {r.detail}; {r.calls} calls, {sharp}sharp"
    return text + unmasked


def jobs_of(names: list[str]) -> list[tuple[str, str]]:
    """Return the jobs for architectures ("bert") and classes ("bert.BertModel"); [] is all."""
    everything = [(a, path) for a, paths in architectures().items() for path in paths]
    if not names:
        return everything
    return [
        (a, path) for a, path in everything if a in names or f"{a}.{path.split('.')[1]}" in names
    ]


def read(kept: Path | None) -> dict[tuple[str, str], Result]:
    """Return the results of a file, those of classes that could not be created excepted."""
    if kept is None or not kept.exists():
        return {}
    found = [Result(**json.loads(line)) for line in kept.read_text().splitlines()]
    return {
        (r.architecture, r.name): r for r in found if r.result not in ("not created", "different")
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--kept", type=Path, help="a file of results, which are not found again")
    parser.add_argument("--heads", action="store_true", help="models with a task's head, too")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    jobs = jobs_of(options.names)
    if not options.heads and not options.names:
        jobs = [job for job in jobs if not HEADS.search(job[1])]
    before = read(options.kept)
    jobs = [job for job in jobs if (job[0], job[1].split(".")[1]) not in before]
    start = time.monotonic()
    results = sorted([*before.values(), *sweep(jobs, options.processes, options.kept)])
    for r in results:
        print(describe(r))
    print(Counter(r.result for r in results), f"{time.monotonic() - start:.0f} s")
    return int(any(r.result == "different" for r in results))


if __name__ == "__main__":
    sys.exit(main())
