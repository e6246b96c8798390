"""A training driven to its end, and what two of them are compared by. Owns no test."""

from __future__ import annotations

import torch

from dvi.registry import Registry
from trainers.reports import StepReport, loss_values
from trainers.stream import replay_stream
from trainers.training import Publication, Training


def losses(done: list[object]) -> list[dict[str, float]]:
    return [loss_values(report.loss) for report in done if isinstance(report, StepReport)]


def adapters(registry: Registry) -> dict[int, dict[str, torch.Tensor]]:
    """Tensors of every version, with its list of head rows."""
    read = [registry.read(manifest.version) for manifest in registry.versions()]
    return {a.version: {**a.tensors, **(a.draft_vocab or {})} for a in read}


def assert_same_versions(one: Registry, other: Registry) -> None:
    ours, theirs = adapters(one), adapters(other)
    assert ours.keys() == theirs.keys()
    for version, tensors in ours.items():
        assert all(torch.equal(tensors[name], theirs[version][name]) for name in tensors)
    assert one.current() == other.current()


def run(training: Training) -> list[object]:
    return list(replay_stream(training))


def first_publication(training: Training) -> Publication:
    return next(item for item in replay_stream(training) if isinstance(item, Publication))
