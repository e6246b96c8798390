"""Rows of a file as a replay store of their own, answered once and used by every run after it.

Owns the folder under DVI_HOME/data, named by everything that decides the rows, and how far the
answering came: a killed run goes on with the next group. Does not know how a row is answered.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from dvi.config import DviConfig, ReplayConfig
from dvi.config.files import replace_file
from dvi.config.home import dvi_home
from dvi.decoding.startup import load_model
from dvi.modeling.fingerprint import base_fingerprint
from dvi.modeling.resolve import resolve_model_path
from dvi.replay import ReplayStore, default_url, open_store
from trainers.answers import Answerer
from trainers.examples import Example, Reading, RowRefused, examples_of, reading_of
from trainers.files import data_files, read_rows

logger = logging.getLogger("trainers")

PROGRESS = "progress.json"
WRITER = "file"
GROUPS = 4  # batches that are answered before they are stored: a slow answer keeps no row idle
MAX_BYTES = 1 << 36  # nothing of a file is evicted

Answered = Callable[[int, int], None]  # rows done, rows in all


def prepare(config: DviConfig, answered: Answered) -> Path:
    """The folder whose store holds every usable row of ``data.path``; answers what is missing.

    Two runs that want the same rows at once do the work once. Raises ValueError for a file that
    cannot be read, a row that is not understood, and where nothing is usable.
    """
    folder = rows_folder(config)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(folder / "lock"):
        if not is_complete(folder):
            _answer_rest(config, folder, answered)
    return folder


def open_rows(folder: Path, config: ReplayConfig) -> ReplayStore:
    """The store of a prepared folder."""
    return open_store(
        default_url(folder), replace(config, max_bytes=MAX_BYTES, max_age_days=100_000.0)
    )


def is_complete(folder: Path) -> bool:
    """Whether every row is there."""
    return bool(_read_progress(folder).get("is_complete", False))


def rows_folder(config: DviConfig) -> Path:
    """DVI_HOME/data/<hash of files, target and every setting that decides a row>."""
    path = Path(config.data.path or "")
    digest = hashlib.sha256()
    for file in data_files(path):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    settings = {
        "base": base_fingerprint(resolve_model_path(config.model), 0, 0),
        "dtype": config.model.dtype,
        "data": {k: v for k, v in asdict(config.data).items() if k not in ("path", "kind")},
        "seed": config.run.seed if config.data.temperature else 0,
        "context": config.serving.max_context_len,
        "window": config.trainer.max_seq_len,
        "top_ids": config.replay.top_ids,
        "deterministic": config.decoding.deterministic,
    }
    digest.update(json.dumps(settings, sort_keys=True).encode())
    return dvi_home() / "data" / digest.hexdigest()[:24]


def _answer_rest(config: DviConfig, folder: Path, answered: Answered) -> None:
    """Group after group in the file's order; each is stored before it counts as done."""
    loaded = load_model(config)
    answerer = Answerer(loaded, config)
    reading = reading_of(loaded.tokenizer, config.data.prompt_as, config.trainer.max_seq_len)
    everything = list(_examples(config, reading))
    usable = [example for example in everything if answerer.fits(example)]
    if len(usable) < len(everything):
        logger.warning(
            "%d of %d rows are longer than serving.max_context_len: left out",
            len(everything) - len(usable),
            len(everything),
        )
    if len(usable) < 2:
        raise ValueError(f"data.path={config.data.path} has {len(usable)} usable rows; needs 2")
    done = int(_read_progress(folder).get("done", 0))
    size = config.data.batch_size * GROUPS
    with open_rows(folder, config.replay) as store:
        answered(done, len(usable))
        while done < len(usable):
            group = usable[done : done + size]
            store.append(WRITER, answerer.traces(group, done))
            done += len(group)
            _write_progress(folder, done, is_complete=done == len(usable))
            answered(done, len(usable))


def _examples(config: DviConfig, reading: Reading) -> Iterator[Example]:
    path = Path(config.data.path or "")
    for number, row in enumerate(read_rows(path, config.data.max_rows), start=1):
        try:
            yield from examples_of(row, reading)
        except RowRefused as error:
            raise ValueError(f"row {number} of {path}: {error}") from error


def _read_progress(folder: Path) -> dict[str, int]:
    path = folder / PROGRESS
    if not path.is_file():
        return {}
    values: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    return values


def _write_progress(folder: Path, done: int, *, is_complete: bool) -> None:
    text = json.dumps({"done": done, "is_complete": is_complete})
    replace_file(folder / PROGRESS, text.encode(), durable=False)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file; waits for whoever answers the same rows. A killed holder frees it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
