"""Typed configuration; importable without torch and without Hydra."""

from dvi.config.engine import DecodingConfig, DrafterConfig, ModelConfig
from dvi.config.learning import (
    DataConfig,
    DriftConfig,
    ObjectiveConfig,
    RegistryConfig,
    ReplayConfig,
    TrainerConfig,
)
from dvi.config.root import DviConfig
from dvi.config.service import (
    AuditConfig,
    BenchConfig,
    DemoConfig,
    RunConfig,
    ServingConfig,
    TrackingConfig,
)

__all__ = [
    "AuditConfig",
    "BenchConfig",
    "DataConfig",
    "DecodingConfig",
    "DemoConfig",
    "DrafterConfig",
    "DriftConfig",
    "DviConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "RegistryConfig",
    "ReplayConfig",
    "RunConfig",
    "ServingConfig",
    "TrackingConfig",
    "TrainerConfig",
]
