"""What the memory alone would propose, position by position, for streams without any training.

Owns the teacher-forced questions; the memory is the server's, global, and remembers every answer
once it was served. Does not know the learned draft. Letters: n answer tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dvi.config import DrafterConfig
from dvi.drafting.base import Context, DraftRequest
from dvi.drafting.memory import MemoryDrafter
from dvi.types import Trace

KNOWN_LENGTH = 3  # tokens; a shorter match says little


@dataclass(frozen=True, slots=True)
class Recalled:
    """One answer of the stream, had all before a position been accepted."""

    hits: tuple[bool, ...]  # [n], the memory proposes the token
    known: tuple[bool, ...]  # [n], KNOWN_LENGTH tokens or more before it stood somewhere before


def recall(config: DrafterConfig, stream: Sequence[Trace]) -> Iterator[Recalled]:
    """One a trace, in order; the memory is empty before the first one."""
    drafter = MemoryDrafter(replace(config, memory_scope="global"))
    for trace in stream:
        yield _recall(drafter, trace)
        drafter.release(0)
        drafter.remember_trace(trace, "")


def _recall(drafter: MemoryDrafter, trace: Trace) -> Recalled:
    tokens = list(trace.prompt_ids)
    hits, known = [], []
    for token in trace.output_ids:
        request = DraftRequest(
            row=0,
            position=len(tokens) - 1,
            token=tokens[-1],
            draft_len=1,
            params=trace.sampling,
            context=Context(tokens),
        )
        proposal = drafter.recall([request])[0]
        hits.append(proposal.ids == (token,))
        known.append(bool(proposal.matches) and proposal.matches[0].length >= KNOWN_LENGTH)
        tokens.append(token)
    return Recalled(tuple(hits), tuple(known))
