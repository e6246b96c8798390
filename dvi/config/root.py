"""The composed config: one dataclass a group, and the folder that holds the state."""

from __future__ import annotations

from dataclasses import dataclass, field

from dvi.config.engine import DecodingConfig, DrafterConfig, ModelConfig
from dvi.config.field import option
from dvi.config.learning import (
    DataConfig,
    DriftConfig,
    ObjectiveConfig,
    RegistryConfig,
    ReplayConfig,
    TrainerConfig,
)
from dvi.config.service import (
    AuditConfig,
    BenchConfig,
    DemoConfig,
    RunConfig,
    ServingConfig,
    TrackingConfig,
)


@dataclass
class DviConfig:
    """Everything a command reads. Plain data: no resolver, no interpolation, no None groups."""

    state_dir: str | None = option(
        None, "replay store, adapters, checkpoints; null is DVI_HOME/state"
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    data: DataConfig = field(default_factory=DataConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    registry: RegistryConfig = field(default_factory=RegistryConfig)
    drift: DriftConfig = field(default_factory=DriftConfig)
    serving: ServingConfig = field(default_factory=ServingConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    run: RunConfig = field(default_factory=RunConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    demo: DemoConfig = field(default_factory=DemoConfig)
