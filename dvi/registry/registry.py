"""Adapter versions on disk and the pointer to the one in service.

Owns the folder ``adapters/``: one publisher at a time (a lock), any number of readers. Does not
know what makes a version good enough to promote.

    v000012/         adapter_model.safetensors, adapter_config.json, manifest.json
    CURRENT          number of the version in service, replaced atomically; 0 when absent
    history.jsonl    every act; publish, promote and rollback are written before they are done
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path

from dvi.config.files import PART_PREFIX, replace_file, sync_folder
from dvi.registry.files import append_line, exclusive, open_folder, sync_file
from dvi.registry.history import (
    Act,
    Event,
    highest_number,
    read_history,
    rollback_targets,
    service_stack,
)
from dvi.registry.manifest import (
    Adapter,
    Manifest,
    ManifestFields,
    RegistryError,
    make_manifest,
    to_json,
)
from dvi.registry.prune import remove_folders, remove_leftovers
from dvi.registry.version import MANIFEST_FILE, hash_files, parse, read_checked, read_manifest

_FOLDER_PATTERN = re.compile(r"v(\d{6,})")


class Registry:
    """Versions 1, 2, ... under ``root``; version 0 is the untrained draft and has no files.

    Invariants: a version is complete or absent; its number is never given out again; CURRENT
    names a version whose files were whole when it was promoted. Reading creates nothing.
    """

    def __init__(
        self, root: Path, keep_versions: int = 20, now_s: Callable[[], float] = time.time
    ) -> None:
        self.root = root
        self._keep_versions = keep_versions
        self._now_s = now_s

    def is_there(self) -> bool:
        """Whether the folder exists: not before the first version, nor while its disk is away."""
        return self.root.is_dir()

    def folder(self, version: int) -> Path:
        """Where the files of ``version`` are, if it is there."""
        return self.root / f"v{version:06d}"

    def publish(self, write_files: Callable[[Path], None], draft: ManifestFields) -> int:
        """Store what ``write_files(folder)`` writes as a new version, not yet in service.

        The folder must hold the adapter's two PEFT files and nothing that is neither safetensors
        nor JSON. Old versions beyond ``keep_versions`` are removed. RegistryError, and no version,
        when the files are not as they should be, or when ``root`` is away where a parent was; an
        error of ``write_files`` passes through.
        """
        if not draft.parent:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        elif not self.is_there():
            # Made anew, it would give out its numbers again.
            raise RegistryError(f"the registry {self.root} is not there")
        with self._changing():
            version = 1 + max(highest_number(self.history()), max(self._numbers(), default=0))
            temporary = self.root / f"{PART_PREFIX}{version}-{os.getpid()}"
            temporary.mkdir(mode=0o700)
            try:
                write_files(temporary)
                self._complete(temporary, version, draft)
                self._record(Act.PUBLISH, version, "")
                temporary.rename(self.folder(version))
            finally:
                shutil.rmtree(temporary, ignore_errors=True)  # not there any more on success
            sync_folder(self.root)
            remove_folders(self._superfluous())
        return version

    def promote(self, version: int, reason: str) -> None:
        """Put ``version`` into service (0: the untrained draft); its files are checked first."""
        if version and not self.is_there():
            raise RegistryError(f"there is no version {version}: {self.root} is not there")
        with self._changing():
            if version != 0:
                with self._opened(version) as folder:
                    read_checked(folder, read_manifest(folder, version))
            self._record(Act.PROMOTE, version, reason)
            self._point_to(version)

    def rollback(self, reason: str) -> int:
        """Go back to the version in service before, passing over rolled back and broken ones.

        Returns the version now in service; 0 when none is left.
        """
        with self._changing():
            return self._go_back(reason)

    def retire(self, version: int, reason: str) -> None:
        """Take ``version`` out of service, whatever came after it; nothing where it is out.

        If it is the one in service this is a ``rollback``; below a newer one it is dismissed, and
        no later rollback goes to it. RegistryError where the history has never heard of it.
        """
        with self._changing():
            events = self.history()
            if all(event.version != version for event in events):
                raise RegistryError(f"there is no version {version} in {self.root}")
            stack = service_stack(events)
            if stack[-1:] == [version]:
                self._go_back(reason)
            elif version in stack:
                self._record(Act.DISMISS, version, reason)

    def note(self, act: Act, version: int, reason: str) -> None:
        """Write down what became of a canary; CURRENT stays."""
        assert act in (Act.CANARY, Act.SETTLE)
        with self._changing():
            self._record(act, version, reason)

    def current(self, besides: Container[int] = ()) -> int:
        """The version in service, 0 for the untrained draft; as if ``besides`` were taken out.

        Where CURRENT is torn or names a broken folder: the newest whole version that was in
        service by the history, else 0.
        """
        pointed = self._pointer()
        if pointed is not None and pointed not in besides and self._is_whole(pointed):
            return pointed
        left = (one for one in reversed(service_stack(self.history())) if one not in besides)
        return next((version for version in left if self._is_whole(version)), 0)

    def versions(self) -> list[Manifest]:
        """Manifests of all whole versions, oldest first; broken folders are left out."""
        manifests = (self._manifest_if_whole(number) for number in self._numbers())
        return [manifest for manifest in manifests if manifest is not None]

    def manifest(self, version: int) -> Manifest:
        """The manifest of ``version``; RegistryError when it is not there or not whole."""
        with self._opened(version) as folder:
            return read_manifest(folder, version)

    def damaged(self) -> dict[int, str]:
        """Versions whose files are not what their manifest says, with the reason; reads all."""
        found: dict[int, str] = {}
        for version in self._numbers():
            try:
                with self._opened(version) as folder:
                    read_checked(folder, read_manifest(folder, version))
            except RegistryError as error:
                found[version] = str(error)
        return found

    def read(self, version: int) -> Adapter:
        """``version`` in memory, its hashes checked.

        RegistryError when a file is missing, changed, a link, not in the manifest, or of a kind
        that can run code. Whether the tensors fit a draft is the drafter's to say.
        """
        with self._opened(version) as folder:
            manifest = read_manifest(folder, version)
            data = read_checked(folder, manifest)
        return parse(manifest, data)

    def history(self) -> list[Event]:
        """Every act so far, oldest first."""
        return read_history(self.root / "history.jsonl")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """The lock of the one publisher; leftovers and a half-done act of a killed one mended.

        FileNotFoundError where the folder is not there: an empty one in its place would be in the
        way of its return.
        """
        with exclusive(self.root / ".lock"):
            remove_leftovers(self.root)
            stack = service_stack(self.history())
            if stack and self._pointer() != stack[-1]:
                self._point_to(stack[-1])
            yield

    def _complete(self, folder: Path, version: int, draft: ManifestFields) -> None:
        """Add the manifest and make every byte durable."""
        manifest = make_manifest(version, draft, hash_files(folder), self._now_s())
        (folder / MANIFEST_FILE).write_bytes(to_json(manifest))
        for path in folder.iterdir():
            sync_file(path)
        sync_folder(folder)

    def _go_back(self, reason: str) -> int:
        targets = rollback_targets(self.history())
        target = next((version for version in targets if self._is_whole(version)), 0)
        self._record(Act.ROLLBACK, target, reason)
        self._point_to(target)
        return target

    def _record(self, act: Act, version: int, reason: str) -> None:
        """Write the act down before it is done: a kill in between is mended by the next one."""
        live = service_stack(self.history())[-1:]
        event = Event(act, version, live[0] if live else 0, reason, self._now_s())
        append_line(self.root / "history.jsonl", event.to_line())

    def _point_to(self, version: int) -> None:
        replace_file(self.root / "CURRENT", f"{version}\n".encode(), durable=True)

    def _pointer(self) -> int | None:
        """The number in CURRENT; None when it is absent or torn."""
        path = self.root / "CURRENT"
        text = path.read_bytes() if path.is_file() else b""
        return int(text) if re.fullmatch(rb"\d{1,18}\n", text) else None

    def _is_whole(self, version: int) -> bool:
        """Whether ``version`` can be put into service as far as names say; 0 always can."""
        return version == 0 or self._manifest_if_whole(version) is not None

    def _manifest_if_whole(self, version: int) -> Manifest | None:
        """One look: between two a version could be pruned."""
        try:
            return self.manifest(version)
        except RegistryError:
            return None

    def _numbers(self) -> list[int]:
        """Numbers of all version folders, ascending, whole or not."""
        if not self.root.is_dir():
            return []
        matches = (_FOLDER_PATTERN.fullmatch(name) for name in os.listdir(self.root))
        return sorted(int(match[1]) for match in matches if match)

    @contextmanager
    def _opened(self, version: int) -> Iterator[int]:
        if version < 1:
            raise RegistryError(f"version {version} has no files: versions start at 1")
        with open_folder(self.folder(version)) as folder:
            yield folder

    def _superfluous(self) -> list[Path]:
        """Folders beyond ``keep_versions``: never the live one, its parent or where it rolls back.

        Newest folders stay, so a candidate that waits for its gate is never among them.
        """
        numbers = self._numbers()
        events = self.history()
        live = self.current()
        needed = {live, *rollback_targets(events)[:1], *numbers[-self._keep_versions :]}
        if live and (manifest := self._manifest_if_whole(live)):
            needed.add(manifest.parent)
        return [self.folder(number) for number in numbers if number not in needed]
