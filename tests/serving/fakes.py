"""A scripted engine and tokenizer, and the app on a real socket around them.

Owns no property; lets tests of the HTTP side say exactly what the engine delivers and when.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from dvi.config import ServingConfig
from dvi.decoding import EngineStats, QueueFull
from dvi.modeling.tokenizer import GenerationDefaults
from dvi.types import AcceptanceCounts, DecodeRequest, Delta, FinishReason, Source, TokenLogprob
from serving.app import make_app
from serving.auth import AccessRules
from serving.counts import ServerCounts
from serving.histograms import LatencyHistograms
from serving.http_server import HttpServer, bind, url_of
from serving.metrics_source import stats_before_start
from serving.prometheus import BuildInfo, MetricsSnapshot, render
from serving.service import ServedModel, Service
from serving.tools.syntax import ToolForm, ToolSyntax
from serving.words import TokenTexts

NUM_IDS = 300
MAX_DRAFT_LEN = 8


class FakeTokenizer:
    """One id a byte; id 299 ends."""

    end_token_ids = (299,)
    special_ids = frozenset({298, 299})
    has_chat_template = True

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return ([298] if add_special_tokens else []) + list(text.encode())

    def fewest_tokens(self, text: str) -> int:
        return len(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else f"<{token_id}>".encode()

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        if messages[0]["role"] == "tool":
            raise ValueError("a conversation cannot begin with tool")
        text = "".join(f"[tool {json.dumps(tool)}]" for tool in tools)
        for message in messages:
            text += f"<{message['role']}>{message['content']}"
            text += "".join(f"[call {json.dumps(call)}]" for call in message.get("tool_calls", ()))
        text += "".join(f"[{k}={v}]" for k, v in (template_kwargs or {}).items())
        return text + ("<assistant>" if add_generation_prompt else "")


@dataclass
class FakeEngine:
    """Answers every choice with ``words``, one a delta, on a thread of its own.

    ``gate`` closed: nothing after the first word is delivered until it opens or a cancel comes.
    """

    words: Sequence[str] = ("Hello", " wor", "ld")
    finish: FinishReason = FinishReason.STOP
    max_queue: int = 100_000
    gate: threading.Event = field(default_factory=threading.Event)
    requests: list[DecodeRequest] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    max_draft_len: int = MAX_DRAFT_LEN
    is_stuck: bool = False
    knows_prompts: bool = False  # every prompt but its last token is in the cache already
    scored: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gate.set()

    def submit_all(
        self, requests: Sequence[DecodeRequest], deliver: Callable[[Delta], None]
    ) -> None:
        if len(self.requests) + len(requests) > self.max_queue:
            raise QueueFull("full")
        self.requests += requests
        for request in requests:
            threading.Thread(target=self._answer, args=(request, deliver), daemon=True).start()

    def check_grammar(self, grammar: str | None) -> None:
        if grammar is not None and "refuse me" in grammar:
            raise ValueError("the grammar was refused: no")

    def cancel(self, request_id: str) -> None:
        self.cancelled.add(request_id)

    def stats(self) -> EngineStats:
        stats = stats_before_start(self.max_draft_len)
        return replace(stats, last_step_s=0.0) if self.is_stuck else stats

    def _answer(self, request: DecodeRequest, deliver: Callable[[Delta], None]) -> None:
        counts = AcceptanceCounts()
        for index, word in enumerate(self.words):
            if index and not self._may_go_on(request):
                deliver(self._delta(request, (), "", FinishReason.CANCELLED, counts))
                return
            counts.add_round(Source.NEURAL, 2, 2, 1)
            reason = self.finish if index == len(self.words) - 1 else None
            deliver(self._delta(request, (10 + index, 50), word, reason, counts))

    def _may_go_on(self, request: DecodeRequest) -> bool:
        while not self.gate.wait(0.005):
            if request.request_id in self.cancelled:
                return False
        return request.request_id not in self.cancelled

    def _delta(
        self,
        request: DecodeRequest,
        ids: tuple[int, ...],
        text: str,
        reason: FinishReason | None,
        counts: AcceptanceCounts,
    ) -> Delta:
        return Delta(
            request.request_id,
            request.sampling.choice_index,
            ids,
            (Source.NEURAL, Source.TARGET)[: len(ids)],
            text,
            reason,
            counts if reason else None,
            (1, 3),
            "secret text of the user" if reason is FinishReason.FAILED else None,
            self._logprobs(request.sampling.logprobs, ids),
            self._prompt_logprobs(request),
            num_reused=len(request.prompt_ids) - 1 if reason and self.knows_prompts else 0,
        )

    def _logprobs(self, num_top: int | None, ids: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """-0.5 for every token, -1 and lower for alternatives 60, 61, ..."""
        if num_top is None:
            return ()
        top = tuple((60 + place, -1.0 - place) for place in range(num_top))
        return tuple(TokenLogprob(token_id, -0.5, top) for token_id in ids)

    def _prompt_logprobs(self, request: DecodeRequest) -> tuple[TokenLogprob | None, ...] | None:
        """Once a choice."""
        key = (request.request_id, request.sampling.choice_index)
        if request.sampling.prompt_logprobs is None or key in self.scored:
            return None
        self.scored.add(key)
        rest = self._logprobs(request.sampling.prompt_logprobs, request.prompt_ids[1:])
        return (None, *rest)


class FakeDesk:
    """A registry with versions 0 and 1."""

    def __init__(self) -> None:
        self.current = 1
        self.paused = False

    def overview(self) -> dict[str, Any]:
        return {"current": self.current, "live": self.current, "versions": [{"version": 1}]}

    def promote(self, version: int) -> int:
        if version > 1:
            raise ValueError(f"version {version} is not there")
        self.current = version
        return version

    def rollback(self) -> int:
        self.current = 0
        return 0

    def pause_training(self) -> None:
        self.paused = True

    def resume_training(self) -> None:
        self.paused = False


@dataclass
class FakeServer:
    """What a test holds."""

    url: str
    engine: FakeEngine
    service: Service
    http: httpx.Client

    def outcomes(self) -> dict[str, int]:
        counted = self.service.counts.view().outcomes
        return {outcome.value: number for outcome, number in counted.items() if number}


def fake_model(**changes: Any) -> ServedModel:
    tokenizer = FakeTokenizer()
    model = ServedModel(
        name="tiny",
        created_s=1,
        max_context_len=200,
        num_token_ids=NUM_IDS,
        max_draft_len=MAX_DRAFT_LEN,
        max_choices=12,
        system_fingerprint="fp_test",
        defaults=GenerationDefaults(),
        tokenizer=tokenizer,
        texts=TokenTexts(tokenizer),
        user_key=b"k" * 32,
        keep_content=True,
        tools=ToolSyntax(shows_tools=True, shows_calls=True, form=ToolForm.HERMES),
    )
    return replace(model, **changes)


@contextmanager
def fake_server(
    engine: FakeEngine | None = None,
    rules: AccessRules | None = None,
    model: ServedModel | None = None,
) -> Iterator[FakeServer]:
    """The real app on a free port of loopback."""
    engine = engine or FakeEngine()
    service = Service(ServingConfig())
    service.open(model or fake_model(), engine)
    desk = FakeDesk()

    def metrics() -> bytes:
        return render(snapshot_of(engine.stats(), service.counts))

    app = make_app(service, rules or AccessRules(), metrics, lambda: desk)
    with HttpServer(app, listener := bind("127.0.0.1", 0)):
        url = url_of(listener)
        with httpx.Client(base_url=url, timeout=20) as http:
            yield FakeServer(url, engine, service, http)


def snapshot_of(stats: EngineStats, counts: ServerCounts) -> MetricsSnapshot:
    return MetricsSnapshot(
        engine=stats,
        server=counts.view(),
        histograms=LatencyHistograms().views(),
        build=BuildInfo("0", "tiny", "block", "tiny"),
    )
