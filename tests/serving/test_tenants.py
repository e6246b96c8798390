"""Several keys on one server: each waits in its own line, and their request ids are their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from dvi.config import ReplayConfig
from dvi.replay import Selection, open_store
from serving.auth import AccessRules
from tests.serving.fakes import FakeEngine, fake_model, fake_server
from tests.serving.live import Live, live_server, tiny_config, wait_for

TEXT = {"prompt": "hi", "max_tokens": 4}


def bearer(key: str, request_id: str | None = None) -> dict[str, str]:
    extra = {} if request_id is None else {"x-request-id": request_id}
    return {"authorization": f"Bearer {key}"} | extra


@pytest.fixture(scope="module")
def shared(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("shared")
    config = tiny_config(tiny_model, folder / "state")
    config.serving.api_key = "alpha,beta"
    config.serving.max_queue, config.serving.max_batch_size = 4, 1
    with live_server(config, folder) as running:
        yield running


def ask(live: Live, key: str, request_id: str, **body: object) -> httpx.Response:
    return live.http.post("/v1/completions", json=TEXT | body, headers=bearer(key, request_id))


def test_two_keys_may_use_the_same_request_id_and_both_are_recorded(shared: Live) -> None:
    for key in ("alpha", "beta", "alpha"):
        answer = ask(shared, key, "Run-1")
        assert answer.json()["id"] == answer.headers["x-request-id"] == "Run-1"
    ask(shared, "beta", "Run-1x")
    ask(shared, "beta", "run-1")
    assert ask(shared, "alpha", "many", prompt=["a", "b"]).status_code == 200
    url = f"sqlite:///{shared.server.plant.state / 'replay.sqlite'}"
    with open_store(url, ReplayConfig()) as store:
        # alpha's second "Run-1" is answered and not recorded; ids are exact, case and end.
        assert wait_for(lambda: store.count(Selection(request_id="many")) == 2)
        assert store.count(Selection(request_id="Run-1")) == 2
        assert store.count(Selection(request_id="run-1")) == 1
        assert store.count(Selection(request_id="Run")) == 0
        assert not any("alpha" in row.trace.request_id for row in store.read({}, 100))
        assert store.purge(Selection(request_id="Run-1")).rows == 2
        assert store.purge(Selection(request_id="many")).rows == 2
        assert store.stats().rows == 2


def test_an_id_that_one_key_is_waiting_for_is_recorded_for_another_key() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    rules = AccessRules(("alpha", "beta"))
    model = fake_model(has_tenants=True)
    with fake_server(engine, rules, model) as server:
        body = TEXT | {"stream": True}
        asks = [
            server.http.stream("POST", "/v1/completions", json=body, headers=bearer(key, "same"))
            for key in ("alpha", "beta", "alpha")
        ]
        answers = [one.__enter__() for one in asks]
        assert [answer.headers["x-request-id"] for answer in answers] == ["same"] * 3
        assert [request.log for request in engine.requests] == [True, True, False]
        assert len({request.request_id for request in engine.requests}) == 3
        engine.gate.set()
        assert all("[DONE]" in "".join(answer.iter_text()) for answer in answers)
        for one in asks:
            one.__exit__(None, None, None)
        assert not server.service.in_flight


def test_one_key_cannot_fill_the_queue_while_another_waits(shared: Live) -> None:
    long = TEXT | {"max_tokens": 250, "ignore_eos": True, "stream": True}
    with ExitStack() as stack:

        def start(key: str, request_id: str) -> httpx.Response:
            headers = bearer(key, request_id)
            asked = shared.http.stream("POST", "/v1/completions", json=long, headers=headers)
            return stack.enter_context(asked)

        # One runs; of four places a key gets as many as it leaves free: two.
        assert [start("alpha", f"flood-{number}").status_code for number in range(3)] == [200] * 3
        refused = ask(shared, "alpha", "flood-3")
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert "share" in refused.json()["error"]["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert start("beta", "patient").status_code == 200
    # All streams were left: their places are free within a round.
    assert wait_for(lambda: ask(shared, "alpha", "after").status_code == 200)


def test_with_one_key_or_none_nothing_is_told_apart() -> None:
    model = fake_model()
    assert model.tenant_of("alpha") == model.tenant_of("") == ""
    with fake_server(rules=AccessRules(("alpha",))) as server:
        server.http.post("/v1/completions", json=TEXT, headers=bearer("alpha", "mine"))
        assert [request.request_id for request in server.engine.requests] == ["mine"]


def test_more_choices_than_a_share_are_a_400_and_no_endless_429(shared: Live) -> None:
    # One row and four places: a key can have two of the five.
    answer = ask(shared, "alpha", "wide", n=3)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    assert ask(shared, "alpha", "narrow", n=2).status_code == 200
