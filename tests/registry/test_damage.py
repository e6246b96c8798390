from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dvi.registry import Registry, RegistryError
from tests.registry.fakes import Files, fields

CONTEXT = multiprocessing.get_context("fork")
ADAPTER = "adapter_model.safetensors"


def flip_byte(folder: Path) -> None:
    data = bytearray((folder / ADAPTER).read_bytes())
    data[-1] ^= 1
    (folder / ADAPTER).write_bytes(data)


def cut(folder: Path) -> None:
    (folder / ADAPTER).write_bytes((folder / ADAPTER).read_bytes()[:-4])


def drop_tensors(folder: Path) -> None:
    (folder / ADAPTER).unlink()


def add_pickle(folder: Path) -> None:
    (folder / "adapter_model.bin").write_bytes(pickle.dumps([1]))


def add_unlisted(folder: Path) -> None:
    (folder / "more.safetensors").write_bytes(b"")


def link_outside(folder: Path) -> None:
    outside = folder.parent.parent / "outside"
    (folder / ADAPTER).rename(outside)
    (folder / ADAPTER).symlink_to(outside)


def make_pipe(folder: Path) -> None:
    (folder / ADAPTER).unlink()
    os.mkfifo(folder / ADAPTER)


def tear_manifest(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text[: len(text) // 2])


def edit_manifest(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        raw = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**raw, **changes}))

    return edit


def list_escape(folder: Path) -> None:
    (folder.parent.parent / "secret.json").write_text("{}")
    raw = json.loads((folder / "manifest.json").read_text())
    raw["sha256"]["../../secret.json"] = raw["sha256"]["adapter_config.json"]
    (folder / "manifest.json").write_text(json.dumps(raw))


def link_folder(folder: Path) -> None:
    outside = folder.parent.parent / "elsewhere"
    folder.rename(outside)
    folder.symlink_to(outside)


def list_pickle(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"")
    raw = json.loads((folder / "manifest.json").read_text())
    raw["sha256"]["weights.bin"] = (
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )
    (folder / "manifest.json").write_text(json.dumps(raw))


DAMAGES = [
    flip_byte,
    cut,
    drop_tensors,
    add_pickle,
    add_unlisted,
    link_outside,
    make_pipe,
    tear_manifest,
    list_escape,
    list_pickle,
    link_folder,
    edit_manifest(version=7),
    edit_manifest(drafter={"kind": "block"}),
    edit_manifest(surprise=1),
    edit_manifest(sha256=None),
    edit_manifest(sha256={}),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_version_is_refused_in_one_line(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    registry = Registry(tmp_path / "adapters")
    registry.publish(Files(), fields())
    registry.read(1)
    damage(tmp_path / "adapters" / "v000001")
    with pytest.raises(RegistryError) as caught:
        registry.read(1)
    assert "\n" not in str(caught.value)
    assert "version 1:" in str(caught.value) or "v000001" in str(caught.value)


def test_bytes_that_are_no_safetensors_are_refused_even_with_the_right_hash(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / ADAPTER).write_bytes(pickle.dumps({"a": 1}))
        (folder / "adapter_config.json").write_text("[]")

    registry = Registry(tmp_path)
    registry.publish(write, fields())
    with pytest.raises(RegistryError, match="safetensors"):
        registry.read(1)


@pytest.mark.parametrize("torn", [b"", b"2", b"\x00\x00", b"v2\n", b"99\n", b"-1\n", b"2\n2\n"])
def test_a_torn_pointer_falls_back_to_the_newest_whole_version_in_service(
    tmp_path: Path, torn: bytes
) -> None:
    registry = Registry(tmp_path)
    for version in (1, 2, 3):
        registry.publish(Files(), fields())
        if version < 3:
            registry.promote(version, "good")
    (tmp_path / "CURRENT").write_bytes(torn)
    assert registry.current() == 2
    (tmp_path / "v000002" / "manifest.json").unlink()
    assert registry.current() == 1
    (tmp_path / "history.jsonl").unlink()
    assert registry.current() == 0


def test_a_pointer_to_a_half_made_folder_is_survived(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    for _ in range(2):
        registry.promote(registry.publish(Files(), fields()), "good")
    (tmp_path / "v000002" / ADAPTER).unlink()
    assert registry.current() == 1
    assert [manifest.version for manifest in registry.versions()] == [1]
    assert registry.publish(Files(), fields()) == 3


def test_a_torn_line_of_history_hides_nothing_else(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.promote(registry.publish(Files(), fields()), "good")
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(b'{"act":"promote","version":9,"re')
    registry.promote(registry.publish(Files(), fields()), "good")
    assert [event.version for event in registry.history()] == [1, 1, 2, 2]
    assert registry.rollback("worse") == 1


def test_an_act_cut_between_history_and_pointer_is_finished_by_the_next(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    for _ in range(2):
        registry.promote(registry.publish(Files(), fields()), "good")
    (tmp_path / "CURRENT").write_text("1\n")  # as if killed before the pointer was replaced
    assert registry.current() == 1
    registry.publish(Files(), fields())
    assert registry.current() == 2


def test_leftovers_of_a_killed_publisher_are_removed(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.publish(Files(), fields())
    (tmp_path / ".tmp-2-999").mkdir()
    (tmp_path / ".tmp-2-999" / ADAPTER).write_bytes(b"half")
    (tmp_path / ".tmp-CURRENT-999").write_bytes(b"ha")
    registry.publish(Files(), fields())
    assert list(tmp_path.glob(".tmp*")) == []


def _publish_for_ever(root: Path) -> None:
    registry = Registry(root, keep_versions=4)
    while True:
        version = registry.publish(Files(num=5000), fields(parent=registry.current()))
        registry.promote(version, "good")
        if version % 3 == 0:
            registry.rollback("worse")


def kill_rounds(root: Path, num_rounds: int, seed: int) -> None:
    """Kill a publishing process at random points; the registry must load and go on each time."""
    rng = random.Random(seed)
    registry = Registry(root)
    newest = 0
    for _ in range(num_rounds):
        process = CONTEXT.Process(target=_publish_for_ever, args=(root,))
        process.start()
        time.sleep(0.1 + rng.random() * 0.2)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        manifests = registry.versions()
        for manifest in manifests:
            registry.read(manifest.version)
        if live := registry.current():
            registry.read(live)
        version = registry.publish(Files(), fields())
        assert version > max([newest, *(manifest.version for manifest in manifests)])
        newest = version
        registry.promote(version, "by hand")
        assert registry.current() == version
        assert list(root.glob(".tmp*")) == []


def test_kill_9_leaves_a_registry_that_loads(tmp_path: Path) -> None:
    kill_rounds(tmp_path, num_rounds=5, seed=0)


@pytest.mark.slow
def test_kill_9_leaves_a_registry_that_loads_in_many_rounds(tmp_path: Path) -> None:
    kill_rounds(tmp_path, num_rounds=100, seed=1)


def _publish_some(root: Path, num: int) -> None:
    registry = Registry(root, keep_versions=100)
    for _ in range(num):
        registry.promote(registry.publish(Files(), fields()), "good")


def test_publishing_processes_take_turns(tmp_path: Path) -> None:
    processes = [CONTEXT.Process(target=_publish_some, args=(tmp_path, 8)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    numbers = [manifest.version for manifest in Registry(tmp_path).versions()]
    assert numbers == list(range(1, 25))


def test_readers_beside_a_pruning_publisher_get_whole_versions_or_a_refusal(tmp_path: Path) -> None:
    process = CONTEXT.Process(target=_publish_for_ever, args=(tmp_path,))
    process.start()
    registry = Registry(tmp_path)
    read = 0
    deadline = time.monotonic() + 30
    try:
        # 40 reads span some ten publications with their pruning.
        while read < 40 and time.monotonic() < deadline:
            for manifest in registry.versions():
                try:
                    adapter = registry.read(manifest.version)
                except RegistryError:
                    continue  # pruned in between
                assert adapter.manifest == manifest
                read += 1
    finally:
        process.kill()
        process.join()
    assert read >= 40
