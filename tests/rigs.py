"""Tiny targets and model folders for every room's tests.

Owns seeds, sizes and the kinds below; does not know drafters or engines.

tiny-ident  deep layers add nothing: the target's answer is that of h_k, so a draft whose block
            adds nothing (or a head draft) is always right.
tiny-block  one deep layer only (L = k + 1): a draft block that copies it whole is always right.
tiny-rand   random everywhere: an untrained draft is right by luck only.
tiny-mix    deep layers add a little: an untrained draft is right at part of the positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import tokenizers
import torch
import transformers
from torch import Tensor

from dvi.modeling.layer import LayerWeights
from dvi.modeling.linear import Quantization
from dvi.modeling.spec import ModelSpec, plain_inv_freq
from dvi.modeling.target import TargetModel, TargetWeights, make_target

CPU = torch.device("cpu")
KINDS = ("tiny-ident", "tiny-block", "tiny-rand", "tiny-mix")
DEEP_SCALE = {"tiny-ident": 0.0, "tiny-block": 1.0, "tiny-rand": 1.0, "tiny-mix": 0.35}


def build_target(
    kind: str = "tiny-rand",
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    vocab: int = 64,
    num_token_ids: int | None = None,
    layers: int = 4,
    hidden: int = 32,
    intermediate: int = 48,
    heads: int = 4,
    kv_heads: int = 2,
    exit_layer: int = 2,
    qk_norm: bool = False,
    qkv_bias: bool = False,
    tie_embeddings: bool = False,
    deterministic: bool = False,
    quantization: Quantization = Quantization.NONE,
    device: torch.device = CPU,
) -> TargetModel:
    """A random target straight from tensors; the same seed gives the same weights in any dtype."""
    assert kind in KINDS
    num_layers = exit_layer + 1 if kind == "tiny-block" else layers
    spec = ModelSpec(
        architecture="LlamaForCausalLM",
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab_size=vocab,
        num_token_ids=num_token_ids or vocab,
        norm_eps=1e-6,
        rope_inv_freq=plain_inv_freq(hidden // heads),
        qk_norm=qk_norm,
        qkv_bias=qkv_bias,
        tie_embeddings=tie_embeddings,
    )
    weights = moved(random_weights(spec, seed, dtype, exit_layer, DEEP_SCALE[kind]), device)
    return make_target(
        weights, spec, exit_layer, deterministic=deterministic, quantization=quantization
    )


def random_weights(
    spec: ModelSpec, seed: int, dtype: torch.dtype, exit_layer: int, deep_scale: float
) -> TargetWeights:
    """Weights with unit-variance outputs; deep layers' output projections times ``deep_scale``.

    The head makes logits of standard deviation about 3, so that greedy choices are clear and
    sampling at T = 1 still varies.
    """
    generator = torch.Generator().manual_seed(seed)
    embedding = _normal(generator, spec.vocab_size, spec.hidden_size, 1.0)
    layers: dict[int, LayerWeights] = {}
    for index in range(spec.num_layers):
        out_scale = 0.5 * (deep_scale if index >= exit_layer else 1.0)
        layers[index] = _random_layer(generator, spec, out_scale, dtype)
    norm = 1 + 0.1 * torch.randn(spec.hidden_size, generator=generator, dtype=torch.float64)
    head = _normal(generator, spec.vocab_size, spec.hidden_size, 3 * spec.hidden_size**-0.5)
    table = embedding.to(dtype)
    return TargetWeights(
        embedding=table,
        layers=layers,
        final_norm=norm.to(dtype),
        head=table if spec.tie_embeddings else head.to(dtype),
    )


def moved(weights: TargetWeights, device: torch.device) -> TargetWeights:
    """The same on ``device``; a tied head stays tied."""
    if device == CPU:
        return weights
    table = weights.embedding.to(device)
    layers = {
        index: LayerWeights(
            **{name: value.to(device) for name, value in asdict(layer).items() if value is not None}
        )
        for index, layer in weights.layers.items()
    }
    head = table if weights.head is weights.embedding else weights.head.to(device)
    return TargetWeights(table, layers, weights.final_norm.to(device), head)


def _random_layer(
    generator: torch.Generator, spec: ModelSpec, out_scale: float, dtype: torch.dtype
) -> LayerWeights:
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, inner = spec.hidden_size, spec.intermediate_size

    def matrix(outputs: int, inputs: int, scale: float = 1.0) -> Tensor:
        return _normal(generator, outputs, inputs, scale * inputs**-0.5).to(dtype)

    def vector(size: int, mean: float) -> Tensor:
        noise = torch.randn(size, generator=generator, dtype=torch.float64)
        return (mean + 0.1 * noise).to(dtype)

    return LayerWeights(
        input_norm=vector(hidden, 1),
        q=matrix(queries, hidden, 2.0),
        k=matrix(keys, hidden, 2.0),
        v=matrix(keys, hidden),
        o=matrix(hidden, queries, out_scale),
        post_norm=vector(hidden, 1),
        gate=matrix(inner, hidden),
        up=matrix(inner, hidden),
        down=matrix(hidden, inner, out_scale),
        q_bias=vector(queries, 0) if spec.qkv_bias else None,
        k_bias=vector(keys, 0) if spec.qkv_bias else None,
        v_bias=vector(keys, 0) if spec.qkv_bias else None,
        o_bias=vector(hidden, 0) if spec.o_bias else None,
        q_norm=vector(spec.head_dim, 1) if spec.qk_norm else None,
        k_norm=vector(spec.head_dim, 1) if spec.qk_norm else None,
    )


def _normal(generator: torch.Generator, rows: int, columns: int, scale: float) -> Tensor:
    """[rows, columns], drawn in float64 so that every dtype rounds the same numbers."""
    return scale * torch.randn(rows, columns, generator=generator, dtype=torch.float64)


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = (
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox runs.",
    "SELECT name, price FROM orders WHERE price > 10 ORDER BY name;",
    "def add(left, right):\n    return left + right\n",
    "Thank you for your message. We are sorry for the delay and will reply soon.",
    "Größe, naïve café, 東京 \U0001f680 \U0001f44d and so on.",
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def make_tokenizer_folder(path: Path) -> int:
    """A byte-level BPE of about 330 ids with a ChatML template; returns the number of ids."""
    fast = tokenizers.Tokenizer(tokenizers.models.BPE())
    fast.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    fast.train_from_iterator(CORPUS, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(path)
    return len(tokenizer)


def make_model_folder(
    path: Path,
    arch: str = "llama",
    *,
    seed: int = 0,
    layers: int = 4,
    overrides: Mapping[str, object] | None = None,
) -> transformers.PreTrainedModel:
    """A small random checkpoint with tokenizer and template at ``path``; returns its HF model.

    The head has rows beyond the tokenizer's ids, as real checkpoints do. ``overrides`` are config
    fields of the architecture.
    """
    num_ids = make_tokenizer_folder(path)
    settings: dict[str, object] = {
        "vocab_size": -(-num_ids // 64) * 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 2048,
        "initializer_range": 0.2,  # std 1.1 per output at width 32: logits with clear choices
        "rms_norm_eps": 1e-6,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "sliding_window": None,
        **(overrides or {}),
    }
    config = transformers.AutoConfig.for_model(arch, **settings)
    config.architectures = [ARCHITECTURES[arch]]
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # HF starts biases at 0 and norms at 1, which hides mistakes in them
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=1, eos_token_id=[0, 2], pad_token_id=0
    )
    model.save_pretrained(path)
    return model
