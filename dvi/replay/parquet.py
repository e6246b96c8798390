"""The store as one Parquet file, whole or without content; pyarrow is imported here only.

Owns the columns (docs/privacy.md lists them). Flat lists instead of lists of lists, so that numpy
arrays go through without becoming Python numbers. Letters: P prompt tokens, T output tokens, M kept
ids a position, R rounds, J judged proposals over all rounds.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow
import pyarrow.parquet

from dvi.replay.rows import StoredTrace
from dvi.replay.store import ReplayStore
from dvi.replay.walk import batches
from dvi.types import Source, Trace

_HOUR_S = 3600.0
_INTS = pyarrow.list_(pyarrow.int32())
_FLOATS = pyarrow.list_(pyarrow.float32())
_WORDS = pyarrow.list_(pyarrow.string())
Columns: TypeAlias = Mapping[str, Any]
Row: TypeAlias = dict[str, Any]

# Every form has these, so alpha is sum(accepted) / sum(judged) in any tool that reads Parquet.
_COUNTS: Columns = {
    "finish_reason": pyarrow.string(),
    "prompt_tokens": pyarrow.int32(),
    "output_tokens": pyarrow.int32(),
    "temperature": pyarrow.float64(),
    "rounds": pyarrow.int32(),
    "judged": pyarrow.int32(),
    "accepted": pyarrow.int32(),
    "round_source": _WORDS,  # [R] neural, memory, target
    "round_version": _INTS,  # [R]
    "round_judged": _INTS,  # [R]
    "round_accepted": _INTS,  # [R]
}
_REDACTED: Columns = {
    "row": pyarrow.int64(),
    "hour_s": pyarrow.int64(),
    "domain_number": pyarrow.int32(),
    **_COUNTS,
}
_FULL: Columns = {
    "writer": pyarrow.string(),
    "seq": pyarrow.int64(),
    "request_id": pyarrow.string(),
    "created_s": pyarrow.float64(),
    "domain": pyarrow.string(),
    "user_hash": pyarrow.string(),
    "system_fingerprint": pyarrow.string(),
    "sampling": pyarrow.string(),  # JSON
    **_COUNTS,
    "prompt_ids": _INTS,  # [P]
    "output_ids": _INTS,  # [T]
    "num_top": pyarrow.int32(),  # M
    "top_ids": _INTS,  # [T * M]
    "top_logits": _FLOATS,  # [T * M]
    "logsumexp": _FLOATS,  # [T]
    "proposed_ids": _INTS,  # [J], by round_judged
    "draft_logprobs": _FLOATS,  # of neural rounds only, by round_judged
}


@dataclass(frozen=True, slots=True)
class Form:
    """What a row of the file says; ``new_row`` makes the function that fills it, for one file."""

    name: str
    columns: Columns
    new_row: Callable[[], Callable[[StoredTrace], Row]]


def write_parquet(store: ReplayStore, form: Form, path: Path) -> int:
    """Write all rows to ``path``, 0600, and return how many; the file is complete or absent.

    Raises OSError when it cannot be written.
    """
    schema = pyarrow.schema(list(form.columns.items()), {"dvi.form": form.name, "dvi.format": "1"})
    part = path.with_name(f".{path.name}.{os.getpid()}")
    row_of = form.new_row()
    written = 0
    descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer,
        ):
            for rows in batches(store):
                writer.write_table(_table([row_of(row) for row in rows], schema))
                written += len(rows)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return written


def _table(rows: Sequence[Row], schema: Any) -> Any:
    columns = [pyarrow.array([row[one.name] for row in rows], one.type) for one in schema]
    return pyarrow.Table.from_arrays(columns, schema=schema)


def _counts(trace: Trace) -> Row:
    judged = [len(one.proposed_ids) for one in trace.rounds]
    accepted = [one.num_accepted for one in trace.rounds]
    return {
        "finish_reason": trace.finish_reason.value,
        "prompt_tokens": len(trace.prompt_ids),
        "output_tokens": len(trace.output_ids),
        "temperature": trace.sampling.temperature,
        "rounds": len(trace.rounds),
        "judged": sum(judged),
        "accepted": sum(accepted),
        "round_source": [one.source.value for one in trace.rounds],
        "round_version": [one.adapter_version for one in trace.rounds],
        "round_judged": judged,
        "round_accepted": accepted,
    }


def _new_full() -> Callable[[StoredTrace], Row]:
    return _full_row


def _full_row(stored: StoredTrace) -> Row:
    trace = stored.trace
    neural = (one for one in trace.rounds if one.source is Source.NEURAL)
    return {
        "writer": stored.key.writer,
        "seq": stored.key.seq,
        "request_id": trace.request_id,
        "created_s": trace.created_s,
        "domain": trace.domain,
        "user_hash": trace.user_hash,
        "system_fingerprint": trace.system_fingerprint,
        "sampling": json.dumps(asdict(trace.sampling), separators=(",", ":")),
        **_counts(trace),
        "prompt_ids": trace.prompt_ids,
        "output_ids": trace.output_ids,
        "num_top": trace.top_ids.shape[1],
        "top_ids": trace.top_ids.ravel(),
        "top_logits": trace.top_logits.ravel(),
        "logsumexp": trace.logsumexp,
        "proposed_ids": [token for one in trace.rounds for token in one.proposed_ids],
        "draft_logprobs": [value for one in neural for value in one.draft_logprobs],
    }


def _new_redacted() -> Callable[[StoredTrace], Row]:
    """Rows and domains are numbered as they come: a tag is the client's own text."""
    numbers: dict[str, int] = {}
    rows = itertools.count(1)

    def redacted(stored: StoredTrace) -> Row:
        trace = stored.trace
        return {
            "row": next(rows),
            "hour_s": int(trace.created_s // _HOUR_S * _HOUR_S),
            "domain_number": numbers.setdefault(trace.domain, len(numbers)),
            **_counts(trace),
        }

    return redacted


FULL = Form("full", _FULL, _new_full)
REDACTED = Form("redacted", _REDACTED, _new_redacted)
