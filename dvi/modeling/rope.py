"""Rotary tables, computed once and grown when a longer position is asked for.

Owns cos and sin; does not know which layer or request reads them.
Letters: P positions, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dvi.modeling.spec import ModelSpec

GROWTH = 2048  # positions a table grows by at least


class RopeTable:
    """cos and signed sin [P, D]; used by one thread.

    ``sin`` carries the sign of rotate-half, so that x rotates as x * cos + roll(x, D/2) * sin.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        self.spec = spec
        self.dtype = dtype
        self.device = device
        self.cos = torch.empty(0, spec.head_dim, dtype=dtype, device=device)
        self.sin = self.cos

    def rows(self, positions: Tensor, num_positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin [N, D] of ``positions`` [N], all below ``num_positions``."""
        self.reserve(num_positions)
        return self.cos[positions], self.sin[positions]

    def reserve(self, num_positions: int) -> None:
        """Have rows for so many: the tables move where they have to grow for it, else they stay."""
        if num_positions > self.cos.shape[0]:
            self._grow(-(-num_positions // GROWTH) * GROWTH)

    def _grow(self, num_positions: int) -> None:
        exact = torch.float64 if self.dtype == torch.float64 else torch.float32
        freqs = torch.tensor(self.spec.rope_inv_freq, dtype=exact)  # [D/2]
        angles = torch.arange(num_positions, dtype=exact)[:, None] * freqs  # [P, D/2]
        cos, sin = angles.cos() * self.spec.rope_scale, angles.sin() * self.spec.rope_scale
        self.cos = torch.cat((cos, cos), -1).to(self.device, self.dtype)
        self.sin = torch.cat((-sin, sin), -1).to(self.device, self.dtype)
