"""Audits of stores and prompt files on a small random model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dvi.audit.gather import is_drawn
from dvi.audit.main import run_audit
from dvi.config import AuditConfig, DecodingConfig, DrafterConfig, DviConfig, ModelConfig
from dvi.config.home import replay_url
from dvi.decoding.batch import decode_batch
from dvi.decoding.grammar import regex_grammar
from dvi.decoding.startup import Outlets, open_engine
from dvi.replay import open_store
from dvi.types import DecodeRequest, FinishReason, SamplingParams, Trace
from tests.rigs import make_model_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_model_folder(path)
    return path


def config_for(model: Path, state: Path, **decoding: object) -> DviConfig:
    config = DviConfig(
        state_dir=str(state),
        model=ModelConfig(path=str(model), num_threads=1, device="cpu"),
        drafter=DrafterConfig(kind="block"),
        decoding=DecodingConfig(**{"deterministic": True, "adaptive": False, **decoding}),
    )
    config.serving.max_context_len = 96
    return config


def mixed_requests() -> list[DecodeRequest]:
    """Every field that decides tokens, greedy and sampled; the last ends at the context limit."""
    ends = {"end_token_ids": (0, 2)}
    fields: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 2**64 - 1, "top_p": 0.9},
        {"temperature": 1.0, "seed": 5, "choice_index": 1, "top_k": 20, "min_p": 0.01},
        {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "min_tokens": 9},
        {"temperature": 0.7, "seed": 3, "frequency_penalty": 1.0, "logit_bias": ((70, 4.0),)},
        {"temperature": 0.0, "grammar": regex_grammar("[a-z]{3,8}")},
        {"temperature": 0.9, "seed": 8, "stop": ("e",), "stop_token_ids": (70,), "logprobs": 2},
        {"temperature": 0.0, "max_tokens": 500, "ignore_eos": True},
    ]
    return [
        DecodeRequest(
            f"r{number}",
            tuple(range(40, 52 + number)),
            SamplingParams(**{"max_tokens": 24, **ends, **own}),
        )
        for number, own in enumerate(fields)
    ]


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Trace]:
    """What a server with speculation left in its store."""
    traces: list[Trace] = []
    config = config_for(model, tmp_path_factory.mktemp("state"))
    engine = open_engine(config, Outlets(traces.append)).engine
    decode_batch(engine, mixed_requests())
    assert len(traces) == len(mixed_requests())
    rounds = [one for trace in traces for one in trace.rounds]
    assert any(one.num_accepted < len(one.proposed_ids) for one in rounds)  # it did speculate
    return sorted(traces, key=lambda trace: trace.request_id)


def store(config: DviConfig, traces: Sequence[Trace]) -> None:
    Path(config.state_dir or "").mkdir(exist_ok=True)
    with open_store(replay_url(config), config.replay) as opened:
        opened.append("test", traces)


def audit(
    config: DviConfig, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, object]]:
    run_dir.mkdir(exist_ok=True)
    capsys.readouterr()
    status = run_audit(config, run_dir, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((run_dir / "audit.json").read_text())
    return status, report


def with_other_token(trace: Trace, place: int) -> Trace:
    """A served answer that went wrong at one token."""
    ids = list(trace.output_ids)
    ids[place] = 71 if ids[place] != 71 else 72
    return replace(trace, output_ids=tuple(ids))


def test_answers_served_with_speculation_pass_an_exact_audit_whatever_their_fields(
    model: Path, served: list[Trace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_for(model, tmp_path / "state")
    store(config, served)
    status, report = audit(config, tmp_path / "run", capsys)
    assert status == 0
    assert report["passed"] is True
    assert (report["mode"], report["max_margin"]) == ("exact", 0.0)
    sampled = sum(trace.sampling.temperature > 0 for trace in served)
    assert (report["greedy"], report["sampled"]) == (len(served) - sampled, sampled)
    assert report["identical"] == len(served)
    assert report["tokens"] == sum(len(trace.output_ids) for trace in served)
    assert report["system_fingerprint"] == served[0].system_fingerprint


@pytest.mark.parametrize("index", [0, 1])  # greedy, sampled
def test_one_wrong_token_fails_the_audit_and_is_found_where_it_stands(
    index: int, model: Path, served: list[Trace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_for(model, tmp_path / "state")
    wrong = with_other_token(served[index], 4)
    store(config, [*served[:index], wrong, *served[index + 1 :]])
    status, report = audit(config, tmp_path / "run", capsys)
    assert status == 1
    (finding,) = report["findings"]
    assert (finding["request"], finding["position"]) == (f"r{index}/0", 4)
    assert report["identical"] == len(served) - 1
    assert finding["near_tie"] is False
    # The same difference is a near-tie for a bound above its margin, and none for one below.
    for bound, expected in ((finding["margin"] * 1.001, 0), (finding["margin"] * 0.999, 1)):
        config.audit = AuditConfig(mode="near_tie", max_margin=bound)
        status, report = audit(config, tmp_path / "run", capsys)
        assert (status, report["mismatches"], report["near_ties"]) == (
            expected, expected, 1 - expected,
        )  # fmt: skip


def test_an_answer_that_ended_too_soon_or_for_another_reason_is_no_near_tie(
    model: Path, served: list[Trace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_for(model, tmp_path / "state")
    config.audit = AuditConfig(mode="near_tie", max_margin=1e9)
    assert served[0].finish_reason is FinishReason.LENGTH
    store(config, [replace(served[0], finish_reason=FinishReason.STOP)])
    status, report = audit(config, tmp_path / "run", capsys)
    assert status == 1
    (finding,) = report["findings"]
    assert (finding["position"], finding["margin"]) == (len(served[0].output_ids), None)


def test_answers_of_another_system_are_left_out_and_counted_or_refused_if_there_are_no_others(
    model: Path, served: list[Trace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_for(model, tmp_path / "state")
    foreign = replace(
        with_other_token(served[0], 4), request_id="foreign", system_fingerprint="fp_x"
    )
    store(config, [served[1], foreign])
    status, report = audit(config, tmp_path / "run", capsys)
    assert status == 0
    assert report["answers"] == 1
    assert report["skipped"] == {"other_fingerprint": 1, "rejection_sampled": 0}
    config.decoding.deterministic = False
    with pytest.raises(ValueError, match="none of 2 stored answers is of this system"):
        run_audit(config, tmp_path / "run", as_json=False)


def test_sampled_answers_under_rejection_are_left_out_and_greedy_ones_are_not(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_for(model, tmp_path / "state", verification="rejection")
    traces: list[Trace] = []
    decode_batch(open_engine(config, Outlets(traces.append)).engine, mixed_requests()[:2])
    store(config, traces)
    status, report = audit(config, tmp_path / "run", capsys)
    assert (status, report["greedy"], report["sampled"]) == (0, 1, 0)
    assert report["skipped"] == {"other_fingerprint": 0, "rejection_sampled": 1}


def test_age_share_and_number_bound_what_is_decoded_again(
    model: Path, served: list[Trace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_for(model, tmp_path / "state")
    old = [replace(trace, created_s=1.0) for trace in served[:2]]
    store(config, old)
    store(config, served[2:])
    config.audit = AuditConfig(max_age_s=3600.0)
    assert audit(config, tmp_path / "run", capsys)[1]["answers"] == len(served) - 2
    config.audit = AuditConfig(max_traces=3)
    assert audit(config, tmp_path / "run", capsys)[1]["answers"] == 3
    config.audit = AuditConfig(share=0.5)
    drawn = [trace for trace in served if is_drawn(trace.request_id, 0.5)]
    assert 0 < len(drawn) < len(served)
    assert audit(config, tmp_path / "run", capsys)[1]["answers"] == len(drawn)


def test_a_share_is_stable_grows_and_is_as_large_as_it_says() -> None:
    names = [f"chatcmpl-{number}" for number in range(4000)]
    chosen = {share: {n for n in names if is_drawn(n, share)} for share in (0.0, 0.25, 0.5, 1.0)}
    assert not chosen[0.0]
    assert chosen[0.25] < chosen[0.5] < chosen[1.0]
    assert chosen[1.0] == set(names)
    assert abs(len(chosen[0.25]) - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5  # 5 sigma


def test_without_a_store_nothing_is_made_and_the_status_is_0(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_for(model, tmp_path / "state")
    (tmp_path / "run").mkdir()
    assert run_audit(config, tmp_path / "run", as_json=False) == 0
    assert "no answers to audit" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_prompts_of_a_file_are_decoded_both_ways(
    temperature: float, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": "SELECT name"}, {"messages": [{"role": "user", "content": "fox"}]}]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = config_for(model, tmp_path / "state")
    config.audit = AuditConfig(prompts=str(file), max_tokens=12, temperature=temperature)
    status, report = audit(config, tmp_path / "run", capsys)
    assert (status, report["answers"], report["identical"]) == (0, 2, 2)
    assert report["sampled"] == (2 if temperature else 0)


def test_the_summary_is_one_line_that_names_verdict_system_and_versions(
    model: Path, served: list[Trace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_for(model, tmp_path / "state")
    store(config, served)
    (tmp_path / "run").mkdir()
    assert run_audit(config, tmp_path / "run", as_json=False) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"audit PASSED: {len(served)} answers of the replay store")
    assert served[0].system_fingerprint in line
    secret = ",".join(map(str, served[0].output_ids[:3]))
    assert secret not in (tmp_path / "run" / "audit.json").read_text().replace(" ", "")
