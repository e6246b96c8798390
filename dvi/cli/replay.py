"""`dvi replay stats` and `export`, and the way to `dvi replay purge`.

Owns the words it prints; never opens a store that is not there, since opening would make it.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from dvi.cli.app import config_with_state
from dvi.cli.args import UsageError, Words, take_action
from dvi.cli.out import print_json
from dvi.cli.purge import purge
from dvi.cli.table import Command
from dvi.config import DviConfig
from dvi.config.home import replay_url
from dvi.config.secrets import mask
from dvi.replay import ReplayStats, ReplayStore, is_there, open_store
from dvi.replay.walk import acceptance
from dvi.types import AcceptanceCounts

_OWN_FLAGS = {
    "stats": {"--json"},
    "export": {"--to", "--redact", "--json"},
    "purge": {"--before", "--request", "--user", "--yes", "--dry-run", "--json"},
}


def _age(time_s: float | None) -> str:
    if time_s is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def _print(stats: ReplayStats, counts: AcceptanceCounts, config: DviConfig) -> None:
    limits = config.replay
    print(f"store     {mask(replay_url(config))}")
    print(f"rows      {stats.rows} ({stats.kept_rows} kept for the trainer)")
    print(f"bytes     {stats.bytes} live of {limits.max_bytes}, file {stats.file_bytes}")
    print(f"oldest    {_age(stats.oldest_s)} (rows leave after {limits.max_age_days:g} days)")
    print(f"newest    {_age(stats.newest_s)}")
    alpha = counts.acceptance_rate()
    shown = "-" if alpha is None else f"{alpha:.3f}"
    print(f"accepted  {counts.accepted} of {counts.judged} judged proposals (alpha {shown})")


def _stats(config: DviConfig, store: ReplayStore, flags: Mapping[str, str]) -> int:
    stats, counts = store.stats(), acceptance(store)
    if "--json" in flags:
        told = {"rounds": counts.rounds, "judged": counts.judged, "accepted": counts.accepted}
        alpha = {"acceptance_rate": counts.acceptance_rate()}
        print_json({**dataclasses.asdict(stats), **told, **alpha})
    else:
        _print(stats, counts, config)
    return 0


def _target(flags: Mapping[str, str]) -> Path:
    """The file that --to names. Raises UsageError where it cannot be written."""
    if "--to" not in flags:
        raise UsageError("usage: dvi replay export --to FILE.parquet [--redact]")
    path = Path(flags["--to"]).expanduser().absolute()
    if path.exists():
        raise UsageError(f"--to {path} is there already: name a new file")
    if not path.parent.is_dir():
        raise UsageError(f"--to {path}: there is no folder {path.parent}")
    return path


def _export(path: Path, store: ReplayStore, flags: Mapping[str, str]) -> int:
    from dvi.replay.parquet import FULL, REDACTED, write_parquet

    form = REDACTED if "--redact" in flags else FULL
    rows = write_parquet(store, form, path)
    if "--json" in flags:
        print_json({"rows": rows, "form": form.name, "file": str(path)})
    else:
        holds = "counts and rates, no content" if form is REDACTED else "prompts and answers"
        print(f"{rows} rows in {path}: {holds}")
    return 0


def run(words: Words, command: Command) -> int:
    """Print counts and bounds of the store, write it to a file, or erase rows of it."""
    action = take_action(words, command)
    flags = words.flags
    for other, own in _OWN_FLAGS.items():
        if odd := flags.keys() & own - _OWN_FLAGS[action]:
            raise UsageError(f"{min(odd)} belongs to `dvi replay {other}`")
    path = _target(flags) if action == "export" else Path()
    config = config_with_state(words, command)
    url = replay_url(config)
    if not is_there(url):
        print(f"no replay store at {mask(url)} yet: `dvi serve` makes it", file=sys.stderr)
        if "--json" in flags:
            print_json(None)
        return 0
    with open_store(url, config.replay) as store:
        if action == "purge":
            return purge(config, store, flags)
        if action == "export":
            return _export(path, store, flags)
        return _stats(config, store, flags)
