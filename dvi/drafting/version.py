"""Is this published version meant for this drafter on this target?

Owns the checks before any merge; does not know how a version is merged or stored.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dvi.drafting.base import AdapterRefused
from dvi.drafting.layout import DraftLayout
from dvi.registry.manifest import Adapter

PUBLISHED_ACCEPTANCE = "candidate_agreement"  # in the metrics of a manifest


def checked_tensors(
    adapter: Adapter, layout: DraftLayout, base_fingerprint: str
) -> Mapping[str, Tensor]:
    """The adapter's tensors, exactly those of ``layout``; raises AdapterRefused with the reason."""
    manifest, version = adapter.manifest, adapter.version
    if manifest.base_fingerprint != base_fingerprint:
        theirs, ours = manifest.base_fingerprint or "(none)", base_fingerprint or "(none)"
        raise AdapterRefused(f"version {version} was trained on base {theirs}, this is {ours}")
    if manifest.drafter != layout.drafter:
        raise AdapterRefused(
            f"version {version} is for {manifest.drafter}, this is {layout.drafter}"
        )
    alphas = adapter.adapter_config.get("alpha_pattern") or {}
    expected = layout.alphas()
    differing = [one for one in {**expected, **alphas} if alphas.get(one) != expected.get(one)]
    if differing:
        first = differing[0]
        raise AdapterRefused(
            f"version {version} has alpha {alphas.get(first)} on {first}, "
            f"expected {expected.get(first)} ({len(differing)} differ)"
        )
    layout.check(adapter.tensors)
    return adapter.tensors


def published_acceptance(adapter: Adapter | None) -> float | None:
    """Share of held-out positions at which this version agreed with the target, as its publisher
    measured it with teacher forcing; None where none was published."""
    return None if adapter is None else adapter.manifest.metrics.get(PUBLISHED_ACCEPTANCE)
