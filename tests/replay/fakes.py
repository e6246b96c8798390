"""Traces with known bytes, and small stores, for the tests of the replay store."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from dvi.config import ReplayConfig
from dvi.replay import ReplayStore, default_url, open_store
from dvi.types import FinishReason, Round, SamplingParams, Source, Trace

NUM_TOP = 64


def make_trace(
    request_id: str, num_tokens: int = 8, choice_index: int = 0, fill: int = 0, user_hash: str = ""
) -> Trace:
    """A trace of ``num_tokens`` output tokens; a round commits two, the last may commit one.

    With ``fill`` every stored id is that number, so that its bytes can be found in the file.
    """
    rng = np.random.default_rng(zlib.crc32(request_id.encode()))
    top_ids = rng.integers(0, 49_152, (num_tokens, NUM_TOP)).astype(np.int32)
    output = tuple(int(i) for i in rng.integers(0, 49_152, num_tokens))
    if fill:
        top_ids = np.full_like(top_ids, fill)
        output = (fill,) * num_tokens
    rounds = [
        Round(Source.NEURAL, 3, (output[2 * i], 7), (-0.5, -1.25), 1)
        for i in range(num_tokens // 2)
    ]
    if num_tokens % 2:
        rounds.append(Round(Source.TARGET, 0, (), (), 0))
    return Trace(
        request_id=request_id,
        prompt_ids=(1, 2, 3),
        output_ids=output,
        sampling=SamplingParams(
            max_tokens=num_tokens,
            temperature=0.8,
            seed=2**64 - 1,
            choice_index=choice_index,
            stop=("END",),
            stop_token_ids=(5, 6),
        ),
        finish_reason=FinishReason.STOP,
        system_fingerprint="fp",
        top_ids=top_ids,
        top_logits=rng.normal(size=(num_tokens, NUM_TOP)).astype(np.float32),
        logsumexp=rng.normal(size=num_tokens).astype(np.float32),
        rounds=tuple(rounds),
        domain="sql",
        user_hash=user_hash,
        created_s=12.5,
    )


def small_config(max_bytes: int = 1 << 22, **changes: float) -> ReplayConfig:
    """Bounds that a test reaches within a second."""
    return replace(ReplayConfig(), max_bytes=max_bytes, **changes)


Place = Path | str  # a folder for SQLite, or the URL of a PostgreSQL database


def make_store(
    place: Place, config: ReplayConfig | None = None, now_s: Callable[[], float] = time.time
) -> ReplayStore:
    """A store at ``place``."""
    url = place if isinstance(place, str) else default_url(place)
    return open_store(url, config or small_config(), now_s)
