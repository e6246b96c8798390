"""The leaves of the config as a list: the single source of help, completion and validation.

Owns the walk over the dataclasses; knows no YAML and no command line.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from dvi.config.root import DviConfig

_UNITS = {"_s": "s", "_bytes": "bytes", "_days": "days", "_len": "tokens", "_tokens": "tokens"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One config key."""

    key: str  # dotted, as typed on the command line
    kind: type  # bool, int, float or str
    optional: bool  # null allowed
    default: Any
    meaning: str
    choices: tuple[str, ...]
    low: float | None  # inclusive
    high: float | None  # inclusive

    @property
    def unit(self) -> str:
        """Unit by the name's ending; empty where there is none."""
        return next((unit for end, unit in _UNITS.items() if self.key.endswith(end)), "")

    @property
    def default_text(self) -> str:
        """The default as YAML would write it."""
        if self.default is None:
            return "null"
        return str(self.default).lower() if self.kind is bool else str(self.default)

    @property
    def allowed_text(self) -> str:
        """Allowed values or range; empty where everything of the type goes."""
        if self.choices:
            return "|".join(self.choices)
        if self.low is None and self.high is None:
            return ""
        low = "" if self.low is None else f"{self.low:g}"
        high = "" if self.high is None else f"{self.high:g}"
        return f"{low}..{high}"


def _leaf(prefix: str, item: dataclasses.Field[Any], hint: Any) -> Leaf:
    optional = False
    if isinstance(hint, types.UnionType):
        kinds = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        assert len(kinds) == 1, f"{prefix}{item.name}: only `X | None` unions are supported"
        optional, hint = True, kinds[0]
    assert hint in (bool, int, float, str), f"{prefix}{item.name}: unsupported type {hint}"
    note = item.metadata
    return Leaf(
        key=prefix + item.name,
        kind=hint,
        optional=optional,
        default=item.default,
        meaning=note["meaning"],
        choices=note["choices"],
        low=note["low"],
        high=note["high"],
    )


def _walk(node: type[Any], prefix: str) -> Iterator[Leaf]:
    hints = typing.get_type_hints(node)
    for item in dataclasses.fields(node):
        if dataclasses.is_dataclass(hints[item.name]):
            yield from _walk(hints[item.name], f"{prefix}{item.name}.")
        else:
            yield _leaf(prefix, item, hints[item.name])


@cache
def leaves() -> tuple[Leaf, ...]:
    """All keys in the order of the dataclasses."""
    return tuple(_walk(DviConfig, ""))


@cache
def groups() -> tuple[str, ...]:
    """Names of the config groups, in order."""
    return tuple(dict.fromkeys(leaf.key.split(".")[0] for leaf in leaves() if "." in leaf.key))
