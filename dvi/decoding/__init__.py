"""Decoding: sessions, engine, controller, verifier, adapter slot.

``dvi.decoding.startup`` opens an engine from a config; it is not imported here, because it reads
transformers.
"""

from dvi.decoding.batch import Result, decode_batch, join_deltas
from dvi.decoding.controller import Controller
from dvi.decoding.engine import Engine, EngineParts
from dvi.decoding.inbox import QueueFull
from dvi.decoding.limits import EngineLimits, limits_from_config
from dvi.decoding.observer import EngineObserver, SilentObserver
from dvi.decoding.record import TraceSink
from dvi.decoding.scheduler import StepReport
from dvi.decoding.slot import AdapterSlot, Pair
from dvi.decoding.stats import EngineStats, Outcome, Phase
from dvi.decoding.text import DecoderFactory, TextDecoder

__all__ = [
    "AdapterSlot",
    "Controller",
    "DecoderFactory",
    "Engine",
    "EngineLimits",
    "EngineObserver",
    "EngineParts",
    "EngineStats",
    "Outcome",
    "Pair",
    "Phase",
    "QueueFull",
    "Result",
    "SilentObserver",
    "StepReport",
    "TextDecoder",
    "TraceSink",
    "decode_batch",
    "join_deltas",
    "limits_from_config",
]
