"""From a plain mapping to a checked DviConfig, and the errors a user reads.

Owns the messages; does not know whether a value came from an override, a file or a test.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dvi.config.root import DviConfig
from dvi.config.schema import Leaf, leaves


class ConfigError(ValueError):
    """A wrong key or value; the message is one line and fit for the user."""


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """The known key most like this one: of the same last part, else by the whole dotted name, else
    by the last part."""
    known = list(known)
    last = key.rsplit(".", 1)[-1]
    same_name = [name for name in known if name.rsplit(".", 1)[-1] == last]
    if same_name:
        return difflib.get_close_matches(key, same_name, n=1, cutoff=0.0)[0]
    whole = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if whole:
        return whole[0]
    by_last = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    close = difflib.get_close_matches(last, by_last, n=1, cutoff=0.75)
    if close:
        return by_last[close[0]]
    loose = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return loose[0] if loose else None


def unknown_key(key: str) -> ConfigError:
    """The error for a key that does not exist, with the nearest one that does."""
    near = nearest_key(key, [leaf.key for leaf in leaves()])
    hint = f"; did you mean `{near}`?" if near else "; `dvi <command> --help` lists all keys"
    return ConfigError(f"unknown config key `{key}`{hint}")


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _typed(leaf: Leaf, value: Any) -> Any:
    """The value in the leaf's type; an int is a float, nothing else is converted."""
    if value is None:
        if leaf.optional:
            return None
        raise ConfigError(f"`{leaf.key}` must not be null")
    if leaf.kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if leaf.kind is int and isinstance(value, bool):
        raise ConfigError(f"`{leaf.key}` must be int, got {value!r}")
    if not isinstance(value, leaf.kind):
        raise ConfigError(f"`{leaf.key}` must be {leaf.kind.__name__}, got {value!r}")
    return value


def check_value(leaf: Leaf, value: Any) -> Any:
    """The typed value, or ConfigError with the allowed choices or range."""
    value = _typed(leaf, value)
    if value is None:
        return value
    if leaf.choices and value not in leaf.choices:
        raise ConfigError(f"`{leaf.key}` must be one of {', '.join(leaf.choices)}; got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"`{leaf.key}` must be a finite number, got {value!r}")
    too_low = leaf.low is not None and value < leaf.low
    too_high = leaf.high is not None and value > leaf.high
    if too_low or too_high:
        raise ConfigError(f"`{leaf.key}` must be in {leaf.allowed_text}, got {value!r}")
    return value


def _check_together(config: DviConfig) -> None:
    if config.model.trust_remote_code:
        raise ConfigError(
            "`model.trust_remote_code` must be false: code that a repository ships is never run"
        )
    decoding = config.decoding
    if decoding.draft_len > decoding.max_draft_len:
        raise ConfigError(
            f"`decoding.draft_len` ({decoding.draft_len}) must not be above "
            f"`decoding.max_draft_len` ({decoding.max_draft_len})"
        )
    drafter = config.drafter
    if "model" in (drafter.kind, drafter.learned if drafter.kind == "auto" else None):
        _check_path(drafter.path)
    data = config.data
    if data.kind == "file" and data.path is None:
        raise ConfigError("data=file needs data.path, a Parquet or JSONL file")
    if data.kind != "file" and data.path is not None:
        raise ConfigError(f"`data.path` is read with data=file only, and data is {data.kind}")


def _check_path(path: str | None) -> None:
    if path is None:
        raise ConfigError(
            "drafter=model needs drafter.path, a small model with the target's tokenizer; "
            "`dvi models draft DIR --layers 0,1` makes one from the target"
        )


def from_mapping(data: Mapping[str, Any]) -> DviConfig:
    """A checked config from nested plain data; keys left out keep their defaults.

    Raises ConfigError for an unknown key, a wrong type, a value outside its range or choices.
    """
    by_key = {leaf.key: leaf for leaf in leaves()}
    config = DviConfig()
    for key, value in _flat(data):
        leaf = by_key.get(key)
        if leaf is None:
            raise unknown_key(key)
        owner: Any = config
        *path, name = key.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, name, check_value(leaf, value))
    _check_together(config)
    return config


def to_mapping(config: DviConfig) -> dict[str, Any]:
    """Nested plain data; `from_mapping` gives an equal config."""
    return dataclasses.asdict(config)
