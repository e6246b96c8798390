"""`dvi replay purge`: erases stored answers for good.

Owns the question, the times a user may write, and what is said of adapters that learned from the
rows; what erasing means is the store's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import datetime

from dvi.cli.args import UsageError
from dvi.cli.out import print_json
from dvi.config import DviConfig
from dvi.config.home import adapters_dir, shared_dir
from dvi.registry import Registry
from dvi.replay import ReplayStore, Selection
from serving.state_folder import KEY_FILE, hash_name, user_key

_UNITS_S = {"h": 3600.0, "d": 86400.0}


def purge(config: DviConfig, store: ReplayStore, flags: Mapping[str, str]) -> int:
    """Count, ask, erase; 1 if the answer was no or old bytes are still in a log."""
    selection = selection_of(config, flags)
    rows = store.count(selection)
    oldest_s = store.oldest_s(selection)
    learned = learned_since(config, oldest_s)
    if "--dry-run" in flags or rows == 0:
        return _tell(flags, rows, learned, erased=0, overwritten=True)
    if "--yes" not in flags and not _agrees(rows):
        return 1
    result = store.purge(selection)
    return _tell(flags, rows, learned, erased=result.rows, overwritten=result.overwritten)


def selection_of(config: DviConfig, flags: Mapping[str, str]) -> Selection:
    """What --before, --request and --user name together. Raises UsageError."""
    before, user = flags.get("--before"), flags.get("--user")
    hashed = None
    if user is not None:
        folder = shared_dir(config)
        if not (folder / KEY_FILE).is_file():
            raise UsageError(f"--user: no {KEY_FILE} in {folder}, where the server keeps it")
        hashed = hash_name(user_key(folder, earlier=folder), user)
    selection = Selection(
        stored_before_s=None if before is None else parse_time(before, time.time()),
        request_id=flags.get("--request"),
        user_hash=hashed,
    )
    if selection == Selection():
        raise UsageError("dvi replay purge wants --before TIME, --request ID or --user NAME")
    return selection


def parse_time(text: str, now_s: float) -> float:
    """Unix time of an ISO date or time (local unless it says), or of an age as 36h or 30d."""
    number, unit = text[:-1], text[-1:]
    if unit in _UNITS_S and number.isdecimal():
        return now_s - float(number) * _UNITS_S[unit]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(
            f"--before {text!r}: write 2026-01-31, 2026-01-31T12:00, 36h or 30d"
        ) from None


def learned_since(config: DviConfig, oldest_s: float | None) -> list[int]:
    """Versions made after the oldest of the rows was stored: they may have learned from them."""
    root = adapters_dir(config)
    if oldest_s is None or not root.is_dir():
        return []
    return [one.version for one in Registry(root).versions() if one.created_s >= oldest_s]


def _agrees(rows: int) -> bool:
    print(f"erase {rows} stored answers for good? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _tell(
    flags: Mapping[str, str], rows: int, learned: list[int], *, erased: int, overwritten: bool
) -> int:
    if "--json" in flags:
        told = {"selected": rows, "erased": erased, "overwritten": overwritten}
        print_json({**told, "adapters_learned_since": learned})
    else:
        print(f"{rows} answers selected, {erased} erased")
        if learned and rows:
            names = ", ".join(map(str, learned))
            print(f"adapter versions that may have learned from them: {names}")
            print("weights do not unlearn: roll back with dvi adapters promote N (0 is untrained)")
    if not overwritten:
        print("a reader keeps old bytes in the store's files: run it again", file=sys.stderr)
    return 0 if overwritten else 1
