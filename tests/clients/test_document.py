"""The OpenAPI document as a fuzzer reads it: what fits is answered, what does not is refused.

A live server on the tiny model; requests come from schemathesis, which also holds every answer's
status, headers, type and body against the document. Nothing may be a 5xx.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from schemathesis.config import GenerationConfig

from tests.serving.live import Live, live_server, tiny_config

ADMIN = {"Authorization": "Bearer root"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
GENERATION = {"POST /v1/completions", "POST /v1/chat/completions"}
# Not of a schema: rules over two fields, and bounds that only the model knows (ids, context).
MAY_REFUSE_WHAT_FITS = "positive_data_acceptance"
# Asserted by ``fuzz``, which knows what becomes of headers.
KNOWS_NO_MENDING = "negative_data_rejection"


@pytest.fixture(autouse=True)
def _subnormal_floats() -> None:
    """Hypothesis draws them and refuses to where an earlier test of the process flushed them."""
    torch.set_flush_denormal(False)


@pytest.fixture(scope="module")
def live(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("document")
    config = tiny_config(tiny_model, folder / "state")
    serving = replace(config.serving, api_key="alpha", max_context_len=32, max_queue=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVI_ADMIN_KEY", "root")
        with live_server(replace(config, serving=serving), folder) as running:
            yield running


@pytest.fixture(scope="module")
def operations(live: Live) -> list[Any]:
    document = live.http.get("/openapi.json", headers=ADMIN).json()
    schema = schemathesis.openapi.from_dict(document)
    found = [result.ok() for result in schema.get_all_operations()]
    assert {operation.label for operation in found} >= GENERATION | {"GET /ready", "GET /metrics"}
    return found


def arrives_otherwise(case: Any) -> bool:
    """Whether its headers are mended on the way: they are trimmed, and the key becomes ours."""
    headers = case.headers or {}
    request_id = headers.get("X-Request-Id", "")
    return "Authorization" in headers or request_id != request_id.strip()


def check(live: Live, case: Any, seen: Counter[tuple[str, int]]) -> int:
    """Send ``case`` with the admin's key and hold the answer against the document."""
    answer = case.call(base_url=live.server.url, headers=ADMIN, timeout=60)
    label = case.operation.label
    seen[label, answer.status_code] += 1
    assert answer.status_code < 500, (label, answer.text)
    excluded = [MAY_REFUSE_WHAT_FITS, KNOWS_NO_MENDING]
    case.validate_response(answer, excluded_checks=CHECKS.get_by_names(excluded), headers=ADMIN)
    if answer.status_code == 400 and case.method == "POST":
        assert answer.json()["error"]["message"]
    return int(answer.status_code)


def drawn(operation: Any, mode: GenerationMode, num: int) -> list[Any]:
    """Random cases, all before the first is sent: hypothesis walks sys.modules while it draws, and
    a server at work in this process may import something meanwhile.
    """
    cases: list[Any] = []

    @seed(num)
    @settings(
        max_examples=num,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def collect(case: Any) -> None:
        cases.append(case)

    collect()
    return cases


def fuzz(live: Live, operations: list[Any], mode: GenerationMode, num: int) -> Counter[Any]:
    seen: Counter[tuple[str, int]] = Counter()
    for operation in operations:
        is_generation = operation.label in GENERATION
        for case in drawn(operation, mode, num if is_generation else max(3, num // 8)):
            status = check(live, case, seen)
            if mode is GenerationMode.NEGATIVE and is_generation:
                assert status >= 400 or arrives_otherwise(case), (case.body, case.headers)
    return seen


def answered(seen: Counter[tuple[str, int]], status: int) -> set[str]:
    return {label for label, found in seen if found == status}


def test_what_fits_the_document_is_answered_as_the_document_says(
    live: Live, operations: list[Any]
) -> None:
    seen = fuzz(live, operations, GenerationMode.POSITIVE, 20)
    others = {"GET /v1/models/{model_id}"}  # no random name is the model's
    assert answered(seen, 200) == {operation.label for operation in operations} - others


def test_what_does_not_fit_is_a_4xx_as_the_document_says(live: Live, operations: list[Any]) -> None:
    seen = fuzz(live, operations, GenerationMode.NEGATIVE, 20)
    assert answered(seen, 400) >= GENERATION
    assert live.http.get("/ready").status_code == 200


def border_cases(operation: Any, step: int) -> Iterator[Any]:
    """Every ``step``-th of the cases that walk a field's borders, types, presence and methods."""
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    cases = operation.schema.iter_coverage_cases(
        operation, generation_modes=modes, generation_config=GenerationConfig()
    )
    for case in islice(cases, 0, None, step):
        if isinstance(case.body, dict) and case.body.get("prompt") == "":
            case.body["prompt"] = "hi"  # an empty one is refused before any other field is used
        yield case


def walk_borders(live: Live, operations: list[Any], step: int) -> Counter[Any]:
    seen: Counter[tuple[str, int]] = Counter()
    for operation in operations:
        for case in border_cases(operation, step):
            check(live, case, seen)
    for label in GENERATION:
        assert seen[label, 200] > 100 / step
        assert seen[label, 400] > 100 / step
    return seen


def test_borders_of_fields_are_answered_as_the_document_says(
    live: Live, operations: list[Any]
) -> None:
    walk_borders(live, operations, 13)


@pytest.mark.slow
def test_all_borders_of_all_fields_are_answered_as_the_document_says(
    live: Live, operations: list[Any]
) -> None:
    walk_borders(live, operations, 1)


def test_a_method_that_a_path_does_not_have_is_a_405(live: Live, operations: list[Any]) -> None:
    known: dict[str, set[str]] = {}
    for operation in operations:
        known.setdefault(operation.path, set()).add(operation.method.upper())
    for path, methods in known.items():
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - methods:
            url = live.server.url + path.replace("{model_id}", "tiny")
            json_body = {} if method != "GET" else None
            found = httpx.request(method, url, headers=ADMIN, json=json_body)
            assert found.status_code == 405, (method, path, found.text)
            assert set(found.headers["allow"].split(", ")) == methods
            assert found.json()["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_a_thousand_requests_a_route_get_no_5xx(
    live: Live, operations: list[Any], mode: GenerationMode
) -> None:
    assert sum(fuzz(live, operations, mode, 1000).values()) >= 1000 * len(GENERATION)


def test_every_route_but_health_and_ready_wants_a_key(live: Live, operations: list[Any]) -> None:
    for operation in operations:
        path = operation.path.replace("{model_id}", "tiny")
        found = httpx.request(operation.method, live.server.url + path)
        open_to_all = operation.path in ("/health", "/ready")
        assert found.status_code == (200 if open_to_all else 401), operation.label
        user = {"Authorization": "Bearer alpha"}
        as_user = httpx.request(operation.method, live.server.url + path, headers=user)
        assert (as_user.status_code == 403) == operation.path.startswith("/admin")


def test_every_event_of_a_stream_is_a_chunk_of_the_document(live: Live) -> None:
    document = live.http.get("/openapi.json", headers=ADMIN).json()
    more: list[dict[str, Any]] = [
        {},
        {"stream_options": {"include_usage": True}, "n": 2},
        {"return_token_ids": True, "dvi": {"detail": True}, "stop": ["e"]},
    ]
    asked = [
        ("/v1/completions", "CompletionChunk", {"prompt": "ab", "logprobs": 1, "echo": True}),
        ("/v1/chat/completions", "ChatChunk", CHAT | {"logprobs": True, "top_logprobs": 2}),
    ]
    for path, name, body in asked:
        told = document["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]
        assert f"#/components/schemas/{name}" in json.dumps(told)
        shape = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        validator = jsonschema_rs.validator_for(shape)
        for options in more:
            asked_for = {"stream": True, "max_tokens": 6} | body | options
            text = live.http.post(path, json=asked_for, headers=ADMIN).text
            *chunks, end, nothing = text.split("\n\n")
            assert (end, nothing) == ("data: [DONE]", "")
            for chunk in chunks:
                validator.validate(json.loads(chunk.removeprefix("data: ")))
            assert "dvi" in json.loads(chunks[-1].removeprefix("data: "))
