"""Checks of the machine: Python, packages, cores, disk, device.

Owns what the project needs of a machine; knows nothing of models or state.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from dvi import __version__
from dvi.config import DviConfig
from dvi.config.cores import has_cpu_limit, num_cores
from dvi.config.home import PACKAGE_DIR, dvi_home, in_checkout, state_dir
from dvi.doctor.finding import Finding, fault, ok, warning
from dvi.native.find import can_run, compiled_files

DISTRIBUTION = "dvi-serving"
LEAST_PYTHON = (3, 11)
SPARE_BYTES = 1 << 30  # for adapters, checkpoints and logs beside the store
NVIDIA = Path("/dev/nvidia0")


def check_python() -> Finding:
    """New enough."""
    found = sys.version_info[:2]
    text = f"dvi {__version__} on Python {platform.python_version()}, {platform.platform()}"
    if found >= LEAST_PYTHON:
        return ok("python", text)
    return fault(
        "python",
        f"{text}; Python {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or newer is needed",
        "sudo apt install python3 python3-venv   (macOS: brew install python@3.12)",
    )


def check_packages() -> Finding:
    """Every package that this project requires is there in a version that it allows."""
    wrong = [text for text in map(_wrong_package, _requirements()) if text]
    if not wrong:
        return ok("packages", f"torch {version('torch')}, all others in their ranges")
    command = f"{sys.executable} -m pip install --upgrade {DISTRIBUTION}"
    if in_checkout():
        lock = PACKAGE_DIR.parent / "requirements.lock"
        command = f"{sys.executable} -m pip install -r {lock}"
    return fault("packages", "; ".join(wrong), command)


def _requirements() -> list[Requirement]:
    """What pyproject.toml names; nothing where the project runs uninstalled from its sources."""
    try:
        texts = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []
    wanted = [Requirement(text) for text in texts]
    return [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]


def _wrong_package(wanted: Requirement) -> str:
    """Why a requirement is not met; empty where it is."""
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        return f"{wanted.name} is missing"
    if wanted.specifier.contains(found, prereleases=True):
        return ""
    return f"{wanted.name} is {found}, allowed: {wanted.specifier}"


def check_threads(config: DviConfig) -> Finding:
    """More decode threads than cores make every step wait."""
    cores, wanted = num_cores(), config.model.num_threads
    text = f"{wanted or cores} of {cores} cores decode, {config.trainer.num_threads} train"
    if wanted > cores:
        message = f"model.num_threads={wanted} on {cores} cores"
        return fault("threads", message, f"dvi serve model.num_threads={cores}")
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdecimal() and int(limit) > cores:
        message = f"OMP_NUM_THREADS={limit} on {cores} cores"
        return fault("threads", message, "unset OMP_NUM_THREADS")
    if cores == 1 and config.trainer.enabled:
        return warning("threads", "one core: the trainer slows answers", "trainer.enabled=false")
    if has_cpu_limit() and config.trainer.enabled:
        message = f"{text}; training takes from the same limit on CPU time, whatever its priority"
        return warning("threads", message, "docker run --cpuset-cpus=0-3 instead of --cpus=4")
    return ok("threads", text)


def check_kernels() -> Finding:
    """The kernels of decode steps are compiled, where this processor can run them."""
    if not can_run():
        return ok("kernels", "torch computes all: ours are for AVX-512 with VNNI")
    if compiled_files():
        return ok("kernels", "ours are compiled for this processor")
    package = DISTRIBUTION
    if in_checkout():
        package = f"--no-build-isolation -e {PACKAGE_DIR.parent}"
    install = f"{sys.executable} -m pip install --force-reinstall --no-deps {package}"
    message = "not compiled, so that decode steps take longer than they need"
    return warning("kernels", message, f"sudo apt install gcc && {install}")


def nearest_folder(path: Path) -> Path:
    """The path or the nearest folder above it that exists."""
    while not path.is_dir():
        path = path.parent
    return path


def check_disk(config: DviConfig) -> Finding:
    """DVI_HOME and the state folder can be written and hold what the store may grow to."""
    for folder in (dvi_home(), state_dir(config)):
        place = nearest_folder(folder)
        if not os.access(place, os.W_OK | os.X_OK):
            message = f"{place} cannot be written, and {folder} is to be there"
            return fault("disk", message, "export DVI_HOME=/a/folder/of/yours")
    place = nearest_folder(state_dir(config))
    free = shutil.disk_usage(place).free
    needed = config.replay.max_bytes + SPARE_BYTES
    text = f"{free / 2**30:.1f} GiB free at {place}"
    if free < needed:
        message = f"{text}; store, adapters and logs may take {needed / 2**30:.1f} GiB"
        smaller = max((free - SPARE_BYTES) // 2, 1 << 26)
        return fault("disk", message, f"dvi serve replay.max_bytes={smaller}")
    return ok("disk", text)


def check_device(config: DviConfig, has_gpu: bool | None = None) -> Finding:
    """A GPU that is asked for is there, and this torch can use it."""
    has_gpu = NVIDIA.exists() if has_gpu is None else has_gpu
    wanted = config.model.device
    cpu_build = version("torch").endswith("+cpu")
    if wanted == "cuda" and not has_gpu:
        return fault("device", f"model.device=cuda and no {NVIDIA}", "dvi serve model.device=cpu")
    if has_gpu and cpu_build and wanted != "cpu":
        message = f"a GPU is here and torch is {version('torch')}"
        command = f"{sys.executable} -m pip install --force-reinstall torch"
        return (fault if wanted == "cuda" else warning)("device", message, command)
    uses_gpu = has_gpu and wanted != "cpu"
    return ok("device", "GPU" if uses_gpu else f"CPU, model.dtype={config.model.dtype}")
