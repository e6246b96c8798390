"""What the objects of a request body have in common, and the keys in them that none of them has.

Owns the walk over a body along its models; knows no field by name and no status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict

from serving.fields import sort_keys


class Body(BaseModel):
    """Strict types (no "1" for 1), finite numbers; keys that it has not are kept for ``Keys``."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    unhonoured: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # as in ``fields``


@dataclass(slots=True)
class Keys:
    """Keys that no model here has, sorted into the two classes that matter."""

    most: int | None = None  # items of a list; a longer one is passed over
    refused: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def look(self, model: type[Body], data: object, where: str = "") -> None:
        """Sort the keys of ``data``, an object or a list of them, and of the objects in it."""
        if isinstance(data, dict):
            self._sort(model, data, where)
        elif isinstance(data, list) and (self.most is None or len(data) <= self.most):
            for place, item in enumerate(data):
                if isinstance(item, dict):
                    self._sort(model, item, f"{where}[{place}]")

    def _sort(self, model: type[Body], data: dict[str, Any], where: str) -> None:
        inner = _inner(model)
        prefix = where and f"{where}."
        extra = {key: value for key, value in data.items() if key not in inner}
        refused, ignored = sort_keys(extra, model.unhonoured, prefix)
        self.refused += refused
        self.ignored += ignored
        for key, below in inner.items():
            if below is not None and key in data:
                self.look(below, data[key], prefix + key)


@cache
def _inner(model: type[Body]) -> dict[str, type[Body] | None]:
    """The keys of a model, each with the model of the objects that it may hold."""
    return {
        info.alias or name: next(_bodies(info.annotation), None)
        for name, info in model.model_fields.items()
    }


def _bodies(annotation: Any) -> Iterator[type[Body]]:
    if get_origin(annotation) is None and isinstance(annotation, type):
        if issubclass(annotation, Body):
            yield annotation
        return
    for argument in get_args(annotation):
        yield from _bodies(argument)
