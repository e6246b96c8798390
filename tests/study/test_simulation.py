"""An arm on a tiny model: the simulation is what the engine does, twice the same, and learns."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from dvi.config import DrafterConfig, DviConfig
from dvi.decoding.batch import decode_batch
from dvi.decoding.startup import Loaded, Outlets, engine_on, load_model
from dvi.drafting.ground import draft_fingerprint
from dvi.registry import Registry
from dvi.study.arms import OBJECTIVES, Arm, Setting
from dvi.study.memory import recall
from dvi.study.record import Recording
from dvi.study.results import ArmResult
from dvi.study.rounds import LETTERS, Counts, count, count_letters
from dvi.study.run import LIVE_REQUESTS, Kit, Models, config_of, run_arm
from dvi.study.simulate import Progress, Served, simulate
from dvi.study.sources import Setup, servers
from dvi.study.states import CachedStates
from dvi.study.streams import StreamPlan
from dvi.types import AcceptanceCounts, DecodeRequest, Source
from tests.rigs import make_model_folder
from trainers.answers import Answerer
from trainers.batch import make_batch
from trainers.build import Ground, build_training
from trainers.examples import Example
from trainers.prepared import open_rows
from trainers.shallow import ShallowStates

PER_DOMAIN = 8
MAX_TOKENS = 14
PLAN = StreamPlan("sharp", ("sql", "json"), PER_DOMAIN)


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A tiny model and a learner that shows something within a few requests."""
    folder = tmp_path_factory.mktemp("study") / "model"
    make_model_folder(folder)
    return [
        f"model.path={folder}",
        "model.device=cpu",
        f"data.max_tokens={MAX_TOKENS}",
        "drafter.lora_rank=4",
        "drafter.head_lora_rank=4",
        "drafter.draft_vocab_size=200",
        "trainer.learning_rate=0.01",
        "trainer.warmup_steps=2",
        "trainer.steps_per_trace=1",
        "trainer.publish_steps=2",
        "trainer.gate_confidence=0",
        "replay.top_ids=16",
        "serving.max_context_len=64",
        "trainer.max_seq_len=48",
    ]


@pytest.fixture(scope="module")
def recording(common: list[str]) -> Recording:
    """Greedy answers to short prompts, few of them distinct."""
    torch.set_num_threads(1)
    config = config_of([*common, "drafter=block", "objective=kl"])
    requests = [(domain, i) for domain in PLAN.domains for i in range(PER_DOMAIN)]
    examples = [
        Example(tuple(3 + (7 * i + 11 * len(domain) + j) % 90 for j in range(5 + i % 3)), None)
        for domain, i in requests
    ]
    traces = Answerer(load_model(config), config).traces(examples, 0)
    return {
        request: replace(trace, request_id=f"{request[0]}-{request[1]}", domain=request[0])
        for request, trace in zip(requests, traces, strict=True)
    }


def run(
    common: list[str], recording: Recording, *words: str, adapters: Path | None = None
) -> ArmResult:
    torch.set_num_threads(1)
    setting = Setting("tried", words, PLAN)
    with tempfile.TemporaryDirectory() as folder:
        kit = Kit(common, {0.0: recording}, Models(), Path(folder) / "work", adapters)
        return run_arm(Arm(setting, 1), kit)


@pytest.fixture(scope="module")
def block(common: list[str], recording: Recording) -> ArmResult:
    """The default arm."""
    return run(common, recording, "objective=kl", "drafter=block")


def check(found: ArmResult) -> None:
    """A trained version was compared with the engine, and nothing differed."""
    assert found.promoted > 0
    assert found.requests[-1].version > 0
    assert list(found.live) == ["neural", "auto"]
    for live in found.live.values():
        assert live["same_answers"] == live["requests"] == LIVE_REQUESTS
        assert live["simulated_judged"] == live["live_judged"] > 0
        assert live["simulated_accepted"] == live["live_accepted"]


def test_simulated_acceptance_is_the_engine_s(block: ArmResult) -> None:
    check(block)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["block", "head"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_simulated_acceptance_is_the_engine_s_for_every_objective(
    common: list[str], recording: Recording, kind: str, objective: str
) -> None:
    check(run(common, recording, f"objective={objective}", f"drafter={kind}"))


def test_the_draft_alone_is_the_same_in_rounds_and_in_letters(block: ArmResult) -> None:
    for row in block.requests:
        hits = [hit == "1" for hit in row.hits]
        assert count_letters(row.walks["neural"]) == count(hits, block.draft_len, row.max_tokens)


def served_live(
    loaded: Loaded, config: DviConfig, registry: Registry, rows: Sequence[Served]
) -> list[AcceptanceCounts]:
    """The same requests by one engine that takes each version when the simulation did."""
    engine = engine_on(loaded, config, Outlets()).engine
    drafter = engine.parts.drafter
    counts = []
    for row in rows:
        adapter = registry.read(row.version) if row.version else None
        drafter.load(drafter.prepare(adapter))
        trace = row.trace
        request = DecodeRequest(trace.request_id, trace.prompt_ids, trace.sampling)
        (answer,) = decode_batch(engine, [request])
        assert answer.token_ids == trace.output_ids
        counts.append(answer.counts)
    return counts


@pytest.mark.parametrize("draft_len", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_whole_stream_of_auto_is_the_engine_s(
    common: list[str], recording: Recording, draft_len: int, tmp_path: Path
) -> None:
    """Request for request and source for source, over promotions, tries of either source and a
    memory that fills."""
    torch.set_num_threads(1)
    words = ["drafter=auto", f"decoding.draft_len={draft_len}", "decoding.probe_interval_rounds=8"]
    config = config_of([*common, *words])
    loaded = load_model(config)
    registry = Registry(tmp_path / "adapters", 100)
    with open_rows(tmp_path, config.replay) as store:
        base = draft_fingerprint(loaded.path, config)
        ground = Ground(loaded.target, base, store, registry, tmp_path / "trainer")
        stream = [recording[one] for one in PLAN.requests(0)]
        rows = list(simulate(build_training(config, ground), stream, draft_len, Progress()))
    assert len({row.version for row in rows}) > 2
    server = servers(Setup(config, loaded.tokenizer.detokenizer))["auto"]
    total: Counter[Source] = Counter()
    for row, live in zip(rows, served_live(loaded, config, registry, rows), strict=True):
        text = server.serve(row.trace, row.guess)
        assert text.count("-") == 0  # the draft has always something to say
        assert count_letters(text) == Counts(live.rounds, live.judged, live.accepted)
        for source, own in live.by_source.items():
            assert text.lower().count(LETTERS[source]) == own.judged
            total[source] += own.judged
    assert total[Source.NEURAL] > 0
    assert total[Source.MEMORY] > 0


@pytest.mark.slow
def test_an_arm_is_a_function_of_its_words_and_seed(
    common: list[str], recording: Recording, block: ArmResult
) -> None:
    again = run(common, recording, "objective=kl", "drafter=block")
    assert replace(again, seconds=0.0) == replace(block, seconds=0.0)


def test_no_request_is_learned_from_before_it_is_served(block: ArmResult) -> None:
    rows = block.requests
    assert (rows[0].version, rows[0].num_steps, rows[0].replaced) == (0, 0, None)
    # a trace pays for one step
    assert [row.num_steps for row in rows] == list(range(len(rows)))
    assert all(a.version <= b.version for a, b in pairwise(rows))
    assert [row.domain for row in rows] == ["sql"] * PER_DOMAIN + ["json"] * PER_DOMAIN


@pytest.mark.slow
def test_without_training_the_untrained_draft_serves_to_the_end(
    common: list[str], recording: Recording
) -> None:
    found = run(common, recording, "objective=kl", "drafter=block", "trainer.steps_per_trace=0")
    assert {row.version for row in found.requests} == {0}
    assert found.requests[-1].trained_positions == 0


@pytest.mark.slow
def test_an_arm_starts_with_the_live_version_that_is_given(
    common: list[str], recording: Recording, tmp_path: Path
) -> None:
    words = ("objective=kl", "drafter=block")
    config, registry = config_of([*common, *words]), Registry(tmp_path / "adapters", 100)
    loaded = load_model(config)
    with open_rows(tmp_path, config.replay) as store:
        base = draft_fingerprint(loaded.path, config)
        ground = Ground(loaded.target, base, store, registry, tmp_path / "trainer")
        stream = [recording[one] for one in PLAN.requests(0)]
        for _ in simulate(build_training(config, ground), stream, 2, Progress()):
            pass
    live = registry.current()
    assert live > 0
    start = {"adapters": registry.root}
    still = run(common, recording, *words, "trainer.steps_per_trace=0", **start)
    assert {row.version for row in still.requests} == {live}
    cold = run(common, recording, *words, "trainer.steps_per_trace=0")
    rights = [sum(row.hits.count("1") for row in one.requests) for one in (still, cold)]
    assert rights[0] > rights[1]
    learning = run(common, recording, *words, **start)
    assert learning.requests[0].version == live
    assert learning.requests[0].hits == still.requests[0].hits
    with pytest.raises(ValueError, match="adapters"):
        run(common, recording, "objective=kl", "drafter=head", **start)


def test_recorded_answers_are_the_target_s_own(recording: Recording) -> None:
    for trace in recording.values():
        assert {cycle.source for cycle in trace.rounds} == {Source.TARGET}
        assert (trace.top_ids[:, 0] == trace.output_ids).all()  # greedy


def test_cached_states_are_those_that_the_trainer_computes(
    common: list[str], recording: Recording
) -> None:
    config = config_of([*common, "drafter=block", "objective=kl"])
    target = load_model(config).target
    cached, fresh = (kind(target, 8, 48) for kind in (CachedStates, ShallowStates))
    traces = list(recording.values())[:3]
    for trace in traces:
        cached.compute(make_batch([trace], 48, 0, target.device))
    together = make_batch(traces, 48, 0, target.device)
    # float32 sums of 32 terms near one, in another order for another batch
    torch.testing.assert_close(cached.compute(together), fresh.compute(together), atol=1e-5, rtol=0)


def test_a_memory_knows_an_answer_once_it_was_served(recording: Recording) -> None:
    trace = next(iter(recording.values()))
    n = len(trace.output_ids)
    first, again = recall(DrafterConfig(), [trace, trace])
    assert len(first.hits) == len(first.known) == n
    assert again.hits == (True,) * n  # its prompt stood before: every match is the longest
    assert again.known == (True,) * n


def test_an_answer_that_does_not_fit_the_window_is_one_error(
    common: list[str], recording: Recording
) -> None:
    with pytest.raises(ValueError, match="=12 is too small"):
        run(common, recording, "objective=kl", "drafter=block", "trainer.max_seq_len=12")
