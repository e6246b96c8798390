"""The bench's exchange: what goes out, and what is read of what came, however it was cut."""

from __future__ import annotations

import asyncio
import socket
import threading

import h11
import pytest

from dvi.bench.http.wire import Exchange, Peer

CHUNKS = (b"data: one\n\n", b"data: two\n\n")
ANSWER = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in CHUNKS)
    + b"0\r\n\r\n"
)


class Sent(asyncio.WriteTransport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data


def exchange() -> Exchange:
    return Exchange(Peer("http://host:8000"), "POST", "/v1/completions", b"{}")


def test_a_request_goes_below_the_url_with_its_headers_and_body() -> None:
    sent = Sent()
    to = Peer("https://host:8000/proxy/", {"authorization": "Bearer key"})
    Exchange(to, "POST", "/v1/completions", b'{"n": 1}').connection_made(sent)
    server = h11.Connection(h11.SERVER)
    server.receive_data(sent.data)
    asked, body, end = (server.next_event() for _ in range(3))
    assert isinstance(asked, h11.Request)
    assert (asked.method, asked.target) == (b"POST", b"/proxy/v1/completions")
    wanted = {b"host": b"host:8000", b"authorization": b"Bearer key", b"connection": b"close"}
    assert wanted.items() <= dict(asked.headers).items()
    assert isinstance(body, h11.Data)
    assert bytes(body.data) == b'{"n": 1}'
    assert isinstance(end, h11.EndOfMessage)


def test_an_answer_is_the_same_wherever_it_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    body_places = [ANSWER.index(chunk) + i for chunk in CHUNKS for i in range(len(chunk))]
    for place in range(1, len(ANSWER)):
        times = iter((1.0, 2.0))
        monkeypatch.setattr("dvi.bench.http.wire.time.monotonic", lambda times=times: next(times))
        one = exchange()
        one.data_received(ANSWER[:place])
        one.data_received(ANSWER[place:])
        pieces = one.read()
        assert (one.status, one.error) == (200, None)
        assert b"".join(data for _, data in pieces) == b"".join(CHUNKS)
        early = sum(len(data) for at_s, data in pieces if at_s == 1.0)
        assert early == sum(at < place for at in body_places)


@pytest.mark.parametrize("length", [0, 10, len(ANSWER) - 3])
def test_an_answer_that_breaks_off_is_an_error(length: int) -> None:
    one = exchange()
    if length:
        one.data_received(ANSWER[:length])
    one.connection_lost(None)
    one.read()
    assert one.error == "RemoteProtocolError"


def test_a_server_that_is_not_there_or_resets_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def reset() -> None:
            with listener.accept()[0] as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

        answering = threading.Thread(target=reset)
        answering.start()
        one = Exchange(Peer(f"http://127.0.0.1:{port}"), "GET", "/health")
        asyncio.run(one.run())
        answering.join()
    one.read()
    assert one.error in ("ConnectionResetError", "RemoteProtocolError")
    gone = Exchange(Peer(f"http://127.0.0.1:{port}"), "GET", "/health")
    asyncio.run(gone.run())
    assert gone.error == "ConnectionRefusedError"
