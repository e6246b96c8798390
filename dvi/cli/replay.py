"""`dvi replay stats` and the way to `dvi replay purge`.

Owns the words it prints; never opens a store that is not there, since opening would make it.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

from dvi.cli.app import config_of
from dvi.cli.args import UsageError, sort_words, take_action
from dvi.cli.out import print_json
from dvi.cli.purge import purge
from dvi.cli.table import BY_NAME
from dvi.config import DviConfig
from dvi.config.home import replay_url
from dvi.config.secrets import mask
from dvi.replay import ReplayStats, open_store

_SQLITE = "sqlite:///"
PURGE_FLAGS = {"--before", "--request", "--user", "--yes", "--dry-run"}


def _is_missing(url: str) -> bool:
    return url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).is_file()


def _age(time_s: float | None) -> str:
    if time_s is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def _print(stats: ReplayStats, config: DviConfig) -> None:
    limits = config.replay
    print(f"store     {mask(replay_url(config))}")
    print(f"rows      {stats.rows} ({stats.kept_rows} kept for the trainer)")
    print(f"bytes     {stats.bytes} live of {limits.max_bytes}, file {stats.file_bytes}")
    print(f"oldest    {_age(stats.oldest_s)} (rows leave after {limits.max_age_days:g} days)")
    print(f"newest    {_age(stats.newest_s)}")


def run(arguments: list[str]) -> int:
    """Print counts and bounds of the store, or erase rows of it."""
    command = BY_NAME["replay"]
    words = sort_words(arguments, command)
    action = take_action(words, command)
    if action != "purge" and (odd := PURGE_FLAGS & words.flags.keys()):
        raise UsageError(f"{min(odd)} belongs to `dvi replay purge`")
    config = config_of(words, command)
    url = replay_url(config)
    as_json = "--json" in words.flags
    if _is_missing(url):
        print(f"no replay store at {mask(url)} yet: `dvi serve` makes it", file=sys.stderr)
        if as_json:
            print_json(None)
        return 0
    with open_store(url, config.replay) as store:
        if action == "purge":
            return purge(config, store, words.flags)
        stats = store.stats()
    if as_json:
        print_json(dataclasses.asdict(stats))
    else:
        _print(stats, config)
    return 0
