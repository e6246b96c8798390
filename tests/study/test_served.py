"""A server's promotions, from its registry and its stored answers, as a simulation sees them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dvi.bench.report import print_section
from dvi.decoding.startup import load_model
from dvi.drafting.ground import draft_fingerprint
from dvi.registry import Act, Event, Registry
from dvi.replay import open_store
from dvi.study import main as study
from dvi.study.measures import Promotion, count_pairs
from dvi.study.record import Recording
from dvi.study.run import config_of
from dvi.study.served import (
    Judged,
    ServedRun,
    drafter_of,
    judge_served,
    predecessors,
    served_section,
)
from dvi.study.simulate import Progress, Served, simulate
from dvi.types import FinishReason, Round, SamplingParams, Source, Trace
from tests.study.test_simulation import PLAN, common, recording
from trainers.build import Ground, build_training

__all__ = ["common", "recording"]  # fixtures


def event(act: Act, version: int, replaced: int = 0) -> Event:
    return Event(act, version, replaced, "", 0.0)


def test_a_promotion_follows_the_version_that_drafted_before_it() -> None:
    """3 was passed over and never drafted; 4 was rolled back; 0 was promoted between 5 and 6."""
    events = [
        *(event(Act.PROMOTE, version) for version in (1, 2, 3, 4)),
        event(Act.ROLLBACK, 2, replaced=4),
        event(Act.PROMOTE, 5),
        event(Act.PROMOTE, 0),
        event(Act.PROMOTE, 6),
    ]
    expected = {1: 0, 2: 1, 4: 2, 5: 2, 6: 0}
    assert predecessors(events, {0, 1, 2, 4, 5, 6}) == expected


def test_an_answer_is_of_the_version_that_proposed_last() -> None:
    def rounds(*versions: int, source: Source = Source.NEURAL, ids: tuple[int, ...] = (1,)):  # type: ignore[no-untyped-def]
        return [Round(source, one, ids, (0.0,) * len(ids), 0) for one in versions]

    def trace(*made: Round) -> Trace:
        n = len(made)
        arrays = (np.zeros((n, 1), np.int32), np.zeros((n, 1), np.float32), np.zeros(n, np.float32))
        sampling, done = SamplingParams(max_tokens=n), FinishReason.LENGTH
        return Trace("r", (1,), (1,) * n, sampling, done, "", *arrays, made)

    assert drafter_of(trace(*rounds(3, 4), *rounds(9, ids=()))) == 4
    assert drafter_of(trace(*rounds(3), *rounds(9, source=Source.MEMORY))) == 3
    assert drafter_of(trace(*rounds(9, source=Source.MEMORY))) is None


def expected_of(rows: list[Served]) -> dict[int, Promotion]:
    """As the simulation counted while it ran."""
    pairs: dict[int, list[tuple[bool, bool]]] = {}
    for row in rows:
        if row.replaced_hits is not None:
            own = zip(row.hits, row.replaced_hits, strict=True)
            pairs.setdefault(row.version, []).extend(own)
    return {version: count_pairs(own) for version, own in pairs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["block", "head"])
def test_promotions_of_a_state_folder_are_those_that_a_simulation_saw(
    common: list[str], recording: Recording, kind: str, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    root = tmp_path / "adapters"
    url = f"sqlite:///{tmp_path / 'replay.sqlite'}"
    config = config_of([*common, f"drafter={kind}", f"registry.path={root}", f"replay.url={url}"])
    loaded = load_model(config)
    with open_store(url, config.replay) as store:
        base = draft_fingerprint(loaded.path, config)
        ground = Ground(loaded.target, base, store, Registry(root, 100), tmp_path / "trainer")
        stream = [recording[one] for one in PLAN.requests(0)]
        rows = list(simulate(build_training(config, ground), stream, 2, Progress()))
    expected = expected_of(rows)
    assert len(expected) > 2
    run = judge_served(config)
    assert {one.version: one.promotion for one in run.judged} == expected
    assert run.num_promoted >= len(expected)
    gone = run.judged[0].version
    (root / f"v{gone:06d}" / "manifest.json").unlink()
    left = [one for one in run.judged if gone not in (one.version, one.before)]
    assert 0 < len(left) < len(expected)
    assert judge_served(config).judged == left


def test_the_report_of_a_run_says_what_was_judged_and_the_worst(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ServedRun(
        [Judged(1, 0, 3, Promotion(9, 1, 40)), Judged(3, 1, 4, Promotion(0, 60, 400))], 5
    )
    shown = served_section(run)
    print_section(shown)
    text = capsys.readouterr().out
    assert "2 of 5 promoted versions judged" in text
    assert "worst gain -0.150; harmful: 1" in text  # 4.4 deviations beyond -.03
    assert [row[:5] for row in shown.grids[0].rows] == [
        ("1", "0", "3", "40", "+0.200"),
        ("3", "1", "4", "400", "-0.150"),
    ]
    assert served_section(ServedRun([], 0)).data == {"judged": 0, "promoted": 0, "harmful": 0}


def test_without_a_store_or_with_an_arms_words_it_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"replay.url=sqlite:///{tmp_path / 'none.sqlite'}"
    assert study.main(["--served", url]) == 2
    assert study.main(["--served", "--report", url]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == [
        "there is no replay store",
        "--served takes config keys alone, not --report",
    ]
    assert not list(tmp_path.iterdir())
