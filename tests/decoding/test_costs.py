"""Costs are read between measured points, measured with the given clock, and can be recorded."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dvi.config import DecodingConfig
from dvi.decoding import decode_batch
from dvi.decoding.costs import BatchCosts, CostProfile, load_costs
from dvi.decoding.measure import (
    MOST_TURNS,
    TURNS,
    Bounds,
    machine_fingerprint,
    measure_costs,
    never_dearer_than_wider,
    profile_from_config,
    time_calls,
)
from tests.decoding.engines import LIMITS, Ticks, make_request, make_rig, real_drafter
from tests.decoding.profiles import profile
from tests.rigs import build_target

TARGET = build_target("tiny-mix", seed=1)
BOUNDS = Bounds(num_rows=4, max_draft_len=3)


def test_passes_are_linear_between_positions_and_batches():
    costs = CostProfile(
        (
            BatchCosts(1, ((1, 10.0), (2, 14.0), (4, 16.0)), 1.0),
            BatchCosts(3, ((3, 20.0), (12, 38.0)), 2.0),
        )
    )
    assert [costs.pass_s(1, n) for n in (1, 2, 3, 4)] == [10, 14, 15, 16]
    assert costs.pass_s(1, 6) == 18  # the last stretch goes on
    assert costs.pass_s(3, 6) == 26
    # Two sessions with four positions: half way between two of one and six of three.
    assert costs.pass_s(2, 4) == (14 + 26) / 2
    assert costs.pass_s(5, 5) == 20 + (20 - 10)  # beyond the last batch the same slope
    assert [costs.draft_s(batch) for batch in (1, 2, 3, 5)] == [1, 1.5, 2, 3]


def test_a_profile_of_one_batch_serves_any():
    costs = CostProfile((BatchCosts(1, ((1, 10.0),), 1.0),))
    assert costs.pass_s(4, 9) == 10
    assert costs.draft_s(4) == 1


def test_a_profile_survives_its_file(tmp_path):
    path = tmp_path / "costs.json"
    costs = profile()
    costs.save(path)
    assert load_costs(path) == costs
    for text in ("{", "[]", "{}", '{"batches": []}', '{"batches": [{"batch": 1}]}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=str(path)):
            load_costs(path)
    with pytest.raises(ValueError, match="cannot read the cost profile"):
        load_costs(tmp_path / "none.json")


def test_everything_that_may_be_chosen_is_measured():
    assert BOUNDS.batches() == [1, 2, 4]
    assert BOUNDS.widths(1) == [1, 2, 3, 4]
    assert Bounds(8, 8).widths(8) == [1, 2, 4, 9]
    assert Bounds(5, 8).batches() == [1, 2, 4, 5]
    assert Bounds(1, 0).widths(1) == [1]


@pytest.mark.parametrize("kind", ["block", "head"])
def test_measuring_leaves_nothing_behind_that_an_answer_could_see(kind):
    drafter = real_drafter(TARGET, kind, LIMITS)
    costs = measure_costs(TARGET, drafter, BOUNDS, Ticks())
    assert [one.batch for one in costs.batches] == [1, 2, 4]
    assert {seconds for one in costs.batches for _, seconds in one.passes} == {1.0}  # a tick each
    assert [one.draft_step_s for one in costs.batches] == [1.0] * 3
    request = make_request("r", (1, 2, 3), max_tokens=40)
    measured = decode_batch(make_rig(TARGET, drafter).engine, [request])
    fresh = decode_batch(make_rig(TARGET, kind).engine, [request])
    assert measured == fresh


def test_a_disturbed_measurement_is_bounded_by_what_is_wider():
    points = [(1, 30.0), (2, 90.0), (4, 45.0), (9, 54.0)]
    assert never_dearer_than_wider(points) == ((1, 30.0), (2, 45.0), (4, 45.0), (9, 54.0))


def test_without_a_learned_draft_no_draft_step_is_measured():
    costs = measure_costs(TARGET, None, BOUNDS, Ticks())
    assert [one.draft_step_s for one in costs.batches] == [0.0] * 3


def no_clock() -> float:
    raise AssertionError("measured")


def test_a_configured_file_is_taken_and_a_measurement_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("DVI_HOME", str(tmp_path))
    path = tmp_path / "mine.json"
    profile().save(path)
    config = DecodingConfig(cost_profile=str(path))
    found = profile_from_config(config, TARGET, None, BOUNDS, clock=no_clock, machine="m")
    assert found == profile()
    fresh = DecodingConfig()
    first_clock, second_clock = Ticks(), Ticks()
    first = profile_from_config(fresh, TARGET, None, BOUNDS, clock=first_clock, machine="m")
    again = profile_from_config(fresh, TARGET, None, BOUNDS, clock=second_clock, machine="m")
    assert first == again
    # Two passes were timed to check, where the first start timed one of every cell.
    num_cells = sum(len(BOUNDS.widths(batch)) for batch in BOUNDS.batches())
    assert second_clock.now_s / first_clock.now_s == 2 / num_cells
    with pytest.raises(AssertionError, match="measured"):
        profile_from_config(fresh, TARGET, None, BOUNDS, clock=no_clock, machine="other")
    (tmp_path / "cache" / "costs-m.json").write_text("torn", encoding="utf-8")
    profile_from_config(fresh, TARGET, None, BOUNDS, clock=Ticks(), machine="m")
    assert json.loads((tmp_path / "cache" / "costs-m.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("factor", "is_kept"), [(1 / 1.6, False), (1 / 1.4, True), (1.4, True)])
def test_a_remembered_profile_is_kept_only_while_passes_agree_with_it(
    factor, is_kept, tmp_path, monkeypatch
):
    monkeypatch.setenv("DVI_HOME", str(tmp_path))
    fresh = DecodingConfig()
    true = profile_from_config(fresh, TARGET, None, BOUNDS, clock=Ticks(), machine="m")
    path = tmp_path / "cache" / "costs-m.json"
    scaled(true, factor).save(path)
    taken = profile_from_config(fresh, TARGET, None, BOUNDS, clock=Ticks(), machine="m")
    assert taken == (scaled(true, factor) if is_kept else true)
    assert load_costs(path) == taken  # and the next start finds what this one took


def test_one_pass_that_was_disturbed_is_enough_to_measure_again(tmp_path, monkeypatch):
    monkeypatch.setenv("DVI_HOME", str(tmp_path))
    fresh = DecodingConfig()
    true = profile_from_config(fresh, TARGET, None, BOUNDS, clock=Ticks(), machine="m")
    one, *others = true.batches
    widest = one.passes[-1][0]
    bad = replace(one, passes=(*one.passes[:-1], (widest, 7.0)))
    path = tmp_path / "cache" / "costs-m.json"
    CostProfile((bad, *others)).save(path)
    assert profile_from_config(fresh, TARGET, None, BOUNDS, clock=Ticks(), machine="m") == true


def test_a_configured_profile_is_never_checked_nor_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("DVI_HOME", str(tmp_path))
    path = tmp_path / "mine.json"
    scaled(profile(), 100.0).save(path)
    before = path.read_bytes()
    config = DecodingConfig(cost_profile=str(path))
    found = profile_from_config(config, TARGET, None, BOUNDS, clock=no_clock, machine="m")
    assert found == scaled(profile(), 100.0)
    assert path.read_bytes() == before


def test_turns_go_on_while_they_find_a_call_faster():
    def timed(*seconds: float) -> tuple[float, int]:
        """Least time found and calls made, of a call that takes these seconds one after another."""
        left = [9.0, *seconds]  # the first one is not counted
        now_s = [0.0]

        def call() -> None:
            now_s[0] += left.pop(0)

        (least_s,) = time_calls([call], lambda: now_s[0])
        return least_s, 1 + len(seconds) - len(left)

    steady = (1.0,) * 20
    assert timed(*steady) == (1.0, 1 + TURNS)
    assert timed(5.0, 5.0, 4.0, 2.0, *steady) == (1.0, 1 + 6)  # the fifth found 1.0, the sixth none
    assert timed(*(0.5**n for n in range(20))) == (0.5 ** (MOST_TURNS - 1), 1 + MOST_TURNS)


def scaled(costs: CostProfile, factor: float) -> CostProfile:
    """The same shape at another speed."""
    return CostProfile(
        tuple(
            BatchCosts(
                one.batch,
                tuple((n, seconds * factor) for n, seconds in one.passes),
                one.draft_step_s * factor,
            )
            for one in costs.batches
        )
    )


def test_another_target_draft_or_size_is_another_machine():
    names = {
        machine_fingerprint("target", "draft", BOUNDS),
        machine_fingerprint("target 2", "draft", BOUNDS),
        machine_fingerprint("target", "draft 2", BOUNDS),
        machine_fingerprint("target", "draft", Bounds(5, 3)),
    }
    assert len(names) == 4
    assert machine_fingerprint("target", "draft", BOUNDS) in names


def test_a_first_start_says_that_it_measures_before_it_does_and_then_what_it_found(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("DVI_HOME", str(tmp_path))
    ticks = Ticks()

    def clock():
        assert "measuring what passes cost" in caplog.text  # said before the first look at it
        return ticks()

    with caplog.at_level("INFO", "dvi.decoding.measure"):
        fresh = DecodingConfig()
        found = profile_from_config(fresh, TARGET, None, BOUNDS, clock=clock, machine="m")
        assert f"1 position {1e3 * found.pass_s(1, 1):.1f} ms" in caplog.messages[1]
        assert len(caplog.messages) == 2
        profile_from_config(fresh, TARGET, None, BOUNDS, clock=Ticks(), machine="m")
    assert len(caplog.messages) == 2  # remembered: nothing to wait for
