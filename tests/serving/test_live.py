"""The real engine behind HTTP: exact answers, whatever draft, neighbour or fault is beside them."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dvi.config import ReplayConfig
from dvi.replay import open_store
from tests.serving.live import Live, live_server, publish_random, tiny_config, wait_for

PROMPT = "SELECT name FROM orders"
CHAT = [{"role": "user", "content": "Thank you for the message"}]
IDS = {"return_token_ids": True}


@pytest.fixture(scope="module")
def live(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    with live_server(tiny_config(tiny_model, folder / "state"), folder) as running:
        yield running


def complete(live: Live, **body: Any) -> dict[str, Any]:
    answer = live.http.post(
        "/v1/completions", json={"prompt": PROMPT, "max_tokens": 40} | IDS | body
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids_of(answer: dict[str, Any], choice: int = 0) -> list[int]:
    return answer["choices"][choice]["token_ids"]


def test_the_openai_client_gets_the_same_answer_whole_and_streamed(live: Live) -> None:
    for seed in (1, 2):
        asked: dict[str, Any] = {"model": "tiny", "max_tokens": 30, "seed": seed}
        whole = live.client.completions.create(prompt=PROMPT, **asked)
        stream = live.client.completions.create(prompt=PROMPT, stream=True, **asked)
        assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
        assert whole.usage is not None
        assert whole.usage.completion_tokens <= 30
        chat = live.client.chat.completions.create(messages=CHAT, **asked)  # type: ignore[arg-type]
        chunks = list(
            live.client.chat.completions.create(
                messages=CHAT,  # type: ignore[arg-type]
                stream=True,
                stream_options={"include_usage": True},
                **asked,
            )
        )
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == chat.choices[0].message.content
        streamed, whole = chunks[-1].usage, chat.usage
        assert streamed is not None
        streamed.prompt_tokens_details = whole.prompt_tokens_details  # the prompt is known by now
        assert streamed == whole


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_changes_no_token(live: Live, temperature: float) -> None:
    for seed in range(3):
        body = {"temperature": temperature, "seed": seed}
        drafted = complete(live, **body)
        plain = complete(live, dvi={"speculation": False}, **body)
        short = complete(live, dvi={"max_draft_len": 1}, **body)
        assert ids_of(drafted) == ids_of(plain) == ids_of(short)
        assert drafted["dvi"]["proposed"] > 0
        assert plain["dvi"]["proposed"] == 0
        assert plain["dvi"]["acceptance_rate"] is None
        assert plain["dvi"]["rounds"] == len(ids_of(plain))


def test_a_choice_does_not_depend_on_how_many_are_asked_for(live: Live) -> None:
    one = complete(live, seed=5)
    three = complete(live, seed=5, n=3)
    assert ids_of(three) == ids_of(one)
    assert len({tuple(ids_of(three, index)) for index in range(3)}) == 3
    listed = complete(live, prompt=[PROMPT, "other"], seed=5)
    assert ids_of(listed) == ids_of(one)


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_cut_the_text_and_their_tokens_count(live: Live, include: bool) -> None:
    free = complete(live, seed=11, ignore_eos=True)
    text = free["choices"][0]["text"]
    for start in (3, len(text) // 2):
        stop = text[start : start + 3]
        cut = complete(
            live, seed=11, ignore_eos=True, stop=[stop], include_stop_str_in_output=include
        )
        choice = cut["choices"][0]
        at = text.index(stop)
        assert choice["text"] == text[: at + len(stop) if include else at]
        assert choice["finish_reason"] == "stop"
        ids = ids_of(cut)
        assert ids == ids_of(free)[: len(ids)]
        assert cut["usage"]["completion_tokens"] == len(ids)
        stream = live.client.completions.create(
            model="tiny",
            prompt=PROMPT,
            max_tokens=40,
            seed=11,
            stop=[stop],
            stream=True,
            extra_body={"ignore_eos": True, "include_stop_str_in_output": include},
        )
        assert "".join(chunk.choices[0].text for chunk in stream) == choice["text"]


def test_a_stop_token_ends_and_counts(live: Live) -> None:
    free = ids_of(complete(live, seed=4, ignore_eos=True))
    cut = complete(live, seed=4, ignore_eos=True, stop_token_ids=[free[7]])
    first = free.index(free[7])
    assert ids_of(cut) == free[: first + 1]
    assert cut["choices"][0]["finish_reason"] == "stop"


def test_eight_at_once_with_other_seeds_get_what_they_get_alone(live: Live) -> None:
    bodies = [
        {"seed": seed, "prompt": PROMPT[: 4 + seed], "temperature": seed % 3, "max_tokens": 20}
        for seed in range(8)
    ]
    alone = [ids_of(complete(live, **body)) for body in bodies]
    with ThreadPoolExecutor(8) as pool:
        together = [ids_of(a) for a in pool.map(lambda body: complete(live, **body), bodies)]
    assert together == alone


def test_versions_swapped_into_running_streams_change_no_answer(live: Live) -> None:
    bodies = [{"seed": seed, "max_tokens": 100, "ignore_eos": True} for seed in range(2)]
    before = [complete(live, **body) for body in bodies]
    stop = threading.Event()
    made: list[int] = []
    drafter = live.server.runtime.drafter

    def publish() -> None:
        while not stop.is_set():
            # Versions from harmless to absurd: none may show in an answer.
            made.append(publish_random(live, len(made), scale=10.0 ** (len(made) % 3)))
            wait_for(lambda: stop.is_set() or drafter.adapter_version >= made[-1])

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        with ThreadPoolExecutor(2) as pool:
            during = list(pool.map(lambda body: complete(live, **body), bodies))
    finally:
        stop.set()
        publisher.join()
    assert [ids_of(answer) for answer in during] == [ids_of(answer) for answer in before]
    spans = [answer["dvi"]["adapter_versions"] for answer in during]
    assert any(first < last for first, last in spans), spans
    assert live.metrics()["dvi_adapter_swaps_total{swapped}"] >= 2


def test_a_corrupt_version_is_refused_counted_and_answers_go_on(live: Live) -> None:
    expected = ids_of(complete(live, seed=21))
    metrics = live.metrics()
    version = publish_random(live, 1, promote=False)
    weights = live.server.plant.state / "adapters" / f"v{version:06d}" / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 0xFF
    weights.write_bytes(data)
    refused = live.http.post("/admin/adapters/promote", json={"version": version})
    assert refused.status_code == 400
    # Past the registry's own check, as after a fault of the disk.
    (weights.parent.parent / "CURRENT").write_text(f"{version}\n")
    name = "dvi_adapter_swaps_total{refused}"
    assert wait_for(lambda: live.metrics()[name] == metrics[name] + 1)
    assert live.metrics()["dvi_adapter_version"] == metrics["dvi_adapter_version"]
    assert ids_of(complete(live, seed=21)) == expected


def test_a_second_request_with_an_id_is_answered_but_not_recorded(live: Live) -> None:
    headers = {"x-request-id": "twice"}
    body = {"prompt": PROMPT, "max_tokens": 5, "seed": 1}
    before = live.metrics()["dvi_traces_dropped_total{duplicate}"]
    texts = {
        live.http.post("/v1/completions", json=body, headers=headers).json()["choices"][0]["text"]
        for _ in range(2)
    }
    assert len(texts) == 1
    assert wait_for(lambda: live.metrics()["dvi_traces_dropped_total{duplicate}"] == before + 1)


def stored_ids(live: Live) -> list[str]:
    plant = live.server.plant
    with open_store(f"sqlite:///{plant.state / 'replay.sqlite'}", ReplayConfig()) as store:
        return [row.trace.request_id for row in store.read({}, 10_000)]


def test_what_opts_out_is_not_stored_and_the_rest_is(live: Live) -> None:
    before = live.metrics()
    out = [complete(live, store=False)["id"], complete(live, dvi={"log": False})["id"]]
    kept = complete(live, user="ann", metadata={"domain": "sql"})["id"]
    assert wait_for(lambda: kept in stored_ids(live))
    assert not set(out) & set(stored_ids(live))
    name = "dvi_traces_dropped_total{opted_out}"
    assert live.metrics()[name] == before[name] + 2


def test_counters_agree_after_a_load_with_disconnects(tiny_model: Path, tmp_path: Path) -> None:
    config = tiny_config(tiny_model, tmp_path / "state")
    config.serving.max_batch_size = 3
    with live_server(config, tmp_path) as live:
        long = {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "stream": True}

        def leave_early(seed: int) -> int:
            body = long | {"seed": seed, "n": 1 + seed % 2}
            with live.http.stream("POST", "/v1/completions", json=body) as answer:
                next(answer.iter_lines())
            return 0

        def stay(seed: int) -> int:
            body = {"seed": seed, "n": 1 + seed % 2, "max_tokens": 10 + seed, "stop": ["e"]}
            return int(complete(live, **body)["usage"]["completion_tokens"])

        with ThreadPoolExecutor(6) as pool:
            left = [pool.submit(leave_early, seed) for seed in range(4)]
            stayed = [pool.submit(stay, seed) for seed in range(6)]
            usage = sum(future.result() for future in left + stayed)
        assert wait_for(lambda: live.metrics()["dvi_requests_total{cancelled}"] == 4)
        metrics = live.metrics()
    assert metrics["dvi_running_requests"] == metrics["dvi_queue_depth"] == 0
    accepted = metrics["dvi_accepted_tokens_total{neural}"]
    assert metrics["dvi_generated_tokens_total"] == metrics["dvi_rounds_total"] + accepted
    per_position = (metrics[f"dvi_accepted_tokens_per_position_total{{{p}}}"] for p in range(8))
    assert sum(per_position) == accepted
    cancelled = metrics["dvi_cancelled_tokens_total"]
    assert cancelled > 0
    assert metrics["dvi_generated_tokens_total"] - cancelled == usage


def test_a_store_that_cannot_be_opened_costs_traces_and_nothing_else(
    tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    config = tiny_config(tiny_model, tmp_path / "state")
    broken = replace(config.replay, url=f"sqlite:///{tmp_path / 'file' / 'replay.sqlite'}")
    with live_server(replace(config, replay=broken), tmp_path) as live:
        assert complete(live, seed=1)["usage"]["completion_tokens"] > 0
        assert wait_for(lambda: live.metrics()["dvi_traces_dropped_total{store_error}"] == 1)
        (tmp_path / "file").unlink()
        (tmp_path / "file").mkdir()
        # It is opened by itself: nothing has to be restarted.
        assert wait_for(lambda: complete(live) and live.metrics()["dvi_traces_written_total"] > 0)


@contextmanager
def no_file_beyond(max_bytes: int) -> Iterator[None]:
    """Every write past this size fails in this process, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_traces_and_never_an_answer(tiny_model: Path, tmp_path: Path) -> None:
    config = tiny_config(tiny_model, tmp_path / "state")
    name = "dvi_traces_dropped_total{store_error}"
    with no_file_beyond(150_000), live_server(config, tmp_path) as live:
        expected = ids_of(complete(live, seed=3))
        assert wait_for(
            lambda: ids_of(complete(live, seed=3)) != expected or live.metrics()[name] > 0
        )
        assert ids_of(complete(live, seed=3)) == expected
        assert live.http.get("/ready").status_code == 200
        written = live.metrics()["dvi_traces_written_total"]
        assert written > 0
    with open_store(f"sqlite:///{tmp_path / 'state' / 'replay.sqlite'}", ReplayConfig()) as store:
        assert len(store.read({}, 10_000)) >= written


def test_without_content_nothing_is_stored_and_no_store_is_made(
    tiny_model: Path, tmp_path: Path
) -> None:
    config = tiny_config(tiny_model, tmp_path / "state")
    quiet = replace(config, replay=replace(config.replay, log_content=False))
    with live_server(quiet, tmp_path) as live:
        assert "no prompt or answer is kept" in live.server.ready_line()
        complete(live, prompt="xylophone", user="zebedee", metadata={"domain": "quagga"})
        assert live.metrics()["dvi_traces_dropped_total{opted_out}"] == 1
    state = tmp_path / "state"
    assert not (state / "replay.sqlite").exists()
    kept = b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())
    assert b'"serve/tokens":' in kept
    assert not any(word in kept for word in (b"xylophone", b"zebedee", b"quagga"))
