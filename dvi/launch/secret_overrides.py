"""Takes secrets out of overrides before Hydra sees them, and puts them into the config after.

Hydra prints and stores overrides in many places; what it never had it cannot leak.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser

from dvi.config import DviConfig
from dvi.config.secrets import MASK, SECRET_KEYS, has_password, mask
from dvi.launch.request import quoted

log = logging.getLogger(__name__)
_INSTEAD = {"serving.api_key": "DVI_API_KEY", "replay.url": "DVI_REPLAY_URL"}


@dataclass(frozen=True, slots=True)
class SplitOverrides:
    """Overrides that are safe to show, and the secret values by key."""

    shown: tuple[str, ...]
    secrets: Mapping[str, str]


def _secret_value(text: str) -> tuple[str, str] | None:
    key = text.lstrip("+").partition("=")[0]
    if key not in SECRET_KEYS and not (key == "replay.url" and has_password(text)):
        return None
    value = OverridesParser.create().parse_override(text).value()
    return None if value is None else (key, str(value))


def split_secrets(overrides: Iterable[str]) -> SplitOverrides:
    """Split the overrides. Raises Hydra's parse error for one that is not of its grammar."""
    shown, secrets = [], {}
    for text in overrides:
        found = _secret_value(text)
        if found is None:
            shown.append(text)
            continue
        key, value = found
        secrets[key] = value
        masked = MASK if key in SECRET_KEYS else mask(value)
        shown.append(f"{text.partition('=')[0]}={quoted(masked)}")
    return SplitOverrides(tuple(shown), secrets)


def put_secrets(config: DviConfig, secrets: Mapping[str, str]) -> None:
    """Give the config the real values of the masked overrides."""
    if "serving.api_key" in secrets:
        config.serving.api_key = secrets["serving.api_key"]
    if "replay.url" in secrets:
        config.replay.url = secrets["replay.url"]


def warn_and_export(config: DviConfig, secrets: Mapping[str, str]) -> None:
    """Warn about secrets on the command line; children find the store's URL in the environment."""
    for key in secrets:
        log.warning("%s on the command line is visible to others: use %s", key, _INSTEAD[key])
    url = config.replay.url
    if url is not None and has_password(url):
        os.environ["DVI_REPLAY_URL"] = url
