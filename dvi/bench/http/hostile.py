"""``python -m dvi.bench.http.hostile``: what a server has to bear beside its streams.

Reads ``{"url", "model"}`` from the first line of stdin, then sends 1 MB bodies, big JSON schemas
and a dashboard's polls until stdin closes. An empty line on stdout says that it has begun, the next
one what was answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx

from dvi.bench.http.bodies import big_requests, schema_request

Json = dict[str, Any]

BIG_EVERY_S = 1.0
SCHEMA_EVERY_S = 2.0
POLL_EVERY_S = 0.5
POLLED = ("/metrics", "/v1/models")
TIMEOUT_S = 120.0


class Sender:
    """Sends kinds of requests at their pace and counts what came back."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.statuses: dict[str, Counter[str]] = {}
        self.slowest_s: dict[str, float] = {}

    async def send(self, kind: str, method: str, path: str, body: Json | None = None) -> None:
        """One request."""
        start_s = time.monotonic()
        try:
            answer = await self._client.request(method, path, json=body)
            status = str(answer.status_code)
        except httpx.HTTPError as error:
            status = type(error).__name__
        took_s = time.monotonic() - start_s
        self.statuses.setdefault(kind, Counter())[status] += 1
        self.slowest_s[kind] = max(self.slowest_s.get(kind, 0.0), took_s)

    async def keep_sending(self, kind: str, calls: Iterator[Json], pause_s: float) -> None:
        """POST one call after the other until cancelled."""
        for call in calls:
            await self.send(kind, "POST", call["path"], call["body"])
            await asyncio.sleep(pause_s)

    async def keep_polling(self) -> None:
        """GET what a dashboard shows until cancelled."""
        while True:
            for path in POLLED:
                await self.send(path, "GET", path)
            await asyncio.sleep(POLL_EVERY_S)


def _schemas(model: str) -> Iterator[Json]:
    number = 0
    while True:
        yield schema_request(number, model)
        number += 1


async def _run(told: Json) -> Json:
    async with httpx.AsyncClient(
        base_url=told["url"], timeout=TIMEOUT_S, headers=told.get("headers")
    ) as client:
        sender = Sender(client)
        model = told["model"]
        tasks = [
            asyncio.create_task(sender.keep_sending("1 MB body", big_requests(model), BIG_EVERY_S)),
            asyncio.create_task(sender.keep_sending("schema", _schemas(model), SCHEMA_EVERY_S)),
            asyncio.create_task(sender.keep_polling()),
        ]
        print(flush=True)  # it has begun
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    kinds = sender.statuses.items()
    return {
        kind: {"statuses": dict(found), "slowest_s": sender.slowest_s[kind]}
        for kind, found in kinds
    }


def main() -> None:
    """Until stdin closes."""
    json.dump(asyncio.run(_run(json.loads(sys.stdin.readline()))), sys.stdout)


if __name__ == "__main__":
    main()
