"""Runs one task as a Hydra application: --cfg, --info, a run, a sweep.

Owns the exit status and the `.hydra` files; does not know what the task does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from dvi.config import DviConfig
from dvi.config.secrets import mask
from dvi.config.validate import ConfigError
from dvi.launch.compose import checked_overrides, compose, hydra_for, parse_overrides, to_config
from dvi.launch.errors import HYDRA_ERRORS, explain
from dvi.launch.folder import launch_rank, make_run_folder
from dvi.launch.logs import set_up_logging
from dvi.launch.request import JobResult, LaunchRequest, Outcome, Task, TellSweep, quoted
from dvi.launch.secret_overrides import SplitOverrides, warn_and_export

log = logging.getLogger(__name__)


def _write_hydra_files(folder: Path, composed: DictConfig) -> None:
    """Hydra's three files, written by us because Hydra would write secrets too."""
    hydra_config = HydraConfig.instance().cfg
    assert hydra_config is not None
    target = folder / ".hydra"
    target.mkdir(mode=0o700, exist_ok=True)
    texts = {
        "config.yaml": OmegaConf.to_yaml(composed),
        "hydra.yaml": OmegaConf.to_yaml(hydra_config),
        "overrides.yaml": OmegaConf.to_yaml(HydraConfig.get().overrides.task),
    }
    for name, text in texts.items():
        (target / name).write_text(mask(text), encoding="utf-8")


class _Failure:
    """Keeps a job's exception: Hydra would print the overrides before it raised it again."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> _Failure:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.error = error if isinstance(error, Exception) else None
        return self.error is not None


def _show(request: LaunchRequest, hydra: Hydra) -> int:
    """Print what --cfg or --info asks for, secrets masked; a wrong config is refused first."""
    split = checked_overrides(request, hydra)
    compose(request, split, hydra)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        if request.show_config is not None:
            hydra.show_cfg(
                config_name=request.config_name,
                overrides=list(split.shown),
                cfg_type=request.show_config,
                package=request.package,
                resolve=request.resolve,
            )
        else:
            hydra.show_info(request.show_info or "all", request.config_name, list(split.shown))
    sys.stdout.write(mask(text.getvalue()))
    return 0


def _run_once(request: LaunchRequest, hydra: Hydra, task: Task) -> int:
    split = checked_overrides(request, hydra)
    config = compose(request, split, hydra)
    folder = make_run_folder(request.command, config, os.environ)
    statuses = []
    failure = _Failure()

    def job(composed: DictConfig) -> float | None:
        set_up_logging(config, folder)
        if launch_rank(os.environ) == 0:
            _write_hydra_files(folder, composed)
        warn_and_export(config, split.secrets)
        with failure:
            outcome = task(config, folder)
            statuses.append(outcome.status)
            return outcome.value
        return None

    own = (f"hydra.run.dir={quoted(str(folder))}", "hydra.output_subdir=null")
    hydra.run(request.config_name, job, [*split.shown, *own], with_log_configuration=False)
    if failure.error is not None:
        raise failure.error
    return max(statuses)


def _base_config(request: LaunchRequest, split: SplitOverrides, hydra: Hydra) -> DviConfig:
    """What all jobs share: the config without the swept values, or, where it needs one of them
    (`data.path=a,b`), with the first of each. Raises ConfigError where neither can be."""
    fixed, first = [], []
    for text, override in zip(split.shown, parse_overrides(split.shown), strict=True):
        if not override.is_sweep_override():
            fixed.append(text)
            first.append(text)
        elif override.is_discrete_sweep():
            value = next(iter(override.sweep_string_iterator()))
            first.append(f"{override.get_key_element()}={value}")
    try:
        return _compose_shown(request, split, fixed, hydra)
    except ConfigError:
        with contextlib.suppress(ConfigError):
            return _compose_shown(request, split, first, hydra)
        raise


def _compose_shown(
    request: LaunchRequest, split: SplitOverrides, shown: Sequence[str], hydra: Hydra
) -> DviConfig:
    own = dataclasses.replace(request, overrides=tuple(shown))
    return compose(own, dataclasses.replace(split, shown=tuple(shown)), hydra)


def _sweep(request: LaunchRequest, hydra: Hydra, task: Task, tell: TellSweep) -> int:
    """All jobs of the sweep in one folder, job by job, whatever becomes of one; 1 if one failed.

    A failed job's value is NaN: a sweeper that optimizes passes over it.
    """
    split = checked_overrides(request, hydra)
    base = _base_config(request, split, hydra)
    folder = make_run_folder(request.command, base, os.environ)
    results: list[JobResult] = []

    def job(composed: DictConfig) -> float:
        own = Path(HydraConfig.get().runtime.output_dir)
        set_up_logging(base, own)  # a value that this job's config refuses is told there as well
        _write_hydra_files(own, composed)
        outcome, failure = Outcome(1), _Failure()
        with failure:
            config = to_config(composed, split.secrets)
            set_up_logging(config, own)
            warn_and_export(config, split.secrets)
            outcome = task(config, own)
        if failure.error is not None:  # told at once: the sweep may go on for hours
            log.error("job failed: %s", own, exc_info=failure.error)
        overrides = tuple(HydraConfig.get().overrides.task)
        results.append(JobResult(overrides, outcome.status, outcome.value, own))
        return math.nan if outcome.value is None else outcome.value

    own = (
        f"hydra.sweep.dir={quoted(str(folder))}",
        "hydra.sweep.subdir=${hydra.job.num}",
        "hydra.output_subdir=null",
    )
    hydra.multirun(request.config_name, job, [*split.shown, *own], with_log_configuration=False)
    tell(results)
    return 1 if any(result.status for result in results) else 0


def run_app(request: LaunchRequest, task: Task, tell: TellSweep) -> int:
    """Run the task and return the exit status; ``tell`` gets the jobs of a sweep at its end.

    Raises ConfigError, and what the task of a single run raises.
    """
    with hydra_for(request) as hydra:
        try:
            if request.show_config is not None or request.show_info is not None:
                return _show(request, hydra)
            if request.multirun:
                return _sweep(request, hydra, task, tell)
            return _run_once(request, hydra, task)
        except HYDRA_ERRORS as error:
            raise explain(error) from error
