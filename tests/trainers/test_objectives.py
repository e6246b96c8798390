"""The objective presets in the learner: each one trains, and the law follows the decoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dvi.config import DecodingConfig
from dvi.config.learning import ObjectiveConfig
from dvi.modeling.target import TargetModel
from dvi.types import Trace
from tests.trainers.world import tiny_config
from trainers.build import make_learner
from trainers.draft import make_draft
from trainers.learner import Learner
from trainers.reports import StepReport

PRESETS = sorted((Path(__file__).parents[2] / "conf" / "objective").glob("*.yaml"))


def learner_on(
    target: TargetModel, folder: Path, objective: ObjectiveConfig, verification: str = "coupled"
) -> Learner:
    config = replace(
        tiny_config(folder),
        objective=objective,
        decoding=DecodingConfig(verification=verification),
    )
    return make_learner(config, target, make_draft(config.drafter, target, seed=0))


def preset(path: Path, **other: object) -> ObjectiveConfig:
    return ObjectiveConfig(**{**yaml.safe_load(path.read_text()), **other})


def test_every_kind_has_a_preset_of_its_name() -> None:
    assert [path.stem for path in PRESETS] == [preset(path).kind for path in PRESETS]
    assert {path.stem for path in PRESETS} == {"ce", "dvi", "kl", "lk", "osd", "pg"}


def train(learner: Learner, traces: list[Trace]) -> list[StepReport]:
    reports = []
    for step in range(40):
        batch = [traces[(4 * step + i) % len(traces)] for i in range(4)]
        reports.append(learner.train_step(batch, version=0))
        assert not reports[-1].is_dropped
    return reports


@pytest.mark.parametrize(
    "path", [path for path in PRESETS if path.stem != "pg"], ids=lambda path: path.stem
)
def test_every_preset_with_a_teacher_raises_the_draft_s_agreement(
    tmp_path: Path, target: TargetModel, traces: list[Trace], path: Path
) -> None:
    learner = learner_on(target, tmp_path, preset(path))
    before = learner.score(traces, 0).agreement
    train(learner, traces)
    assert learner.score(traces, 0).agreement > before + 0.1


def test_the_policy_gradient_alone_parts_accepted_from_rejected_and_no_more(
    tmp_path: Path, target: TargetModel, traces: list[Trace]
) -> None:
    """It has no teacher: on rows of an older policy it pushes rejects down without a bound."""
    learner = learner_on(target, tmp_path, preset(next(p for p in PRESETS if p.stem == "pg")))
    reports = train(learner, traces)
    assert reports[-1].loss.pg < reports[0].loss.pg


def test_the_law_of_sampled_requests_follows_the_decoder_unless_named(
    tmp_path: Path, target: TargetModel
) -> None:
    lk = preset(next(path for path in PRESETS if path.stem == "lk"))
    for verification in ("coupled", "rejection"):
        assert learner_on(target, tmp_path, lk, verification).objective.lk_mode == verification
    named = replace(lk, lk_mode="rejection")
    assert learner_on(target, tmp_path, named, "coupled").objective.lk_mode == "rejection"
