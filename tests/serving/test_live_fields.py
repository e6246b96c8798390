"""Every field through HTTP: the same tokens, text and log-probabilities without speculation.

The server is deterministic, so equality is of bits; the tiny model is random, so that a field with
a strong value changes the answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serving.live import Live, live_server, publish_random, tiny_config, wait_for

PROMPT = "SELECT name FROM orders"
IDS = {"return_token_ids": True}
# Fields with values strong enough to change what a random model says.
FIELDS: list[dict[str, Any]] = [
    {"presence_penalty": 2.0},
    {"frequency_penalty": 2.0, "temperature": 0},
    {"repetition_penalty": 1.8, "temperature": 0},
    {"logit_bias": {"40": 100, "41": 99.5}},
    {"min_p": 0.9},
    {"top_k": 2},
    {"top_p": 0.3},
    {"min_tokens": 12, "logit_bias": {"0": 50}},
    {"ignore_eos": True, "temperature": 2.0},
    {"stop": ["e", "a"], "min_tokens": 3},
    {"logprobs": 3},
    {"logprobs": 2, "echo": True},
    {"n": 3, "logprobs": 0},
    {"structured_outputs": {"regex": "[a-f]{3,9}x"}},
    {"structured_outputs": {"choice": ["alpha", "beta"]}},
    {"response_format": {"type": "json_object"}, "max_tokens": 60},
]


@pytest.fixture(scope="module")
def live(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    with live_server(tiny_config(tiny_model, folder / "state"), folder) as running:
        publish_random(running, 1, scale=0.1)
        yield running


def complete(live: Live, body: dict[str, Any], path: str = "/v1/completions") -> dict[str, Any]:
    answer = live.http.post(path, json={"max_tokens": 24, "seed": 7} | IDS | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def choices(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return answer["choices"]


def streamed(live: Live, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of a streamed answer, put together as a client would."""
    asked = {"max_tokens": 24, "seed": 7, "stream": True} | IDS | body
    found: dict[int, dict[str, Any]] = {}
    with live.http.stream("POST", "/v1/completions", json=asked) as answer:
        for line in answer.iter_lines():
            if not line or line == "data: [DONE]":
                continue
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                one = found.setdefault(choice["index"], {"text": "", "token_ids": []})
                one["text"] += choice["text"]
                one["token_ids"] += choice["token_ids"]
                one["finish_reason"] = choice["finish_reason"]
                one.setdefault("prompt_token_ids", choice.get("prompt_token_ids"))
                if choice["logprobs"] is not None:
                    kept = one.setdefault("logprobs", {name: [] for name in choice["logprobs"]})
                    for name, values in choice["logprobs"].items():
                        kept[name] += values
    return [found[index] | {"index": index} for index in sorted(found)]


def usage(answer: dict[str, Any]) -> dict[str, int]:
    """Without what was cached: the second of two equal requests starts from the first one."""
    return {name: n for name, n in answer["usage"].items() if name != "prompt_tokens_details"}


@pytest.mark.parametrize("field", FIELDS, ids="-".join)
def test_each_field_gives_the_answer_of_plain_decoding(live: Live, field: dict[str, Any]) -> None:
    body = {"prompt": PROMPT} | field
    drafted = complete(live, body)
    plain = complete(live, body | {"dvi": {"speculation": False}})
    assert choices(drafted) == choices(plain)
    assert usage(drafted) == usage(plain)
    assert plain["dvi"]["proposed"] == 0
    parts = streamed(live, body)
    for part, whole in zip(parts, choices(drafted), strict=True):
        assert part == {name: whole[name] for name in part}
        assert len(whole["token_ids"]) <= body.get("max_tokens", 24)


def test_fields_do_what_they_say(live: Live) -> None:
    base = choices(complete(live, {"prompt": PROMPT, "temperature": 0, "ignore_eos": True}))[0]
    first = base["token_ids"][0]
    banned = {"prompt": PROMPT, "temperature": 0, "logit_bias": {str(first): -100}}
    assert first not in choices(complete(live, banned))[0]["token_ids"]
    # A penalty of 2 a time: no id can stay the favourite of a random model with small logits.
    often = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "frequency_penalty": 2}
    assert choices(complete(live, often))[0]["token_ids"] != base["token_ids"]
    listed = {"prompt": PROMPT, "structured_outputs": {"choice": ["gamma", "alpha"]}}
    texts = {choices(complete(live, listed | {"seed": seed}))[0]["text"] for seed in range(4)}
    assert texts <= {"gamma", "alpha"}
    shape = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    asked_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": shape}}
    asked = {"prompt": PROMPT, "response_format": asked_format, "max_tokens": 100}
    answer = choices(complete(live, asked | {"temperature": 0}))[0]
    if answer["finish_reason"] == "stop":
        assert set(json.loads(answer["text"])) >= {"ok"}


def test_logprobs_are_of_the_raw_target_and_match_the_tokens(live: Live) -> None:
    body = {"prompt": PROMPT, "logprobs": 4, "temperature": 0.3, "top_k": 3}
    answer = complete(live, body)
    (choice,) = choices(answer)
    logprobs = choice["logprobs"]
    assert {len(values) for values in logprobs.values()} == {answer["usage"]["completion_tokens"]}
    assert "".join(logprobs["tokens"]) == choice["text"] or "bytes:" in "".join(logprobs["tokens"])
    for own, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert own in top.values()
        assert 4 <= len(top) <= 5
        assert sum(map(math.exp, top.values())) < 1.0
    offsets = logprobs["text_offset"]
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    assert offsets[-1] <= len(choice["text"])


def test_chat_logprobs_have_bytes_that_join_to_the_text(live: Live) -> None:
    body = {"messages": [{"role": "user", "content": "Größe \U0001f680"}]}
    more = {"logprobs": True, "top_logprobs": 2, "temperature": 1.2, "max_tokens": 40}
    for seed in range(3):
        answer = complete(live, body | more | {"seed": seed}, "/v1/chat/completions")
        (choice,) = choices(answer)
        entries = choice["logprobs"]["content"]
        assert len(entries) == answer["usage"]["completion_tokens"]
        joined = b"".join(bytes(entry["bytes"]) for entry in entries)
        assert joined.decode(errors="replace") == choice["message"]["content"]
        assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_echo_scores_the_prompt_as_a_harness_reads_it(live: Live) -> None:
    ids = choices(complete(live, {"prompt": PROMPT}))[0]["prompt_token_ids"]
    score = {"prompt": [ids], "echo": True, "logprobs": 1, "temperature": 0}
    nothing = complete(live, score | {"max_tokens": 0})
    (choice,) = choices(nothing)
    assert choice["text"] == PROMPT
    assert nothing["usage"]["completion_tokens"] == 0
    assert choice["finish_reason"] == "length"
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert len(logprobs["tokens"]) == len(ids)
    offsets = logprobs["text_offset"]
    assert offsets[0] == 0
    pieces = zip(offsets, [*offsets[1:], len(PROMPT)], strict=True)
    assert [PROMPT[start:end] for start, end in pieces] == logprobs["tokens"]
    one = choices(complete(live, score | {"max_tokens": 1}))[0]["logprobs"]
    assert one["tokens"][:-1] == logprobs["tokens"]
    assert one["token_logprobs"][:-1] == logprobs["token_logprobs"]
    # What comes after a prefix of the prompt is scored like the prompt's own next token.
    last = {"prompt": [ids[:-1]], "logprobs": 1, "temperature": 0, "max_tokens": 1}
    best = choices(complete(live, last))[0]["logprobs"]["top_logprobs"][0]
    assert max(best, key=best.__getitem__) in logprobs["top_logprobs"][-1]


def test_the_identities_hold_to_the_token_under_a_mixed_load(live: Live) -> None:
    before = live.metrics()
    bodies = [
        {"prompt": [PROMPT, "other"] if seed % 5 == 0 else PROMPT, "seed": seed} | field
        for seed, field in enumerate(FIELDS * 2)
    ]

    def ask(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        answer = complete(live, body)
        return answer["usage"]["completion_tokens"], answer["dvi"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, bodies))
    assert wait_for(lambda: live.metrics()["dvi_running_requests"] == 0)
    after = live.metrics()

    def grown(name: str) -> float:
        return after[name] - before[name]

    usage = sum(tokens for tokens, _ in answers)
    accepted = grown("dvi_accepted_tokens_total{neural}")
    assert grown("dvi_generated_tokens_total") == usage
    assert grown("dvi_generated_tokens_total") == grown("dvi_rounds_total") + accepted
    assert sum(dvi["rounds"] for _, dvi in answers) == grown("dvi_rounds_total")
    assert sum(dvi["accepted"] for _, dvi in answers) == accepted
    assert sum(dvi["judged"] for _, dvi in answers) == grown("dvi_judged_tokens_total{neural}")
    positions = [grown(f"dvi_accepted_tokens_per_position_total{{{p}}}") for p in range(8)]
    assert sum(positions) == accepted
    assert positions == sorted(positions, reverse=True)
    mean = 1 + accepted / grown("dvi_rounds_total")
    assert mean == pytest.approx(usage / grown("dvi_rounds_total"), rel=1e-12)
    ended = grown("dvi_requests_total{stop}") + grown("dvi_requests_total{length}")
    assert ended == len(bodies)
