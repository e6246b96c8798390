"""From the registry to the slot: the thread that loads, checks and prepares new versions.

Owns the decision which version is tried, and whether as a canary first; knows neither how tensors
are merged nor when the decode thread takes them. A version that does not pass stays out and is
counted; the old one stays.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Container
from typing import Protocol

from dvi.decoding import AdapterSlot
from dvi.decoding.faults import FAULTS
from dvi.drafting import DraftWeights
from dvi.modeling.threads import Unhurried, set_thread_modes
from dvi.registry import Act, Adapter, Registry, RegistryError
from dvi.registry.history import is_settled, service_stack, to_load
from serving.background import BackgroundThread
from serving.canary import Canary

logger = logging.getLogger(__name__)


class Preparer(Protocol):
    """The part of a drafter that the watcher uses."""

    @property
    def adapter_version(self) -> int:
        """Of the weights in use."""

    def prepare(self, adapter: Adapter | None) -> DraftWeights:
        """Check, merge and pack a version; any thread."""

    def load(self, weights: DraftWeights) -> None:
        """Use these weights; only while no decode thread runs."""


class AdapterWatcher(BackgroundThread):
    """Looks at the registry's pointer and stages what it names. One thread, or ``poll`` by hand.

    With a ``canary``, a version that the registry's history has not settled since its promotion
    drafts its share of rounds first, however it came to be the one in service: promoted, returned
    to by a rollback, or found at start. What is settled drafts all rounds at once, and so does what
    has no trained version beside it, which settles it. One trial at a time: of the versions
    promoted meanwhile the newest waits for its end.

    What is ``passed_over`` counts as taken out of service, also where the registry says otherwise.
    """

    def __init__(
        self,
        registry: Registry,
        drafter: Preparer,
        slot: AdapterSlot,
        poll_interval_s: float,
        canary: Canary | None = None,
        *,
        passed_over: Callable[[], Container[int]] = frozenset,
    ) -> None:
        super().__init__("watcher")
        self._registry = registry
        self._drafter = drafter
        self._slot = slot
        self._canary = canary
        self._passed_over = passed_over
        self._poll_interval_s = poll_interval_s
        self._tried = 0  # newest version staged, loaded or refused
        self._in_service = 0
        self._promoted_s = 0.0
        self._looked = False
        self._said_away = False
        self._refused: set[int] = set()
        self._wake = threading.Event()

    @property
    def in_service(self) -> int:
        """The version that the registry named last, but for those passed over."""
        return self._in_service

    @property
    def promoted_s(self) -> float:
        """Unix time at which that version went into service; 0 for version 0 from the start."""
        return self._promoted_s

    def load_first(self) -> int:
        """Before decoding starts: load the version in service, else an older one, else stay at 0.

        With a canary a settled version is preferred: the first poll begins the trial of the one in
        service beside it. Every version that does not pass is counted as refused. Returns the
        version loaded.
        """
        self._look_at_pointer()
        events = self._registry.history()
        versions = to_load(events, self._in_service)
        if self._canary is not None:
            versions.sort(key=lambda version: not is_settled(events, version))  # stable
        for version in versions:
            weights = self._prepare(version)
            if weights is not None:
                self._drafter.load(weights)
                if self._canary is not None:
                    self._canary.loaded(weights)
                break
        self._tried = self._drafter.adapter_version
        return self._drafter.adapter_version

    def poll(self) -> None:
        """Look once; stage the version in service if it is new."""
        self._slot.drop_replaced()
        self._look_at_pointer()
        version = self._in_service
        if version == self._tried:
            return
        if self._canary is None:
            self._tried = version
            weights = self._prepare(version)
            if weights is not None:
                self._slot.stage(weights)
                logger.info("adapter version %d staged", version)
        else:
            self._hand_to(self._canary, version)

    def _hand_to(self, canary: Canary, version: int) -> None:
        """Begin a trial of ``version`` when its turn has come, or give it all rounds."""
        if self._said_away:
            return  # its history cannot be read
        events = self._registry.history()
        is_new = not is_settled(events, version)
        stack = service_stack(events)
        if is_new and canary.version in stack:
            return  # tried stays: looked at again when that trial has ended
        self._tried = version
        main = canary.main
        if canary.version is None and version == (main.adapter_version if main else 0):
            return  # it drafts already
        weights = self._prepare(version)
        if weights is None:
            return
        base = canary.base
        # What was rolled back is no base, nor is a version its own.
        others = {one for one in stack if one != version}
        if is_new and base is not None and base.adapter_version in others:
            canary.begin(weights, base)
            logger.info("adapter version %d drafts its first rounds", version)
        else:
            canary.stage(weights)
            logger.info("adapter version %d staged", version)

    def require_registry(self) -> None:
        """Raise OSError where the registry that named a version is gone."""
        if self._in_service > 0 and not self._registry.is_there():
            raise FileNotFoundError(errno.ENOENT, "the registry is not there")

    def wake(self) -> None:
        """Look now rather than at the next interval."""
        self._wake.set()

    def _end(self) -> None:
        self._stop.set()
        self._wake.set()
        super()._end()

    def _run(self) -> None:
        set_thread_modes(1)
        while not self._stop.is_set():
            try:
                with Unhurried():
                    self.poll()
            except FAULTS:
                logger.exception("looking at the registry failed")
            self._wake.wait(self._poll_interval_s)
            self._wake.clear()

    def _look_at_pointer(self) -> None:
        if self._is_away():
            return
        current = self._registry.current(self._passed_over())
        if current == self._in_service and self._looked:
            return
        self._looked = True
        self._in_service = current
        self._promoted_s = self._time_of(current)
        newest = service_stack(self._registry.history())[-1:]
        if newest and newest[0] != current:
            self._check_passed_over(newest[0])

    def _is_away(self) -> bool:
        """Whether the registry that named a version is gone: what drafts goes on meanwhile."""
        is_away = self._in_service > 0 and not self._registry.is_there()
        if is_away and not self._said_away:
            logger.warning("the registry is not there: version %d stays", self._in_service)
        self._said_away = is_away
        return is_away

    def _check_passed_over(self, version: int) -> None:
        """The registry names an older version than was promoted: count it if its files are bad.

        They are whole where a killed process had written the promotion down but not yet done it.
        """
        try:
            self._registry.manifest(version)
        except RegistryError as error:
            self._refuse(version, error)

    def _time_of(self, version: int) -> float:
        acts = (Act.PROMOTE, Act.ROLLBACK)
        for event in reversed(self._registry.history()):
            if event.version == version and event.act in acts:
                return event.time_s
        return 0.0

    def _prepare(self, version: int) -> DraftWeights | None:
        """Weights of ``version``, or None where it is refused."""
        try:
            adapter = None if version == 0 else self._registry.read(version)
            return self._drafter.prepare(adapter)
        except FAULTS as error:
            # A ValueError is a refusal with a reason; anything else broke on foreign data.
            self._refuse(version, error)
            return None

    def _refuse(self, version: int, error: Exception) -> None:
        if version not in self._refused:
            self._refused.add(version)
            self._slot.count_refused()
            logger.warning("adapter version %d refused: %s", version, error)
