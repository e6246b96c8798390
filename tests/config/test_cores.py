"""Cores of a process: what it may run on, and what a container's limit leaves of it."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from dvi.config import cores
from dvi.config.cores import cpu_limit, has_cpu_limit, num_cores


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


def limit(tmp_path: Path, own: str) -> float:
    (tmp_path / "own").write_text(own)
    return cpu_limit(tmp_path / "own", tmp_path / "cgroup")


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    group(tmp_path / "cgroup/pod/box", cpu_max="max 100000\n")
    group(tmp_path / "cgroup/pod", cpu_max="250000 100000\n")
    assert limit(tmp_path, "0::/pod/box\n") == 2.5
    group(tmp_path / "cgroup/pod/box", cpu_max="150000 100000\n")
    assert limit(tmp_path, "0::/pod/box\n") == 1.5


def test_a_container_that_sees_only_its_own_group_finds_its_limit(tmp_path: Path) -> None:
    group(tmp_path / "cgroup", cpu_max="400000 100000\n")
    assert limit(tmp_path, "0::/kubepods/of/the/host\n") == 4.0
    assert limit(tmp_path, "0::/\n") == 4.0


def test_version_one_has_its_own_files_under_the_controllers_name(tmp_path: Path) -> None:
    folder = tmp_path / "cgroup/cpu,cpuacct/docker/box"
    group(folder, cpu_cfs_quota_us="300000\n", cpu_cfs_period_us="100000\n")
    own = "4:memory:/docker/box\n3:cpu,cpuacct:/docker/box\n1:name=systemd:/docker/box\n"
    assert limit(tmp_path, own) == 3.0
    group(folder, cpu_cfs_quota_us="-1\n")
    assert limit(tmp_path, own) == math.inf


def test_without_groups_or_with_torn_ones_there_is_no_limit(tmp_path: Path) -> None:
    assert cpu_limit(tmp_path / "absent", tmp_path) == math.inf
    assert limit(tmp_path, "") == math.inf
    group(tmp_path / "cgroup/box", cpu_max="\n")
    assert limit(tmp_path, "0::/box\n") == math.inf


@pytest.mark.parametrize(
    ("allowed_s", "expected"), [(2.9, 2), (2.0, 2), (0.5, 1), (64.0, 4), (math.inf, 4)]
)
def test_whole_cores_within_both_bounds(
    monkeypatch: pytest.MonkeyPatch, allowed_s: float, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(cores, "cpu_limit", lambda: allowed_s)
    assert num_cores() == expected
    assert has_cpu_limit() == (allowed_s < 4)
