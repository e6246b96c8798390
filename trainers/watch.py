"""What the outside is told: status.json for the server, rows for the tracker, lines for the log.

Owns names of figures and how often the file is written; does not know why a verb was called.
Nothing here may stop learning: a full disk is logged once.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from dvi.registry import Act, Registry
from dvi.tracking import Tracker
from trainers.reports import StepReport, loss_values, step_row
from trainers.status import StatusFile
from trainers.training import Publication, Training

logger = logging.getLogger(__name__)

STATUS_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where figures go."""

    status: StatusFile
    tracker: Tracker
    registry: Registry


class Watch:
    """Tells what a training does. Called by the loop's thread after each verb."""

    def __init__(
        self, training: Training, outlets: Outlets, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.training = training
        self.outlets = outlets
        self.clock = clock
        self.written_s = -math.inf
        self.logprob_gap = 0.0
        self.num_rolled_back = 0
        self.is_paused = False
        self.payback: float | None = None
        self.faults: set[str] = set()  # said once until things work again

    def stepped(self, report: StepReport) -> None:
        """After an optimizer step, dropped or not."""
        if report.is_dropped:
            logger.warning("step dropped: loss or gradient is not finite")
        else:
            training = self.training
            row = {
                **step_row(report),
                "train/debt_steps": training.debt_steps,
                "train/memory_rows": len(training.parts.intake.memory),
            }
            self.outlets.tracker.log("train", row)
        self.tell()

    def published(self, publication: Publication) -> None:
        """After a gate decided."""
        verdict = publication.verdict
        gap = verdict.served.logprob_gap
        self.logprob_gap = self.logprob_gap if gap is None else gap
        self.num_rolled_back = self._count_rollbacks()
        name = "candidate" if publication.version is None else f"version {publication.version}"
        logger.info(
            "%s %s: agreement %.3f, in service (version %d) %.3f, on %d held-out traces",
            name,
            verdict.decision.value,
            verdict.candidate.agreement,
            verdict.served_version,
            verdict.served.agreement,
            verdict.num_traces,
        )
        if publication.found.served_fault:
            fault = publication.found.served_fault
            logger.warning("version in service not usable here: %s", fault)
        if publication.version is not None:
            row = {"version": publication.version, **verdict.metrics()}
            row["probe_acceptance_rate"] = self.training.probe_rate
            if self.payback is not None:
                row["payback_ratio"] = self.payback
            self.outlets.tracker.log("adapter", {f"adapter/{k}": v for k, v in row.items()})
            if verdict.metrics()["gate_promoted"]:
                folder = self.outlets.registry.folder(publication.version)
                self.outlets.tracker.artifact(publication.version, folder)
        self.tell(at_once=True)

    def pays(self, ratio: float | None, share: float) -> None:
        """What training saves over what it takes, and the share of the steps that will follow."""
        if share != self.training.pay_share:
            logger.info("payback ratio %.2f: %.3g of the steps from now on", ratio or 0.0, share)
        self.payback = ratio

    def failed(self, error: Exception) -> None:
        """Something outside (store, disk, registry) does not work now; said once."""
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        if line not in self.faults:
            self.faults.add(line)
            logger.warning("waiting: %s", line)
        self.tell()

    def worked(self) -> None:
        """The outside works again."""
        self.faults.clear()

    def tell(self, *, at_once: bool = False) -> None:
        """Write status.json, at most once in STATUS_INTERVAL_S unless ``at_once``."""
        now_s = self.clock()
        if not at_once and now_s - self.written_s < STATUS_INTERVAL_S:
            return
        self.written_s = now_s
        try:
            self.outlets.status.write(self._status(), time.process_time())
        except OSError as error:
            if "status" not in self.faults:
                self.faults.add("status")
                logger.warning("status not written: %s", error)

    def start(self) -> None:
        """Take over what an earlier process told and write the first status."""
        self.outlets.status.open()
        self.num_rolled_back = self._count_rollbacks()
        self.tell(at_once=True)

    def _status(self) -> dict[str, object]:
        training, counters = self.training, self.training.counters()
        report = training.last_report
        intake = training.parts.intake
        losses = loss_values(report.loss) if report else {}
        return {
            "pid": os.getpid(),
            "updated_s": time.time(),
            "steps": counters.steps,
            "dropped_steps": counters.dropped_steps,
            "rows_admitted": intake.num_admitted,
            "rows_missing": intake.num_missing,
            "rows_unusable": counters.unusable_rows,
            "memory_rows": len(intake.memory),
            "holdout_rows": len(intake.holdout),
            "debt_steps": training.debt_steps,
            "version": training.parts.versions.newest,
            "draft_logprob_gap": self.logprob_gap,
            "probe_acceptance_rate": training.probe_rate,
            "payback_ratio": self.payback or 0.0,
            "paused": self.is_paused,
            **{name: value for name, value in losses.items() if math.isfinite(value)},
            "gate": {
                "promoted": counters.promoted,
                "held": counters.held,
                "refused": counters.refused,
                "rolled_back": self.num_rolled_back,
            },
        }

    def _count_rollbacks(self) -> int:
        return sum(event.act is Act.ROLLBACK for event in self.outlets.registry.history())
