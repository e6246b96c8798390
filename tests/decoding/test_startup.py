"""An engine is opened from a config, decodes text, and refuses a mode that it cannot keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from dvi.config import DviConfig
from dvi.config.home import models_dir
from dvi.decoding import decode_batch
from dvi.decoding.costs import load_costs
from dvi.decoding.pace import NUM_SAMPLES
from dvi.decoding.plans import NO_DRAFT
from dvi.decoding.propose import NOTHING
from dvi.decoding.startup import (
    NotDeterministic,
    OpenEngine,
    Outlets,
    open_engine,
    require_determinism,
)
from dvi.modeling.selftest import SelfTestReport
from dvi.types import DecodeRequest, SamplingParams, Trace
from tests.decoding.engines import Ticks
from tests.decoding.profiles import profile
from tests.rigs import build_target, make_model_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_model_folder(path)
    return path


@pytest.fixture(autouse=True)
def _own_home(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remembered file hashes go to a folder of the test; the real model stays where it is."""
    if request.node.get_closest_marker("real_model") is None:
        monkeypatch.setenv("DVI_HOME", str(tmp_path))


def config_of(path: Path, **decoding: object) -> DviConfig:
    config = DviConfig()
    config.model.path = str(path)
    config.serving.max_batch_size = 3
    config.serving.max_context_len = 200
    config.decoding.adaptive = False
    for name, value in decoding.items():
        setattr(config.decoding, name, value)
    return config


def ask(opened: OpenEngine, text: str, **sampling: object) -> DecodeRequest:
    ids = opened.tokenizer.encode(text, add_special_tokens=False)
    fields = {"max_tokens": 30, "temperature": 0.0, **sampling}
    return DecodeRequest(text, tuple(ids), SamplingParams(**fields))


def test_an_opened_engine_answers_in_the_tokenizers_own_text(folder):
    traces: list[Trace] = []
    opened = open_engine(config_of(folder), Outlets(trace_sink=traces.append))
    requests = [ask(opened, text) for text in ("one", "the other", "a")]
    for request, result in zip(requests, decode_batch(opened.engine, requests), strict=True):
        stream = opened.tokenizer.detokenizer(skip_special_tokens=True)
        whole = "".join(map(stream.push, result.token_ids)) + stream.flush()
        assert result.text == whole
        assert len(result.token_ids) == 30
        assert request.request_id == result.request_id
    assert {trace.system_fingerprint for trace in traces} == {opened.system_fingerprint}
    stats = opened.engine.stats()
    assert stats.counts.proposed > 0


def test_answers_of_every_drafter_kind_are_the_same_and_only_the_base_fingerprint_tells_them_apart(
    folder,
):
    answers, bases, systems = set(), [], set()
    for kind, exit_layer in [("block", 2), ("head", 1), ("none", 2)]:
        config = config_of(folder, deterministic=True)
        config.drafter.kind = kind
        config.drafter.exit_layer = exit_layer
        opened = open_engine(config)
        requests = [ask(opened, "once", temperature=0.8, seed=4), ask(opened, "twice")]
        answers.add(tuple(one.token_ids for one in decode_batch(opened.engine, requests)))
        bases.append(opened.base_fingerprint)
        systems.add(opened.system_fingerprint)
    assert len(answers) == 1
    assert bases[0] != bases[1]
    assert len(systems) == 1


def test_costs_are_measured_only_where_something_depends_on_them(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("DVI_HOME", str(tmp_path))
    assert open_engine(config_of(folder)).costs is None
    assert not list(tmp_path.glob("cache/costs-*"))
    measured = open_engine(config_of(folder, adaptive=True), Outlets(clock=Ticks())).costs
    assert measured is not None
    (path,) = tmp_path.glob("cache/costs-*")
    again = open_engine(config_of(folder, adaptive=True), Outlets(clock=Ticks()))
    assert again.costs == measured == load_costs(path)  # remembered
    path = tmp_path / "mine.json"
    profile().save(path)
    config = config_of(folder, adaptive=True, cost_profile=str(path))
    assert open_engine(config).costs == profile()


def take_plain_steps(opened: OpenEngine, seconds: float) -> None:
    """Tell the controller of plain steps that took so long."""
    session = opened.engine._make_session(ask(opened, "one"), 0)
    for _ in range(NUM_SAMPLES):
        opened.engine.controller.book_time([session], [NO_DRAFT], [NOTHING], seconds)


def test_steps_far_faster_than_the_measurement_forget_it(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("DVI_HOME", str(tmp_path))
    opened = open_engine(config_of(folder, adaptive=True), Outlets(clock=Ticks()))
    take_plain_steps(opened, seconds=1 / 1.4)  # a pass was one tick of a second
    assert len(list(tmp_path.glob("cache/costs-*"))) == 1
    take_plain_steps(opened, seconds=1 / 1.6)
    assert not list(tmp_path.glob("cache/costs-*"))  # the next start measures


def test_a_recorded_profile_stands_whatever_steps_take(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("DVI_HOME", str(tmp_path))
    path = tmp_path / "mine.json"
    profile().save(path)
    before = path.read_bytes()
    opened = open_engine(config_of(folder, adaptive=True, cost_profile=str(path)))
    take_plain_steps(opened, seconds=1e-6)
    assert path.read_bytes() == before
    assert opened.costs == profile()


def test_a_machine_that_fails_the_self_test_is_refused_the_deterministic_mode():
    fails = SelfTestReport(False, 3, "width 1, batch 2", 3e-5)
    target = build_target("tiny-rand", deterministic=True)
    with pytest.raises(NotDeterministic, match=r"width 1, batch 2 differs by 3\.0e-05"):
        require_determinism(target, lambda _: fails)
    require_determinism(target, lambda _: SelfTestReport(True, 7))
    require_determinism(build_target("tiny-rand"), lambda _: fails)  # promises nothing


@pytest.mark.slow
@pytest.mark.real_model
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_real_answers_equal_plain_ones_in_deterministic_mode(temperature):
    config = config_of(models_dir() / "smollm2-135m", deterministic=True)
    opened = open_engine(config)
    questions = ("Name three rivers.", "Write SQL that counts users.", "1 2 3 4 5 6 7 8")
    requests = [
        ask(opened, text, temperature=temperature, seed=seed) for seed, text in enumerate(questions)
    ]
    drafted = decode_batch(opened.engine, requests)
    plain = [
        DecodeRequest(one.request_id, one.prompt_ids, one.sampling, speculation=False)
        for one in requests
    ]
    for first, second in zip(drafted, decode_batch(opened.engine, plain[::-1])[::-1], strict=True):
        assert first.token_ids == second.token_ids
        assert first.counts.proposed > 0 == second.counts.proposed
