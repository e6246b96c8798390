"""The sizes that docs/scale.md reckons with are those of the encoding."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from dvi.replay.encoding import encode
from dvi.types import Round, Source
from tests.replay.fakes import make_trace

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "scale.md").read_text()
TOKENS, PROMPT, TOP = 80, 50, 64


def trace_bytes(rounds: tuple[Round, ...]) -> tuple[int, int]:
    """All bytes of a trace of 80 tokens, and those of its header."""
    arrays = {
        "top_ids": np.zeros((TOKENS, TOP), np.int32),
        "top_logits": np.zeros((TOKENS, TOP), np.float32),
        "logsumexp": np.zeros(TOKENS, np.float32),
    }
    trace = replace(make_trace("a", TOKENS), prompt_ids=(1,) * PROMPT, rounds=rounds, **arrays)
    content = encode(trace)
    return content.num_bytes(), len(content.header)


def test_a_trace_has_the_bytes_that_the_page_says() -> None:
    plain = (Round(Source.TARGET, 0, (), (), 0),) * TOKENS
    total, header = trace_bytes(plain)
    assert total - header == TOKENS * (8 + 8 * TOP) + TOKENS * 16 + PROMPT * 4
    assert header < 1000
    # One accepted proposal a round: half as many rounds.
    for source, logprobs, size in ((Source.NEURAL, (-0.5,), 8), (Source.MEMORY, (), 4)):
        rounds = (Round(source, 3, (7,), logprobs, 1),) * (TOKENS // 2)
        total, header = trace_bytes(rounds)
        expected = TOKENS * (8 + 8 * TOP) + len(rounds) * (16 + size) + PROMPT * 4
        assert total - header == expected
    # What the page rounds to 550 is right within 3%.
    assert abs(trace_bytes(plain)[0] / TOKENS - 550) < 550 * 0.03


def test_the_rows_of_the_table_follow_from_its_assumptions() -> None:
    rows = re.findall(r"^\| ([\d,]+) \| (.+) \|$", PAGE, flags=re.MULTILINE)
    assert [int(name.replace(",", "")) for name, _ in rows] == [1, 10, 100, 1000]
    for name, rest in rows:
        tokens = 100 * int(name.replace(",", ""))
        traces = tokens / 80
        wanted = (tokens, traces, 550e-6 * tokens, 550e-9 * tokens * 86400, traces, 1 / traces)
        for written, value in zip(rest.split(" | "), wanted, strict=True):
            # Two figures, or one of the last column.
            assert abs(float(written.replace(",", "")) - value) <= 0.05 * value, (name, written)
