"""``state.json``: which format a state folder has, and its id.

Owns that file and the way from older formats; does not know what else lies in the folder. The store
and each adapter have versions of their own: this one counts what concerns the folder as a whole.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from dvi.config.files import replace_file

STATE_FORMAT = 1
_ID = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class StateFile:
    """What ``state.json`` says."""

    format: int
    id: str  # 12 hex digits, the folder's for ever: names the W&B group


def read_state(folder: Path) -> StateFile | None:
    """The folder's state file, or None where none was written yet. Creates nothing.

    Raises ValueError, one line, for a folder of a newer dvi and for a file that says nothing.
    """
    path = folder / "state.json"
    try:
        data = json.loads(path.read_text("utf-8"))
        found = StateFile(int(data["format"]), str(data["id"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{path} is damaged: mv {path} {path}.broken (the next start writes a new one)"
        ) from None
    if found.format > STATE_FORMAT:
        raise ValueError(
            f"{folder} has format {found.format}, this dvi knows up to {STATE_FORMAT}: "
            "pip install --upgrade dvi-serving, or set state_dir"
        )
    return found


def settle_state(folder: Path) -> StateFile:
    """The folder's state file in today's format, made or migrated where it has to be.

    Only whoever holds the folder's lock may call it. Raises as ``read_state``; OSError when the
    file cannot be written.
    """
    found = read_state(folder) or StateFile(0, "")
    if found.format == STATE_FORMAT:
        return found
    for number in range(found.format, STATE_FORMAT):
        found = MIGRATIONS[number](folder, found)
    text = json.dumps(asdict(found)) + "\n"
    replace_file(folder / "state.json", text.encode(), durable=True)
    return found


def _from_unnamed(folder: Path, found: StateFile) -> StateFile:
    """Format 0 is a folder without the file; its W&B runs have had a group, which stays theirs."""
    del found
    kept = folder / "wandb" / "group-id"
    named = kept.read_text("ascii", errors="replace").strip() if kept.is_file() else ""
    return StateFile(1, named if _ID.fullmatch(named) else uuid.uuid4().hex[:12])


MIGRATIONS: dict[int, Callable[[Path, StateFile], StateFile]] = {0: _from_unnamed}
