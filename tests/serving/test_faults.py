"""What breaks around a server that answers: its folder, its store, its adapters, its end."""

from __future__ import annotations

import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from dvi.config import ReplayConfig
from dvi.drafting.auto import sources_of
from dvi.drafting.block import BlockDrafter
from dvi.registry import ManifestFields, Registry
from dvi.replay import open_store
from serving.state_folder import KEY_BYTES, user_key
from tests.drafting.rows import random_tensors
from tests.serving.live import Live, live_server, publish_random, tiny_config, wait_for
from tests.serving.modes import modes_count, read_only

BODY = {"prompt": "SELECT name FROM orders", "max_tokens": 12, "seed": 3, "ignore_eos": True}
WRITTEN, REFUSED = "dvi_traces_written_total", "dvi_adapter_swaps_total{refused}"
linux = pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")


def complete(live: Live) -> Any:
    answer = live.http.post("/v1/completions", json=BODY)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


@linux
def test_a_read_only_state_folder_costs_no_answer_and_its_admin_acts_are_a_503(
    tiny_model: Path, tmp_path: Path
) -> None:
    config = tiny_config(tiny_model, tmp_path / "state")
    with modes_count(), live_server(config, tmp_path) as live:
        expected = complete(live)
        assert publish_random(live, 1) == 1
        assert wait_for(lambda: live.metrics()["dvi_adapter_version"] == 1)
        with read_only(tmp_path / "state"):
            written = live.metrics()[WRITTEN]
            assert complete(live) == expected
            assert wait_for(lambda: live.metrics()[WRITTEN] > written)  # its files are open
            for act in ("trainer/pause", "trainer/resume", "adapters/rollback"):
                answer = live.http.post(f"/admin/{act}")
                assert answer.status_code == 503, answer.text
                assert answer.json()["error"]["code"] == "storage_unavailable"
            assert live.http.get("/admin/adapters").json()["current"] == 1
            assert live.http.get("/ready").status_code == 200
        assert live.http.post("/admin/trainer/pause").json() == {"paused": True}
        assert live.http.post("/admin/adapters/rollback").json() == {"current": 0}
        assert wait_for(lambda: live.metrics()["dvi_adapter_version"] == 0)


def test_a_removed_store_an_away_registry_and_a_foreign_adapter_cost_no_answer(
    tiny_model: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with live_server(tiny_config(tiny_model, state), tmp_path) as live:
        expected = complete(live)
        publish_random(live, 1)
        assert wait_for(lambda: live.metrics()["dvi_adapter_version"] == 1)

        for path in state.glob("replay.sqlite*"):
            path.unlink()
        written = live.metrics()[WRITTEN]
        assert complete(live) == expected
        assert wait_for(lambda: live.metrics()[WRITTEN] > written)
        with open_store(f"sqlite:///{state / 'replay.sqlite'}", ReplayConfig()) as store:
            assert len(store.read({}, 99)) == live.metrics()[WRITTEN] - written

        (state / "adapters").rename(state / "away")
        assert complete(live) == expected
        assert live.http.post("/admin/adapters/rollback").status_code == 503
        assert live.metrics()["dvi_adapter_version"] == 1
        assert not (state / "adapters").exists()
        (state / "away").rename(state / "adapters")

        refused = live.metrics()[REFUSED]
        publish_foreign(live)
        assert wait_for(lambda: live.metrics()[REFUSED] == refused + 1)
        assert complete(live) == expected
        assert live.metrics()["dvi_adapter_version"] == 1


def publish_foreign(live: Live) -> None:
    """A whole version, in service, that was trained on another model."""
    drafter = sources_of(live.server.runtime.drafter).neural
    assert isinstance(drafter, BlockDrafter)
    layout = drafter.branch.layout

    def write(folder: Path) -> None:
        save_file(random_tensors(layout, 9, 1.0), folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text('{"alpha_pattern": {}}')

    registry = Registry(live.server.plant.state / "adapters")
    version = registry.publish(write, ManifestFields("another model", layout.drafter))
    registry.promote(version, "test")


def test_a_drain_under_load_finishes_or_tells_every_request(
    tiny_model: Path, tmp_path: Path
) -> None:
    config = tiny_config(tiny_model, tmp_path / "state")
    config.serving.max_batch_size = 2
    with live_server(config, tmp_path) as live, ThreadPoolExecutor(12) as pool:

        def stream(seed: int) -> str:
            body = BODY | {"max_tokens": 24, "seed": seed, "stream": seed % 2 == 0}
            return live.http.post("/v1/completions", json=body).text

        answers = [pool.submit(stream, seed) for seed in range(12)]
        assert wait_for(lambda: len(live.server.service.in_flight) == 12)
        live.server.drain(30.0)
        texts = [answer.result() for answer in answers]
        for text in texts:
            assert '"finish_reason":"length"' in text.replace(": ", ":")
        assert not live.server.service.in_flight


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_decode_thread_that_ends_turns_ready_off_and_the_process_lives(
    tiny_model: Path, tmp_path: Path
) -> None:
    def end() -> None:
        raise SystemExit  # what no step survives

    with live_server(tiny_config(tiny_model, tmp_path / "state"), tmp_path) as live:
        assert live.http.get("/ready").status_code == 200
        live.server.runtime.engine.step = end
        assert wait_for(lambda: live.http.get("/ready").status_code == 503, 10.0)
        assert live.http.get("/ready").json()["status"] == "stuck"
        refused = live.http.post("/v1/completions", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stuck")
        assert live.http.get("/health").status_code == 200
        assert live.metrics()["dvi_running_requests"] == 0


def test_half_a_user_key_is_never_left_behind(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (KEY_BYTES // 2, hard))
    try:
        with pytest.raises(OSError, match="large"):
            user_key(tmp_path, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    key = user_key(tmp_path, tmp_path)
    assert len(key) == KEY_BYTES
    assert user_key(tmp_path, tmp_path) == key
    assert [path.name for path in tmp_path.iterdir()] == ["user_hash.key"]
