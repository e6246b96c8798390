"""What a version says about itself: lineage, base, shape of the draft, hashes, figures.

Owns the JSON form of ``manifest.json``; knows neither folders nor tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch takes over a second to import, and lists of versions need none of it
    from torch import Tensor


class RegistryError(ValueError):
    """A version or the registry cannot be used as asked; one line."""


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Which draft branch the tensors of a version fit; fields as in ``DrafterConfig``."""

    kind: str
    exit_layer: int
    block_layer: int | None = None
    lora_rank: int = 0
    head_lora_rank: int = 0


@dataclass(frozen=True, slots=True)
class ManifestFields:
    """What the publisher says of a version; the registry adds number, hashes and time."""

    base_fingerprint: str
    drafter: DraftShape
    parent: int = 0  # version that training went on from; 0 is the untrained draft
    metrics: Mapping[str, float] = field(default_factory=dict)
    checkpoint_step: int = 0
    rows_trained: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """``manifest.json`` of one version."""

    version: int  # >= 1
    parent: int
    base_fingerprint: str
    drafter: DraftShape
    sha256: Mapping[str, str]  # file name -> hex digest, all files but the manifest
    metrics: Mapping[str, float]
    checkpoint_step: int
    rows_trained: int
    created_s: float  # Unix time


@dataclass(frozen=True, slots=True)
class Adapter:
    """One version in memory, hash checked."""

    version: int
    tensors: Mapping[str, Tensor]  # PEFT names -> tensors, on the CPU
    adapter_config: Mapping[str, Any]
    manifest: Manifest
    draft_vocab: Mapping[str, Tensor] | None = None  # rows of a trimmed head; None: no such file


def make_manifest(
    version: int, fields: ManifestFields, sha256: Mapping[str, str], created_s: float
) -> Manifest:
    """The manifest of a version about to be published."""
    return Manifest(
        version=version,
        parent=fields.parent,
        base_fingerprint=fields.base_fingerprint,
        drafter=fields.drafter,
        sha256=dict(sha256),
        metrics=dict(fields.metrics),
        checkpoint_step=fields.checkpoint_step,
        rows_trained=fields.rows_trained,
        created_s=created_s,
    )


def to_json(manifest: Manifest) -> bytes:
    """The bytes of ``manifest.json``."""
    return (json.dumps(asdict(manifest), indent=2, sort_keys=True) + "\n").encode()


def from_json(data: bytes, expected_version: int) -> Manifest:
    """Parse and check ``manifest.json``; RegistryError when it is torn, foreign or mislabelled."""
    try:
        raw: dict[str, Any] = json.loads(data)
        manifest = Manifest(**{**raw, "drafter": DraftShape(**raw["drafter"])})
        hashes = dict(manifest.sha256)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RegistryError(f"version {expected_version}: manifest.json is not ours") from error
    if manifest.version != expected_version:
        raise RegistryError(
            f"version {expected_version}: manifest.json says version {manifest.version}"
        )
    return replace(manifest, sha256=hashes)
