"""The GPU checks, small and on the CPU: what they measure is what they say."""

from __future__ import annotations

import torch

from tests.gpu.recorder import CpuCapture
from tests.gpu.synthetic import (
    BILLION,
    TINY,
    Place,
    decode,
    make_spec,
    near_ties,
    open_rig,
    prompts,
    swap_often,
    synthetic_target,
)

CPU = Place(torch.device("cpu"), torch.float64)


def test_scaling_the_deep_layers_sets_how_good_an_untrained_draft_is() -> None:
    rates = []
    for scale in (0.0, 0.1, 1.0):
        target = synthetic_target(TINY, CPU, scale)
        found = decode(open_rig(target, 4), prompts(target, 4), 40, plain=False)
        rate = found.counts.acceptance_rate()
        assert rate is not None
        rates.append(rate)
    assert rates[0] == 1.0  # deep layers that add nothing
    assert rates[0] > rates[1] > rates[2]


def test_near_ties_are_none_in_float64_and_a_planted_one_is_measured() -> None:
    target = synthetic_target(TINY, CPU, 0.3)
    asked, engine = prompts(target, 3), open_rig(target, 3)
    plain = decode(engine, asked, 20, plain=True)
    draft = decode(engine, asked, 20, plain=False)
    assert near_ties(target, asked, plain, draft).margins == ()
    wrong = (plain.answers[0][0] + 1) % TINY.vocab
    draft.answers[0] = (wrong, *plain.answers[0][1:])
    (margin,) = near_ties(target, asked, plain, draft).margins
    assert margin > 1e-6


def test_every_staged_version_is_swapped_in_and_its_pause_kept() -> None:
    for capture in (None, CpuCapture()):
        swaps = swap_often(synthetic_target(TINY, CPU, 0.0), 20, capture)
        assert len(swaps.pauses_s) == 20
        assert min(swaps.pauses_s) > 0
        assert swaps.recorded == 0


def test_the_target_of_the_gpu_run_has_between_one_and_three_billion_weights() -> None:
    spec = make_spec(BILLION)
    attention = 2 * spec.hidden_size * spec.head_dim * (spec.num_heads + spec.num_kv_heads)
    layer = attention + 3 * spec.hidden_size * spec.intermediate_size
    assert 1e9 < spec.num_layers * layer + 2 * spec.vocab_size * spec.hidden_size < 3e9
