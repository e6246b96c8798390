"""`dvi replay stats`.

Owns the words it prints; never opens a store that is not there, since opening would make it.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

from dvi.cli.app import config_of
from dvi.cli.args import sort_words, take_action
from dvi.cli.out import print_json
from dvi.cli.table import BY_NAME
from dvi.config import DviConfig
from dvi.config.home import replay_url
from dvi.config.secrets import mask
from dvi.replay import ReplayStats, open_store

_SQLITE = "sqlite:///"


def _is_missing(url: str) -> bool:
    return url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).is_file()


def _age(time_s: float | None) -> str:
    if time_s is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def _stats(config: DviConfig) -> ReplayStats | None:
    url = replay_url(config)
    if _is_missing(url):
        print(f"no replay store at {mask(url)} yet: `dvi serve` makes it", file=sys.stderr)
        return None
    with open_store(url, config.replay) as store:
        return store.stats()


def _print(stats: ReplayStats, config: DviConfig) -> None:
    limits = config.replay
    print(f"store     {mask(replay_url(config))}")
    print(f"rows      {stats.rows} ({stats.kept_rows} kept for the trainer)")
    print(f"bytes     {stats.bytes} live of {limits.max_bytes}, file {stats.file_bytes}")
    print(f"oldest    {_age(stats.oldest_s)} (rows leave after {limits.max_age_days:g} days)")
    print(f"newest    {_age(stats.newest_s)}")


def run(arguments: list[str]) -> int:
    """Print counts and bounds of the store."""
    command = BY_NAME["replay"]
    words = sort_words(arguments, command)
    take_action(words, command)
    config = config_of(words, command)
    stats = _stats(config)
    if "--json" in words.flags:
        print_json(None if stats is None else dataclasses.asdict(stats))
    elif stats is not None:
        _print(stats, config)
    return 0
