"""Rows of a user's Parquet or JSON files, read by ``datasets`` as a stream.

Owns which files are read and in which order; does not know what a row means. A stream leaves no
copy of the content in the cache of ``datasets``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

READERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}


def data_files(path: Path) -> list[Path]:
    """The file itself, or the files of a folder by name. Raises ValueError where there is none."""
    if not path.exists():
        raise ValueError(f"data.path={path} does not exist")
    found = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    usable = [file for file in found if file.suffix in READERS]
    if not usable:
        raise ValueError(f"data.path={path} holds no file that ends in {', '.join(READERS)}")
    return usable


def read_rows(path: Path, max_rows: int | None) -> Iterator[dict[str, Any]]:
    """Rows in order; columns that a row lacks are absent or None. Raises ValueError."""
    rows = (row for file in data_files(path) for row in _read_file(file))
    return islice(rows, max_rows)


def _read_file(file: Path) -> Iterator[dict[str, Any]]:
    # Imported here: it takes seconds, and training on stored traffic does not need it.
    import datasets

    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
    try:
        yield from datasets.load_dataset(
            READERS[file.suffix], data_files=str(file), split="train", streaming=True
        )
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"cannot read {file}: {lines[0]}") from error
