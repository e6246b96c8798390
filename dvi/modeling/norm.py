"""The RMS norm before a layer's matrices.

Owns its arithmetic in each mode; does not know which norm of a layer it is. On a CPU F.rms_norm is
six operations, each dearer than it looks alone: the matrices between them empty the caches.
Letters: N flattened positions, H hidden width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dvi.modeling.linear import Packing


class RmsNorm:
    """x / sqrt(mean(x^2) + eps) * weight, each row by itself.

    In the fast mode as x / hypot(|x|, sqrt(H eps)) * (weight sqrt(H)): fewer operations, and other
    bits.
    """

    def __init__(self, weight: Tensor, eps: float, packing: Packing) -> None:
        self.weight = weight  # [H]
        self.eps = eps
        is_float = weight.device.type == "cpu" and weight.dtype == torch.float32
        self._is_short = is_float and packing in (Packing.PLAIN, Packing.FAST)
        self._scaled = weight * math.sqrt(weight.numel())
        self._floor = weight.new_tensor(math.sqrt(weight.numel() * eps))

    def __call__(self, x: Tensor) -> Tensor:
        """[N, H] -> [N, H], new storage."""
        if not self._is_short:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x / torch.hypot(length, self._floor)).mul_(self._scaled)
