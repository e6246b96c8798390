"""`dvi models`: models that need no hub, fetched once into DVI_HOME/models.

Owns the rows it prints; does not know how a model is converted.
"""

from __future__ import annotations

import sys

from dvi.cli.args import UsageError, sort_words, take_action
from dvi.cli.out import Cell, print_json, print_table
from dvi.cli.table import BY_NAME
from dvi.config.home import models_dir
from dvi.modeling.fetch import KNOWN_MODELS, fetch_model, is_fetched


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _rows() -> list[dict[str, Cell]]:
    return [
        {
            "name": model.name,
            "fetched": "yes" if is_fetched(models_dir() / model.name) else "no",
            "download_mb": model.download_mb,
            "disk_mb": model.disk_mb,
            "license": model.license,
            "path": str(models_dir() / model.name),
        }
        for model in KNOWN_MODELS.values()
    ]


def _list(as_json: bool) -> int:
    if as_json:
        print_json(_rows())
    else:
        print_table(_rows())
    return 0


def run(arguments: list[str]) -> int:
    """List or fetch. ValueError for an unknown name, OSError or RuntimeError for a failed fetch."""
    command = BY_NAME["models"]
    words = sort_words(arguments, command)
    action = take_action(words, command)
    if words.overrides:
        raise UsageError(f"dvi models takes no overrides; usage: {command.usage}")
    if action == "list":
        if words.bare:
            raise UsageError(f"usage: {command.usage}")
        return _list("--json" in words.flags)
    if len(words.bare) != 1:
        raise UsageError(f"usage: dvi models fetch NAME, one of {', '.join(KNOWN_MODELS)}")
    name = words.bare[0]
    print(fetch_model(name, models_dir() / name, _say))
    return 0
