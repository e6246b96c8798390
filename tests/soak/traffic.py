"""A mixed load over HTTP: whole and streamed answers, clients that leave, bodies that are wrong.

Owns what is sent and what came back; knows no property of the server.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

PROMPTS = tuple(
    f"{verb} {noun} {number}"
    for verb in ("SELECT name FROM", "Thank you for")
    for noun in ("orders", "the message", "foxes")
    for number in range(4)
)
# Every client that leaves asks for as much, so that tokens of one that left too late are known.
LEAVER_TOKENS = 32
INVALID: tuple[dict[str, Any], ...] = (
    {"max_tokens": -1},
    {"temperature": "warm"},
    {"model": "another"},
    {"prompt": [999_999]},
    {"suffix": "the end"},
    {"n": 100},
    {"stop": [""]},
)
NUM_SAMPLES = 200  # of resident memory


@dataclass(frozen=True, slots=True)
class Mix:
    """Of what, how much and how wide."""

    num_requests: int
    concurrency: int = 32
    leaving: float = 0.10
    invalid: float = 0.05
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """Fate of one answer's proposals."""

    judged: int
    accepted: int


@dataclass
class Tally:
    """What the clients saw, in order of arrival."""

    completion_tokens: int = 0  # sum of usage
    num_token_ids: int = 0  # ids that were received
    num_answers: int = 0
    num_left: int = 0
    num_left_late: int = 0  # those of them whose answer came first
    num_refused: int = 0
    errors: list[str] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    versions: set[int] = field(default_factory=set)
    resident_bytes: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def answered(self, usage: dict[str, Any], extension: dict[str, Any], num_ids: int) -> None:
        """One whole answer."""
        self.num_answers += 1
        self.completion_tokens += usage["completion_tokens"]
        self.num_token_ids += num_ids
        self.drafts.append(Draft(extension["judged"], extension["accepted"]))
        self.versions.update(extension["adapter_versions"])


def resident_bytes(pid: int) -> int:
    """Of a process, from Linux."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def _valid(rng: random.Random, index: int) -> dict[str, Any]:
    return {
        "prompt": rng.choice(PROMPTS),
        "max_tokens": rng.randint(8, 32),
        "temperature": float(rng.random() < 0.5),
        "seed": index,
        "ignore_eos": True,
        "return_token_ids": True,
    }


class Clients:
    """Sends the requests of a mix."""

    def __init__(self, client: httpx.AsyncClient, mix: Mix, tally: Tally) -> None:
        self._client = client
        self._mix = mix
        self._tally = tally
        self._rng = random.Random(mix.seed)
        self._num_begun = 0

    async def work(self, after_each: Callable[[int], None]) -> None:
        """One of ``concurrency`` workers: one request after the other until all have begun."""
        while self._num_begun < self._mix.num_requests:
            index = self._num_begun
            self._num_begun += 1
            try:
                await self._one(index)
            except (httpx.HTTPError, KeyError, ValueError) as error:
                self._tally.errors.append(f"{index}: {error!r}")
            after_each(index)

    async def _one(self, index: int) -> None:
        body = _valid(self._rng, index)
        draw = self._rng.random()
        if draw < self._mix.leaving:
            await self._leave(body | {"max_tokens": LEAVER_TOKENS})
        elif draw < self._mix.leaving + self._mix.invalid:
            await self._refused(body | self._rng.choice(INVALID))
        elif self._rng.random() < 0.5:
            await self._streamed(body)
        else:
            await self._whole(body)

    async def _leave(self, body: dict[str, Any]) -> None:
        """Half of them in the middle of a stream, half while they wait for a whole answer."""
        self._tally.num_left += 1
        if self._rng.random() < 0.5:
            async with self._client.stream(
                "POST", "/v1/completions", json=body | {"stream": True}
            ) as answer:
                await anext(answer.aiter_raw())
            return
        try:
            async with asyncio.timeout(self._rng.uniform(0.005, 0.05)):
                await self._client.post("/v1/completions", json=body)
        except TimeoutError:
            return
        # It came in time after all.
        self._tally.num_left_late += 1

    async def _refused(self, body: dict[str, Any]) -> None:
        answer = await self._client.post("/v1/completions", json=body)
        if 400 <= answer.status_code < 500 and "error" in answer.json():
            self._tally.num_refused += 1
        else:
            self._tally.errors.append(f"{answer.status_code} for {body}")

    async def _whole(self, body: dict[str, Any]) -> None:
        answer = await self._client.post("/v1/completions", json=body)
        data = answer.json()
        if answer.status_code != httpx.codes.OK:
            self._tally.errors.append(f"{answer.status_code}: {data}")
            return
        num_ids = len(data["choices"][0]["token_ids"])
        self._tally.answered(data["usage"], data["dvi"], num_ids)

    async def _streamed(self, body: dict[str, Any]) -> None:
        asked = body | {"stream": True, "stream_options": {"include_usage": True}}
        num_ids, last = 0, {}
        async with self._client.stream("POST", "/v1/completions", json=asked) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    last = json.loads(line[6:])
                    for choice in last.get("choices", ()):
                        num_ids += len(choice["token_ids"])
        self._tally.answered(last["usage"], last["dvi"], num_ids)


async def _keep_swapping(client: httpx.AsyncClient, every_s: float, tally: Tally) -> None:
    version = 1
    while True:
        await asyncio.sleep(every_s)
        version = 3 - version
        answer = await client.post("/admin/adapters/promote", json={"version": version})
        if answer.status_code != httpx.codes.OK:
            tally.errors.append(f"promote: {answer.text}")


async def _run(url: str, mix: Mix, swap_every_s: float, pid: int) -> Tally:
    tally = Tally()
    every = max(mix.num_requests // NUM_SAMPLES, 1)

    def after_each(index: int) -> None:
        if index % every == 0:
            tally.resident_bytes.append(resident_bytes(pid))

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=mix.concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        swaps = asyncio.create_task(_keep_swapping(client, swap_every_s, tally))
        clients = Clients(client, mix, tally)
        start_s = time.monotonic()
        await asyncio.gather(*(clients.work(after_each) for _ in range(mix.concurrency)))
        tally.seconds = time.monotonic() - start_s
        swaps.cancel()
        await asyncio.gather(swaps, return_exceptions=True)
    return tally


def run_mix(url: str, mix: Mix, *, swap_every_s: float, pid: int) -> Tally:
    """Send it all; versions 1 and 2 take turns in service; ``pid`` is the server's process."""
    return asyncio.run(_run(url, mix, swap_every_s, pid))
