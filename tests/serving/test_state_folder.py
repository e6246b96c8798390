"""The state folder and its key: whose they are, and how servers of one registry share the key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serving.state_folder import locked_state_folder, user_key


def test_the_state_folder_and_its_key_are_the_owners_only(tmp_path: Path) -> None:
    with locked_state_folder(tmp_path / "state") as folder:
        key = user_key(folder, folder)
        assert user_key(folder, folder) == key
        assert folder.stat().st_mode & 0o777 == 0o700
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
        (folder / "user_hash.key").write_bytes(b"short")
        with pytest.raises(ValueError, match="user_hash"):
            user_key(folder, folder)


def test_servers_of_one_registry_hash_users_alike_whoever_starts_first(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    folders = [tmp_path / f"state{i}" for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda folder: user_key(shared, folder), folders))
    assert len(keys) == 1
    assert [path.name for path in shared.iterdir()] == ["user_hash.key"]  # no part is left


def test_a_server_that_joins_a_registry_brings_its_key_only_if_there_is_none(
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    first, second = user_key(one, one), user_key(other, other)
    assert first != second
    assert user_key(tmp_path / "shared", one) == first
    assert user_key(tmp_path / "shared", other) == first
