"""Reads an offline run of W&B back: records of protobuf in the log format of LevelDB."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK_BYTES = 32_768
FILE_HEAD = 7  # a mark, a magic number and a version
PART_HEAD = 7  # check sum (4), length (2), whole/first/middle/last (1)
WHOLE, FIRST, _, LAST = 1, 2, 3, 4


def records(run: Path) -> Iterator[Record]:
    """All records of the run in ``run``, in order."""
    (path,) = run.glob("*.wandb")
    data = path.read_bytes()
    at, joined = FILE_HEAD, b""
    while at + PART_HEAD <= len(data):
        if BLOCK_BYTES - at % BLOCK_BYTES < PART_HEAD:  # no head fits into the rest of the block
            at += BLOCK_BYTES - at % BLOCK_BYTES
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part = data[at + PART_HEAD : at + PART_HEAD + length]
        at += PART_HEAD + length
        joined = part if kind in (WHOLE, FIRST) else joined + part
        if kind in (WHOLE, LAST):
            yield Record.FromString(joined)


def rows(run: Path) -> list[dict[str, Any]]:
    """The rows that were logged, without W&B's own names."""
    found = []
    for one in records(run):
        if one.WhichOneof("record_type") == "history":
            pairs = ((item.key or "/".join(item.nested_key), item) for item in one.history.item)
            row = {name: json.loads(item.value_json) for name, item in pairs}
            found.append({name: value for name, value in row.items() if name[:1] != "_"})
    return found


def settings(run: Path) -> dict[str, Any]:
    """The run's config, and its group and job type beside it as ``group`` and ``job_type``."""
    found: dict[str, Any] = {}
    for one in records(run):
        if one.WhichOneof("record_type") == "run":
            found |= {item.key: json.loads(item.value_json) for item in one.run.config.update}
            found |= {"group": one.run.run_group, "job_type": one.run.job_type}
    return found


def artifacts(run: Path) -> list[tuple[str, str, set[str], set[str]]]:
    """Type, name, aliases and file names of each artifact that was logged."""
    found = []
    for one in records(run):
        kind = one.WhichOneof("record_type")
        if kind == "artifact":
            artifact = one.artifact
        elif kind == "request" and one.request.WhichOneof("request_type") == "log_artifact":
            artifact = one.request.log_artifact.artifact
        else:
            continue
        files = {entry.path for entry in artifact.manifest.contents}
        found.append((artifact.type, artifact.name, set(artifact.aliases), files))
    return found
