"""The arms of the study: which learner meets which stream.

Owns the three sizes and the names; an arm is a stream and Hydra overrides, so that a server can be
started with the same words. Does not know how an arm is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dvi.study.streams import StreamPlan

OBJECTIVES = ("kl", "ce", "lk", "osd", "dvi", "pg")
DEFAULTS = ("kl x block", "base")  # what others on the same stream are compared with


@dataclass(frozen=True, slots=True)
class Setting:
    """What one row of the tables stands for; arms of a setting differ in their seed only."""

    name: str
    overrides: tuple[str, ...]
    plan: StreamPlan
    top_ids: int = 64  # target logits kept a position

    def arm(self, seed: int) -> Arm:
        """The setting at one seed."""
        return Arm(self, seed)


@dataclass(frozen=True, slots=True)
class Arm:
    """One run. The seed decides the order of requests, the draft's first values and the batches."""

    setting: Setting
    seed: int

    @property
    def name(self) -> str:
        """Unique within a size."""
        return f"{self.setting.name}, seed {self.seed}"


def ablation(pairs: Sequence[tuple[str, str]], plan: StreamPlan) -> list[Setting]:
    """One setting for each (objective, drafter)."""
    return [
        Setting(f"{objective} x {kind}", (f"objective={objective}", f"drafter={kind}"), plan)
        for objective, kind in pairs
    ]


def with_default(name: str, overrides: Sequence[str], plan: StreamPlan) -> Setting:
    """The default learner with something changed."""
    return Setting(name, ("objective=kl", "drafter=block", *overrides), plan)


def small() -> list[Arm]:
    """One arm on a short stream: does it work here?"""
    plan = StreamPlan("sharp", ("sql", "support"), 30)
    return [setting.arm(0) for setting in ablation([("kl", "block")], plan)]


def quick(num_seeds: int = 3) -> list[Arm]:
    """Objectives on two domains of 60 requests: about an hour on two cores."""
    plan = StreamPlan("sharp", ("sql", "support"), 60)
    pairs = [(name, "block") for name in ("kl", "dvi", "lk", "osd")]
    return list(_seeded(ablation([*pairs, ("kl", "head")], plan), num_seeds))


def full(num_seeds: int = 5) -> list[Arm]:
    """All questions; over night."""
    ablated = StreamPlan("sharp", ("sql", "support", "json", "python"), 120)
    pairs = [(name, kind) for name in OBJECTIVES for kind in ("block", "head")]
    return list(_seeded([*ablation(pairs, ablated), *sensitivity()], num_seeds))


def sensitivity() -> list[Setting]:
    """The default learner with one thing changed, and on other streams."""
    plan = StreamPlan("sharp", ("sql", "support", "json"), 80)
    base = with_default("base", (), plan)
    changed = {
        "k 4": "drafter.exit_layer=4",
        "k 8": "drafter.exit_layer=8",
        "rank 8": "drafter.lora_rank=8",
        "rank 64": "drafter.lora_rank=64",
        "half the steps": "trainer.steps_per_trace=1",
        "twice the steps": "trainer.steps_per_trace=4",
        "no training": "trainer.steps_per_trace=0",
    }
    streams = {
        "stationary": StreamPlan("stationary", ("sql",), 240),
        "gradual": StreamPlan("gradual", ("sql", "support"), 120),
        "return": StreamPlan("return", ("sql", "json"), 80),
        "open": StreamPlan("stationary", ("open",), 240),
    }
    return [
        base,
        *(with_default(name, (word,), plan) for name, word in changed.items()),
        replace(base, name="top-M 8", top_ids=8),
        replace(base, name="top-M 16", top_ids=16),
        replace(base, name="temperature 0.8", plan=replace(plan, temperature=0.8)),
        *(with_default(f"stream {name}", (), own) for name, own in streams.items()),
    ]


def _seeded(settings: Sequence[Setting], num_seeds: int) -> Iterator[Arm]:
    """Seed after seed, so that a run that is stopped has every setting once first."""
    return (setting.arm(seed) for seed in range(num_seeds) for setting in settings)
