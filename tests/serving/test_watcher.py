"""From registry to slot: the version in service is loaded, a bad one is counted and left out."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dvi.decoding import AdapterSlot
from dvi.drafting import AdapterRefused, DraftWeights
from dvi.drift import LiveAcceptance
from dvi.registry import Adapter, DraftShape, ManifestFields, Registry
from serving.registry_desk import RegistryDesk
from serving.trainer_control import TrainerControl
from serving.watcher import AdapterWatcher


class FakeDrafter:
    """Takes every version but those in ``refuses``."""

    kind = "block"

    def __init__(self) -> None:
        self.adapter_version = 0
        self.refuses: set[int] = set()
        self.prepared: list[int] = []

    def prepare(self, adapter: Adapter | None) -> DraftWeights:
        version = 0 if adapter is None else adapter.version
        self.prepared.append(version)
        if version in self.refuses:
            raise AdapterRefused(f"version {version} has another shape")
        return DraftWeights(version)

    def load(self, weights: DraftWeights) -> None:
        self.adapter_version = weights.adapter_version


def write_adapter(folder: Path) -> None:
    save_file({"x": torch.zeros(2)}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")


def publish(registry: Registry, *, promote: bool = True) -> int:
    version = registry.publish(write_adapter, ManifestFields("base", DraftShape("block", 2)))
    if promote:
        registry.promote(version, "test")
    return version


class Scene:
    """A registry, a drafter and a watcher over them."""

    def __init__(self, root: Path) -> None:
        self.registry = Registry(root)
        self.drafter = FakeDrafter()
        self.slot = AdapterSlot(self.drafter, lambda: 0.0)
        self.new_watcher()

    def new_watcher(self) -> None:
        self.watcher = AdapterWatcher(self.registry, self.drafter, self.slot, 0.01)

    def poll(self) -> int:
        """The version that drafts after one look and one round."""
        self.watcher.poll()
        self.slot.swap_if_staged()
        return self.drafter.adapter_version

    def counts(self) -> tuple[int, int]:
        return self.slot.counts()["swapped"], self.slot.counts()["refused"]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "adapters")


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10])


def test_a_promoted_version_is_staged_once(scene: Scene) -> None:
    scene.watcher.load_first()
    assert scene.poll() == 0
    publish(scene.registry, promote=False)
    assert scene.poll() == 0
    scene.registry.promote(1, "test")
    assert scene.poll() == 1
    assert scene.poll() == 1
    assert scene.drafter.prepared == [1]
    assert scene.counts() == (1, 0)
    assert scene.watcher.in_service == 1
    assert scene.watcher.promoted_s == scene.registry.history()[-1].time_s


class Seen(DraftWeights):
    """Weights whose end can be seen: a subclass without slots."""


def test_the_weights_that_a_version_replaced_are_let_go_at_the_next_look(scene: Scene) -> None:
    replaced = Seen(7)
    end = weakref.ref(replaced)
    scene.slot.stage(replaced)
    scene.slot.swap_if_staged()
    del replaced
    publish(scene.registry)
    assert scene.poll() == 1
    assert end() is not None  # its end is not the decode thread's work
    scene.watcher.poll()
    assert end() is None


def test_a_version_is_prepared_without_hurry(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[str] = []
    is_prepared = threading.Event()

    def prepare(_: Adapter | None) -> DraftWeights:
        matrix = torch.ones(1000, 1000)
        matrix @ matrix
        is_prepared.set()
        return DraftWeights(1)

    monkeypatch.setattr(scene.drafter, "prepare", prepare)
    monkeypatch.setattr(time, "sleep", lambda _: slept.append(threading.current_thread().name))
    scene.watcher.load_first()
    publish(scene.registry)
    with scene.watcher:
        assert is_prepared.wait(10.0)
    assert "watcher" in slept
    slept.clear()
    scene.new_watcher()
    scene.watcher.load_first()  # nobody decodes yet: nothing waits
    assert slept == []


def test_the_version_in_service_is_loaded_at_start(scene: Scene) -> None:
    publish(scene.registry)
    assert scene.watcher.load_first() == 1
    assert scene.poll() == 1
    assert scene.counts() == (0, 0)  # decoding did not stand still for it


@pytest.mark.parametrize("damage", [flip_a_byte, truncate, Path.unlink])
@pytest.mark.parametrize("name", ["adapter_model.safetensors", "manifest.json"])
def test_a_broken_version_at_start_gives_way_to_an_older_one_and_is_counted(
    scene: Scene, damage: Callable[[Path], None], name: str
) -> None:
    publish(scene.registry)
    publish(scene.registry)
    damage(scene.registry.root / "v000002" / name)
    assert scene.watcher.load_first() == 1
    assert scene.poll() == 1
    assert scene.counts() == (0, 1)


def test_with_no_whole_version_the_untrained_draft_serves(scene: Scene) -> None:
    publish(scene.registry)
    flip_a_byte(scene.registry.root / "v000001" / "adapter_model.safetensors")
    assert scene.watcher.load_first() == 0
    assert scene.counts() == (0, 1)


def test_a_rolled_back_version_is_not_taken_at_start(scene: Scene) -> None:
    for _ in range(3):
        publish(scene.registry)
    scene.registry.rollback("test")
    flip_a_byte(scene.registry.root / "v000002" / "adapter_model.safetensors")
    assert scene.watcher.load_first() == 1
    assert 3 not in scene.drafter.prepared


def test_a_refused_version_leaves_the_old_one_and_is_counted_once(scene: Scene) -> None:
    publish(scene.registry)
    assert scene.poll() == 1
    scene.drafter.refuses = {2}
    publish(scene.registry)
    for _ in range(3):
        assert scene.poll() == 1
    assert scene.counts() == (1, 1)
    publish(scene.registry)
    assert scene.poll() == 3


def test_a_rollback_is_followed_down_to_the_untrained_draft(scene: Scene) -> None:
    publish(scene.registry)
    assert scene.poll() == 1
    scene.registry.rollback("test")
    assert scene.poll() == 0
    assert scene.counts() == (2, 0)


def test_while_the_registry_is_away_the_version_in_service_stays(scene: Scene) -> None:
    publish(scene.registry)
    publish(scene.registry)
    assert scene.poll() == 2
    root, away = scene.registry.root, scene.registry.root.with_name("away")
    root.rename(away)
    for _ in range(3):
        assert scene.poll() == 2
    desk = RegistryDesk(
        scene.registry, scene.watcher, scene.slot, LiveAcceptance(), TrainerControl(root)
    )
    for act in (desk.rollback, lambda: desk.promote(1)):
        with pytest.raises(FileNotFoundError):
            act()
    assert not root.exists()
    away.rename(root)
    assert scene.poll() == 2
    assert scene.counts() == (1, 0)
    publish(scene.registry)
    assert scene.poll() == 3
    assert scene.registry.rollback("test") == 2


def test_the_thread_swaps_and_wakes_at_once(scene: Scene) -> None:
    scene.watcher = AdapterWatcher(scene.registry, scene.drafter, scene.slot, 30.0)
    control = TrainerControl(scene.registry.root / "control.json")
    desk = RegistryDesk(scene.registry, scene.watcher, scene.slot, LiveAcceptance(), control)
    publish(scene.registry, promote=False)
    with scene.watcher:
        assert desk.promote(1) == 1
        for _ in range(500):
            if scene.slot.swap_if_staged():
                break
            scene.watcher._thread.join(0.01)
    assert scene.drafter.adapter_version == 1
    assert desk.overview()["live"] == desk.overview()["current"] == 1
    assert [row["version"] for row in desk.overview()["versions"]] == [1]
    assert desk.rollback() == 0
    with pytest.raises(ValueError, match="v000007"):
        desk.promote(7)
