"""What keeps large bodies and many deliveries from the decode thread's time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dvi.modeling.token_bound import longest_token_bytes
from dvi.modeling.tokenizer import Tokenizer
from dvi.types import Delta, FinishReason
from serving.intake import HEAVY_BYTES, Intake
from serving.mailbox import Mailbox
from serving.schema import MAX_MESSAGES
from tests.serving.fakes import FakeEngine, fake_model, fake_server


def delta(number: int) -> Delta:
    return Delta("r", 0, (number,), (), "", None)


class CountingLoop:
    """Counts wake-ups; runs nothing until told."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.closed = False

    def is_closed(self) -> bool:
        return self.closed

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.calls.append(call)


def test_many_deltas_wake_the_loop_once_and_arrive_in_order() -> None:
    loop: Any = CountingLoop()
    mailbox = Mailbox(loop)
    queues: list[asyncio.Queue[Delta]] = [asyncio.Queue(), asyncio.Queue()]
    for number in range(6):
        mailbox.post(queues[number % 2], delta(number))
    assert len(loop.calls) == 1
    loop.calls.pop()()
    arrived = [[queue.get_nowait().token_ids[0] for _ in range(3)] for queue in queues]
    assert arrived == [[0, 2, 4], [1, 3, 5]]
    mailbox.post(queues[0], delta(6))
    assert len(loop.calls) == 1


def test_a_closed_loop_is_left_alone() -> None:
    loop: Any = CountingLoop()
    loop.closed = True
    Mailbox(loop).post(asyncio.Queue(), delta(0))
    assert not loop.calls


def test_no_delta_is_lost_between_threads() -> None:
    async def receive(count: int) -> list[int]:
        queue: asyncio.Queue[Delta] = asyncio.Queue()
        mailbox = Mailbox(asyncio.get_running_loop())
        sender = threading.Thread(
            target=lambda: [mailbox.post(queue, delta(number)) for number in range(count)]
        )
        sender.start()
        got = [(await queue.get()).token_ids[0] for _ in range(count)]
        sender.join()
        return got

    assert asyncio.run(asyncio.wait_for(receive(5000), 60)) == list(range(5000))


def test_large_bodies_are_prepared_one_at_a_time_and_small_ones_pass_them() -> None:
    running: list[int] = []
    most: list[int] = []
    small_ended_at: list[int] = []

    def heavy() -> None:
        running.append(1)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()

    async def all_of_them() -> None:
        intake = Intake()
        large = [asyncio.create_task(intake.run(HEAVY_BYTES, heavy)) for _ in range(4)]
        await asyncio.sleep(0.01)
        await intake.run(HEAVY_BYTES - 1, lambda: small_ended_at.append(len(most)))
        await asyncio.gather(*large)

    asyncio.run(all_of_them())
    assert most == [1, 1, 1, 1]
    assert small_ended_at[0] < 4


def test_a_long_text_is_tokenized_while_other_threads_run(tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    text = "SELECT name, price FROM orders; " * 30_000
    ticks = 0
    is_done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not is_done.wait(0.001):
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    start_s = time.monotonic()
    ids = tokenizer.encode(text, add_special_tokens=False)
    took_s = time.monotonic() - start_s
    is_done.set()
    ticker.join()
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    # With the lock held throughout it would tick once or twice; a tick takes a few ms when busy.
    assert ticks > 5, took_s


def test_no_text_has_fewer_tokens_than_is_told(tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    for text in ("", "a", "The quick brown fox", "東京 \U0001f680", "<|im_end|>" * 9, " " * 500):
        count = len(tokenizer.encode(text, add_special_tokens=False))
        assert tokenizer.fewest_tokens(text) <= count
    assert tokenizer.fewest_tokens("x" * 10_000) > 100


def test_nothing_is_told_of_a_tokenizer_that_may_drop_text(tiny_model: Path) -> None:
    from tokenizers import AddedToken, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as FastTokenizer

    def fast() -> FastTokenizer:
        return FastTokenizer.from_file(str(tiny_model / "tokenizer.json"))

    assert longest_token_bytes(fast()) is not None
    stripping, spaced, removing, plain = fast(), fast(), fast(), fast()
    stripping.normalizer = normalizers.Strip()
    spaced.add_special_tokens([AddedToken("<gap>", lstrip=True)])
    removing.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()]
    )
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    assert [longest_token_bytes(one) for one in (stripping, spaced, removing, plain)] == [None] * 4


def test_a_text_that_cannot_fit_is_refused_untokenized() -> None:
    model = fake_model()
    tokenizer: Any = model.tokenizer
    tokenized: list[int] = []
    encode = tokenizer.encode
    tokenizer.encode = lambda text, **how: tokenized.append(len(text)) or encode(text, **how)
    body = {"prompt": "x" * (model.max_context_len + 1), "max_tokens": 1}
    chat = {"messages": [{"role": "user", "content": body["prompt"]}]}
    with fake_server(FakeEngine(finish=FinishReason.LENGTH), model=model) as server:
        answers = [
            server.http.post("/v1/completions", json=body),
            server.http.post("/v1/chat/completions", json=chat),
        ]
    for answer, param in zip(answers, ("prompt", "messages"), strict=True):
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert not tokenized


def test_more_messages_than_openai_takes_are_a_400() -> None:
    messages: list[Any] = [{"role": "user", "content": "x", "audio": 1}] * (MAX_MESSAGES + 1)
    with fake_server(FakeEngine()) as server:
        answer = server.http.post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 400
    assert "2048" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "messages"
