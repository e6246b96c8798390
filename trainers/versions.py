"""The trainer's side of the registry: the version in service, new versions, their lineage.

Owns the order of acts: the checkpoint names a version's step and parent before the version exists,
and a restart finishes what a kill cut off. Does not know how candidates are scored.
"""

from __future__ import annotations

from dvi.drafting.base import AdapterRefused
from dvi.drafting.version import checked_tensors
from dvi.registry import Act, Adapter, Manifest, ManifestFields, Registry, RegistryError
from trainers.checkpoint import LineageEntry
from trainers.draft import Draft

RECENT_ACTS = 8  # promotions and rollbacks that make the gate stricter
MAX_LINEAGE = 1000  # entries kept; the registry keeps far fewer versions


class Versions:
    """Publishes candidates of one training. One thread; one trainer a registry."""

    def __init__(self, registry: Registry, draft: Draft, base_fingerprint: str) -> None:
        self.registry = registry
        self.draft = draft
        self.base_fingerprint = base_fingerprint
        self.lineage: list[LineageEntry] = []
        self.root_version = 0  # what the first step started from
        self.training_id = 0  # in every manifest: tells this training's versions from others

    @property
    def newest(self) -> int:
        """The last version made from this training, or the one it started from."""
        known = [entry.version for entry in self.lineage if entry.version is not None]
        return known[-1] if known else self.root_version

    def served(self) -> tuple[int, Adapter | None, str]:
        """Number and values of the version in service, and what was wrong with it, if anything.

        A version that a server would refuse counts as the untrained draft (None): that is what
        such a server falls back to after a start. RegistryError where this training has published
        and the registry is away.
        """
        self.require_registry()
        version = self.registry.current()
        if not version:
            return 0, None, ""
        try:
            return version, self._checked(version), ""
        except (RegistryError, AdapterRefused) as error:
            return 0, None, str(error)

    def usable(self, version: int) -> Adapter | None:
        """Values of a version; None where it is gone or a server would refuse it."""
        try:
            return self._checked(version)
        except (RegistryError, AdapterRefused):
            return None

    def require_registry(self) -> None:
        """Raise RegistryError where this training has published and the registry is away.

        Without its history no version in service would look like the untrained draft.
        """
        if self.newest and not self.registry.is_there():
            raise RegistryError(
                f"the registry {self.registry.root} is not there: put it back, or move the folder "
                "trainer/ away to start anew"
            )

    def intend(self, step: int, *, is_promoted: bool) -> None:
        """Note what is about to be published; a checkpoint must follow before ``publish``."""
        entry = LineageEntry(step, self.newest, is_promoted, None)
        self.lineage = [*self.lineage, entry][-MAX_LINEAGE:]

    def publish(self, fields: ManifestFields) -> int:
        """Make the intended version and promote it if so decided; returns its number."""
        intent = self.lineage[-1]
        assert intent.version is None
        assert (fields.parent, fields.checkpoint_step) == (intent.parent, intent.step)
        return self._finish(self.registry.publish(self.draft.save, fields))

    def finish_after_kill(self) -> LineageEntry | None:
        """Complete an intent of the checkpoint whose version exists; drop it where none does.

        Returns the completed entry. The version is promoted unless it already was: whoever rolled
        it back since keeps their word.
        """
        if not self.lineage or self.lineage[-1].version is not None:
            return None
        self.require_registry()
        intent = self.lineage.pop()
        after = self.newest
        for manifest in self._own_versions():
            made_from = (manifest.parent, manifest.checkpoint_step)
            if manifest.version > after and made_from == (intent.parent, intent.step):
                self.lineage.append(intent)
                self._finish(manifest.version)
                return self.lineage[-1]
        return None

    def adopt_unknown(self) -> None:
        """Enter own versions newer than the lineage: the checkpoint that named them was damaged."""
        for manifest in self._own_versions():
            if manifest.version > self.newest:
                self.lineage.append(
                    LineageEntry(
                        step=manifest.checkpoint_step,
                        parent=manifest.parent,
                        is_promoted=self._was_promoted(manifest.version),
                        version=manifest.version,
                    )
                )

    def withdraw(self) -> None:
        """Take back an intent that came to nothing (the disk is full, say)."""
        if self.lineage and self.lineage[-1].version is None:
            self.lineage.pop()

    def recent_rollbacks(self) -> int:
        """Rollbacks among the newest promotions and rollbacks, whoever made them."""
        counted = (Act.PROMOTE, Act.ROLLBACK)
        acts = [event.act for event in self.registry.history() if event.act in counted]
        return acts[-RECENT_ACTS:].count(Act.ROLLBACK)

    def _checked(self, version: int) -> Adapter:
        adapter = self.registry.read(version)
        checked_tensors(adapter, self.draft.layout, self.base_fingerprint)
        self.draft.check_list(adapter)
        return adapter

    def _own_versions(self) -> list[Manifest]:
        versions = self.registry.versions()
        return [m for m in versions if m.metrics.get("training_id") == self.training_id]

    def _finish(self, version: int) -> int:
        intent = self.lineage[-1]
        self.lineage[-1] = LineageEntry(intent.step, intent.parent, intent.is_promoted, version)
        if intent.is_promoted and not self._was_promoted(version):
            self.registry.promote(version, "gate: better on held-out traces")
        return version

    def _was_promoted(self, version: int) -> bool:
        """Whether the promotion is done: noted, and not cut off before the pointer moved."""
        events = self.registry.history()
        promotions = [e for e in events if e.act is Act.PROMOTE and e.version == version]
        is_cut_off = promotions[-1:] == events[-1:] and self.registry.current() != version
        return bool(promotions) and not is_cut_off
