"""Composes the config groups with Hydra and hands back a checked plain DviConfig.

Owns the schema in the ConfigStore and the search path; does not know run folders or logs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from dvi.config import DviConfig
from dvi.config.home import conf_dir
from dvi.config.schema import groups, leaves
from dvi.config.validate import ConfigError, from_mapping, unknown_key
from dvi.launch.errors import HYDRA_ERRORS, explain
from dvi.launch.request import LaunchRequest
from dvi.launch.secret_overrides import SplitOverrides, put_secrets, split_secrets


@contextmanager
def hydra_for(request: LaunchRequest) -> Iterator[Hydra]:
    """A Hydra instance that searches the user's folder first to last: conf, --config-dir."""
    version.setbase("1.3")
    GlobalHydra.instance().clear()
    ConfigStore.instance().store(name="dvi_schema", node=DviConfig, provider="dvi")
    search_path = create_config_search_path(str(conf_dir()))
    if request.config_dir is not None:
        folder = Path(request.config_dir).expanduser().absolute()
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {request.config_dir}: no such folder")
        schema = SearchPathQuery(provider="schema")  # which must stay the last one
        search_path.prepend("command-line", f"file://{folder}", anchor=schema)
    try:
        yield Hydra.create_main_hydra2(f"dvi-{request.command}", search_path)
    finally:
        GlobalHydra.instance().clear()


def parse_overrides(overrides: Iterable[str]) -> list[Override]:
    """Parsed overrides. Raises ConfigError for one that is not of Hydra's grammar."""
    try:
        return list(OverridesParser.create().parse_overrides(list(overrides)))
    except HYDRA_ERRORS as error:
        raise explain(error) from error


def check_override_keys(overrides: Iterable[Override], hydra: Hydra) -> None:
    """Raise ConfigError for a key that is neither a leaf, a group, nor Hydra's own.

    Done before composing: `+key` and a dictionary value would slip past the schema, and Hydra's
    own message does not say what the right key is.
    """
    known = {leaf.key for leaf in leaves()}
    user_groups = set(hydra.list_all_config_groups())
    for override in overrides:
        key = override.key_or_group
        if key in known or key in groups() or key in user_groups:
            continue
        if key.split(".")[0].split("/")[0] != "hydra":
            raise unknown_key(key)


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())


def _with_absolute_paths(config: DviConfig) -> DviConfig:
    """Paths that a user typed count from the directory of this process, also in its children."""
    config.state_dir = _absolute(config.state_dir)
    config.registry.path = _absolute(config.registry.path)
    config.data.path = _absolute(config.data.path)
    config.run.dir = _absolute(config.run.dir)
    config.serving.api_key_file = _absolute(config.serving.api_key_file)
    config.serving.admin_key_file = _absolute(config.serving.admin_key_file)
    config.audit.prompts = _absolute(config.audit.prompts)
    config.bench.prompts = _absolute(config.bench.prompts)
    config.bench.adapters = _absolute(config.bench.adapters)
    config.model.path = _absolute_folder(config.model.path)
    if config.drafter.path is not None:
        config.drafter.path = _absolute_folder(config.drafter.path)
    return config


def _absolute_folder(name: str) -> str:
    """A folder's whole path; names of fetched models and hub ids stay as they are."""
    folder = Path(name).expanduser()
    return str(folder.absolute()) if folder.is_dir() and os.sep in name else name


def to_config(composed: DictConfig, secrets: Mapping[str, str]) -> DviConfig:
    """The composed config as checked dataclasses, secrets put back, without Hydra's own node."""
    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    data: Any = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    config = from_mapping(data)
    put_secrets(config, secrets)
    return _with_absolute_paths(config)


def checked_overrides(request: LaunchRequest, hydra: Hydra) -> SplitOverrides:
    """The overrides without secrets, all keys known. Raises ConfigError."""
    try:
        split = split_secrets(request.overrides)
    except HYDRA_ERRORS as error:
        raise explain(error) from error
    check_override_keys(parse_overrides(split.shown), hydra)
    return split


def compose(request: LaunchRequest, split: SplitOverrides, hydra: Hydra) -> DviConfig:
    """Compose and check as a whole. Raises ConfigError with one line for the user."""
    try:
        composed = hydra.compose_config(
            config_name=request.config_name,
            overrides=list(split.shown),
            run_mode=RunMode.RUN,
        )
        return to_config(composed, split.secrets)
    except HYDRA_ERRORS as error:
        raise explain(error) from error


def compose_config(request: LaunchRequest) -> DviConfig:
    """The checked config of a command that needs no run folder."""
    with hydra_for(request) as hydra:
        return compose(request, checked_overrides(request, hydra), hydra)
