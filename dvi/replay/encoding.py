"""A trace as bytes and back: little-endian int32 and float32 blobs and one JSON header.

Owns the layout of the content columns; does not know that a database holds them.
Letters: T output tokens, M kept target ids a position, R rounds.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dvi.types import FinishReason, Round, SamplingParams, Source, Trace

_INT = np.dtype("<i4")
_FLOAT = np.dtype("<f4")
_SOURCES = tuple(Source)  # code in the rounds blob; a new source goes to the end of the enum
_HEADER_FIELDS = {"sampling", "finish_reason", "system_fingerprint", "created_s", "num_top"}
_CHECKSUM = re.compile(r',"crc32":(\d+)}\Z')  # at the header's end; rows of older stores have none
_ROUND_HEAD = 4  # int32 fields in front of a round's ids: source, version, proposed, accepted


class DamagedTrace(ValueError):
    """Content that is not what was encoded: the disk altered it."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content columns of one trace; about 0.5 KB a token at M = 64."""

    header: str  # JSON: sampling, finish reason, fingerprint, time, M, checksum of all columns
    prompt_ids: bytes  # int32 [P]
    output_ids: bytes  # int32 [T]
    top_ids: bytes  # int32 [T, M]
    top_logits: bytes  # float32 [T, M]
    logsumexp: bytes  # float32 [T]
    rounds: bytes  # int32 words, see _pack_rounds

    def blobs(self) -> tuple[bytes, ...]:
        """Every column but the header."""
        ids = (self.prompt_ids, self.output_ids, self.top_ids)
        return (*ids, self.top_logits, self.logsumexp, self.rounds)

    def num_bytes(self) -> int:
        """Bytes of all columns."""
        return len(self.header.encode()) + sum(len(blob) for blob in self.blobs())

    def checksum(self) -> int:
        """CRC-32 of all columns as they are now."""
        total = zlib.crc32(self.header.encode())
        for blob in self.blobs():
            total = zlib.crc32(blob, total)
        return total

    def sealed(self) -> Content:
        """With the checksum in the header."""
        return replace(self, header=f'{self.header[:-1]},"crc32":{self.checksum()}}}')

    def unsealed(self) -> Content:
        """Without it again. Raises DamagedTrace where it does not match."""
        found = _CHECKSUM.search(self.header)
        if found is None:
            return self
        content = replace(self, header=self.header[: found.start()] + "}")
        if content.checksum() != int(found[1]):
            raise DamagedTrace("the checksum does not match")
        return content


def encode(trace: Trace) -> Content:
    """The content columns of ``trace``; ValueError when its arrays do not fit its tokens.

    Draft log-probabilities are kept as float32, the precision in which drafts compute them.
    """
    num_tokens = len(trace.output_ids)
    num_top = _num_top(trace)
    committed = sum(round_.num_accepted + 1 for round_ in trace.rounds)
    if committed != num_tokens:
        raise ValueError(f"rounds commit {committed} tokens, the answer has {num_tokens}")
    header = {
        "sampling": asdict(trace.sampling),
        "finish_reason": trace.finish_reason.value,
        "system_fingerprint": trace.system_fingerprint,
        "created_s": trace.created_s,
        "num_top": num_top,
    }
    content = Content(
        header=json.dumps(header, separators=(",", ":")),
        prompt_ids=np.asarray(trace.prompt_ids, _INT).tobytes(),
        output_ids=np.asarray(trace.output_ids, _INT).tobytes(),
        top_ids=np.asarray(trace.top_ids, _INT).tobytes(),
        top_logits=np.asarray(trace.top_logits, _FLOAT).tobytes(),
        logsumexp=np.asarray(trace.logsumexp, _FLOAT).tobytes(),
        rounds=_pack_rounds(trace.rounds),
    )
    return content.sealed()


def _num_top(trace: Trace) -> int:
    """M of the trace; ValueError unless all three arrays have one row a committed token."""
    num_tokens = len(trace.output_ids)
    shape: tuple[int, ...] = trace.top_ids.shape
    fits = len(shape) == 2 and shape[0] == num_tokens and trace.top_logits.shape == shape
    if not fits or trace.logsumexp.shape != (num_tokens,):
        shapes = f"{shape}, {trace.top_logits.shape}, {trace.logsumexp.shape}"
        raise ValueError(f"top_ids, top_logits, logsumexp {shapes} for {num_tokens} tokens")
    return shape[1]


def decode(request_id: str, domain: str, user_hash: str, content: Content) -> Trace:
    """The trace that ``encode`` was given; arrays are fresh and writable. Raises DamagedTrace."""
    try:
        return _decode(request_id, domain, user_hash, content.unsealed())
    except DamagedTrace:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedTrace(f"{type(error).__name__} while decoding") from error


def _decode(request_id: str, domain: str, user_hash: str, content: Content) -> Trace:
    header: dict[str, Any] = json.loads(content.header)
    if header.keys() != _HEADER_FIELDS:  # the checksum's own name was altered
        raise DamagedTrace("the header has other fields")
    sampling: dict[str, Any] = {name: _tuples(value) for name, value in header["sampling"].items()}
    num_top = int(header["num_top"])
    return Trace(
        request_id=request_id,
        prompt_ids=tuple(_ints(content.prompt_ids).tolist()),
        output_ids=tuple(_ints(content.output_ids).tolist()),
        sampling=SamplingParams(**sampling),
        finish_reason=FinishReason(header["finish_reason"]),
        system_fingerprint=header["system_fingerprint"],
        top_ids=_ints(content.top_ids).reshape(-1, num_top),
        top_logits=_floats(content.top_logits).reshape(-1, num_top),
        logsumexp=_floats(content.logsumexp),
        rounds=_unpack_rounds(content.rounds),
        domain=domain,
        user_hash=user_hash,
        created_s=header["created_s"],
    )


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were, at every depth."""
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


def _ints(blob: bytes) -> NDArray[np.int32]:
    return np.frombuffer(blob, _INT).astype(np.int32)


def _floats(blob: bytes) -> NDArray[np.float32]:
    return np.frombuffer(blob, _FLOAT).astype(np.float32)


def _pack_rounds(rounds: Iterable[Round]) -> bytes:
    """A round is source, version, proposed n, accepted, then n ids, then n float32 or none.

    Log-probabilities are there if and only if the source is neural.
    """
    parts: list[bytes] = []
    for round_ in rounds:
        num = len(round_.proposed_ids)
        num_logprobs = num if round_.source is Source.NEURAL else 0
        if len(round_.draft_logprobs) != num_logprobs:
            raise ValueError(
                f"a {round_.source.value} round of {num} proposals has "
                f"{len(round_.draft_logprobs)} log-probabilities"
            )
        head = (_SOURCES.index(round_.source), round_.adapter_version, num, round_.num_accepted)
        parts.append(np.array((*head, *round_.proposed_ids), _INT).tobytes())
        parts.append(np.array(round_.draft_logprobs, _FLOAT).tobytes())
    return b"".join(parts)


def _unpack_rounds(blob: bytes) -> tuple[Round, ...]:
    words = np.frombuffer(blob, _INT)
    values = words.view(_FLOAT)
    rounds: list[Round] = []
    at = 0
    while at < len(words):
        code, version, num, accepted = words[at : at + _ROUND_HEAD].tolist()
        source = _SOURCES[code]
        at += _ROUND_HEAD
        ids = tuple(words[at : at + num].tolist())
        at += num
        num_logprobs = num if source is Source.NEURAL else 0
        logprobs = tuple(values[at : at + num_logprobs].tolist())
        at += num_logprobs
        rounds.append(Round(source, version, ids, logprobs, accepted))
    return tuple(rounds)
