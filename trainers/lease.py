"""One trainer for all machines: waits for the store's lease, keeps it, gives it back.

Owns the thread that beats; does not know what is trained. Where ``registry.path`` is not set nobody
shares the versions, and the lock of the state folder is enough.
"""

from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dvi.config import DviConfig
from dvi.config.home import state_dir
from dvi.config.state_file import read_state
from dvi.replay import Lease, ReplayStore, ReplayStoreError
from dvi.replay.lease import RENEW_S
from trainers.checkpoint import free_to_write

logger = logging.getLogger("trainers")

LOOK_INTERVAL_S = 1.0  # of whoever waits; a killed holder is followed within LEASE_S and this


@contextmanager
def sole_of_all(
    config: DviConfig, store: ReplayStore, stop: threading.Event
) -> Iterator[Callable[[], None] | None]:
    """A check to call before anything is written for all; None when told to stop before our turn.

    The check raises LeaseLost or ReplayStoreError. One trainer a state folder must be sure already.
    """
    if config.registry.path is None:
        yield free_to_write
        return
    lease = store.lease(holder_name(config))
    if not _wait(lease, stop):
        yield None
        return
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(lease, ended), name="lease", daemon=True)
    beating.start()
    try:
        yield lease.check
    finally:
        ended.set()
        beating.join()
        try:
            lease.give_back()
        except ReplayStoreError as error:  # others wait for it as after a kill
            logger.warning("lease not given back: %s", error)


def holder_name(config: DviConfig) -> str:
    """The state folder's id and the machine; a folder without an id is new with each process."""
    state = read_state(state_dir(config))
    return f"{uuid.uuid4().hex[:12] if state is None else state.id} on {socket.gethostname()}"


def _wait(lease: Lease, stop: threading.Event) -> bool:
    said = ""
    while not stop.is_set():
        try:
            if lease.take():
                logger.info("this machine trains")
                return True
            line = f"standing by: {lease.holder() or 'another'} trains"
        except ReplayStoreError as error:
            line = f"waiting: {error}"
        if line != said:
            said = line
            logger.info("%s", line)
        stop.wait(LOOK_INTERVAL_S)
    return False


def _beat(lease: Lease, ended: threading.Event) -> None:
    while not ended.wait(RENEW_S):
        try:
            lease.renew()
        except ReplayStoreError as error:
            logger.warning("lease not renewed: %s", error)
