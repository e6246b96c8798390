"""The background loop: new rows as they arrive, the steps they paid for, a gate now and then.

Owns order and waiting; does not know the process around it. Whatever the outside cannot do now
(store locked, disk full) is waited for: learning goes on where it stopped.
"""

from __future__ import annotations

import threading

from safetensors import SafetensorError

from dvi.registry import RegistryError
from dvi.replay import ReplayStoreError
from trainers.control import Pace
from trainers.gate import Decision
from trainers.payback import Payback
from trainers.training import Publication, Training
from trainers.watch import Watch

MAX_REST_S = 1.0  # at once; a longer rest is several, with a word to the server between them
MAX_NEW_ROWS = 64  # a look: bounds memory, and how long a step waits behind a full store
OUTSIDE_ERRORS = (ReplayStoreError, RegistryError, SafetensorError, OSError)
UNHINDERED = Pace()


class Follower:
    """Follows arrivals until it is told to stop. One thread."""

    def __init__(
        self,
        training: Training,
        watch: Watch,
        poll_interval_s: float,
        pace: Pace = UNHINDERED,
        payback: Payback | None = None,
    ) -> None:
        self.training = training
        self.watch = watch
        self.poll_interval_s = poll_interval_s
        self.pace = pace
        self.payback = payback  # None: every trace pays for all of its steps
        self.num_drifts = pace.wishes().num_drifts  # those before our time are over

    def run(self, stop: threading.Event) -> None:
        """Turn after turn, with a pause when there was nothing to do; a last checkpoint at the end.

        No step is lost or doubled relative to the last checkpoint.
        """
        self.watch.start()
        while not stop.is_set():
            rest_s = self.pace.pause_s()
            if rest_s > 0:
                self.watch.tell()
                stop.wait(min(rest_s, MAX_REST_S))
            elif not self.turn():
                stop.wait(self.poll_interval_s)
        try:
            self.training.save()
        except OUTSIDE_ERRORS as error:
            self.watch.failed(error)
        self.watch.tell(at_once=True)

    def turn(self) -> bool:
        """Look for rows, gate if due, one step if paid for; False when there was nothing to do.

        LeaseLost ends the training: what was not saved is another's to do. While paused nothing is
        read and nothing changes: rows wait in the store.
        """
        training, watch = self.training, self.watch
        wishes = self.pace.wishes()
        watch.is_paused = wishes.is_paused
        if wishes.is_paused:
            watch.tell()
            return False
        if wishes.num_drifts > self.num_drifts:
            self.num_drifts = wishes.num_drifts
            training.hurry()
            self._expect(None)
        try:
            training.require_turn()
            is_busy = training.take_new(MAX_NEW_ROWS) > 0
            if training.is_gate_due():
                publication = training.publish()
                if publication is not None:
                    self._expect(publication)
                    watch.published(publication)
                    is_busy = True
            if training.has_work():
                report = training.train_once()
                if report is not None:
                    watch.stepped(report)
                    is_busy = True
        except OUTSIDE_ERRORS as error:
            watch.failed(error)
            return False
        watch.worked()
        watch.tell()
        return is_busy

    def _expect(self, publication: Publication | None) -> None:
        """Let the next traces pay for what the estimate says; afresh without a gate."""
        payback, training = self.payback, self.training
        if payback is None:
            return
        if publication is None:
            payback.forget()
        else:
            before = after = publication.verdict.served_version
            if publication.verdict.decision is Decision.PROMOTED:
                after = publication.version or before
            payback.gated(before, after, publication.found.saved)
        self.watch.pays(payback.ratio, payback.share)
        training.earlier_version = payback.earlier_version
        training.pay(payback.share)
