"""Who may call: keys, admin keys, web pages, and binds that other machines can reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dvi.config import DviConfig, ReplayConfig, ServingConfig
from serving.auth import AccessRules, access_rules, check_exposure, is_loopback
from tests.serving.fakes import FakeServer, fake_server

PATHS = ("/v1/models", "/v1/models/tiny", "/version", "/openapi.json", "/metrics", "/nowhere")
BODY = {"prompt": "hi"}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def keyed() -> Iterator[FakeServer]:
    with fake_server(rules=AccessRules(("alpha", "beta"), ("root",))) as server:
        yield server


@pytest.fixture(scope="module")
def keyless() -> Iterator[FakeServer]:
    rules = AccessRules(allowed_hosts=frozenset({"box.lan"}), cors_origins=("https://ok.example",))
    with fake_server(rules=rules) as server:
        yield server


def test_without_the_key_everything_but_health_is_a_401(keyed: FakeServer) -> None:
    for path in PATHS:
        for headers in (
            {},
            bearer("gamma"),
            bearer("alph"),
            bearer("alphaa"),
            {"authorization": "Basic alpha"},
            {"authorization": "Bearer"},
        ):
            answer = keyed.http.get(path, headers=headers)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
    assert keyed.http.post("/v1/completions", json=BODY).status_code == 401
    for path in ("/health", "/ready"):
        assert keyed.http.get(path).status_code == 200


def test_every_key_opens(keyed: FakeServer) -> None:
    for key in ("alpha", "beta", "root"):
        assert keyed.http.get("/v1/models", headers=bearer(key)).status_code == 200
        answer = keyed.http.post("/v1/completions", json=BODY, headers=bearer(key))
        assert answer.status_code == 200


def test_admin_routes_want_the_admin_key(keyed: FakeServer) -> None:
    for method, path in (
        ("GET", "/admin/adapters"),
        ("POST", "/admin/adapters/rollback"),
        ("POST", "/admin/trainer/pause"),
    ):
        assert keyed.http.request(method, path).status_code == 401
        answer = keyed.http.request(method, path, headers=bearer("alpha"))
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "admin_key_required"
        assert keyed.http.request(method, path, headers=bearer("root")).status_code == 200


def test_metrics_can_be_opened() -> None:
    with fake_server(rules=AccessRules(("alpha",), metrics_open=True)) as server:
        assert server.http.get("/metrics").status_code == 200
        assert server.http.get("/version").status_code == 401


def test_without_admin_key_a_user_key_manages_adapters() -> None:
    with fake_server(rules=AccessRules(("alpha",))) as server:
        assert server.http.get("/admin/adapters").status_code == 401
        assert server.http.get("/admin/adapters", headers=bearer("alpha")).status_code == 200


def test_an_admin_key_alone_still_guards_the_admin_routes() -> None:
    with fake_server(rules=AccessRules(admin_keys=("root",))) as server:
        assert server.http.get("/v1/models").status_code == 200
        assert server.http.get("/admin/adapters").status_code == 401
        assert server.http.get("/admin/adapters", headers=bearer("root")).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("box.lan:9", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_a_keyless_server_answers_to_loopback_names_only(
    keyless: FakeServer, host: str, status: int
) -> None:
    assert keyless.http.get("/v1/models", headers={"host": host}).status_code == status


def test_a_foreign_page_is_turned_away(keyless: FakeServer) -> None:
    for origin in ("https://evil.example", "null", "http://localhost:1"):
        answer = keyless.http.post("/v1/completions", json=BODY, headers={"origin": origin})
        assert answer.status_code == 403, origin
    own = {"origin": keyless.url}
    assert keyless.http.post("/v1/completions", json=BODY, headers=own).status_code == 200


def test_a_named_origin_may_call_and_only_that_one_is_told_so(keyless: FakeServer) -> None:
    headers = {"origin": "https://ok.example"}
    answer = keyless.http.post("/v1/completions", json=BODY, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://ok.example"
    foreign = keyless.http.get("/health", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in foreign.headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_another_type_is_refused(keyless: FakeServer, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = keyless.http.post("/v1/completions", content=b'{"prompt": "hi"}', headers=headers)
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "not_json"


def test_a_charset_does_not_disturb(keyless: FakeServer) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    answer = keyless.http.post("/v1/completions", content=b'{"prompt": "hi"}', headers=headers)
    assert answer.status_code == 200


def test_keys_come_from_environment_config_and_files(tmp_path: Path) -> None:
    keys, admin = tmp_path / "keys", tmp_path / "admin"
    keys.write_text("three\n\n four \n")
    admin.write_text("five\n")
    config = ServingConfig(api_key="two,one", api_key_file=str(keys), admin_key_file=str(admin))
    rules = access_rules(config, {"DVI_API_KEY": "one, zero", "DVI_ADMIN_KEY": "six"})
    assert rules.api_keys == ("one", "zero", "two", "three", "four")
    assert rules.admin_keys == ("six", "five")


def test_a_key_file_without_keys_is_an_error(tmp_path: Path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("\n")
    for path in (empty, tmp_path / "missing"):
        with pytest.raises(ValueError, match="api_key_file"):
            access_rules(ServingConfig(api_key_file=str(path)), {})


def test_loopback_is_recognised() -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST."):
        assert is_loopback(host), host
    for host in ("0.0.0.0", "::", "192.168.1.1", "example.org", "127.0.0.1.example.org", ""):
        assert not is_loopback(host), host


def test_a_bind_beyond_loopback_needs_a_key_and_a_decision_on_content() -> None:
    def decide(host: str, keys: tuple[str, ...], log_content: bool | None) -> bool:
        config = DviConfig(
            serving=ServingConfig(host=host), replay=ReplayConfig(log_content=log_content)
        )
        return check_exposure(config, AccessRules(keys))

    assert decide("127.0.0.1", (), None)
    assert not decide("127.0.0.1", (), False)
    assert decide("0.0.0.0", ("k",), True)
    assert not decide("0.0.0.0", ("k",), False)
    with pytest.raises(ValueError, match="DVI_API_KEY"):
        decide("0.0.0.0", (), True)
    with pytest.raises(ValueError, match="log_content"):
        decide("0.0.0.0", ("k",), None)
