"""What a body may say: honoured fields reach the engine, everything else is refused or listed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dvi.types import DecodeRequest
from tests.serving.fakes import FakeServer, fake_model, fake_server

USER = {"role": "user", "content": "hi"}
BASE: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [USER]},
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


def post(server: FakeServer, path: str, body: dict[str, Any], **more: Any) -> httpx.Response:
    return server.http.post(path, json=BASE[path] | body, **more)


def taken(server: FakeServer, path: str, body: dict[str, Any]) -> DecodeRequest:
    """The engine's request of a body that is answered."""
    answer = post(server, path, body)
    assert answer.status_code == 200, answer.text
    return server.engine.requests[-1]


def refusal(answer: httpx.Response) -> tuple[int, str | None, str | None]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return answer.status_code, error["param"], error["code"]


def test_every_honoured_field_reaches_the_engine(server: FakeServer) -> None:
    body = {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 42,
        "stop": ["a", "bc"],
        "stop_token_ids": [3],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "user": "ann",
        "metadata": {"domain": "sql"},
        "dvi": {"speculation": False, "max_draft_len": 3},
    }
    for path in BASE:
        request = taken(server, path, body)
        sampling = request.sampling
        assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (7, 0.5, 0.9)
        assert (sampling.top_k, sampling.min_p, sampling.seed) == (5, 0.1, 42)
        assert (sampling.stop, sampling.stop_token_ids) == (("a", "bc"), (3,))
        assert sampling.ignore_eos
        assert sampling.include_stop_str_in_output
        assert not sampling.skip_special_tokens
        assert sampling.end_token_ids == (299,)
        assert (request.speculation, request.max_draft_len, request.domain) == (False, 3, "sql")
        assert len(request.user_hash) == 32
        assert "ann" not in request.user_hash


def test_defaults_come_from_the_model_then_from_openai() -> None:
    with fake_server() as server:
        plain = taken(server, "/v1/completions", {}).sampling
        assert (plain.max_tokens, plain.temperature, plain.top_p) == (16, 1.0, 1.0)
        prompt_len = len(b"<user>hi<assistant>")
        assert taken(server, "/v1/chat/completions", {}).sampling.max_tokens == 200 - prompt_len
    defaults = fake_model().defaults
    own = type(defaults)(temperature=0.2, top_p=0.7, top_k=11, min_p=0.05)
    with fake_server(model=fake_model(defaults=own)) as server:
        sampling = taken(server, "/v1/completions", {}).sampling
        assert (sampling.temperature, sampling.top_p) == (0.2, 0.7)
        assert (sampling.top_k, sampling.min_p) == (11, 0.05)
        assert taken(server, "/v1/completions", {"temperature": 0}).sampling.temperature == 0


def test_an_unseeded_request_gets_a_seed_and_learns_it(server: FakeServer) -> None:
    seeds = set()
    for _ in range(4):
        answer = post(server, "/v1/completions", {}).json()
        assert answer["dvi"]["seed"] == server.engine.requests[-1].sampling.seed
        seeds.add(answer["dvi"]["seed"])
    # Four equal draws of 64 bits do not happen; at least one uses the upper half.
    assert len(seeds) == 4
    assert max(seeds) >= 1 << 32


def test_a_negative_seed_is_its_unsigned_64_bits(server: FakeServer) -> None:
    assert taken(server, "/v1/completions", {"seed": -1}).sampling.seed == (1 << 64) - 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": 1 << 64}, "seed"),
        ({"n": 9}, "n"),
        ({"n": 0}, "n"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop_token_ids": [300]}, "stop_token_ids"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"user": 3}, "user"),
        ({"metadata": {"domain": "x" * 65}}, "metadata.domain"),
        ({"dvi": {"max_draft_len": 9}}, "dvi.max_draft_len"),
        ({"dvi": {"colour": 1}}, "dvi.colour"),
        ({"dvi": {"speculation": 1}}, "dvi.speculation"),
    ],
)
def test_a_wrong_value_is_a_400_that_names_the_field(
    server: FakeServer, body: dict[str, Any], param: str
) -> None:
    for path in BASE:
        assert refusal(post(server, path, body))[:2] == (400, param)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        ([], "prompt"),
        ([5, 300], "prompt"),
        ([-1], "prompt"),
        ([[5], [300]], "prompt[1]"),
        ([5, "a"], "prompt"),
        ({"a": 1}, "prompt"),
    ],
)
def test_a_wrong_prompt_is_named(server: FakeServer, prompt: Any, param: str) -> None:
    status, found, _ = refusal(post(server, "/v1/completions", {"prompt": prompt}))
    assert status == 400
    assert found is not None
    assert found.startswith(param)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[1].role"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages[1].tool_calls[0].function"),
        ({"content": "x"}, "messages[1].role"),
    ],
)
def test_a_wrong_message_is_named(server: FakeServer, message: dict[str, Any], param: str) -> None:
    body = {"messages": [USER, message]}
    assert refusal(post(server, "/v1/chat/completions", body))[:2] == (400, param)


def test_a_template_that_refuses_is_a_400(server: FakeServer) -> None:
    body = {"messages": [{"role": "tool", "content": "x"}]}
    assert refusal(post(server, "/v1/chat/completions", body))[:2] == (400, "messages")


def test_a_client_cannot_bring_its_own_template(server: FakeServer) -> None:
    body = {"chat_template_kwargs": {"chat_template": "x"}}
    answer = post(server, "/v1/chat/completions", body)
    assert refusal(answer)[:2] == (400, "chat_template_kwargs.chat_template")


def test_more_choices_than_could_ever_wait_are_a_400_and_no_429(server: FakeServer) -> None:
    assert post(server, "/v1/completions", {"prompt": ["a"] * 6, "n": 2}).status_code == 200
    answer = post(server, "/v1/completions", {"prompt": ["a"] * 7, "n": 2})
    assert refusal(answer)[:2] == (400, "prompt")


def test_text_parts_developer_and_template_arguments_reach_the_template(
    server: FakeServer,
) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {
        "messages": [{"role": "developer", "content": "d"}, {"role": "user", "content": parts}],
        "chat_template_kwargs": {"enable_thinking": False},
        "add_generation_prompt": False,
    }
    ids = taken(server, "/v1/chat/completions", body).prompt_ids
    assert bytes(ids) == b"<system>d<user>a\nb[enable_thinking=False]"


@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
def test_content_is_text_whichever_of_its_forms_a_message_has(
    server: FakeServer, role: str
) -> None:
    forms: list[tuple[dict[str, object], bytes]] = [
        ({"content": "a\nb"}, b"a\nb"),
        ({"content": [{"type": "text", "text": one} for one in "ab"]}, b"a\nb"),
        ({"content": []}, b""),
        ({"content": None}, b""),
        ({}, b""),
    ]
    for content, text in forms:
        body = {"messages": [USER, {"role": role, **content}, USER]}
        ids = taken(server, "/v1/chat/completions", body | {"add_generation_prompt": False})
        assert bytes(ids.prompt_ids) == b"<user>hi<%s>%s<user>hi" % (role.encode(), text)


def test_special_tokens_are_added_to_text_and_not_to_chat_unless_asked(
    server: FakeServer,
) -> None:
    assert taken(server, "/v1/completions", {}).prompt_ids[0] == 298
    off = {"add_special_tokens": False}
    assert taken(server, "/v1/completions", off).prompt_ids[0] == ord("h")
    assert taken(server, "/v1/chat/completions", {}).prompt_ids[0] == ord("<")
    on = {"add_special_tokens": True}
    assert taken(server, "/v1/chat/completions", on).prompt_ids[0] == 298


def test_the_context_is_never_exceeded(server: FakeServer) -> None:
    ids = [5] * 199
    assert taken(server, "/v1/completions", {"prompt": ids}).sampling.max_tokens == 1
    for body in ({"prompt": [5] * 200}, {"prompt": ids, "max_tokens": 2}):
        assert refusal(post(server, "/v1/completions", body)) == (
            400,
            "prompt",
            "context_length_exceeded",
        )
    chat = {"messages": [{"role": "user", "content": "x" * 300}]}
    assert refusal(post(server, "/v1/chat/completions", chat))[1:] == (
        "messages",
        "context_length_exceeded",
    )


def test_another_model_is_a_404(server: FakeServer) -> None:
    assert post(server, "/v1/completions", {"model": "tiny"}).status_code == 200
    answer = post(server, "/v1/completions", {"model": "gpt-4"})
    assert refusal(answer) == (404, "model", "model_not_found")


def test_user_hashes_are_stable_and_keyed() -> None:
    one, other = fake_model(), fake_model(user_key=b"z" * 32)
    assert one.hash_user("ann") == one.hash_user("ann") != one.hash_user("bob")
    assert one.hash_user("ann") != other.hash_user("ann")
    assert one.hash_user(None) == one.hash_user("") == ""


@pytest.mark.parametrize("body", [{"store": False}, {"dvi": {"log": False}}])
def test_a_request_can_opt_out_of_being_kept(server: FakeServer, body: dict[str, Any]) -> None:
    before = server.service.counts.view().opted_out
    assert not taken(server, "/v1/completions", body).log
    assert server.service.counts.view().opted_out == before + 1
    assert taken(server, "/v1/completions", {"store": True}).log


def test_nothing_is_kept_where_the_operator_says_so() -> None:
    with fake_server(model=fake_model(keep_content=False)) as server:
        assert not taken(server, "/v1/completions", {"store": True}).log
