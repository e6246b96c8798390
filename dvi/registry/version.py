"""One version folder: what may be in it, its hashes, its bytes as tensors.

Owns the checks between files and ``Adapter``; knows neither other versions nor CURRENT. Works on
an open folder descriptor, so no path is resolved twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvi.registry.files import digest, open_folder, read_file
from dvi.registry.manifest import Adapter, Manifest, RegistryError, from_json

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
MANIFEST_FILE = "manifest.json"
VOCAB_FILE = "draft_vocab.safetensors"  # may be absent
ALLOWED_SUFFIXES = (".safetensors", ".json")  # kinds that cannot run code


def hash_files(folder: Path) -> dict[str, str]:
    """File name -> SHA-256 of a folder about to be published; RegistryError if it is not fit."""
    with open_folder(folder) as descriptor:
        names = os.listdir(descriptor)
        _check_names(names, folder.name)
        return {name: digest(read_file(descriptor, name)) for name in sorted(names)}


def read_manifest(folder: int, version: int) -> Manifest:
    """The manifest in the open ``folder``; every file that it names is there."""
    manifest = from_json(_read(folder, MANIFEST_FILE, version), version)
    present = set(os.listdir(folder)) - {MANIFEST_FILE}
    if missing := set(manifest.sha256) - present:
        raise RegistryError(f"version {version}: {', '.join(sorted(missing))} is missing")
    if strange := present - set(manifest.sha256):
        raise RegistryError(
            f"version {version}: {', '.join(sorted(strange))} is not in its manifest"
        )
    _check_names(present, f"version {version}")
    return manifest


def read_checked(folder: int, manifest: Manifest) -> dict[str, bytes]:
    """All files of the open ``folder``; RegistryError where one differs from its hash."""
    data: dict[str, bytes] = {}
    for name, expected in manifest.sha256.items():
        data[name] = _read(folder, name, manifest.version)
        if digest(data[name]) != expected:
            raise RegistryError(f"version {manifest.version}: {name} has a wrong hash")
    return data


def parse(manifest: Manifest, data: Mapping[str, bytes]) -> Adapter:
    """The adapter in these checked bytes."""
    return Adapter(
        version=manifest.version,
        tensors=_parse_tensors(data[ADAPTER_FILE], ADAPTER_FILE, manifest.version),
        adapter_config=_parse_config(data[CONFIG_FILE], manifest.version),
        manifest=manifest,
        draft_vocab=(
            _parse_tensors(data[VOCAB_FILE], VOCAB_FILE, manifest.version)
            if VOCAB_FILE in data
            else None
        ),
    )


def _read(folder: int, name: str, version: int) -> bytes:
    try:
        return read_file(folder, name)
    except RegistryError as error:
        raise RegistryError(f"version {version}: {error}") from error


def _check_names(names: set[str] | list[str], where: str) -> None:
    for required in (ADAPTER_FILE, CONFIG_FILE):
        if required not in names:
            raise RegistryError(f"{where}: {required} is missing")
    for name in names:
        if not name.endswith(ALLOWED_SUFFIXES):
            raise RegistryError(f"{where}: {name} is neither safetensors nor JSON")


def _parse_tensors(data: bytes, name: str, version: int) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return dict(load(data))
    except SafetensorError as error:
        raise RegistryError(f"version {version}: {name} is not safetensors") from error


def _parse_config(data: bytes, version: int) -> dict[str, Any]:
    try:
        config = json.loads(data)
    except ValueError as error:
        raise RegistryError(f"version {version}: {CONFIG_FILE} is not JSON") from error
    if not isinstance(config, dict):
        raise RegistryError(f"version {version}: {CONFIG_FILE} is not an object")
    return config
