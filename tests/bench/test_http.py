"""The load generator: its arithmetic, what it counts as failed, and whole runs on small servers."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dvi.bench.http.bodies import (
    BIG_BODY_BYTES,
    big_requests,
    big_schema,
    schema_bodies,
    schema_request,
    streamed,
)
from dvi.bench.http.main import run_http_bench
from dvi.bench.http.passes import Address, hostile_beside, run_streams
from dvi.bench.http.rows import load_rows
from dvi.bench.http.timing import Pass, Reply, first_token, inter_token, longest_gap_during_s
from dvi.config import BenchConfig, DviConfig
from dvi.types import FinishReason
from tests.rigs import make_model_folder
from tests.serving.fakes import FakeEngine, FakeServer, fake_model, fake_server

ROW = {"messages": [{"role": "user", "content": "hello"}]}


def test_rates_and_gaps_come_from_times_and_tokens() -> None:
    one = Pass(
        (
            Reply(0, 1.0, None, (2.0, 2.5, 4.5), (1, 1, 4)),
            Reply(1, 1.5, "HTTP 500", (2.0, 99.0), (50, 50)),
            Reply(2, 2.0, None, (3.0,), (2,)),
        )
    )
    assert one.num_failed == 1
    assert one.tokens_per_s() == (6 + 2) / (4.5 - 1.0)
    assert one.gaps_s() == [0.5, 2.0]
    assert one.longest_gap_over_median() == 2.0 / 1.25
    found = inter_token([one])
    assert found is not None
    assert (found.p50, found.max) == (500.0, 500.0)  # 0.5 s for one token, 2 s for four
    started = first_token([one])
    assert started is not None
    assert started.max == 1000.0


def test_chunks_that_came_together_have_no_usual_gap() -> None:
    for times_s in ((2.0, 2.0, 2.0, 9.0), (2.0,), ()):
        one = Pass((Reply(0, 1.0, None, times_s, (1,) * len(times_s)),))
        assert one.longest_gap_over_median() is None


def test_a_stall_counts_where_it_overlaps_the_wait_of_who_joined() -> None:
    late = Reply(1, 10.0, None, (12.0,), (1,))
    before = Reply(0, 0.0, None, (1.0, 9.0, 9.9), (1, 1, 1))
    across = Reply(2, 0.0, None, (9.5, 10.5, 12.5, 20.0), (1, 1, 1, 1))
    assert longest_gap_during_s(Pass((before, across, late)), late) == 2.0


def test_big_bodies_and_schemas_have_the_size_they_are_named_for() -> None:
    bodies = big_requests("m")
    assert len({frozenset(one["body"]) for one in bodies[1:]}) == len(bodies) - 1 == 3
    for one in bodies:
        size = len(json.dumps(one["body"]))
        assert 0.9 * BIG_BODY_BYTES < size < 1.2 * BIG_BODY_BYTES
    first, second = (len(json.dumps(big_schema(number))) for number in (0, 1))
    assert 200_000 < first < 300_000
    assert first == second
    assert big_schema(0) != big_schema(1)
    made = schema_bodies("m")
    for number in range(3):
        assert json.loads(next(made)) == schema_request(number, "m")["body"]


def test_rows_come_in_turn_from_each_domain_or_from_a_file(tmp_path: Path) -> None:
    rows = load_rows(BenchConfig(num_prompts=2))
    assert len(rows) == 2 * len({row["messages"][0]["content"] for row in rows})
    assert rows[0]["messages"][0] != rows[1]["messages"][0]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + '\n\n{"prompt": "hi"}\n')
    assert load_rows(BenchConfig(prompts=str(path))) == [ROW, {"prompt": "hi"}]
    path.write_text('{"text": "hi"}\n')
    with pytest.raises(ValueError, match='line 1 needs "prompt"'):
        load_rows(BenchConfig(prompts=str(path)))


@pytest.fixture
def process_modes() -> Iterator[None]:
    """Put back what a bench sets for its whole process."""
    interval_s, threads = sys.getswitchinterval(), torch.get_num_threads()
    yield
    sys.setswitchinterval(interval_s)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
    gc.unfreeze()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server(FakeEngine()) as running:
        yield running


def test_the_client_keeps_the_time_and_tokens_of_every_chunk(server: FakeServer) -> None:
    to = Address(server.url, "tiny", {})
    calls = [streamed(ROW, "tiny", 6, 0), streamed({"prompt": "hi"}, "tiny", 6, 0)]
    found = run_streams(to, [{"delay_s": 0.0, "calls": calls}])
    assert found.num_failed == 0
    for reply in found.replies:
        assert reply.tokens == (2, 2, 2)  # what the scripted engine delivers
        assert reply.sent_s <= reply.times_s[0] <= reply.times_s[-1]
    assert found.replies[1].sent_s >= found.replies[0].times_s[-1]


def test_refused_and_broken_answers_count_as_failed(server: FakeServer) -> None:
    to = Address(server.url, "tiny", {})
    wrong = streamed(ROW, "another", 6, 0)
    found = run_streams(to, [{"delay_s": 0.0, "calls": [wrong]}])
    assert [reply.error for reply in found.replies] == ["HTTP 404"]
    server.engine.finish = FinishReason.FAILED
    found = run_streams(to, [{"delay_s": 0.0, "calls": [streamed(ROW, "tiny", 6, 0)]}])
    assert [reply.error for reply in found.replies] == ["engine_failed"]


def test_a_hostile_client_says_what_each_kind_of_request_got(server: FakeServer) -> None:
    with hostile_beside(Address(server.url, "tiny", {})) as answered:
        run_streams(
            Address(server.url, "tiny", {}),
            [{"delay_s": 1.5, "calls": [streamed(ROW, "tiny", 6, 0)]}],
        )
    assert set(answered) >= {"1 MB body", "/metrics", "/v1/models"}
    assert answered["/metrics"]["statuses"].keys() == {"200"}
    assert answered["1 MB body"]["statuses"].keys() <= {"200", "400"}


def http_config(**bench: object) -> DviConfig:
    config = DviConfig()
    config.model.num_threads = 1
    config.serving.max_context_len = 512
    config.bench = BenchConfig(
        kind="http", num_prompts=2, max_tokens=8, max_streams=2, repeats=1, answers=1, **bench
    )
    return config


@pytest.mark.usefixtures("process_modes")
def test_a_running_server_is_measured_and_failures_are_the_exit_status(
    server: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    config = http_config(url=server.url)
    assert run_http_bench(config, tmp_path, as_json=True) == 1
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "home" / "bench" / "http.json").read_text())
    # The scripted model's context is 200 tokens: built-in prompts do not fit.
    assert report["num_failed"] == sum(row["requests"] for row in report["passes"]) + 3
    config.bench.prompts = str(tmp_path / "rows.jsonl")
    Path(config.bench.prompts).write_text(json.dumps(ROW))
    config.serving.max_context_len = 100
    assert run_http_bench(config, tmp_path, as_json=False) == 0
    text = capsys.readouterr().out
    assert "0 of 1" in text
    assert "a long prompt joined" in text


@pytest.mark.usefixtures("process_modes")
def test_a_url_where_nobody_answers_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"bench.url=http://127.0.0.1:9 lists no model"):
        run_http_bench(http_config(url="http://127.0.0.1:9"), tmp_path, as_json=True)


@pytest.mark.usefixtures("process_modes")
def test_chats_for_a_model_without_a_template_are_one_line(tmp_path: Path) -> None:
    model = fake_model()
    model.tokenizer.has_chat_template = False  # type: ignore[misc]
    said = r"no chat template .* bench.prompts=FILE.jsonl"
    with fake_server(model=model) as server, pytest.raises(ValueError, match=said) as raised:
        run_http_bench(http_config(url=server.url), tmp_path, as_json=True)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("process_modes")
def test_a_whole_run_compares_the_server_with_the_engine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    make_model_folder(tmp_path / "tiny")
    config = http_config(hostile=True)
    config.model.path = str(tmp_path / "tiny")
    # A tiny model is done before the long prompt would join.
    monkeypatch.setattr("dvi.bench.http.main.LONG_JOINS_AFTER_S", 0.0)
    config.bench.max_tokens = 64
    config.drafter.kind = "block"
    config.decoding.adaptive = False
    assert run_http_bench(config, tmp_path, as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    names = [row["pass"] for row in report["passes"]]
    assert names == ["1 streams", "2 streams", "engine alone", "hostile"]
    assert report["over_engine_alone"]["http"]["median"] > 0
    assert report["over_engine_alone"]["hostile"]["median"] > 0
    assert report["long_prompt"]["longest_stall_ms"] > 0
    assert not list(tmp_path.glob("alone.sqlite*"))
