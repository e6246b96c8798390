"""Where things live on disk: DVI_HOME, its folders, and the state of one config.

Owns the rule that no path depends on the current directory; does not know what the folders hold.
Nothing here creates a folder: commands that only read must leave a fresh machine as it is.
"""

from __future__ import annotations

import os
from pathlib import Path

from dvi.config.root import DviConfig

PACKAGE_DIR = Path(__file__).resolve().parent.parent  # the folder `dvi`


def conf_dir() -> Path:
    """The YAML groups: `dvi/conf` in an installed wheel, `conf` beside `dvi` in a checkout."""
    for folder in (PACKAGE_DIR / "conf", PACKAGE_DIR.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise ValueError(f"no conf/config.yaml in or beside {PACKAGE_DIR}: reinstall dvi-serving")


def in_checkout() -> bool:
    """Whether this package runs from a source checkout."""
    root = PACKAGE_DIR.parent
    return (root / "pyproject.toml").is_file() and (root / "conf" / "config.yaml").is_file()


def dvi_home() -> Path:
    """DVI_HOME, else `.dvi` of the checkout, else the user's data folder; absolute."""
    named = os.environ.get("DVI_HOME", "")
    if named:
        return Path(named).expanduser().absolute()
    if in_checkout():
        return PACKAGE_DIR.parent / ".dvi"
    # Imported here: an installed package needs it, `dvi --help` in a checkout does not.
    from platformdirs import user_data_path

    return user_data_path("dvi", appauthor=False)


def models_dir() -> Path:
    """Converted models, one folder a name."""
    return dvi_home() / "models"


def runs_dir() -> Path:
    """One folder a command, one folder a launch in it."""
    return dvi_home() / "runs"


def demo_dir() -> Path:
    """Reports of `dvi demo`."""
    return dvi_home() / "demo"


def bench_dir() -> Path:
    """Results of `dvi bench`."""
    return dvi_home() / "bench"


def state_dir(config: DviConfig) -> Path:
    """Replay store, adapters, checkpoints and metrics of this config; absolute."""
    if config.state_dir is None:
        return dvi_home() / "state"
    return Path(config.state_dir).expanduser().absolute()


def adapters_dir(config: DviConfig) -> Path:
    """Root of the registry; absolute."""
    if config.registry.path is None:
        return state_dir(config) / "adapters"
    return Path(config.registry.path).expanduser().absolute()


def shared_dir(config: DviConfig) -> Path:
    """Where servers of one registry find each other's files; absolute.

    `registry.path` where it is set, else the state folder: the key of the user hashes, the
    trainer's checkpoints, and what the admin asks of the trainer.
    """
    return state_dir(config) if config.registry.path is None else adapters_dir(config)


def replay_url(config: DviConfig) -> str:
    """SQLAlchemy URL of the replay store: the key, else DVI_REPLAY_URL, else SQLite in state_dir.

    May hold a password: never log it, see `dvi.config.secrets.mask`.
    """
    if config.replay.url is not None:
        return config.replay.url
    named = os.environ.get("DVI_REPLAY_URL", "")
    return named or f"sqlite:///{state_dir(config) / 'replay.sqlite'}"
