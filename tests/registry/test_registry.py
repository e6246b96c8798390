from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from dvi.registry import Act, Registry, RegistryError
from tests.registry.fakes import SHAPE, Files, fields


def publish(registry: Registry, num: int = 1, *, promote: bool = False) -> int:
    version = 0
    for _ in range(num):
        version = registry.publish(Files(), fields())
        if promote:
            registry.promote(version, "better")
    return version


def numbers(registry: Registry) -> list[int]:
    return [manifest.version for manifest in registry.versions()]


def test_reading_an_absent_registry_creates_nothing(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "adapters")
    assert registry.current() == 0
    assert registry.versions() == []
    assert registry.history() == []
    with pytest.raises(RegistryError):
        registry.read(1)
    assert not (tmp_path / "adapters").exists()


def test_nothing_but_a_first_version_makes_the_folder(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "adapters")
    publish(registry, promote=True)
    (tmp_path / "adapters").rename(tmp_path / "away")
    with pytest.raises(OSError, match="No such file"):
        registry.promote(0, "by hand")
    with pytest.raises(OSError, match="No such file"):
        registry.rollback("guard")
    with pytest.raises(OSError, match="No such file"):
        registry.note(Act.SETTLE, 1, "canary")
    with pytest.raises(RegistryError, match="is not there"):
        registry.publish(Files(), fields(parent=1))
    (tmp_path / "away").rename(tmp_path / "adapters")  # nothing is in its way
    assert registry.current() == 1


def test_a_published_version_comes_back_as_it_was(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "adapters", now_s=lambda: 99.5)
    version = registry.publish(Files(0.25), fields(parent=0, step=40))
    assert version == 1
    adapter = registry.read(1)
    assert adapter.version == 1
    assert adapter.adapter_config == {"r": 32}
    (tensor,) = adapter.tensors.values()
    assert tensor.tolist() == [0.25] * 8
    manifest = adapter.manifest
    assert (manifest.version, manifest.parent, manifest.checkpoint_step) == (1, 0, 40)
    assert (manifest.rows_trained, manifest.created_s) == (120, 99.5)
    assert manifest.drafter == SHAPE
    assert manifest.metrics == {"alpha": 0.5}
    assert set(manifest.sha256) == {"adapter_model.safetensors", "adapter_config.json"}
    on_disk = json.loads((tmp_path / "adapters/v000001/manifest.json").read_text())
    assert on_disk == asdict(manifest)


def test_publishing_does_not_promote(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry, 2)
    assert registry.current() == 0
    registry.promote(2, "gate: +0.1")
    assert registry.current() == 2
    event = registry.history()[-1]
    assert (event.act, event.version, event.replaced) == (Act.PROMOTE, 2, 0)
    assert event.reason == "gate: +0.1"


def test_files_and_folders_are_private(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "adapters")
    publish(registry, 1, promote=True)
    for path in [tmp_path / "adapters", *(tmp_path / "adapters").rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_rollback_goes_to_the_version_in_service_before(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry, 4)
    for version in (1, 2, 4):
        registry.promote(version, "better")
    assert registry.rollback("worse") == 2
    registry.promote(3, "better")
    assert registry.rollback("worse") == 2  # not 4, which was rolled back
    assert registry.rollback("worse") == 1
    assert registry.rollback("worse") == 0
    assert registry.rollback("still") == 0
    assert registry.current() == 0
    registry.promote(4, "by hand")
    assert registry.current() == 4
    assert registry.rollback("worse") == 0


def test_a_version_that_was_rolled_back_is_not_returned_to_from_further_down(
    tmp_path: Path,
) -> None:
    registry = Registry(tmp_path)
    publish(registry, 2)
    for version in (1, 2, 1):
        registry.promote(version, "better")
    assert registry.rollback("worse") == 2
    assert registry.rollback("worse") == 0  # 1 was in service before 2, but was rolled back since


def test_a_retired_version_is_in_service_no_more_whatever_came_after_it(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry, 3, promote=True)
    assert registry.current(besides={3}) == 2
    registry.retire(2, "worse")
    assert registry.current() == 3
    assert registry.current(besides={3}) == 1
    registry.retire(3, "worse")
    assert registry.current() == 1
    acts = [(one.act, one.version) for one in registry.history()[-2:]]
    assert acts == [(Act.DISMISS, 2), (Act.ROLLBACK, 1)]
    length = len(registry.history())
    for version in (2, 3):
        registry.retire(version, "worse")  # it is out
    with pytest.raises(RegistryError, match="no version 7"):
        registry.retire(7, "worse")
    assert len(registry.history()) == length


def test_promoting_the_live_version_again_changes_no_rollback(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry, 2)
    for version in (1, 2, 2):
        registry.promote(version, "again")
    assert registry.rollback("worse") == 1


def test_the_untrained_draft_can_be_promoted_and_left_again(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry, 1, promote=True)
    registry.promote(0, "by hand")
    assert registry.current() == 0
    assert registry.rollback("back") == 1


def test_rollback_passes_over_broken_versions(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry, 3, promote=True)
    (tmp_path / "v000002" / "manifest.json").unlink()
    assert registry.rollback("worse") == 1


def test_numbers_are_never_given_out_again(tmp_path: Path) -> None:
    registry = Registry(tmp_path, keep_versions=2)
    publish(registry, 3)
    for path in tmp_path.glob("v*"):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    assert publish(registry) == 4
    (tmp_path / "history.jsonl").unlink()  # without it the folders still count
    assert publish(registry) == 5


def test_pruning_keeps_the_newest_the_live_one_its_parent_and_its_rollback(tmp_path: Path) -> None:
    registry = Registry(tmp_path, keep_versions=3)
    publish(registry, 3)
    registry.publish(Files(), fields(parent=2))  # version 4
    registry.promote(3, "before")  # where a rollback goes
    registry.promote(4, "live")
    publish(registry, 5)
    assert numbers(registry) == [2, 3, 4, 7, 8, 9]
    assert registry.rollback("worse") == 3


def test_a_version_being_read_is_not_pruned(tmp_path: Path) -> None:
    registry = Registry(tmp_path, keep_versions=2)
    publish(registry, 2)
    with registry._opened(1):
        publish(registry, 3)
        assert 1 in numbers(registry)
    publish(registry)
    assert numbers(registry) == [5, 6]


def test_a_failing_writer_of_files_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        Files()(folder)
        raise OSError("disk full")

    registry = Registry(tmp_path)
    with pytest.raises(OSError, match="disk full"):
        registry.publish(fail, fields())
    assert registry.versions() == []
    assert {path.name for path in tmp_path.iterdir()} <= {".lock", "history.jsonl"}
    assert publish(registry) >= 1


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter_model.pt", "README.md"])
def test_publishing_other_kinds_of_files_is_refused(tmp_path: Path, name: str) -> None:
    def write(folder: Path) -> None:
        Files()(folder)
        (folder / name).write_bytes(b"x")

    registry = Registry(tmp_path)
    with pytest.raises(RegistryError, match=name):
        registry.publish(write, fields())
    assert registry.versions() == []


def test_publishing_without_tensors_is_refused(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    with pytest.raises(RegistryError, match="adapter_model"):
        registry.publish(lambda folder: None, fields())


def test_promoting_what_is_not_there_or_broken_changes_nothing(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry, 2)
    registry.promote(1, "good")
    (tmp_path / "v000002" / "adapter_config.json").write_text("{}")
    for version in (2, 3, -1):
        with pytest.raises(RegistryError):
            registry.promote(version, "no")
    assert registry.current() == 1
    assert registry.rollback("worse") == 0  # the failed promotions left no trace
