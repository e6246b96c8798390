"""Clients of a fault soak: sixteen at a time, a stream whose topic changes, every answer judged.

Owns what is sent and what counts as failed; does not know which fault was made.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

NUM_CLIENTS = 16
TOPIC_S = 40.0  # then the stream drifts
RETRY_S = 2.0  # after a failure
PAUSE_S = 0.3  # of a client between two requests: cores stay free for the trainer now and then
TOPICS = (
    "SELECT name, price FROM orders WHERE price > {}",
    "Thank you for your message {}",
    "def add{}(left, right):",
    "The quick brown fox {}",
)
Excuse = Callable[[float, float], bool]  # whether the server was killed in that time


@dataclass
class Outcome:
    """What all clients saw."""

    num_answers: int = 0
    num_cut: int = 0  # by a killed server
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def body_of(index: int, elapsed_s: float) -> dict[str, Any]:
    """Greedy and sampled, streamed and whole by turns."""
    topic = int(elapsed_s / TOPIC_S) % len(TOPICS)
    return {
        "prompt": TOPICS[topic].format(index % 7),
        "max_tokens": 8 + index % 25,
        "temperature": float(index % 2),
        "seed": index,
        "ignore_eos": True,
        "stream": index % 4 < 2,
        "metadata": {"domain": f"topic{topic}"},
    }


def ask(http: httpx.Client, body: dict[str, Any]) -> str:
    """What is wrong with the answer; empty if nothing is. Raises httpx.HTTPError."""
    if not body["stream"]:
        answer = http.post("/v1/completions", json=body)
        if answer.status_code != httpx.codes.OK:
            return f"{answer.status_code} {answer.text[:200]}"
        num_tokens = answer.json()["usage"]["completion_tokens"]
        return "" if num_tokens == body["max_tokens"] else f"{num_tokens} tokens"
    asked = body | {"stream_options": {"include_usage": True}}
    with http.stream("POST", "/v1/completions", json=asked) as streamed:
        lines = [line for line in streamed.iter_lines() if line]
    if streamed.status_code != httpx.codes.OK or lines[-1:] != ["data: [DONE]"]:
        return f"{streamed.status_code} {lines[-2:]}"
    last = json.loads(lines[-2].removeprefix("data: "))
    num_tokens = (last.get("usage") or {}).get("completion_tokens")
    return "" if num_tokens == body["max_tokens"] else f"{lines[-2][:200]}"


class Crowd:
    """The clients, from ``__enter__`` to ``__exit__``."""

    def __init__(self, url: str, excuse: Excuse) -> None:
        self.outcome = Outcome()
        self._url = url
        self._excuse = excuse
        self._stop = threading.Event()
        self._start_s = time.monotonic()
        self._threads = [
            threading.Thread(target=self._work, args=(number,), daemon=True)
            for number in range(NUM_CLIENTS)
        ]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def _work(self, number: int) -> None:
        index = number
        with httpx.Client(base_url=self._url, timeout=60) as http:
            while not self._stop.wait(PAUSE_S):
                self._one(http, index)
                index += NUM_CLIENTS

    def _one(self, http: httpx.Client, index: int) -> None:
        start_s = time.monotonic()
        try:
            wrong = ask(http, body_of(index, start_s - self._start_s))
        except (httpx.HTTPError, ValueError, KeyError) as error:
            wrong = repr(error)
        outcome = self.outcome
        with outcome.lock:
            if not wrong:
                outcome.num_answers += 1
            elif self._excuse(start_s, time.monotonic()):
                outcome.num_cut += 1
            else:
                outcome.failures.append(f"{index}: {wrong}")
        if wrong:
            self._stop.wait(RETRY_S)
