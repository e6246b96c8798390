"""The frozen ground a draft stands on: tensors taken from the target, none of them written later.

Owns what is copied and what is only read; does not know LoRA's values.
Letters: V head rows, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dvi.drafting.layout import DraftLayout
from dvi.modeling import LayerWeights, ModelSpec, Rope


@dataclass(frozen=True, slots=True)
class DraftBranch:
    """A draft without its adapter.

    ``head`` is the target's own storage and only ever read: its LoRA stays low-rank. ``block`` and
    ``norm`` are copies, because prepare and training derive other values from them.
    """

    layout: DraftLayout
    spec: ModelSpec
    block: LayerWeights | None  # None: the draft reads h_k directly
    norm: Tensor  # [H]
    head: Tensor  # [V, H]
    rope: Rope
