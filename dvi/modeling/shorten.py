"""A draft model out of a target: some of its layers, with its own embedding, norm, head and text.

Owns the folder, complete or absent; does not know how it is trained or served. Layers near the
start and the last one together guess best untrained; what is left out is what a LoRA has to learn.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dvi.modeling.hf import read_dtype, read_spec, read_weights
from dvi.modeling.hf_export import write_causal_lm
from dvi.modeling.spec import ModelRefused


def keep_layers(source: Path, layers: Sequence[int], folder: Path) -> int:
    """Write the model of ``source`` with these of its layers, in this order; bytes of its weights.

    In the source's own dtype. Raises ModelRefused for a model that is not supported, for layers
    that it does not have or that come twice, and for a folder that exists.
    """
    spec = read_spec(source, 1)
    known = range(spec.num_layers)
    if not layers or len(set(layers)) < len(layers) or not set(layers) <= set(known):
        shown = ",".join(map(str, layers)) or "none"
        raise ModelRefused(
            f"--layers {shown}: give distinct layers of 0..{spec.num_layers - 1}, as 0,1,2"
        )
    if folder.exists():
        raise ModelRefused(f"{folder} is there already: name a new folder")
    weights = read_weights(source, spec, layers, read_dtype(source), torch.device("cpu"))
    kept = {place: weights.layers[index] for place, index in enumerate(layers)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        inside = part / "model"  # made anew: a temporary folder is for its owner only
        write_causal_lm(source, replace(weights, layers=kept), inside)
        inside.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
