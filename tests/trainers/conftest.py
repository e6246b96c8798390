"""Fixtures that cost time: the tiny target and its traces, made once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
import torch

from dvi.modeling.target import TargetModel
from dvi.types import Trace
from tests.trainers.world import World, live_traces, make_world, tiny_target
from trainers.stream import replay_stream


class WorldMaker(Protocol):
    """Makes a world in a folder of this test."""

    def __call__(self, name: str, traces: list[Trace], **trainer: object) -> World: ...


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Bits depend on the number of threads."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def target() -> TargetModel:
    """The tiny target."""
    return tiny_target()


@pytest.fixture(scope="session")
def traces(target: TargetModel) -> list[Trace]:
    """Answers of twelve tokens."""
    return live_traces(target, 22)


@dataclass(frozen=True)
class Uninterrupted:
    """A training that was never stopped."""

    world: World
    done: list[object]  # after each verb


@pytest.fixture(scope="session")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory, target: TargetModel, traces: list[Trace]
) -> Iterator[Uninterrupted]:
    """What every stopped, killed or repeated training is compared with."""
    torch.set_num_threads(1)
    world = make_world(tmp_path_factory.mktemp("whole"), traces, target=target)
    yield Uninterrupted(world, list(replay_stream(world.training())))
    world.store.close()


@pytest.fixture
def world_of(tmp_path: Path, target: TargetModel) -> Iterator[WorldMaker]:
    """Worlds whose stores are closed at the end."""
    worlds: list[World] = []

    def make(name: str, traces: list[Trace], **trainer: object) -> World:
        worlds.append(make_world(tmp_path / name, traces, target=target, **trainer))
        return worlds[-1]

    yield make
    for world in worlds:
        world.store.close()
