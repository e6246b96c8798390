"""Routes around the answers: the door, the model card, the document, the admin routes."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dvi.registry import Registry, files
from tests.registry.fakes import Files, fields
from tests.serving.fakes import FakeDesk, FakeEngine, FakeServer, fake_server
from tests.serving.test_answers import TEXT, wait_for


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


def test_a_draining_server_lets_nobody_in_and_finishes_who_is_there() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    with fake_server(engine) as server:
        answers: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: answers.append(httpx.post(server.url + "/v1/completions", json=TEXT))
        )
        thread.start()
        assert wait_for(lambda: engine.requests)
        server.service.draining = True
        assert server.http.get("/ready").status_code == 503
        assert server.http.get("/health").status_code == 200
        late = server.http.post("/v1/completions", json=TEXT)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
        engine.gate.set()
        thread.join()
        assert answers[0].status_code == 200


def test_a_request_cut_by_the_end_of_the_drain_is_told_so() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    with fake_server(engine) as server:
        answers: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: answers.append(httpx.post(server.url + "/v1/completions", json=TEXT))
        )
        thread.start()
        assert wait_for(lambda: engine.requests)
        server.service.cancel_all()
        thread.join()
        assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (503, "cancelled")


def test_ready_says_when_the_engine_is_stuck() -> None:
    with fake_server(FakeEngine(is_stuck=True)) as server:
        answer = server.http.get("/ready")
        assert (answer.status_code, answer.json()["status"]) == (503, "stuck")


def test_a_server_that_is_still_loading_says_so() -> None:
    with fake_server() as server:
        server.service.engine = None
        assert server.http.get("/ready").json()["status"] == "starting"
        assert server.http.get("/v1/models").status_code == 503
        assert server.http.post("/v1/completions", json=TEXT).status_code == 503
        assert server.http.get("/health").status_code == 200


def test_models_list_has_the_one_model(server: FakeServer) -> None:
    listed = server.http.get("/v1/models").json()
    assert listed["object"] == "list"
    card = server.http.get("/v1/models/tiny").json()
    assert listed["data"] == [card]
    assert set(card) == {"id", "object", "created", "owned_by", "max_model_len"}
    missing = server.http.get("/v1/models/a/b")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_unknown_routes_are_404_in_openais_form_and_name_the_right_one(
    server: FakeServer,
) -> None:
    for path, hint in (("/v1/responses", "/v1/chat/completions"), ("/v1/embeddings", "/v1/")):
        answer = server.http.post(path, json={})
        assert answer.status_code == 404
        assert hint in answer.json()["error"]["message"]
    for path in ("/docs", "/redoc", "/x"):
        assert server.http.get(path).json()["error"]["type"] == "invalid_request_error"
    assert server.http.get("/v1/completions").status_code == 405


def test_the_openapi_document_describes_every_honoured_field(server: FakeServer) -> None:
    document = server.http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert {"temperature", "dvi", "prompt"} <= set(schemas["CompletionBody"]["properties"])
    assert {"messages", "stop"} <= set(schemas["ChatBody"]["properties"])
    assert "DviOptions" in schemas
    assert "/v1/chat/completions" in document["paths"]


def references(node: object) -> Iterator[str]:
    """Every ``$ref`` below ``node``."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_the_openapi_document_is_whole_and_lists_what_routes_answer(server: FakeServer) -> None:
    document = server.http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    missing = {ref for ref in references(document) if ref.rsplit("/", 1)[1] not in schemas}
    assert missing == set()
    seen = {
        ("get", "/v1/models"): server.http.get("/v1/models"),
        ("get", "/v1/models/{model_id}"): server.http.get("/v1/models/x"),
        ("post", "/v1/completions"): server.http.post("/v1/completions", json={}),
        ("post", "/admin/adapters/promote"): server.http.post("/admin/adapters/promote", json={}),
        ("get", "/metrics"): server.http.get("/metrics"),
    }
    for (method, path), answer in seen.items():
        told = document["paths"][path][method]["responses"][str(answer.status_code)]
        assert answer.headers["content-type"].partition(";")[0] in told["content"], path
    for operations in document["paths"].values():
        for operation in operations.values():
            assert {"200", "403"} <= set(operation["responses"])
    other = server.http.put("/v1/completions", json={})
    assert (other.status_code, other.headers["allow"]) == (405, "POST")


def test_admin_routes_act_on_the_registry(server: FakeServer) -> None:
    assert server.http.get("/admin/adapters").json()["current"] == 1
    promote = server.http.post("/admin/adapters/promote", json={"version": 0})
    assert promote.json() == {"current": 0}
    for body, param in (
        ({"version": 9}, "version"),
        ({}, "version"),
        ({"version": "1"}, "version"),
    ):
        refused = server.http.post("/admin/adapters/promote", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert server.http.post("/admin/adapters/rollback").json() == {"current": 0}


def test_an_admin_act_that_the_disk_refuses_is_a_503_that_says_so_and_names_no_path(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/secret/path")

    acts = {
        "trainer/pause": "pause_training",
        "trainer/resume": "resume_training",
        "adapters/promote": "promote",
        "adapters/rollback": "rollback",
    }
    for path, name in acts.items():
        with monkeypatch.context() as patch:
            patch.setattr(FakeDesk, name, full)
            answer = server.http.post(f"/admin/{path}", json={"version": 1})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert answer.json()["error"]["code"] == "storage_unavailable"
        assert "No space left on device" in answer.text
        assert "secret" not in answer.text


def test_a_registry_in_use_by_another_process_is_a_503_and_no_fault_of_the_client(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(tmp_path)
    registry.publish(Files(), fields())
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.05)
    monkeypatch.setattr(FakeDesk, "promote", lambda _, version: registry.promote(version, "admin"))
    monkeypatch.setattr(FakeDesk, "rollback", lambda _: registry.rollback("admin"))
    before = registry.history()
    with files.exclusive(tmp_path / ".lock"):
        for act in ("promote", "rollback"):
            answer = server.http.post(f"/admin/adapters/{act}", json={"version": 1})
            assert answer.status_code == 503, answer.text
            assert answer.headers["retry-after"] == "5"
            assert answer.json()["error"]["code"] == "storage_unavailable"
            assert "held by another process" in answer.text
            assert str(tmp_path) not in answer.text
    assert registry.history() == before


def test_training_is_paused_and_resumed_by_admin_routes(server: FakeServer) -> None:
    assert server.http.post("/admin/trainer/pause").json() == {"paused": True}
    assert server.http.post("/admin/trainer/resume").json() == {"paused": False}
    assert server.http.get("/admin/trainer/pause").status_code == 405
