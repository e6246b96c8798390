"""What an adapter of a drafter kind holds: names, shapes, ranks, and the checks on them.

The one place that knows the tensor names of a published version; does not know PEFT, whose file
format they follow, nor where versions are kept.
Letters: r LoRA rank, H hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dvi.drafting.base import AdapterRefused
from dvi.registry.manifest import DraftShape

PREFIX = "base_model.model."  # PEFT's own, before every module path
NORM = f"{PREFIX}draft_norm.weight"
HEAD = "draft_head"


@dataclass(frozen=True, slots=True)
class LoraShape:
    """One adapted matrix [out_features, in_features]: base + scale * B A."""

    module: str  # path under the draft module
    in_features: int
    out_features: int
    rank: int
    alpha: float

    @property
    def scale(self) -> float:
        """Factor on B A: alpha / r."""
        return self.alpha / self.rank

    @property
    def name_a(self) -> str:
        """Tensor name of A [r, in_features]."""
        return f"{PREFIX}{self.module}.lora_A.weight"

    @property
    def name_b(self) -> str:
        """Tensor name of B [out_features, r]."""
        return f"{PREFIX}{self.module}.lora_B.weight"


@dataclass(frozen=True, slots=True)
class DraftLayout:
    """Everything that an adapter must agree on with the drafter that loads it."""

    drafter: DraftShape  # what manifests of its versions say
    hidden_size: int
    loras: tuple[LoraShape, ...]  # the block's, then the head's
    dtype: torch.dtype  # of adapter tensors

    @property
    def head(self) -> LoraShape:
        """The head's LoRA, which every kind has."""
        return self.loras[-1]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of exactly the tensors of one version."""
        shapes: dict[str, tuple[int, ...]] = {NORM: (self.hidden_size,)}
        for lora in self.loras:
            shapes[lora.name_a] = (lora.rank, lora.in_features)
            shapes[lora.name_b] = (lora.out_features, lora.rank)
        return shapes

    def ranks(self) -> dict[str, int]:
        """Module path -> r."""
        return {lora.module: lora.rank for lora in self.loras}

    def alphas(self) -> dict[str, float]:
        """Module path -> alpha, which decides the scale of a merge."""
        return {lora.module: lora.alpha for lora in self.loras}

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise AdapterRefused on the first name, shape, dtype or value that does not fit."""
        expected = self.shapes()
        missing, unknown = expected.keys() - tensors.keys(), tensors.keys() - expected.keys()
        if missing or unknown:
            word, names = ("misses", missing) if missing else ("has unknown", unknown)
            raise AdapterRefused(f"adapter {word} tensor {min(names)} ({len(names)} in all)")
        for name, shape in expected.items():
            tensor = tensors[name]
            if tuple(tensor.shape) != shape:
                raise AdapterRefused(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
            if tensor.dtype != self.dtype:
                raise AdapterRefused(f"{name} has dtype {tensor.dtype}, expected {self.dtype}")
            if not bool(torch.isfinite(tensor).all()):
                raise AdapterRefused(f"{name} holds a value that is not finite")


def adapter_dtype(dtype: torch.dtype) -> torch.dtype:
    """Adapters train and travel in float32, also beside a half-precision target."""
    return torch.float64 if dtype == torch.float64 else torch.float32
