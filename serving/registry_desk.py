"""What the admin routes do to registry and trainer.

Owns what ``GET /admin/adapters`` shows; does not know HTTP.
"""

from __future__ import annotations

from typing import Any

from dvi.decoding import AdapterSlot
from dvi.drift import LiveAcceptance
from dvi.registry import Registry
from serving.trainer_control import TrainerControl
from serving.watcher import AdapterWatcher


class RegistryDesk:
    """What the admin routes do to registry and trainer; blocking, any thread.

    ValueError where it is refused, OSError where the state folder cannot be read or written.
    """

    def __init__(
        self,
        registry: Registry,
        watcher: AdapterWatcher,
        slot: AdapterSlot,
        live: LiveAcceptance,
        control: TrainerControl,
    ) -> None:
        self._control = control
        self._registry = registry
        self._watcher = watcher
        self._slot = slot
        self._live = live

    def overview(self) -> dict[str, Any]:
        """The version in service, those that draft, what they accept, all versions on disk."""
        return {
            "current": self._registry.current(),
            "live": self._slot.adapter_version,
            "canary": self._slot.canary_version,
            "acceptance": self._acceptance(),
            "versions": [
                {
                    "version": manifest.version,
                    "parent": manifest.parent,
                    "created_s": manifest.created_s,
                    "checkpoint_step": manifest.checkpoint_step,
                    "rows_trained": manifest.rows_trained,
                    "metrics": dict(manifest.metrics),
                }
                for manifest in self._registry.versions()
            ],
        }

    def promote(self, version: int) -> int:
        """Put ``version`` into service; RegistryError (a ValueError) where it is not whole."""
        self._watcher.require_registry()
        if version or self._registry.is_there():  # else 0 is in service, and no folder is needed
            self._registry.promote(version, "admin")
        self._watcher.wake()
        return self._registry.current()

    def rollback(self) -> int:
        """Go back to the version in service before."""
        self._watcher.require_registry()
        current = self._registry.rollback("admin") if self._registry.is_there() else 0
        self._watcher.wake()
        return current

    def _acceptance(self) -> list[dict[str, float]]:
        """Newest proposals at the first position by version, all domains together."""
        return [
            {
                "version": version,
                "first_proposed": sum(one.tried for one in counts.values()),
                "first_accepted": sum(one.accepted for one in counts.values()),
            }
            for version, counts in sorted(self._live.by_version().items())
        ]

    def pause_training(self) -> None:
        """No optimizer step until training is resumed, restarts included."""
        self._control.pause()

    def resume_training(self) -> None:
        """Go on training."""
        self._control.resume()
