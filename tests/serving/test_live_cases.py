"""Faults that people met in other servers, over HTTP: leaving, split characters, the context's end.

Real engine, deterministic, tiny model; each property is seen from outside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.live import Live, live_server, publish_random, tiny_config, wait_for

CONTEXT = 72
NUM_CLIENTS = 6
PLAIN = {"dvi": {"speculation": False}}
IDS = {"return_token_ids": True}


@pytest.fixture(scope="module")
def live(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("cases")
    config = tiny_config(tiny_model, folder / "state")
    serving = replace(config.serving, max_context_len=CONTEXT)
    with live_server(replace(config, serving=serving), folder) as running:
        yield running


def complete(live: Live, body: dict[str, Any]) -> dict[str, Any]:
    answer = live.http.post("/v1/completions", json={"seed": 5} | IDS | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed_text(live: Live, body: dict[str, Any]) -> str:
    answer = live.http.post("/v1/completions", json={"seed": 5, "stream": True} | body)
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n")]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-2])


def test_answers_end_at_the_context_with_length_and_equal_plain_ones(live: Live) -> None:
    for room in range(1, 11):
        prompt = [5 + number % 60 for number in range(CONTEXT - room)]
        body = {"prompt": [prompt], "max_tokens": room, "ignore_eos": True, "temperature": 0}
        drafted, plain = complete(live, body), complete(live, body | PLAIN)
        assert drafted["choices"][0]["finish_reason"] == "length"
        assert drafted["usage"]["total_tokens"] == CONTEXT
        assert drafted["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
        more = live.http.post("/v1/completions", json=body | {"max_tokens": room + 1})
        assert more.status_code == 400
        assert more.json()["error"]["code"] == "context_length_exceeded"
    for length in (CONTEXT, CONTEXT + 1):
        refused = live.http.post("/v1/completions", json={"prompt": [[5] * length]})
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert str(length) in refused.json()["error"]["message"]
        assert str(CONTEXT) in refused.json()["error"]["message"]
    assert complete(live, {"prompt": "after", "max_tokens": 2})["usage"]["total_tokens"] > 2


def test_a_chat_without_a_limit_fills_the_context_exactly(live: Live) -> None:
    talk = [{"role": "user", "content": "Thank you"}]
    body = {"messages": talk, "ignore_eos": True, "seed": 1}
    answer = live.http.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["total_tokens"] == CONTEXT
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "words",
    ["\U0001f642\u6f22\xe9", "x\U0001f9d1\u200d\U0001f680 gr\xf6\xdfer \u6771\u4eac", "\xe9" * 6],
)
def test_no_character_is_split_by_a_chunk_or_lost_at_a_limit(live: Live, words: str) -> None:
    forced = {"prompt": "ab", "structured_outputs": {"choice": [words]}}
    whole = complete(live, forced | {"max_tokens": 60})
    assert whole["choices"][0]["text"] == words
    num_tokens = whole["usage"]["completion_tokens"]
    assert num_tokens > len(words)  # characters of several tokens: blocks do split them
    assert streamed_text(live, forced | {"max_tokens": 60}) == words
    for limit in range(1, num_tokens):
        cut = complete(live, forced | {"max_tokens": limit})["choices"][0]["text"]
        assert streamed_text(live, forced | {"max_tokens": limit}) == cut
        assert words.startswith(cut.rstrip("\ufffd"))
        # What is left of a character that the limit cuts is shown at the very end, if at all.
        assert "\ufffd" not in cut.rstrip("\ufffd")


def test_thirty_answers_in_json_mode_parse_or_end_at_their_limit(live: Live) -> None:
    body = {"prompt": "Reply:", "response_format": {"type": "json_object"}, "max_tokens": 60}

    def ask(seed: int) -> dict[str, Any]:
        return complete(live, body | {"seed": seed, "temperature": 0.9})["choices"][0]

    with ThreadPoolExecutor(8) as pool:
        choices = list(pool.map(ask, range(30)))
    ended = [choice for choice in choices if choice["finish_reason"] == "stop"]
    assert all(isinstance(json.loads(choice["text"]), dict) for choice in ended)
    assert all(choice["text"].lstrip()[:1] in ("{", "") for choice in choices)
    assert live.http.get("/ready").status_code == 200


def test_whoever_leaves_is_forgotten_within_a_round_and_leaves_no_record(
    tiny_model: Path, tmp_path: Path
) -> None:
    config = tiny_config(tiny_model, tmp_path / "state")
    # Fewer rows than clients: some leave while they wait in the queue.
    serving = replace(config.serving, max_context_len=2000, max_batch_size=8)
    body = {"prompt": "ab", "max_tokens": 1900, "ignore_eos": True, "temperature": 1}
    with live_server(replace(config, serving=serving), tmp_path) as live:

        def leave_stream(seed: int) -> None:
            asked = body | {"stream": True, "seed": seed}
            with live.http.stream("POST", "/v1/completions", json=asked, timeout=60) as answer:
                lines = (line for line in answer.iter_lines() if line)
                for _ in range(3):
                    next(lines)

        def leave_whole(seed: int) -> None:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(
                    live.server.url + "/v1/completions", json=body | {"seed": seed}, timeout=1
                )

        with ThreadPoolExecutor(2 * NUM_CLIENTS) as pool:
            left = [pool.submit(leave_stream, seed) for seed in range(NUM_CLIENTS)]
            left += [pool.submit(leave_whole, seed) for seed in range(NUM_CLIENTS)]
            for future in left:
                future.result()
        cancelled = "dvi_requests_total{cancelled}"
        assert wait_for(lambda: live.metrics()[cancelled] == 2 * NUM_CLIENTS)
        gone = live.metrics()
        assert gone["dvi_running_requests"] == gone["dvi_queue_depth"] == 0
        assert gone["dvi_kv_used_ratio"] == 0
        # Nothing was finished, nothing is decoded any more, nothing is stored.
        assert gone["dvi_generated_tokens_total"] == gone["dvi_cancelled_tokens_total"]
        assert gone["dvi_generated_tokens_total"] < 2 * NUM_CLIENTS * 1900
        answer = live.http.post("/v1/completions", json=body | {"max_tokens": 3}).json()
        after = live.metrics()
        assert answer["usage"]["completion_tokens"] == 3
        grown = after["dvi_generated_tokens_total"] - gone["dvi_generated_tokens_total"]
        assert grown == 3
        assert wait_for(lambda: live.metrics()["dvi_traces_written_total"] == 1)


@pytest.mark.slow
def test_neither_time_nor_a_restart_changes_what_the_same_requests_accept(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Drift is the traffic's: a server that learns nothing drafts as on its first day."""
    config = tiny_config(tiny_model, tmp_path / "state")
    names = ("rounds", "proposed", "judged", "accepted", "adapter_versions")

    def drafted(live: Live) -> list[list[Any]]:
        bodies = [{"prompt": "SELECT", "seed": seed, "max_tokens": 40} for seed in range(8)]
        answers = [complete(live, body | {"temperature": 0.7})["dvi"] for body in bodies]
        return [[answer[name] for name in names] for answer in answers]

    with live_server(config, tmp_path / "one") as live:
        version = publish_random(live, 1, scale=0.1)
        assert wait_for(lambda: live.metrics()["dvi_adapter_version"] == version)
        before = drafted(live)
        assert sum(counts[3] for counts in before) > 0
        for _ in range(5):
            assert drafted(live) == before
    with live_server(config, tmp_path / "two") as live:
        assert live.metrics()["dvi_adapter_version"] == version
        assert drafted(live) == before
