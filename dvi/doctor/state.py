"""Checks of what a server keeps: folder modes, replay store, adapters.

Reads and creates nothing; knows neither ports nor models.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from dvi.config import DviConfig
from dvi.config.home import adapters_dir, replay_url, state_dir
from dvi.config.secrets import mask
from dvi.config.state_file import read_state
from dvi.doctor.finding import Finding, fault, ok
from dvi.registry import Registry
from dvi.replay import ReplayStoreError, StoreUrlError, is_there
from dvi.replay.address import DRIVER, INSTALL
from dvi.replay.schema import SCHEMA_VERSION

SQLITE = "sqlite:///"
EXAMPLE = f"export DVI_REPLAY_URL=postgresql+{DRIVER}://USER:PASSWORD@HOST/NAME"
CHECKED_BYTES = 256 << 20  # larger files are opened only: reading a GB takes seconds


def check_folder(config: DviConfig) -> Finding:
    """The state folder is its owner's alone, since it holds what users wrote, and of our format."""
    folder = state_dir(config)
    if not folder.is_dir():
        return ok("state", f"{folder} does not exist yet: `dvi serve` makes it")
    for path in (folder, *folder.glob("replay.sqlite*")):
        if path.stat().st_mode & 0o077:
            mode = "700" if path.is_dir() else "600"
            message = f"{path} can be read by others on this machine"
            return fault("state", message, f"chmod {mode} {path}")
    try:
        read_state(folder)
    except ValueError as error:
        text, _, mend = str(error).partition(": ")
        return fault("state", text, mend)
    return ok("state", str(folder))


def check_store(config: DviConfig) -> Finding:
    """The replay store opens, is whole, and is of a version that we know."""
    url = replay_url(config)
    if url.startswith(SQLITE):
        return _check_sqlite(Path(url.removeprefix(SQLITE)))
    try:
        there = is_there(url)
    except StoreUrlError as error:
        return fault("store", str(error), INSTALL if INSTALL in str(error) else EXAMPLE)
    except ReplayStoreError as error:
        return fault("store", str(error), f"psql {_for_psql(url)}   (until it answers)")
    if not there:
        return ok("store", f"{mask(url)} answers and holds no store yet: `dvi serve` makes it")
    return ok("store", f"{mask(url)} answers")


def _for_psql(url: str) -> str:
    return mask(url).replace(f"+{DRIVER}://", "://", 1)


def _check_sqlite(path: Path) -> Finding:
    if not path.is_file():
        return ok("store", f"{path} does not exist yet: `dvi serve` makes it")
    aside = f"mv {path} {path}.broken   (the server makes a new one)"
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as database:
            (version,) = database.execute("SELECT version FROM dvi_schema").fetchone()
            (rows,) = database.execute("SELECT rows FROM totals").fetchone()
            if path.stat().st_size <= CHECKED_BYTES:
                (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
                if verdict != "ok":
                    return fault("store", f"{path} is damaged: {verdict}", aside)
    except (sqlite3.Error, TypeError) as error:
        return fault("store", f"{path} cannot be read: {error}", aside)
    if version > SCHEMA_VERSION:
        message = f"{path} has schema {version}, this dvi knows up to {SCHEMA_VERSION}"
        return fault("store", message, "pip install --upgrade dvi-serving")
    return ok("store", f"{path}, {rows} traces, {path.stat().st_size / 2**20:.1f} MiB")


def check_adapters(config: DviConfig) -> Finding:
    """Every version is whole; a damaged one is passed over while serving, and told here."""
    root = adapters_dir(config)
    if not root.is_dir():
        return ok("adapters", f"{root} does not exist yet: version 0 drafts")
    registry = Registry(root)
    damaged = registry.damaged()
    live = registry.current()
    if damaged:
        version, why = next(iter(damaged.items()))
        folder = registry.folder(version)
        message = f"{why}; in service: version {live}"
        return fault("adapters", message, f"mv {folder} {folder}.broken")
    return ok("adapters", f"{len(registry.versions())} versions, in service: version {live}")
