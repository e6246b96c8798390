"""AdamW over the draft's trainable values: warm-up, clipping, and a state that fits in a file.

Owns the rule that a non-finite gradient changes nothing. Does not know the loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dvi.config import TrainerConfig

ADAPTER = "adapter/"
STATE = ("step", "exp_avg", "exp_avg_sq")  # of AdamW, for each parameter


class DraftOptimizer:
    """One AdamW over every parameter that requires grad; the rest of the module is frozen."""

    def __init__(self, draft: nn.Module, config: TrainerConfig) -> None:
        self.config = config
        self.params = {n: p for n, p in draft.named_parameters() if p.requires_grad}
        self.adamw = torch.optim.AdamW(
            list(self.params.values()),
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            weight_decay=config.weight_decay,
        )

    def clear(self) -> None:
        """Forget gradients."""
        self.adamw.zero_grad(set_to_none=True)

    def step(self, step: int) -> float | None:
        """Apply the gradients as optimizer step number ``step`` (from 0); returns their norm.

        None, with neither values nor moments changed, when the norm is not finite.
        """
        limit = self.config.max_grad_norm or math.inf  # 0 means no clipping, as elsewhere
        norm = float(nn.utils.clip_grad_norm_(list(self.params.values()), limit))
        if not math.isfinite(norm):
            return None
        self.adamw.param_groups[0]["lr"] = self.learning_rate(step)
        self.adamw.step()
        return norm

    def learning_rate(self, step: int) -> float:
        """Linear warm-up to a constant: step 0 already learns."""
        warmup = self.config.warmup_steps
        share = min(1.0, (step + 1) / warmup) if warmup else 1.0
        return self.config.learning_rate * share

    def tensors(self) -> dict[str, Tensor]:
        """Copies of values and moments, on the CPU, under names that ``restore`` takes."""
        copies = {ADAPTER + name: param for name, param in self.params.items()}
        for name, param in self.params.items():
            for kind, tensor in self.adamw.state.get(param, {}).items():
                copies[f"{kind}/{name}"] = tensor
        return {name: tensor.detach().cpu().clone() for name, tensor in copies.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go back to what ``tensors`` returned."""
        with torch.no_grad():
            for name, param in self.params.items():
                param.copy_(tensors[ADAPTER + name])
        self.forget_moments()
        for name, param in self.params.items():
            state = {k: tensors[f"{k}/{name}"] for k in STATE if f"{k}/{name}" in tensors}
            # Adam counts its steps on the CPU, wherever the parameter is.
            self.adamw.state[param].update(
                {
                    k: v.clone() if k == "step" else v.to(param.device, copy=True)
                    for k, v in state.items()
                }
            )

    def forget_moments(self) -> None:
        """Start the moving averages again: the values were exchanged for others."""
        self.adamw.state.clear()
