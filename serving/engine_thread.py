"""The one decode thread of a server: it loads the model, then decodes.

Owns the thread and its modes; knows nothing of what the engine decodes.

It is the only thread of the process whose tensor operations take several cores. OpenMP keeps a team
of workers for every thread that asks for one, and once the teams together outnumber the cores they
stop spinning between two operations and sleep instead: with a second team in the process a round
costs about twice as much.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from dvi.decoding import Engine
from dvi.modeling.threads import set_thread_modes

STOP_TIMEOUT_S = 10.0

Result = TypeVar("Result")
_left: list[threading.Thread] = []  # of servers that have ended


def is_one_left() -> bool:
    """Whether a decode thread outlived its server, deep in a tensor operation.

    The interpreter must not end such a process: it would abort.
    """
    return any(thread.is_alive() for thread in _left)


class EngineThread:
    """Runs calls one by one, then ``engine.run`` until ``__exit__``."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._decodes = False
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def call(self, work: Callable[[], Result]) -> Result:
        """The result of ``work`` on this thread, or its exception; only before ``decode``."""
        assert not self._decodes
        future: Future[Result] = Future()
        self._calls.put(lambda: _settle(future, work))
        return future.result()

    def decode(self, engine: Engine) -> None:
        """Run the engine from now on."""
        self._decodes = True
        self._calls.put(lambda: engine.run(self._stop))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop after the current step or call; who still runs ends as failed.

        Also a model that is being loaded is waited for, but not for ever: see ``is_one_left``.
        """
        self._stop.set()
        self._calls.put(lambda: None)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            _left.append(self._thread)

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        set_thread_modes(self._num_threads)
        while not self._stop.is_set():
            self._calls.get()()


def _settle(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised again by the caller of ``call``
        future.set_exception(error)
