"""The one file that reads Hugging Face formats: config, rope tables, safetensors, GGUF, tokenizer.

Owns what a checkpoint's names and config fields mean; does not know how the forward pass is run.
Everything here reads local folders only: ``local_files_only`` is passed wherever it exists.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging as hf_logging

from dvi.modeling.layer import LayerWeights
from dvi.modeling.spec import SUPPORTED, ModelRefused, ModelSpec, read_json
from dvi.modeling.target import TargetWeights

# Frequencies of the other kinds (dynamic, longrope) depend on the length seen so far, so that
# cached keys would change under a growing sequence.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
LAYER_NAMES = {  # field of LayerWeights -> name under model.layers.N
    "input_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "post_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}


def read_spec(folder: Path, max_context_len: int) -> ModelSpec:
    """The spec of a checkpoint; raises ModelRefused with the reason if we cannot run it."""
    raw = read_json(folder / "config.json")
    _check_architecture(folder, raw)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    _check_config(folder, config, max_context_len)
    architecture = raw["architectures"][0]
    has_bias = architecture == "Qwen2ForCausalLM" or _flag(config, "attention_bias")
    head_dim = config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads
    rope_inv_freq, rope_scale = _read_rope(config, head_dim)
    return ModelSpec(
        architecture=architecture,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        vocab_size=config.vocab_size,
        num_token_ids=min(count_ids(read_tokenizer(folder)), config.vocab_size),
        norm_eps=config.rms_norm_eps,
        rope_inv_freq=tuple(rope_inv_freq.tolist()),
        rope_scale=float(rope_scale),
        qkv_bias=has_bias,
        o_bias=has_bias and architecture != "Qwen2ForCausalLM",
        qk_norm=architecture == "Qwen3ForCausalLM",
        tie_embeddings=bool(config.tie_word_embeddings),
    )


def read_weights(
    folder: Path, spec: ModelSpec, layers: Collection[int], dtype: torch.dtype, device: torch.device
) -> TargetWeights:
    """Embedding, final norm, head and the given layers; no other tensor is read from disk."""
    reader = _WeightReader(folder, dtype, device)
    table = (spec.vocab_size, spec.hidden_size)
    embedding = reader.read("model.embed_tokens.weight", table)
    return TargetWeights(
        embedding=embedding,
        layers={index: _read_layer(reader, spec, index) for index in sorted(layers)},
        final_norm=reader.read("model.norm.weight", (spec.hidden_size,)),
        head=embedding if spec.tie_embeddings else reader.read("lm_head.weight", table),
    )


def read_tokenizer(folder: Path) -> Any:
    """The fast tokenizer of a folder, as transformers builds it."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelRefused(f"no tokenizer in {folder}: {_first_line(error)}") from error
    if not tokenizer.is_fast:
        raise ModelRefused(f"the tokenizer in {folder} has no tokenizer.json")
    return tokenizer


def read_dtype(folder: Path) -> torch.dtype:
    """What the weights are stored in, as the config says; float32 where it does not."""
    raw = read_json(folder / "config.json")
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32")
    return {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(name, torch.float32)


def count_ids(tokenizer: Any) -> int:
    """One more than the largest id that stands for a token."""
    vocab: dict[str, int] = tokenizer.get_vocab()
    return 1 + max(vocab.values())


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write ``gguf`` as float32 safetensors with tokenizer, chat template, generation config."""
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that has no switch
        loaded = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
    # A model loaded from GGUF carries a quantization config that refuses to be saved.
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    config = type(loaded.config).from_dict(settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    # The chat template ends a turn with the tokenizer's end token: generation must stop there.
    ends = {int(i) for i in (config.eos_token_id, tokenizer.eos_token_id) if i is not None}
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=sorted(ends),
        pad_token_id=config.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class _WeightReader:
    """Tensors of a safetensors checkpoint by name, one file or many."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.folder = folder
        self.dtype = dtype
        self.device = device
        index = folder / "model.safetensors.index.json"
        single = folder / "model.safetensors"
        self.files: dict[str, str] = {}
        if index.is_file():
            self.files = read_json(index)["weight_map"]
        elif single.is_file():
            with _open(single) as file:
                self.files = dict.fromkeys(file.keys(), single.name)
        else:
            raise ModelRefused(f"no safetensors weights in {folder}; other formats are not read")

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self.files:
            raise ModelRefused(f"{self.folder} has no tensor {name}")
        with _open(self.folder / self.files[name]) as file:
            # Copied: a view of the mapped file would die with a file that is replaced.
            tensor: Tensor = file.get_tensor(name).to(self.device, self.dtype, copy=True)
        if tuple(tensor.shape) != shape:
            found = tuple(tensor.shape)
            raise ModelRefused(f"tensor {name} in {self.folder} is {found}, config says {shape}")
        return tensor


def _read_layer(reader: _WeightReader, spec: ModelSpec, index: int) -> LayerWeights:
    hidden, inner, width = spec.hidden_size, spec.intermediate_size, spec.head_dim
    queries, keys = spec.num_heads * width, spec.num_kv_heads * width
    shapes: dict[str, tuple[int, ...]] = {
        "input_norm": (hidden,),
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
        "post_norm": (hidden,),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    if spec.qkv_bias:
        shapes |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if spec.o_bias:
        shapes["o_bias"] = (hidden,)
    if spec.qk_norm:
        shapes |= {"q_norm": (width,), "k_norm": (width,)}
    prefix = f"model.layers.{index}."
    tensors = {one: reader.read(prefix + LAYER_NAMES[one], shape) for one, shape in shapes.items()}
    return LayerWeights(**tensors)


def _check_architecture(folder: Path, raw: dict[str, Any]) -> None:
    names = raw.get("architectures") or ["none named"]
    if names[0] not in SUPPORTED:
        raise ModelRefused(
            f"{folder}: architecture {names[0]} is not supported; supported: {', '.join(SUPPORTED)}"
        )
    if raw.get("quantization_config"):
        raise ModelRefused(f"{folder}: quantized checkpoints are not supported; take the plain one")


def _check_config(folder: Path, config: Any, max_context_len: int) -> None:
    settings = config.to_dict()
    sliding = settings.get("sliding_window")
    uses_sliding = settings.get("use_sliding_window", True)
    if sliding and uses_sliding and sliding < max_context_len:
        raise ModelRefused(
            f"{folder}: sliding window of {sliding} tokens is shorter than "
            f"serving.max_context_len={max_context_len}; only full attention is supported: lower it"
        )
    if max_context_len > config.max_position_embeddings:
        raise ModelRefused(
            f"{folder}: serving.max_context_len={max_context_len} is more than the model's "
            f"{config.max_position_embeddings} positions"
        )
    if config.hidden_act != "silu" or settings.get("mlp_bias"):
        raise ModelRefused(f"{folder}: only silu MLPs without bias are supported")
    rope_type = (settings.get("rope_parameters") or {}).get("rope_type", "default")
    if rope_type not in ROPE_TYPES:
        raise ModelRefused(
            f"{folder}: rope type {rope_type} is not supported; supported: {', '.join(ROPE_TYPES)}"
        )


def _read_rope(config: Any, head_dim: int) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] and the scale of sines and cosines.

    The plain kind is computed here: transformers has it in each family's model code only, whose
    import takes a second of every start.
    """
    kind = config.rope_parameters["rope_type"]
    if kind != "default":
        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config)
        return inv_freq, scale
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / config.rope_parameters["rope_theta"] ** exponents, 1.0


def _flag(config: Any, name: str) -> bool:
    return bool(config.to_dict().get(name, False))


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise ModelRefused(f"cannot read {path}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
