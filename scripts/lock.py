"""Writes requirements.lock: exact pins of everything the project needs, from the running venv.

Run by hand after changing a dependency: `.venv/bin/python scripts/lock.py > requirements.lock`.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

HEAD = """\
# Exact pins of run-time, test and build packages; made by scripts/lock.py.
# torch has no local label, so that a CPU build and a CUDA build both satisfy it."""


def _wanted(requirement: Requirement, extras: set[str]) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in (extras or {""}))


def _closure(start: list[Requirement]) -> dict[str, str]:
    pins: dict[str, str] = {}
    done: set[tuple[str, str]] = set()
    queue = list(start)
    while queue:
        requirement = queue.pop()
        key = (canonicalize_name(requirement.name), ",".join(sorted(requirement.extras)))
        if key in done:
            continue
        done.add(key)
        found = distribution(requirement.name)
        pins[key[0]] = Version(found.version).public
        needs = [Requirement(text) for text in found.requires or []]
        queue += [need for need in needs if _wanted(need, requirement.extras)]
    return pins


def main() -> None:
    """Print the lock."""
    root = Path(__file__).resolve().parent.parent
    data = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    project = data["project"]
    texts = [*project["dependencies"], *data["build-system"]["requires"]]
    for extra in project["optional-dependencies"].values():
        texts += extra
    pins = _closure([Requirement(text) for text in texts])
    print(HEAD)
    for name in sorted(pins):
        print(f"{name}=={pins[name]}")


if __name__ == "__main__":
    main()
