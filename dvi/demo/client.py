"""Sends prompts to the server over HTTP, a fixed number in flight, in stream order.

Owns the wire form of a request and an answer; does not know what the answers are for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import httpx

from dvi.demo.answers import Answer

REQUEST_TIMEOUT_S = 300.0
TRAINER_WITHIN_S = 90.0  # a process that starts beside nothing else takes ten
LOOK_INTERVAL_S = 0.5


class RequestFailed(RuntimeError):
    """The server answered with an error, or not at all; one line."""


class Prompt(Protocol):
    """One request of a stream."""

    @property
    def index(self) -> int:
        """Place in the stream, from 0."""

    @property
    def domain(self) -> str:
        """Kind of traffic."""

    def messages(self) -> list[dict[str, str]]:
        """The chat messages."""


@dataclass(frozen=True, slots=True)
class Pass:
    """How the prompts of one pass are sent."""

    speculation: bool
    log: bool  # whether the trainer may learn from it
    in_flight: int
    max_tokens: int
    temperature: float = 0.0
    first_seed: int = 0  # the seed of a prompt is this plus its index
    user: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)  # further ones of each request


def _body(prompt: Prompt, how: Pass) -> dict[str, Any]:
    return {
        "messages": prompt.messages(),
        "max_tokens": how.max_tokens,
        "temperature": how.temperature,
        "top_p": 1.0,
        "seed": how.first_seed + prompt.index,
        "return_token_ids": True,
        "user": how.user,
        "metadata": {"domain": prompt.domain},
        "dvi": {"speculation": how.speculation, "log": how.log},
        **how.fields,
    }


def _answer(prompt: Prompt, data: dict[str, Any], started_s: float, finished_s: float) -> Answer:
    counts = data["dvi"]
    first, last = counts["adapter_versions"]
    return Answer(
        index=prompt.index,
        domain=prompt.domain,
        prompt_ids=tuple(data["prompt_token_ids"]),
        token_ids=tuple(data["choices"][0]["token_ids"]),
        rounds=counts["rounds"],
        proposed=counts["proposed"],
        judged=counts["judged"],
        accepted=counts["accepted"],
        adapter_versions=(first, last),
        seed=counts["seed"],
        fingerprint=data["system_fingerprint"],
        started_s=started_s,
        finished_s=finished_s,
    )


def _send(client: httpx.Client, prompt: Prompt, how: Pass, start_s: float) -> Answer:
    started_s = time.monotonic() - start_s
    try:
        reply = client.post("/v1/chat/completions", json=_body(prompt, how))
    except httpx.HTTPError as error:
        raise RequestFailed(f"request {prompt.index}: {type(error).__name__} {error}") from error
    if reply.status_code != httpx.codes.OK:
        raise RequestFailed(f"request {prompt.index}: HTTP {reply.status_code}: {reply.text[:200]}")
    return _answer(prompt, reply.json(), started_s, time.monotonic() - start_s)


def _silent(_answer: Answer) -> None:
    """Nothing to show."""


def run_pass(
    url: str,
    prompts: Sequence[Prompt],
    how: Pass,
    tell: Callable[[Answer], None] = _silent,
) -> list[Answer]:
    """Answers in stream order; ``tell`` gets each as it comes, in this thread.

    Raises RequestFailed for the first request that failed, after those in flight have ended.
    """
    answers: list[Answer] = []
    limits = httpx.Limits(max_connections=how.in_flight)
    start_s = time.monotonic()
    with (
        httpx.Client(base_url=url, timeout=REQUEST_TIMEOUT_S, limits=limits) as client,
        ThreadPoolExecutor(how.in_flight) as pool,
    ):
        futures = [pool.submit(_send, client, prompt, how, start_s) for prompt in prompts]
        try:
            for future in as_completed(futures):
                answers.append(future.result())
                tell(answers[-1])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sorted(answers, key=lambda answer: answer.index)


def tell_trainer(url: str, what: Literal["pause", "resume"]) -> None:
    """Ask the trainer to rest until it is told otherwise, or to go on. Raises RequestFailed."""
    try:
        httpx.post(
            f"{url}/admin/trainer/{what}", json={}, timeout=REQUEST_TIMEOUT_S
        ).raise_for_status()
    except httpx.HTTPError as error:
        raise RequestFailed(f"trainer, {what}: {type(error).__name__} {error}") from error


def wait_for_trainer(url: str) -> None:
    """Until the trainer follows what is served, or none runs, or TRAINER_WITHIN_S are over."""
    deadline = time.monotonic() + TRAINER_WITHIN_S
    while time.monotonic() < deadline:
        metrics = httpx.get(f"{url}/metrics", timeout=REQUEST_TIMEOUT_S).text
        is_starting = metric(metrics, "dvi_trainer_up") and not metric(
            metrics, "dvi_trainer_cpu_seconds_total"
        )
        if not is_starting:
            return
        time.sleep(LOOK_INTERVAL_S)


def metric(metrics: str, name: str) -> float:
    """The value of a metric without labels in a scrape; 0 where it is absent."""
    found = re.search(rf"^{name} (\S+)$", metrics, re.MULTILINE)
    return float(found.group(1)) if found else 0.0
