"""From a model folder to a target that runs.

Owns which layers are loaded and in which dtype on which device; does not know file formats.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from dvi.config import ModelConfig
from dvi.modeling.hf import read_spec, read_weights
from dvi.modeling.linear import Quantization, choose_kernels
from dvi.modeling.spec import ModelSpec
from dvi.modeling.target import TargetModel, TargetWeights, make_target, runs_natively

RESERVE_BYTES = 2**30  # for the cache of keys and values, the draft, the trainer beside it
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_target(
    path: Path,
    config: ModelConfig,
    exit_layer: int,
    *,
    deterministic: bool,
    layers: Literal["all", "shallow"],
    max_context_len: int,
    block_layer: int | None = None,
) -> TargetModel:
    """Load the target from a local folder; raises ModelRefused (a ValueError) with the reason.

    "shallow" reads what a trainer needs: embedding, layers [0, k), the layer that the draft block
    copies (``block_layer``, default k), final norm and head. ``deep`` of such a model fails.
    """
    spec = read_spec(path, max_context_len)
    source = exit_layer if block_layer is None else block_layer
    _check_layers(exit_layer, source, spec.num_layers)
    wanted = range(spec.num_layers) if layers == "all" else {*range(exit_layer), source}
    device = _choose_device(config.device)
    weights = read_weights(path, spec, wanted, DTYPES[config.dtype], device)
    return make_target(
        weights,
        spec,
        exit_layer,
        deterministic=deterministic,
        quantization=Quantization(config.quantization),
        packed_copy=wants_packed_copy(config.packed_weights, weights, available_bytes()),
    )


def load_draft_model(path: Path, target: TargetModel, max_context_len: int) -> TargetModel:
    """A whole model beside ``target`` in its dtype, on its device; raises ModelRefused.

    Its tokens must be the target's (``check_pair``); rows beyond them are padding.
    """
    spec = read_spec(path, max_context_len)
    weights = read_weights(path, spec, range(spec.num_layers), target.dtype, target.device)
    return make_draft_model(weights, spec, target)


def make_draft_model(weights: TargetWeights, spec: ModelSpec, target: TargetModel) -> TargetModel:
    """A model that is not split: all its layers are shallow. Never quantized, as drafts are not."""
    assert spec.vocab_size >= target.spec.num_token_ids, "checked by check_pair"
    kernels = choose_kernels(
        target.dtype,
        target.device,
        quantization=Quantization.NONE,
        deterministic=target.deterministic,
        native=runs_natively(spec, Quantization.NONE),
    )
    known = replace(spec, num_token_ids=target.spec.num_token_ids)
    return TargetModel(weights, known, spec.num_layers, kernels)


def wants_packed_copy(choice: str, weights: TargetWeights, available: int | None) -> bool:
    """Whether the fast mode holds its matrices twice: plain for few rows, packed for more.

    "auto" does where the copy leaves RESERVE_BYTES of what is available now (None: unknown).
    """
    if choice != "auto" or available is None:
        return choice != "never"
    copy_bytes = weights.head.nbytes + sum(
        matrix.nbytes
        for layer in weights.layers.values()
        for matrix in (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down)
    )
    return copy_bytes + RESERVE_BYTES <= available


def available_bytes() -> int | None:
    """Memory that the system can give without swapping; None where it does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    sizes = {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines)}
    return int(sizes["MemAvailable"]) * 1024 if "MemAvailable" in sizes else None


def _check_layers(exit_layer: int, block_layer: int, num_layers: int) -> None:
    if not 1 <= exit_layer < num_layers:
        raise ValueError(
            f"drafter.exit_layer={exit_layer} must lie in 1..{num_layers - 1} for a model of "
            f"{num_layers} layers"
        )
    if not 0 <= block_layer < num_layers:
        raise ValueError(f"drafter.block_layer={block_layer} must lie in 0..{num_layers - 1}")


def _choose_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("model.device=cuda, but torch sees no CUDA device; use model.device=cpu")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)
