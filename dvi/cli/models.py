"""`dvi models`: models that need no hub, fetched once into DVI_HOME/models, and drafts of them.

Owns the rows it prints; does not know how a model is converted or shortened.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from dvi.cli.args import UsageError, Words, take_action
from dvi.cli.out import Cell, print_json, print_table
from dvi.cli.table import Command
from dvi.config import ModelConfig
from dvi.config.home import models_dir
from dvi.modeling.fetch import KNOWN_MODELS, fetch_model, list_models


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _rows() -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    for name, folder in list_models().items():
        known = KNOWN_MODELS.get(name)  # None: a folder that somebody put there
        rows.append(
            {
                "name": name,
                "fetched": "no" if folder is None else "yes",
                "download_mb": None if known is None else known.download_mb,
                "disk_mb": None if known is None else known.disk_mb,
                "license": None if known is None else known.license,
                "path": str(models_dir() / name),
            }
        )
    return rows


def _list(as_json: bool) -> int:
    if as_json:
        print_json(_rows())
    else:
        print_table(_rows())
    return 0


def _draft(bare: list[str], layers: str | None) -> int:
    """A folder with some layers of a model, for drafter=model."""
    if layers is None or len(bare) not in (1, 2) or not re.fullmatch(r"\d+(,\d+)*", layers):
        raise UsageError("usage: dvi models draft DIR --layers 0,1 [MODEL]")
    # Imported here: torch takes seconds, and listing models must not pay for it.
    from dvi.modeling.resolve import resolve_model_path
    from dvi.modeling.shorten import keep_layers

    config = ModelConfig(path=bare[1]) if len(bare) == 2 else ModelConfig()
    folder = Path(bare[0]).expanduser().absolute()
    kept = [int(index) for index in layers.split(",")]
    num_bytes = keep_layers(resolve_model_path(config), kept, folder)
    _say(f"{len(kept)} layers of {config.path}, {num_bytes >> 20} MB")
    print(folder)
    return 0


def run(words: Words, command: Command) -> int:
    """List, fetch or draft. ValueError: one line; OSError or RuntimeError: a failed fetch."""
    action = take_action(words, command)
    if words.overrides:
        raise UsageError(f"dvi models takes no overrides; usage: {command.usage}")
    if action == "list":
        if words.bare:
            raise UsageError(f"usage: {command.usage}")
        return _list("--json" in words.flags)
    if action == "draft":
        return _draft(words.bare, words.flags.get("--layers"))
    if len(words.bare) != 1:
        raise UsageError(f"usage: dvi models fetch NAME, one of {', '.join(KNOWN_MODELS)}")
    name = words.bare[0]
    print(fetch_model(name, models_dir() / name, _say))
    return 0
