"""Ports, keys, W&B, the model itself and the command: what lies around the installation."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dvi.config import DviConfig
from dvi.doctor.finding import Level
from dvi.doctor.main import examine_deeply, lines
from dvi.doctor.service import check_access, check_port, check_wandb
from tests.cli.program import run_dvi


@pytest.fixture
def web() -> Iterator[Callable[[bytes], int]]:
    """Starts servers that answer everything with these bytes; gives their port."""
    servers: list[HTTPServer] = []

    def start(answer: bytes) -> int:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return int(server.server_address[1])

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_port_of_another_program_is_a_fault_and_one_of_ours_is_not(
    config: DviConfig, web: Callable[[bytes], int]
) -> None:
    config.serving.port = web(b'{"status":"ready"}')
    assert check_port(config).level is Level.OK
    config.serving.port = web(b"<html>")
    finding = check_port(config)
    assert finding.level is Level.FAULT
    assert f"serving.port={config.serving.port + 1}" in finding.mend
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        config.serving.port = probe.getsockname()[1]
    assert check_port(config).level is Level.OK


def test_a_server_that_others_reach_wants_a_key_and_a_word_about_content(
    config: DviConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.serving.host = "0.0.0.0"
    assert "DVI_API_KEY" in check_access(config).mend
    monkeypatch.setenv("DVI_API_KEY", "secret-key")
    assert "replay.log_content" in check_access(config).mend
    config.replay.log_content = False
    assert check_access(config).level is Level.OK
    assert "secret-key" not in "\n".join(lines([check_access(config)]))


def test_wandb_without_a_login_is_a_warning(
    config: DviConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_wandb(config, {}).level is Level.OK
    config.tracking.kind = "wandb"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install" in check_wandb(config, {}).mend
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert check_wandb(config, {}).mend == "wandb login"
    assert check_wandb(config, {"WANDB_MODE": "offline"}).level is Level.OK
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password x\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert check_wandb(config, {}).level is Level.OK
    own = {"WANDB_BASE_URL": "https://wandb.example.org:8080"}
    assert check_wandb(config, own).mend == "wandb login"
    (tmp_path / "keys").write_text("machine wandb.example.org login user password x\n")
    (tmp_path / "keys").chmod(0o600)
    assert check_wandb(config, own | {"NETRC": str(tmp_path / "keys")}).level is Level.OK
    token = {"WANDB_IDENTITY_TOKEN_FILE": "/run/secrets/wandb"}
    assert check_wandb(config, token).level is Level.OK


def test_a_deep_look_reads_the_model_and_renders_its_template(config: DviConfig) -> None:
    finding = examine_deeply(config)
    assert finding.level is Level.OK
    assert "4 layers of 32" in finding.message


def test_the_command_exits_1_with_a_fault_and_imports_no_torch(tmp_path: Path) -> None:
    done = run_dvi("doctor", "--json", "serving.port=0", home=tmp_path / "home")
    assert done.returncode == 1
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["model"]["mend"] == "dvi models fetch smollm2-135m"
    assert not (tmp_path / "home").exists()
    code = (
        "import sys; from dvi.cli.main import run; run(['doctor', 'serving.port=0']);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
