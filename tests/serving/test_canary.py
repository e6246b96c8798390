"""New versions on a share of rounds: bad ones never get more, good ones get through."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import Tensor

from dvi.config import DriftConfig
from dvi.decoding import decode_batch
from dvi.drafting import draft_branch
from dvi.modeling.target import TargetModel
from dvi.registry import Act, ManifestFields, Registry
from dvi.types import Delta
from serving.canary import Canary
from serving.owed import OwedRollbacks
from serving.sentinel import Links, Sentinel
from serving.trainer_status import TrainerStatus
from serving.watcher import AdapterWatcher
from tests.decoding.engines import LIMITS, Rig, make_request, make_rig
from tests.drafting.rows import config_for, random_tensors
from tests.rigs import build_target
from tests.serving.planted import fitted, planted, scaled

SHARE = DriftConfig().canary_share
NUM_ROWS = 12


REQUESTS = [
    make_request(f"r{i}", (1 + i, 40 - i, 3), max_tokens=32, temperature=0.5 * (i % 2))
    for i in range(16)
]


@cache
def shared_target() -> TargetModel:
    """Frozen, so that every scene can have the same."""
    return build_target("tiny-mix", seed=1)


@cache
def plain_answers() -> list[tuple[int, ...]]:
    """Of plain decoding, to ``REQUESTS``."""
    plain = make_rig(shared_target(), "none")
    return [one.token_ids for one in decode_batch(plain.engine, REQUESTS)]


class Traffic:
    """Eight requests at any time, of sixteen that come again and again."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.requests = REQUESTS
        self.answers = plain_answers()
        self.texts = [
            [*one.prompt_ids, *answer]
            for one, answer in zip(self.requests, self.answers, strict=True)
        ]
        self.num_checked = 0
        self._submitted = 0
        self._running = 0
        self._got: dict[str, list[int]] = {}

    def step(self) -> None:
        """One step of the engine; every answer that ends is compared with plain decoding."""
        while self._running < NUM_ROWS:
            request = self.requests[self._submitted % len(self.requests)]
            name = f"{self._submitted}"
            self._submitted += 1
            self._running += 1
            self.rig.engine.submit(replace(request, request_id=name), self._take)
        self.rig.engine.step()

    def _take(self, delta: Delta) -> None:
        got = self._got.setdefault(delta.request_id, [])
        got.extend(delta.token_ids)
        if delta.finish_reason is not None:
            self._running -= 1
            self.num_checked += 1
            place = int(delta.request_id) % len(self.requests)
            assert tuple(self._got.pop(delta.request_id)) == self.answers[place]


class Scene:
    """Engine, registry, watcher, canary and sentinel; their threads are done by hand."""

    def __init__(self, root: Path, config: DriftConfig) -> None:
        limits = replace(LIMITS, num_rows=NUM_ROWS, max_draft_len=1)
        target = shared_target()
        self.rig = make_rig(target, "block", draft_len=1, limits=limits)
        self.layout = draft_branch(config_for("block", target), target).layout
        self.traffic = Traffic(self.rig)
        self.registry = Registry(root, keep_versions=100)
        self.now_s = 0.0
        live = self.rig.engine.parts.live
        owed = OwedRollbacks(self.registry)
        self.canary = Canary(
            self.rig.slot, live.trial, self.registry, owed, config, clock=lambda: self.now_s
        )
        self.watcher = AdapterWatcher(
            self.registry,
            self.rig.drafter,
            self.rig.slot,
            1.0,
            self.canary,
            passed_over=owed.versions,
        )
        self.watcher.load_first()
        links = Links(
            live=live,
            registry=self.registry,
            owed=owed,
            trainer=TrainerStatus,
            look_again=self.watcher.poll,
            drifted=lambda: None,
            told=lambda *_: None,
            canary=self.canary,
        )
        self.sentinel = Sentinel(config, links)

    def promote(self, tensors: Mapping[str, Tensor]) -> int:
        """Publish and put into service, as a gate that was mistaken would."""

        def write(folder: Path) -> None:
            save_file(dict(tensors), folder / "adapter_model.safetensors")
            config = {"alpha_pattern": self.layout.alphas()}
            (folder / "adapter_config.json").write_text(json.dumps(config))

        version = self.registry.publish(write, ManifestFields("", self.layout.drafter))
        self.registry.promote(version, "test")
        return version

    def put_in_charge(self, tensors: Mapping[str, Tensor]) -> int:
        """The same beside version 0: it drafts from the next step on, without a trial."""
        assert self.rig.engine.stats().adapter_version == 0
        version = self.promote(tensors)
        self.watcher.poll()
        self.rig.engine.step()
        assert self.rig.engine.stats().adapter_version == version
        assert self.canary.version is None
        return version

    def rounds(self) -> int:
        return self.rig.engine.stats().counts.rounds

    def run(self, until: Callable[[], bool], most: int) -> int:
        """Rounds until it holds, or about ``most``; threads look after each step."""
        start = self.rounds()
        while self.rounds() - start < most and not until():
            self.watcher.poll()
            self.traffic.step()
            self.sentinel.look()
        return self.rounds() - start


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "adapters", DriftConfig())


def drafted_rounds(scene: Scene) -> Counter[int]:
    """Rounds with a proposal by the version that the traces name."""
    rounds = [one for trace in scene.rig.traces for one in trace.rounds]
    return Counter(one.adapter_version for one in rounds if one.proposed_ids)


def test_twenty_planted_bad_adapters_get_no_more_than_their_share_and_are_gone_in_200_rounds(
    scene: Scene,
) -> None:
    """Rounds of both versions together are counted; answers are those of plain decoding."""
    target = scene.rig.engine.parts.target
    good = fitted(target, scene.traffic.texts)
    first = scene.put_in_charge(good)
    sorts: dict[str, int] = {}
    for sort, tensors in planted(target, good, scene.traffic.texts):
        sorts[sort] = sorts.get(sort, 0) + 1
        before = scene.rig.slot.canary_rounds
        bad = scene.promote(tensors)
        if sort == "not finite":
            scene.run(lambda: False, 50)
            assert scene.rig.slot.counts()["refused"] == sorts[sort]
            scene.registry.rollback("it was refused")
            scene.run(lambda: False, 50)
            assert scene.rig.slot.canary_rounds == before
            continue
        taken = scene.run(lambda bad=bad: scene.registry.current() != bad, 200)
        assert scene.registry.current() == first, sort
        assert scene.rig.slot.canary_rounds - before <= SHARE * taken, sort
        assert scene.rig.engine.stats().adapter_version == first
        event = scene.registry.history()[-1]
        assert (event.act, event.replaced) == (Act.ROLLBACK, bad)
        assert f"canary: version {bad} accepts 0." in event.reason
    assert sum(sorts.values()) == 20
    assert scene.canary.view().decisions == {"settled": 0, "rolled_back": 18, "left": 0}
    assert scene.rig.slot.counts() == {"swapped": 1, "refused": 2}
    assert scene.traffic.num_checked > 50
    drafted = drafted_rounds(scene)
    assert drafted.pop(first) > 1000
    assert max(number for version, number in drafted.items() if version) <= SHARE * 200


def test_good_adapters_get_through_one_after_the_other(scene: Scene) -> None:
    """Equal ones too: what settles is what is not worse. The first is clearly better."""
    target = scene.rig.engine.parts.target
    scene.put_in_charge(fitted(target, scene.traffic.texts, steps=2))
    good = fitted(target, scene.traffic.texts)
    for tensors in (good, scaled(good, 1.0), fitted(target, scene.traffic.texts, steps=30)):
        version = scene.promote(tensors)
        taken = scene.run(lambda v=version: scene.rig.engine.stats().adapter_version == v, 2000)
        assert scene.rig.engine.stats().adapter_version == version
        assert taken >= 8 / SHARE  # half of canary_min_proposals, for one that is clearly better
        acts = [(one.act, one.version) for one in scene.registry.history()[-2:]]
        assert acts == [(Act.CANARY, version), (Act.SETTLE, version)]
    scene.run(lambda: False, 300)
    assert drafted_rounds(scene)[version] > 100
    view = scene.canary.view()
    assert (view.version, view.decisions["settled"]) == (0, 3)
    assert view.canary.tried >= 3 * 8
    assert view.control.tried >= view.canary.tried


def test_without_traffic_a_version_waits_so_long_and_no_longer(scene: Scene) -> None:
    first = scene.put_in_charge(random_tensors(scene.layout, 1))
    version = scene.promote(random_tensors(scene.layout, 2))
    scene.watcher.poll()
    scene.rig.engine.step()
    scene.now_s = 299.0
    scene.sentinel.look()
    assert scene.canary.version == version
    assert scene.rig.engine.stats().adapter_version == first
    scene.now_s = 300.0
    scene.sentinel.look()
    scene.rig.engine.step()
    assert scene.canary.version is None
    assert scene.rig.engine.stats().adapter_version == version
    assert "0 first proposals" in scene.registry.history()[-1].reason


def test_beside_the_untrained_draft_the_guard_alone_takes_bad_versions_out(scene: Scene) -> None:
    """The untrained draft of this target accepts .7: a bad version is a fall."""
    scene.run(lambda: False, 200)
    bad = scene.put_in_charge(random_tensors(scene.layout, 3))
    scene.run(lambda: scene.registry.current() != bad, 200)
    event = scene.registry.history()[-1]
    assert (event.act, event.version, event.replaced) == (Act.ROLLBACK, 0, bad)
    assert f"guard: version {bad} accepts 0." in event.reason
    scene.rig.engine.step()
    assert scene.rig.engine.stats().adapter_version == 0
    assert scene.rig.slot.canary_rounds == 0
    assert scene.traffic.num_checked > 10
