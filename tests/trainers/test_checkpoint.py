"""One file, atomic, checked; damage falls back, foreign state is refused."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dvi.replay import RowKey
from trainers.checkpoint import (
    Checkpoint,
    CheckpointRefused,
    CheckpointStore,
    Counters,
    Identity,
    LineageEntry,
    check_identity,
)
from trainers.intake import IntakeState
from trainers.memory import MemoryState
from trainers.strata import StrataState


def make_checkpoint(steps: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(steps)
    return Checkpoint(
        identity=Identity("base", {"kind": "block", "alphas": {"a": 2.0}}),
        training_id=12345,
        tensors={
            "adapter/a": torch.randn(3, 4, generator=generator),
            "step/a": torch.tensor(float(steps)),
            "exp_avg/a": torch.randn(3, 4, generator=generator, dtype=torch.float64),
        },
        counters=Counters(steps=steps, promoted=2),
        baseline=0.125,
        debt_steps=0.5,
        gated_step=3,
        intake=IntakeState(
            cursor={"w": 9, "x": 2},
            holdout=(RowKey("w", 9),),
            memory=MemoryState(
                newest=(RowKey("x", 1), RowKey("x", 2)),
                reservoir=(RowKey("w", 1),),
                num_spilled=4,
                strata=StrataState(((RowKey("w", 1), 7),), ((7, 1),), ((0, 4),)),
            ),
            num_admitted=11,
            num_missing=1,
        ),
        root_version=1,
        lineage=(LineageEntry(3, 1, True, 2), LineageEntry(6, 2, False, None)),
    )


def assert_equal(one: Checkpoint | None, other: Checkpoint) -> None:
    assert one is not None
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        assert tensor.dtype == other.tensors[name].dtype
        assert torch.equal(tensor, other.tensors[name])
    assert replace(one, tensors={}) == replace(other, tensors={})


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "trainer")
    path = store.save(make_checkpoint(6))
    loaded, damaged = store.load()
    assert_equal(loaded, make_checkpoint(6))
    assert damaged == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_newest_two_files_stay(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for steps in range(1, 13):
        store.save(make_checkpoint(steps))
    assert len(list(tmp_path.iterdir())) == 2
    loaded, _ = store.load()
    assert_equal(loaded, make_checkpoint(12))


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "nowhere").load() == (None, [])


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.999])
def test_a_torn_newest_file_falls_back_to_the_one_before(tmp_path: Path, share: float) -> None:
    store = CheckpointStore(tmp_path)
    store.save(make_checkpoint(5))
    newest = store.save(make_checkpoint(6))
    data = newest.read_bytes()
    newest.write_bytes(data[: int(len(data) * share)])
    loaded, damaged = store.load()
    assert_equal(loaded, make_checkpoint(5))
    assert damaged == [newest]


def test_one_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(make_checkpoint(5))
    newest = store.save(make_checkpoint(6))
    data = newest.read_bytes()
    for index in range(0, len(data), 7):
        newest.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        loaded, _ = store.load()
        # A bit of JSON padding changes nothing that is read; all else must be passed over.
        assert loaded is not None
        assert_equal(loaded, make_checkpoint(loaded.counters.steps))
        if data[index : index + 1] not in b" ":
            assert loaded.counters.steps == 5


def test_a_save_that_is_cut_off_leaves_the_files_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.save(make_checkpoint(5))

    def cut_off(_descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", cut_off)
    with pytest.raises(OSError, match="no space"):
        store.save(make_checkpoint(6))
    monkeypatch.undo()
    loaded, damaged = store.load()
    assert_equal(loaded, make_checkpoint(5))
    assert damaged == []
    (tmp_path / ".tmp-checkpoint-00000002.safetensors-killed").write_bytes(b"half")
    store.save(make_checkpoint(7))
    assert_equal(store.load()[0], make_checkpoint(7))
    assert list(tmp_path.glob(".tmp*")) == []


def test_another_base_or_drafter_is_refused_in_one_line() -> None:
    saved = make_checkpoint(1)
    check_identity(saved, saved.identity)
    for name, value in (("base_fingerprint", "other"), ("drafter", {"kind": "head"})):
        with pytest.raises(CheckpointRefused, match=name) as refusal:
            check_identity(saved, replace(saved.identity, **{name: value}))
        assert "\n" not in str(refusal.value)
