"""One HTTP request on a connection of its own: bytes out, and bytes in with the time they came.

Owns connection and framing (h11). Nothing is parsed while an answer comes: a client takes as little
as it can of the cores that it shares with the server it measures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

import h11

TIMEOUT_S = 300.0
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Peer:
    """Whom to ask, and with which headers beside those of any request."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def address(self) -> SplitResult:
        """The parts of ``url``; a path in it comes before every request's own."""
        return urlsplit(self.url)


class Exchange(asyncio.Protocol):
    """One request and what came back. ``run`` once, then ``read`` once."""

    def __init__(self, to: Peer, method: str, path: str, body: bytes = b"") -> None:
        self.status = 0  # none yet
        self.error: str | None = None  # what went wrong on the way
        self._address = to.address()
        self._framing = h11.Connection(h11.CLIENT)
        self._request = self._framed(to, method, path, body)
        self._parts: list[tuple[float, bytes]] = []
        self._ended: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Send, then collect until the server closes; a failure is in ``error``."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        host = self._address.hostname or ""
        port = self._address.port or PORTS[self._address.scheme]
        ssl = True if self._address.scheme == "https" else None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                transport, _ = await loop.create_connection(lambda: self, host, port, ssl=ssl)
                try:
                    await self._ended
                finally:
                    transport.close()
        except OSError as error:  # TimeoutError too
            self.error = type(error).__name__

    def read(self) -> list[tuple[float, bytes]]:
        """The body as it came, with ``time.monotonic()`` of each piece; sets ``status``."""
        pieces = []
        try:
            for at_s, part in (*self._parts, (0.0, b"")):  # h11's word for the end is b""
                for event in self._events(part):
                    if isinstance(event, h11.Response):
                        self.status = event.status_code
                    elif isinstance(event, h11.Data):
                        pieces.append((at_s, bytes(event.data)))
        except h11.RemoteProtocolError as error:
            self.error = self.error or type(error).__name__
        return pieces

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's: send the request."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Asyncio's: keep what came."""
        self._parts.append((time.monotonic(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio's: the answer is over, or broke off."""
        if exc is not None:
            self.error = type(exc).__name__
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _framed(self, to: Peer, method: str, path: str, body: bytes) -> bytes:
        headers = {
            "host": self._address.netloc,
            "connection": "close",  # so the answer's end is that of the bytes
            "content-type": "application/json",
            "content-length": str(len(body)),
            **to.headers,
        }
        target = self._address.path.rstrip("/") + path
        head = h11.Request(method=method, target=target, headers=list(headers.items()))
        events = (head, h11.Data(data=body), h11.EndOfMessage())
        return b"".join(self._framing.send(event) or b"" for event in events)

    def _events(self, part: bytes) -> Iterator[h11.Event]:
        self._framing.receive_data(part)
        while True:
            event = self._framing.next_event()
            if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
                return  # NEED_DATA, PAUSED, or the end, which h11 would repeat for ever
            yield event
