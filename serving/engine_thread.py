"""The one decode thread of a server.

Owns the thread and its floating-point mode; knows nothing of what the engine decodes.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import torch

from dvi.decoding import Engine

STOP_TIMEOUT_S = 10.0


class EngineThread:
    """Runs ``engine.run`` from ``__enter__`` to ``__exit__``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Stop after the current step; who still runs ends as failed."""
        self._stop.set()
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        # The mode belongs to a thread: denormals make some passes many times slower on a CPU.
        torch.set_flush_denormal(True)
        self._engine.run(self._stop)
