"""Random adapters that fit the drafter: what swaps are measured with.

Owns their values; they go through the same checks and the same merge as trained ones.
"""

from __future__ import annotations

import torch

from dvi.bench.subject import Subject
from dvi.drafting import DraftWeights
from dvi.drafting.factory import draft_branch
from dvi.registry.manifest import Adapter, Manifest

SCALE = 0.01  # of the normal values; any finite size costs the same


def random_versions(subject: Subject, count: int) -> list[DraftWeights]:
    """``count`` prepared versions; none for a drafter that has nothing to swap."""
    if subject.config.drafter.kind == "none":
        return []
    parts = subject.engine.parts
    layout = draft_branch(subject.config.drafter, parts.target).layout
    generator = torch.Generator().manual_seed(0)
    prepared = []
    for version in range(1, count + 1):
        tensors = {
            name: SCALE * torch.randn(shape, generator=generator, dtype=layout.dtype)
            for name, shape in layout.shapes().items()
        }
        manifest = Manifest(
            version=version,
            parent=0,
            base_fingerprint=subject.opened.base_fingerprint,
            drafter=layout.drafter,
            sha256={},
            metrics={},
            checkpoint_step=0,
            rows_trained=0,
            created_s=0.0,
        )
        adapter = Adapter(version, tensors, {"alpha_pattern": layout.alphas()}, manifest)
        prepared.append(parts.drafter.prepare(adapter))
    return prepared
