"""``python -m dvi.bench.http.hostile``: what a server has to bear beside its streams.

Reads ``{"url", "model", "headers"}`` from the first line of stdin, then sends 1 MB bodies, big JSON
schemas and a dashboard's polls until stdin closes. An empty line on stdout says that it has begun,
the next one what was answered. Bodies are made before: it is the server that has to work.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from dvi.bench.http.bodies import COMPLETIONS, big_requests, schema_bodies
from dvi.bench.http.wire import Exchange, Peer

Json = dict[str, Any]
Calls = Iterator[tuple[str, bytes]]  # path and body

BIG_EVERY_S = 1.0
SCHEMA_EVERY_S = 2.0
POLL_EVERY_S = 0.5
POLLED = ("/metrics", "/v1/models")


class Sender:
    """Sends kinds of requests at their pace and counts what came back."""

    def __init__(self, to: Peer) -> None:
        self._to = to
        self.statuses: dict[str, Counter[str]] = {}
        self.slowest_s: dict[str, float] = {}

    async def send(self, kind: str, method: str, path: str, body: bytes = b"") -> None:
        """One request."""
        exchange = Exchange(self._to, method, path, body)
        start_s = time.monotonic()
        await exchange.run()
        took_s = time.monotonic() - start_s
        exchange.read()
        status = exchange.error or str(exchange.status)
        self.statuses.setdefault(kind, Counter())[status] += 1
        self.slowest_s[kind] = max(self.slowest_s.get(kind, 0.0), took_s)

    async def keep_sending(self, kind: str, calls: Calls, pause_s: float) -> None:
        """POST one call after the other until cancelled."""
        for path, body in calls:
            await self.send(kind, "POST", path, body)
            await asyncio.sleep(pause_s)

    async def keep_polling(self) -> None:
        """GET what a dashboard shows until cancelled."""
        while True:
            for path in POLLED:
                await self.send(path, "GET", path)
            await asyncio.sleep(POLL_EVERY_S)


def _big_calls(model: str) -> Calls:
    made = [(one["path"], json.dumps(one["body"]).encode()) for one in big_requests(model)]
    return itertools.cycle(made)


def _schema_calls(model: str) -> Calls:
    return ((COMPLETIONS, body) for body in schema_bodies(model))


async def _run(told: Json) -> Json:
    sender = Sender(Peer(told["url"], told.get("headers", {})))
    big, schemas = _big_calls(told["model"]), _schema_calls(told["model"])
    tasks = [
        asyncio.create_task(sender.keep_sending("1 MB body", big, BIG_EVERY_S)),
        asyncio.create_task(sender.keep_sending("schema", schemas, SCHEMA_EVERY_S)),
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
