"""Runs the client processes of one pass.

Owns the processes; does not know what is measured with them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dvi.bench.http.timing import Pass, Reply
from dvi.config.child import module_command

Json = dict[str, Any]

CLIENT_TIMEOUT_S = 600.0


class ClientFailed(RuntimeError):
    """A client process did not come through; one line."""


@dataclass(frozen=True, slots=True)
class Address:
    """Whom to ask, and as whom."""

    url: str
    model: str
    headers: Mapping[str, str]


def run_streams(to: Address, streams: Sequence[Json]) -> Pass:
    """Send every stream's calls from one process. Raises ClientFailed."""
    plan = {"url": to.url, "headers": dict(to.headers), "streams": list(streams)}
    done = subprocess.run(
        module_command("dvi.bench.http.client"),
        input=json.dumps(plan),
        stdout=subprocess.PIPE,
        text=True,
        timeout=CLIENT_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise ClientFailed(f"the bench's client ended with status {done.returncode}")
    replies = [
        Reply(
            stream=row["stream"],
            sent_s=row["sent_s"],
            error=row["error"],
            times_s=tuple(row["times_s"]),
            tokens=tuple(row["tokens"]),
        )
        for row in json.loads(done.stdout)["replies"]
    ]
    return Pass(tuple(replies))


@contextmanager
def hostile_beside(to: Address) -> Iterator[Json]:
    """A hostile client runs inside; what it got is in the mapping afterwards."""
    process = subprocess.Popen(
        module_command("dvi.bench.http.hostile"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: Json = {}
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        told = {"url": to.url, "model": to.model, "headers": dict(to.headers)}
        process.stdin.write(json.dumps(told) + "\n")
        process.stdin.flush()
        process.stdout.readline()  # it has begun
        yield found
        process.stdin.close()
        found.update(json.loads(process.stdout.read()))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
