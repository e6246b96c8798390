"""One W&B run for one process: the only importer of wandb.

Owns the run and its settings: no argv, console, code, git, host figures. Runs in a sink's thread,
so nothing here may be called by a loop; does not know what the numbers mean.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import wandb

from dvi.config import TrackingConfig
from dvi.tracking.base import Alert, KeptAdapter, MetricRow
from dvi.tracking.jsonl import to_line
from dvi.tracking.wandb_names import artifact_name, finds_login, group_id, kept_id, mask

INIT_TIMEOUT_S = 20.0
FINISH_TIMEOUT_S = 5.0
ALERT_WAIT_S = 600.0  # drift that goes on is one mail in ten minutes, not one an event
AXES = {  # family -> its x axis; no call passes a step
    "serve": "serve/tokens",
    "drift": "serve/tokens",
    "train": "train/step",
    "adapter": "adapter/version",
}

_log = logging.getLogger("dvi.tracking")


class WandbSink:
    """Rows, alerts and adapters of one process to one run. ``open`` falls back to offline."""

    name = "W&B"
    errors: tuple[type[Exception], ...] = (
        wandb.Error,
        OSError,
        RuntimeError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
    )

    def __init__(
        self,
        config: TrackingConfig,
        state_dir: Path,
        job_type: str,
        run_config: Mapping[str, Any],
        group_dir: Path,
    ) -> None:
        self._group_dir = group_dir
        self._config = config
        self._state_dir = state_dir
        self._job_type = job_type
        self._run_config = run_config
        self._run: wandb.Run | None = None
        self._offline = False
        self._num_bytes = 0

    def open(self) -> None:
        """Start the run: online with a login, else offline, also when the server is silent."""
        # On a full disk each line of W&B's own debug log would be a traceback on stderr.
        logging.raiseExceptions = False
        self._offline = offline_wanted() or not has_login()
        try:
            self._run = self._init()
        except wandb.Error as error:
            if self._offline:
                raise
            _log.warning("tracking: W&B does not answer, going on offline (%s)", type(error))
            self._offline = True
            self._run = self._init()
        for family, axis in AXES.items():
            self._run.define_metric(axis)
            self._run.define_metric(f"{family}/*", step_metric=axis)

    def write(self, row: MetricRow) -> None:
        """Log one row; OSError beyond the size that an offline run may have on disk."""
        assert self._run is not None
        self._num_bytes += len(to_line(row))
        if self._offline and self._num_bytes > self._config.max_bytes:
            raise OSError(f"offline run is full (tracking.max_bytes={self._config.max_bytes})")
        self._run.log(dict(row.values))

    def keep(self, adapter: KeptAdapter) -> None:
        """Log the adapter's files as a new version of one artifact."""
        assert self._run is not None
        artifact = wandb.Artifact(
            artifact_name(self._run_config), type="model", metadata={"version": adapter.version}
        )
        for path in sorted(adapter.folder.iterdir()):
            # Versions never change, so no copy is made; a pruned one is missing at a late sync.
            artifact.add_file(str(path), policy="immutable", skip_cache=True)
        self._run.log_artifact(artifact, aliases=[*adapter.aliases, f"adapter-{adapter.version}"])

    def alert(self, alert: Alert) -> None:
        """Mail or Slack, as the user's W&B settings say; offline it waits for the sync."""
        assert self._run is not None
        self._run.alert(alert.title, alert.text, level="WARN", wait_duration=ALERT_WAIT_S)

    def close(self) -> None:
        """Finish the run; W&B gives up on uploads after FINISH_TIMEOUT_S."""
        if self._run is not None:
            self._run.finish()

    def _init(self) -> wandb.Run:
        keep_id = not self._offline and "WANDB_RUN_ID" not in os.environ
        run_id = kept_id(self._state_dir / "wandb" / f"run-id-{self._job_type}")
        return wandb.init(
            project=_unless_set("WANDB_PROJECT", self._config.project),
            entity=_unless_set("WANDB_ENTITY", self._config.entity),
            group=_unless_set("WANDB_RUN_GROUP", group_id(self._group_dir)),
            job_type=_unless_set("WANDB_JOB_TYPE", self._job_type),
            dir=_unless_set("WANDB_DIR", str(self._state_dir)),
            config=mask(self._run_config),
            id=run_id if keep_id else None,
            resume="allow" if keep_id else None,
            mode=_mode(self._offline),
            reinit="create_new",
            settings=quiet_settings(),
        )


def quiet_settings() -> wandb.Settings:
    """Settings under which a run holds our numbers and config and nothing else."""
    return wandb.Settings(
        console="off",
        disable_code=True,
        save_code=False,
        disable_git=True,
        disable_job_creation=True,
        program="dvi",
        silent=True,
        init_timeout=INIT_TIMEOUT_S,
        finish_timeout=FINISH_TIMEOUT_S,
        login_timeout=INIT_TIMEOUT_S,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        x_graphql_timeout_seconds=INIT_TIMEOUT_S,
    )


def has_login() -> bool:
    """Whether W&B would find a login without asking: environment, netrc, its settings."""
    settings = wandb.setup().settings
    return bool(settings.api_key) or finds_login(str(settings.base_url), os.environ)


def offline_wanted() -> bool:
    """Whether WANDB_MODE or `wandb offline` says so."""
    return wandb.setup().settings.mode in ("offline", "dryrun", "disabled")


def _mode(offline: bool) -> Literal["offline", "disabled"] | None:
    """None follows W&B's own settings; `disabled` of the user stays disabled."""
    if wandb.setup().settings.mode == "disabled":
        return "disabled"
    return "offline" if offline else None


def _unless_set(variable: str, value: str | None) -> str | None:
    """``value``, or None (then W&B takes the variable) where the environment has its own."""
    return None if os.environ.get(variable) else value
