"""What adapters of a drafter stand on: one hash that every manifest names.

Owns which files it covers for which kind; the hashing itself is ``dvi.modeling.fingerprint``. A
draft model is checked against the target here, because everybody who opens a draft asks for this.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from dvi.config import DrafterConfig, DviConfig
from dvi.modeling.fingerprint import base_fingerprint
from dvi.modeling.hf import read_spec
from dvi.modeling.pair import check_pair, draft_folder


def learned_kind(config: DrafterConfig) -> str:
    """The kind that learns: the configured one, or the learned half of ``auto``."""
    return config.learned if config.kind == "auto" else config.kind


def draft_fingerprint(path: Path, config: DviConfig) -> str:
    """Hash of the base of this drafter on the target at ``path``.

    Raises ModelRefused for a draft model that cannot be run or has other tokens than the target.
    """
    drafter, quantization = config.drafter, config.model.quantization
    if learned_kind(drafter) != "model":
        source = drafter.exit_layer if drafter.block_layer is None else drafter.block_layer
        return base_fingerprint(path, drafter.exit_layer, source, quantization=quantization)
    draft = draft_folder(drafter)
    read_spec(draft, config.serving.max_context_len)
    check_pair(path, draft)
    hashes = (
        base_fingerprint(path, 0, 0, quantization=quantization),
        base_fingerprint(draft, 0, 0),
    )
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()
