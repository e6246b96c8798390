"""The shape of a target: what a checkpoint's config decides about the forward pass.

Owns names and checks; knows neither Hugging Face nor any tensor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUPPORTED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class ModelRefused(ValueError):
    """A checkpoint or path that cannot be served; the message is one line for the user."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of a checkpoint; raises ModelRefused."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelRefused(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ModelRefused(f"cannot read {path}: it holds no JSON object")
    return content


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and switches of one Llama-shaped decoder.

    Ids in [num_token_ids, vocab_size) are padding rows of the head: no token, logits -inf.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int  # rows of embedding and head
    num_token_ids: int  # ids that exist
    norm_eps: float
    rope_inv_freq: tuple[float, ...]  # [head_dim / 2], scaling of frequencies included
    rope_scale: float = 1.0  # factor on cos and sin (YaRN)
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        assert self.num_heads % self.num_kv_heads == 0
        assert self.head_dim % 2 == 0
        assert len(self.rope_inv_freq) == self.head_dim // 2
        assert 0 < self.num_token_ids <= self.vocab_size

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head (G)."""
        return self.num_heads // self.num_kv_heads

    @property
    def qkv_heads(self) -> int:
        """Heads in the fused projection: queries, keys, values."""
        return self.num_heads + 2 * self.num_kv_heads


def plain_inv_freq(head_dim: int, theta: float = 10000.0) -> tuple[float, ...]:
    """Rotary frequencies without scaling: theta^(-2i / head_dim) (arXiv 2104.09864)."""
    return tuple(theta ** (-2 * i / head_dim) for i in range(head_dim // 2))


def read_chat_template(folder: Path) -> str:
    """The chat template that a checkpoint brings; empty where it has none.

    Raises ModelRefused for settings that cannot be read, also where a file of its own goes first.
    """
    settings, own = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    found = read_json(settings).get("chat_template") if settings.is_file() else None
    if own.is_file():
        return own.read_text(encoding="utf-8")
    if isinstance(found, list):  # several, by name
        found = {one["name"]: one["template"] for one in found}.get("default")
    return found if isinstance(found, str) else ""
