"""What the routes work on: the model's name and limits, the engine, counts, the door's state.

Owns the set of requests in flight and the switch between starting, ready and draining. Knows
nothing of HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from dvi.config import ServingConfig
from dvi.decoding import EngineStats
from dvi.types import DecodeRequest, Delta
from serving.counts import ServerCounts


class DecodeEngine(Protocol):
    """The part of ``dvi.decoding.Engine`` that serving calls; any thread."""

    def submit_all(
        self, requests: Sequence[DecodeRequest], deliver: Callable[[Delta], None]
    ) -> None:
        """Queue all choices of a request or none; raises ``dvi.decoding.QueueFull``."""

    def cancel(self, request_id: str) -> None:
        """Free every choice of this id within one round."""

    def stats(self) -> EngineStats:
        """A snapshot."""


class PromptTokenizer(Protocol):
    """The part of ``dvi.modeling.Tokenizer`` that serving calls; any thread."""

    end_token_ids: tuple[int, ...]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        add_special_tokens: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation; raises ValueError where the template refuses it."""


class Door(StrEnum):
    """Whether requests are let in."""

    STARTING = "starting"
    READY = "ready"
    STUCK = "stuck"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request gets that does not say; the model's generation_config, else OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Constants of the model that answers."""

    name: str  # the one id of /v1/models
    created_s: int
    max_context_len: int
    num_token_ids: int
    max_draft_len: int
    max_choices: int  # of one request: what queue and rows hold together
    system_fingerprint: str
    defaults: SamplingDefaults
    tokenizer: PromptTokenizer
    user_key: bytes  # of the hash that stands for `user`
    keep_content: bool

    def hash_user(self, user: str | None) -> str:
        """A keyed hash: the same user can be found again, nobody can guess names from it."""
        if not user:
            return ""
        return hmac.new(self.user_key, user.encode(), hashlib.sha256).hexdigest()[:32]


@dataclass
class Service:
    """One server's shared state, for event loop and main thread; ``lock`` covers ``in_flight``."""

    config: ServingConfig
    counts: ServerCounts = field(default_factory=ServerCounts)
    model: ServedModel | None = None
    engine: DecodeEngine | None = None
    draining: bool = False
    stuck_after_s: float = 60.0
    in_flight: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, model: ServedModel, engine: DecodeEngine) -> None:
        """The model answers from now on."""
        self.model = model
        self.engine = engine

    def door(self) -> Door:
        """What /ready says."""
        if self.draining:
            return Door.DRAINING
        if self.engine is None:
            return Door.STARTING
        idle_s = time.monotonic() - self.engine.stats().last_step_s
        return Door.STUCK if idle_s > self.stuck_after_s else Door.READY

    def claim(self, request_ids: Iterable[str]) -> bool:
        """Enter ids as running; False (and nothing entered) when one of them runs already."""
        wanted = set(request_ids)
        with self.lock:
            if wanted & self.in_flight:
                return False
            self.in_flight |= wanted
            return True

    def release(self, request_ids: Iterable[str]) -> None:
        """These ids no longer run."""
        with self.lock:
            self.in_flight.difference_update(request_ids)

    def cancel_all(self) -> None:
        """Cancel whatever runs; the end of a drain."""
        with self.lock:
            running = list(self.in_flight)
        if self.engine is not None:
            for request_id in running:
                self.engine.cancel(request_id)
