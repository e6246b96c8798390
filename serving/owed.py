"""Rollbacks that this server has decided and the registry is told as soon as it can be.

Owns what is owed; does not know why a version was bad, nor what drafts instead. The registry may be
locked by another process, away or on a full disk: what is owed stays owed and is tried at every
look of the sentinel. The watcher goes on meanwhile as if it had been told (``versions``).
"""

from __future__ import annotations

import logging
import threading

from dvi.registry import Registry, RegistryError

logger = logging.getLogger(__name__)


class OwedRollbacks:
    """Versions to be taken out of service. ``owe`` and ``pay`` by one thread, the rest by any."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()  # never held while the registry is waited for
        self._reasons: dict[int, str] = {}  # by version, oldest first
        self._num_failed = 0  # tries since the registry last took one

    def versions(self) -> frozenset[int]:
        """What must not draft, whatever the registry says."""
        with self._lock:
            return frozenset(self._reasons)

    def owe(self, version: int, reason: str) -> None:
        """Decide; ``pay`` does it."""
        with self._lock:
            self._reasons[version] = reason

    def pay(self) -> bool:
        """Tell the registry all that is owed, oldest first; True if it took something.

        Waits for the registry's lock as every act on it does. One warning however often it fails.
        """
        with self._lock:
            owed = dict(self._reasons)
        for version, reason in owed.items():
            try:
                self._registry.retire(version, reason)
            except (OSError, RegistryError) as error:
                self._put_off(version, error)
                return len(self.versions()) < len(owed)
            with self._lock:
                del self._reasons[version]
            if self._num_failed:
                logger.info("version %d out of service after %d tries", version, self._num_failed)
                self._num_failed = 0
        return bool(owed)

    def _put_off(self, version: int, error: Exception) -> None:
        if not self._num_failed:
            logger.warning(
                "version %d drafts no more here; the registry cannot be told yet: %s",
                version,
                error,
            )
        self._num_failed += 1
