"""CPU cores of this process.

Owns the count; needs no torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from dvi.config.engine import ModelConfig

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def num_cores() -> int:
    """Cores that this process may keep busy.

    Those that it may run on, and no more than a container's limit on CPU time allows (``docker
    --cpus``, Kubernetes ``limits.cpu``): threads beyond it would be stopped together, again and
    again.
    """
    return max(1, math.floor(min(_num_allowed(), cpu_limit())))


def decode_threads(config: ModelConfig) -> int:
    """CPU threads of the decode loop; 0 in the config is all that this process may use."""
    return config.num_threads or num_cores()


def has_cpu_limit() -> bool:
    """Whether CPU time is limited below the cores that this process may run on."""
    return cpu_limit() < _num_allowed()


def cpu_limit(own: Path = OWN_CGROUPS, mounted: Path = CGROUPS) -> float:
    """CPU seconds a second that the control groups of this process allow; inf without a limit.

    Both versions of Linux's control groups; a limit of a group above counts too.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return math.inf
    return min((limit for line in lines for limit in _limits(line, mounted)), default=math.inf)


def _num_allowed() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1


def _limits(line: str, mounted: Path) -> Iterator[float]:
    """The limits along one line of /proc/self/cgroup, ``number:controllers:path``.

    Inside a container the path may be the host's while its own group is what is mounted: the
    mounted folder itself is the last that is looked at.
    """
    _, controllers, path = line.split(":", 2)
    if controllers and "cpu" not in controllers.split(","):
        return
    root = mounted / controllers if controllers else mounted
    folder = root / path.lstrip("/")
    for place in (folder, *folder.parents):
        if not place.is_relative_to(root):
            return
        yield _limit_of(place)


def _limit_of(group: Path) -> float:
    try:
        if (group / "cpu.max").exists():  # version 2: "200000 100000" or "max 100000"
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        else:  # version 1: -1 is no limit
            quota = (group / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (group / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
    except (OSError, ValueError):  # no such group here
        return math.inf
    return float(quota) / float(period) if quota not in ("max", "-1") else math.inf
