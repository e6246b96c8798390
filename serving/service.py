"""What the routes work on: the model's name and limits, the engine, counts, the door's state.

Owns the set of requests in flight and the switch between starting, ready and draining. Knows
nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from dvi.config import ServingConfig
from dvi.decoding import EngineStats
from dvi.modeling.tokenizer import GenerationDefaults
from dvi.types import DecodeRequest, Delta
from serving.counts import ServerCounts
from serving.intake import Intake
from serving.mailbox import Mailbox
from serving.state_folder import hash_name
from serving.tools.syntax import ToolSyntax
from serving.words import PromptTokenizer, TokenTexts

FAILURES_IN_A_ROW = 3  # one bad request in a batch fails its neighbours too, but not twice
FAILING_FOR_S = 20.0  # then traffic is let back to find out


class DecodeEngine(Protocol):
    """The part of ``dvi.decoding.Engine`` that serving calls; any thread."""

    def submit_all(
        self, requests: Sequence[DecodeRequest], deliver: Callable[[Delta], None]
    ) -> None:
        """Queue all choices of a request or none; raises ``dvi.decoding.QueueFull``."""

    def check_grammar(self, grammar: str | None) -> None:
        """Compile a grammar, which may take a second; ValueError where it is refused."""

    def cancel(self, request_id: str) -> None:
        """Free every choice of this id within one round."""

    def stats(self) -> EngineStats:
        """A snapshot."""


class Door(StrEnum):
    """Whether requests are let in."""

    STARTING = "starting"
    READY = "ready"
    STUCK = "stuck"
    FAILING = "failing"
    DRAINING = "draining"


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
    defaults: GenerationDefaults
    tokenizer: PromptTokenizer
    texts: TokenTexts
    user_key: bytes  # of the hash that stands for `user`
    keep_content: bool
    has_tenants: bool = False  # several keys: they share the queue, and may use the same ids
    max_request_s: float | None = None
    tools: ToolSyntax = field(default_factory=ToolSyntax)

    def hash_user(self, user: str | None) -> str:
        """A keyed hash: the same user can be found again, nobody can guess names from it."""
        if not user:
            return ""
        return self._hash(user)

    def scope_of(self, api_key: str, user: str | None) -> str:
        """One user of one key: who shares memory and prefixes where they are not shared by all."""
        return self._hash(f"{api_key}\n{user or ''}")

    def tenant_of(self, api_key: str) -> str:
        """Whom a request waits with: of several keys each is one, whatever users it names."""
        return self._hash(api_key) if self.has_tenants else ""

    def _hash(self, name: str) -> str:
        return hash_name(self.user_key, name)


class Health:
    """Whether answers succeed: several failures in a row, the last of them not long ago, do not.

    Touched by the event loop only.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_failed = 0  # since the last success
        self._failed_s = 0.0

    def request_failed(self) -> None:
        """The engine failed on a request."""
        self._num_failed += 1
        self._failed_s = self._clock()

    def request_ended_well(self) -> None:
        """A request got its answer."""
        self._num_failed = 0

    def is_failing(self) -> bool:
        """Traffic had better go elsewhere for now."""
        recent = self._clock() - self._failed_s < FAILING_FOR_S
        return self._num_failed >= FAILURES_IN_A_ROW and recent


@dataclass
class Service:
    """One server's shared state, for event loop and main thread; ``lock`` covers ``in_flight``."""

    config: ServingConfig
    counts: ServerCounts = field(default_factory=ServerCounts)
    model: ServedModel | None = None
    engine: DecodeEngine | None = None
    draining: bool = False
    is_decoding: Callable[[], bool] = lambda: True  # whether the decode thread lives
    health: Health = field(default_factory=Health)
    in_flight: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    intake: Intake = field(default_factory=Intake)
    _mailbox: Mailbox | None = None

    def mailbox(self) -> Mailbox:
        """The one of the running event loop, which is the only caller."""
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        return self._mailbox

    def open(
        self,
        model: ServedModel,
        engine: DecodeEngine,
        is_decoding: Callable[[], bool] = lambda: True,
    ) -> None:
        """The model answers from now on."""
        self.is_decoding = is_decoding
        self.model = model
        self.engine = engine

    def door(self) -> Door:
        """What /ready says."""
        if self.draining:
            return Door.DRAINING
        if self.engine is None:
            return Door.STARTING
        idle_s = time.monotonic() - self.engine.stats().last_step_s
        if idle_s > self.config.stuck_after_s or not self.is_decoding():
            return Door.STUCK
        return Door.FAILING if self.health.is_failing() else Door.READY

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
