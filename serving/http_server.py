"""The listening socket and uvicorn in a thread of its own.

Owns the bind (before anything slow, so that a taken port is one line) and the HTTP thread; knows no
routes. Signals stay with the main thread.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Self

import uvicorn
from fastapi import FastAPI

BACKLOG = 1024
KEEP_ALIVE_S = 75  # longer than the pools of clients and proxies, so that they close first
CLOSE_TIMEOUT_S = 3  # answers are drained before; this is for bytes on the way


class PortTaken(RuntimeError):
    """The address cannot be bound; one line."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises PortTaken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise PortTaken(f"serving.host={host} is no address of this machine: {error}") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # At once: two sockets may bind one port until one of them listens.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortTaken(
            f"cannot bind {host}:{port}: {error.strerror}; take another with "
            f"serving.port={port + 1} (0 finds a free one)"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where it listens, as a client types it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer:
    """Serves ``app`` on ``listener`` from ``__enter__`` to ``close``."""

    def __init__(self, app: FastAPI, listener: socket.socket) -> None:
        self._listener = listener
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
            )
        )
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.005)
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the listener, let answers on the way finish, end the thread."""
        self._server.should_exit = True
        self._thread.join(CLOSE_TIMEOUT_S + 2)
        self._listener.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))
