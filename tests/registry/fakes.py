"""Adapter files for the tests of the registry."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from dvi.registry import DraftShape, ManifestFields

SHAPE = DraftShape("block", exit_layer=2, block_layer=2, lora_rank=32, head_lora_rank=16)


def fields(parent: int = 0, step: int = 0) -> ManifestFields:
    """What a trainer would say of a version."""
    return ManifestFields(
        base_fingerprint="base",
        drafter=SHAPE,
        parent=parent,
        metrics={"alpha": 0.5},
        checkpoint_step=step,
        rows_trained=3 * step,
    )


class Files:
    """Writes an adapter whose one tensor holds ``value``."""

    def __init__(self, value: float = 1.0, num: int = 8) -> None:
        self.value = value
        self.num = num

    def __call__(self, folder: Path) -> None:
        tensors = {"base_model.model.draft_head.lora_A.weight": torch.full((self.num,), self.value)}
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({"r": 32}))
