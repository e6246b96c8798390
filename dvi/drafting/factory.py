"""The kinds of drafter: another one is its own file and one line here.

Owns the table and the checks that hold for every kind; does not know how any kind works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dvi.config import DrafterConfig
from dvi.drafting.auto import AutoDrafter
from dvi.drafting.base import Drafter
from dvi.drafting.block import block_branch, make_block_drafter
from dvi.drafting.branch import DraftBranch, DrafterRoom
from dvi.drafting.head import head_branch, make_head_drafter
from dvi.drafting.memory import make_memory_drafter
from dvi.drafting.model import make_model_drafter, model_branch
from dvi.drafting.none import make_no_drafter
from dvi.modeling.buckets import Buckets
from dvi.modeling.target import TargetModel


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """How one kind is made, and what it trains."""

    make: Callable[[DrafterConfig, TargetModel, DrafterRoom], Drafter]
    branch: Callable[[DrafterConfig, TargetModel], DraftBranch] | None  # None: nothing learns
    # Versions may draft by turns: what the drafter keeps of a position is the same under each. A
    # kind whose keys and values come from trained weights says False and has no canary.
    takes_turns: bool = False


def make_auto_drafter(config: DrafterConfig, target: TargetModel, room: DrafterRoom) -> AutoDrafter:
    """The kind of ``drafter.learned`` at version 0 and an empty memory."""
    learned = DRAFTERS[config.learned].make(config, target, room)
    return AutoDrafter(learned, make_memory_drafter(config, target, room))


def learned_branch(config: DrafterConfig, target: TargetModel) -> DraftBranch:
    """That of ``drafter.learned``."""
    branch = DRAFTERS[config.learned].branch
    assert branch is not None, "checked with the config"
    return branch(config, target)


DRAFTERS = {
    "auto": DrafterKind(make_auto_drafter, learned_branch, takes_turns=True),
    "block": DrafterKind(make_block_drafter, block_branch, takes_turns=True),
    "head": DrafterKind(make_head_drafter, head_branch, takes_turns=True),
    "model": DrafterKind(make_model_drafter, model_branch),
    "memory": DrafterKind(make_memory_drafter, None),
    "none": DrafterKind(make_no_drafter, None),
}


def make_drafter(
    config: DrafterConfig,
    target: TargetModel,
    num_rows: int,
    max_len: int,
    base_fingerprint: str = "",
    *,
    buckets: Buckets | None = None,
) -> Drafter:
    """The configured drafter at version 0, with a cache of the target's own shape.

    ``base_fingerprint`` is what manifests of its adapters must name; a target that comes from no
    folder has the empty one. With ``buckets``, made for the same rows, its steps are recorded and
    replayed. Raises ValueError for a config that does not fit the target.
    """
    check_config(config, target)
    room = DrafterRoom(num_rows, max_len, base_fingerprint, buckets)
    return DRAFTERS[config.kind].make(config, target, room)


def draft_branch(config: DrafterConfig, target: TargetModel) -> DraftBranch:
    """What the trainer trains; the target may hold its shallow part only.

    Raises ValueError for a kind that has nothing to train.
    """
    check_config(config, target)
    branch = DRAFTERS[config.kind].branch
    if branch is None:
        raise ValueError(f"drafter={config.kind} has nothing to train")
    return branch(config, target)


def check_config(config: DrafterConfig, target: TargetModel) -> None:
    """Raise ValueError where the config names what this target or this version lacks."""
    if config.kind not in DRAFTERS:
        raise ValueError(f"drafter={config.kind} is none of {', '.join(DRAFTERS)}")
    if DRAFTERS[config.kind].branch is None:
        return  # reads nothing of the target
    if config.exit_layer != target.exit_layer:
        raise ValueError(
            f"drafter.exit_layer={config.exit_layer}, but the target is split at "
            f"{target.exit_layer}"
        )
