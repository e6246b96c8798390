"""Which stored answers an audit decodes again.

Owns the choice of rows and the reasons for leaving one out; does not decode.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dvi.audit.pairs import Answer
from dvi.config import AuditConfig
from dvi.replay import ReplayStore
from dvi.types import DecodeRequest, Trace, Verification

SCANNED_ROWS = 100_000  # newest rows of the store that are looked at: two short strings each
_PAGE_ROWS = 32  # traces read at a time: some 1 MB


@dataclass(frozen=True, slots=True)
class Served:
    """One stored answer, as a request that plain decoding can answer again."""

    request: DecodeRequest
    answer: Answer


def newest_traces(store: ReplayStore, config: AuditConfig, now_s: float) -> list[Trace]:
    """At most ``max_traces`` traces, newest first, within age and share."""
    oldest_s = -1.0 if config.max_age_s is None else now_s - config.max_age_s
    found: list[Trace] = []
    for trace in _newest_first(store):
        if trace.created_s < oldest_s or len(found) == config.max_traces:
            break
        if is_drawn(trace.request_id, config.share):
            found.append(trace)
    return found


def _newest_first(store: ReplayStore) -> Iterator[Trace]:
    keys = store.newest(SCANNED_ROWS)
    for first in range(0, len(keys), _PAGE_ROWS):
        for row in store.load(keys[first : first + _PAGE_ROWS]):
            yield row.trace


def is_drawn(request_id: str, share: float) -> bool:
    """Whether an id is among the share; the same answer in every audit."""
    return zlib.crc32(request_id.encode()) < share * 2**32


def as_served(trace: Trace) -> Served:
    """The trace as a request that ends where it ended.

    A limit is the length of the answer itself: the server's own context limit is not known here.
    """
    sampling = replace(
        trace.sampling,
        max_tokens=len(trace.output_ids),
        logprobs=None,
        prompt_logprobs=None,
    )
    name = f"{trace.request_id}/{trace.sampling.choice_index}"
    request = DecodeRequest(name, trace.prompt_ids, sampling, speculation=False, log=False)
    return Served(request, Answer(trace.output_ids, trace.finish_reason))


def comparable(
    traces: Sequence[Trace], fingerprint: str, verification: Verification
) -> tuple[list[Trace], Counter[str]]:
    """The traces that this system promises to repeat, and how many were left out, by reason.

    Under rejection sampling the tokens of a sampled answer depend on the draft.
    """
    kept: list[Trace] = []
    skipped: Counter[str] = Counter({"other_fingerprint": 0, "rejection_sampled": 0})
    for trace in traces:
        sampled = trace.sampling.temperature > 0
        if trace.system_fingerprint != fingerprint:
            skipped["other_fingerprint"] += 1
        elif sampled and verification is Verification.REJECTION:
            skipped["rejection_sampled"] += 1
        else:
            kept.append(trace)
    return kept, skipped
