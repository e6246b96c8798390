"""The resolved config as a JSON file: how one process hands it to another.

Owns the file; holds no secrets, so a child that needs one reads the environment.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dvi.config.files import replace_file
from dvi.config.root import DviConfig
from dvi.config.secrets import has_password
from dvi.config.validate import ConfigError, from_mapping, to_mapping


def without_secrets(config: DviConfig) -> dict[str, Any]:
    """Nested plain data with keys and passwords nulled (DVI_API_KEY, DVI_REPLAY_URL carry them)."""
    data = to_mapping(config)
    data["serving"]["api_key"] = None
    url = data["replay"]["url"]
    if url is not None and has_password(url):
        data["replay"]["url"] = None
    return data


def dump_config(config: DviConfig, path: Path) -> None:
    """Write the config without secrets, mode 0600, complete or not at all; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = json.dumps(without_secrets(config), indent=2) + "\n"
    replace_file(path, text.encode(), durable=False)


def load_config(path: Path) -> DviConfig:
    """Read and check what `dump_config` wrote. Raises ConfigError naming the file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the config {path}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"the config {path} is not a JSON object")
    return from_mapping(data)
