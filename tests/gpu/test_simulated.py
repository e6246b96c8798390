"""The engine on a device that is not the CPU, pretended: nothing that a GPU would refuse."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from dvi.decoding.grammar import regex_grammar
from dvi.modeling.capture import Capture
from dvi.sampling import ChoicePoint, choose
from dvi.types import SamplingParams, Verification
from tests.decoding.engines import Received, make_buckets, make_request, make_rig
from tests.gpu import test_gpu
from tests.gpu.recorder import CpuCapture
from tests.gpu.simulated import SIM, SimTensor, SimulatedDevice, simulated_device
from tests.gpu.synthetic import (
    TINY,
    Place,
    decode,
    near_ties,
    open_rig,
    prompts,
    swap_often,
    synthetic_target,
)
from tests.rigs import CPU, build_target
from tests.trainers.test_learner import learner_on
from tests.trainers.world import live_traces, tiny_target

MAX_TOKENS = 20


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    with simulated_device() as made:
        yield made


def _captures() -> list[Capture | None]:
    return [None, CpuCapture()]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_on_the_device_are_those_of_the_cpu(
    device: SimulatedDevice, temperature: float
) -> None:
    target = synthetic_target(TINY, Place(torch.device("cpu"), torch.float64), 0.15)
    asked = prompts(target, 4)
    want = decode(open_rig(target, 4), asked, MAX_TOKENS, plain=True, temperature=temperature)
    there = synthetic_target(TINY, Place(SIM, torch.float64), 0.15)
    for capture in _captures():
        engine = open_rig(there, 4, capture)
        for plain in (True, False):
            got = decode(engine, asked, MAX_TOKENS, plain=plain, temperature=temperature)
            assert got.answers == want.answers
            assert near_ties(there, asked, want, got).margins == ()
            assert plain or got.counts.accepted > 0


FIELDS = [
    {},
    {"temperature": 0.9, "top_p": 0.8, "seed": 3},
    {"frequency_penalty": 0.5, "repetition_penalty": 1.2, "logit_bias": ((5, 2.0),)},
    {"logprobs": 3, "prompt_logprobs": 2},
    {"grammar": regex_grammar("[a-f]{3,9}")},
]


@pytest.mark.parametrize("verification", list(Verification))
def test_fields_prefixes_and_traces_on_the_device_are_those_of_the_cpu(
    device: SimulatedDevice, verification: Verification
) -> None:
    found = []
    for place in (CPU, SIM):
        target = build_target("tiny-mix", device=place)
        buckets = make_buckets(target, CpuCapture()) if place == SIM else None
        rig = make_rig(
            target, "auto", buckets=buckets, verification=verification, prefix_scope="global"
        )
        received = Received()
        for _ in range(2):  # the second time from what the first has read
            for index, fields in enumerate(FIELDS):
                request = make_request(f"r{index}", (*range(1, 30), index), **fields)
                rig.engine.submit(request, received)
            while rig.engine.step().worked:
                pass
        stats = rig.engine.stats()
        assert stats.counts.accepted > 0
        found.append((received.deltas, rig.traces, stats.counts))
    deltas, traces, counts = zip(*found, strict=True)
    for name, here in deltas[0].items():
        there = deltas[1][name]
        assert [one.token_ids for one in here] == [one.token_ids for one in there]
    for here, there in zip(*traces, strict=True):
        assert here.output_ids == there.output_ids
        for one, other in zip(here.rounds, there.rounds, strict=True):
            assert dataclasses.replace(one, draft_logprobs=()) == dataclasses.replace(
                other, draft_logprobs=()
            )
            assert one.draft_logprobs == pytest.approx(other.draft_logprobs)
        assert (here.top_ids == there.top_ids).all()
        assert np.allclose(here.logsumexp, there.logsumexp)
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("temperature", "rows_leave"), [(0.0, False), (1.0, True)])
def test_greedy_tokens_are_chosen_where_the_logits_are(
    device: SimulatedDevice, temperature: float, rows_leave: bool
) -> None:
    target = synthetic_target(TINY, Place(SIM, torch.float64), 0.15)
    engine = open_rig(target, 2, CpuCapture())
    device.most_numbers_read = 0
    decode(engine, prompts(target, 2), MAX_TOKENS, plain=False, temperature=temperature)
    assert (device.most_numbers_read >= TINY.vocab) == rows_leave


@pytest.mark.parametrize("worst", [math.nan, math.inf, -math.inf])
def test_a_row_without_a_finite_top_is_refused_on_the_device_too(
    device: SimulatedDevice, worst: float
) -> None:
    point = ChoicePoint(SamplingParams(max_tokens=1, temperature=0.0), 0)
    rows = torch.full((2, 3), worst)
    rows[0] = torch.tensor([0.0, 1.0, 1.0])
    assert choose(rows[:1].to(SIM), [point]) == choose(rows[:1], [point]) == [1]
    for there in (rows, rows.to(SIM)):
        with pytest.raises(ValueError, match="must be finite"):
            choose(there, [point, point])


def test_versions_are_exchanged_in_place(device: SimulatedDevice) -> None:
    for capture in _captures():
        swaps = swap_often(synthetic_target(TINY, Place(SIM, torch.float64), 0.0), 6, capture)
        assert len(swaps.pauses_s) == 6
        assert swaps.recorded == 0


def test_a_trainers_steps_on_the_device_are_those_of_the_cpu(tmp_path: Path) -> None:
    here = tiny_target(torch.float64)
    traces = live_traces(here, 8)
    losses, scores = [], []
    for place in (CPU, SIM):
        with simulated_device():
            learner = learner_on(tiny_target(torch.float64, device=place), tmp_path)
            for first in (0, 4):
                report = learner.train_step(traces[first : first + 4], version=0)
                loss = dataclasses.asdict(report.loss) | {"loss": float(report.loss.loss)}
                losses.append({**loss, "grad_norm": report.grad_norm})
            scores.append(learner.score(traces, 0))
    assert losses[:2] == [pytest.approx(one, rel=1e-6) for one in losses[2:]]
    assert losses[0] != losses[1]
    assert scores[0].agreement == scores[1].agreement


def test_the_suite_for_a_gpu_finds_no_near_tie_where_there_is_none(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {
        "BILLION": TINY,
        "MAX_TOKENS": 8,
        "CudaCapture": CpuCapture,
        "_cuda": lambda dtype: Place(SIM, dtype),
    }.items():
        monkeypatch.setattr(test_gpu, name, value)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "pretended")
    test_gpu.test_answers_with_drafts_and_graphs_equal_plain_ones_but_for_near_ties(
        torch.float32, 0.8
    )
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["check"], one["compared"], one["margins"]) for one in told] == [
        ("near ties", 8, [])
    ] * 4


def test_the_pretence_refuses_what_a_device_refuses(device: SimulatedDevice) -> None:
    here, there = torch.ones(3), torch.ones(3).to(SIM)
    assert isinstance(there * 2.0, SimTensor)
    assert (there * 2.0).tolist() == [2.0, 2.0, 2.0]
    assert torch.equal(there.cpu(), here)
    with pytest.raises(RuntimeError, match="same device"):
        there + here
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()


@torch.inference_mode()
def test_a_recording_refuses_values_and_copies_and_computes_anew(device: SimulatedDevice) -> None:
    there = torch.ones(3).to(SIM)
    with pytest.raises(RuntimeError, match="not permitted"):
        CpuCapture()(lambda: there * there.sum().item())
    with pytest.raises(RuntimeError, match="between host and device"):
        CpuCapture()(lambda: there + torch.ones(3).to(SIM))
    with pytest.raises(RuntimeError, match="copies a number"):
        CpuCapture()(lambda: torch.where(there > 0, 1.0, there))
    recording = CpuCapture()(lambda: (there * 2.0).add_(1.0))
    assert all(map(math.isnan, recording.made.tolist()))  # nothing is computed yet
    for start in (1.0, 5.0):
        there.fill_(start)
        recording.replay()
        assert recording.made.tolist() == [2 * start + 1] * 3
