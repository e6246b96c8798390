"""The engine alone: the same streams, driven in this process with no HTTP in between.

Owns the opening and the loop; measures what `timing` needs and nothing else.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dvi.bench.http.rows import Row, row_ids
from dvi.bench.http.timing import Pass, Reply
from dvi.config import DviConfig
from dvi.decoding.engine import Engine
from dvi.decoding.startup import Outlets, open_engine
from dvi.modeling.tokenizer import Tokenizer
from dvi.replay import TraceWriter, open_store
from dvi.types import DecodeRequest, Delta, SamplingParams


@dataclass(slots=True)
class _Answer:
    """One request of one stream while it is answered."""

    stream: int
    request: DecodeRequest
    sent_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    error: str | None = None

    def reply(self) -> Reply:
        return Reply(self.stream, self.sent_s, self.error, tuple(self.times_s), tuple(self.tokens))


class AloneEngine:
    """Answers streams of prompts, each stream one request after the other."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._numbers = itertools.count()
        self._num_left = 0

    def run(self, streams: Sequence[Sequence[Row]], max_tokens: int) -> Pass:
        """All streams to their end."""
        waiting = [
            iter([self._answer(place, row, max_tokens) for row in rows])
            for place, rows in enumerate(streams)
        ]
        done: list[_Answer] = []
        self._num_left = len(waiting)
        for answers in waiting:
            self._send_next(answers, done)
        while self._num_left:
            self._engine.step()
        return Pass(tuple(answer.reply() for answer in done))

    def _answer(self, place: int, row: Row, max_tokens: int) -> _Answer:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0, ignore_eos=True)
        name = f"alone-{next(self._numbers)}"
        return _Answer(place, DecodeRequest(name, row_ids(row, self._tokenizer), params))

    def _send_next(self, answers: Iterator[_Answer], done: list[_Answer]) -> None:
        answer = next(answers, None)
        if answer is None:
            self._num_left -= 1
            return

        def deliver(delta: Delta) -> None:
            if delta.token_ids:
                answer.times_s.append(time.monotonic())
                answer.tokens.append(len(delta.token_ids))
            if delta.finish_reason is not None:
                answer.error = delta.error
                done.append(answer)
                self._send_next(answers, done)

        answer.sent_s = time.monotonic()
        self._engine.submit(answer.request, deliver)


@contextmanager
def open_alone(config: DviConfig, folder: Path) -> Iterator[AloneEngine]:
    """An engine as the server opens it; traces go to a store in ``folder``, as they do there.

    Raises ValueError with one line for a model that cannot be used.
    """
    url = f"sqlite:///{folder / 'alone.sqlite'}"
    with (
        open_store(url, config.replay) as store,
        TraceWriter(store, config.replay) as writer,
    ):
        opened = open_engine(config, Outlets(trace_sink=writer.offer))
        yield AloneEngine(opened.engine, opened.tokenizer)
