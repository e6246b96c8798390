"""Table arithmetic, from results whose numbers are worked out here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dvi.study.measures import (
    Agreement,
    Promotion,
    agreement,
    early,
    late,
    num_harmful,
    over_parts,
    parts,
    promotions,
    spread,
    whole,
)
from dvi.study.report import write
from dvi.study.results import ArmResult, RequestRow
from dvi.study.tables import section

CHECK = {
    "requests": 1,
    "same_answers": 1,
    "simulated_judged": 4,
    "simulated_accepted": 2,
    "live_judged": 4,
    "live_accepted": 2,
}
LIVE = {"neural": CHECK, "auto": CHECK}


def row(
    domain: str, hits: str, *, replaced: str | None = None, version: int = 0, auto: str = "."
) -> RequestRow:
    none = "0" * len(hits)
    walks = {"neural": ".", "memory": ".", "auto": auto}
    return RequestRow(domain, 99, hits, replaced, none, none, walks, version, 0, 0)


def result(rows: list[RequestRow], *, name: str = "kl x block", seed: int = 0) -> ArmResult:
    return ArmResult(
        arm=f"{name}, seed {seed}",
        setting=name,
        seed=seed,
        overrides=(),
        stream="sharp",
        draft_len=1,
        seconds=len(rows) * 2.0,
        promoted=1,
        held=2,
        refused=0,
        dropped_steps=0,
        live=LIVE,
        requests=tuple(rows),
    )


# K = 1: "1010" is two rounds of one accepted proposal and the target's own token: alpha 1.
# "0000": four rounds, each rejected: alpha 0. "1000": one accepted, two rejected: alpha 1/3.


def test_a_stream_s_alpha_is_the_mean_over_its_domains_of_pooled_rates() -> None:
    one = result([*[row("a", "1010")] * 3, *[row("b", "0000")] * 4, row("b", "1000")])
    assert [len(part) for part in parts(one)] == [3, 5]
    # b: 1 accepted of 4 * 4 + 3 judged
    assert over_parts(one, whole, lambda c: c.alpha) == pytest.approx((1 + 1 / 19) / 2)


def test_windows_are_requests_21_to_30_and_the_last_quarter() -> None:
    part = [row("a", "1", version=i) for i in range(120)]
    assert [one.version for one in early(part)] == list(range(20, 30))
    assert [one.version for one in late(part)] == list(range(90, 120))


def test_a_longer_k_is_computed_from_the_same_hits() -> None:
    one = result([row("a", "110" * 3)])
    # K = 1: 1,(1) 0 .. rounds start at 0, 2, 3, 5, 6, 8: accepted at 0, 3, 6
    assert over_parts(one, whole, lambda c: c.tokens_per_round, 1) == 1 + 3 / 6
    # K = 2: each round takes 1, 1 and the target's own token
    assert over_parts(one, whole, lambda c: c.tokens_per_round, 2) == 3.0


def test_spread_is_mean_and_sample_deviation() -> None:
    assert spread([0.4]).shown() == "0.400"
    assert spread([0.4, 0.6]).shown() == "0.500 +- 0.141"  # sqrt(0.02)


def test_agreement_counts_positions_by_what_the_memory_knows() -> None:
    one = replace(row("a", "110010"), memory="101010", known="111000")
    assert agreement([one], known="01") == Agreement(6, 3 / 6, 3 / 6, 4 / 6)
    assert agreement([one, one], known="0") == Agreement(6, 1 / 3, 1 / 3, 1 / 3)
    assert agreement([one], known="") == Agreement(0, 0.0, 0.0, 0.0)


def test_promotions_pair_a_version_with_the_one_that_it_replaced() -> None:
    rows = [
        row("a", "0000"),
        row("a", "1100", replaced="0101", version=1),
        row("a", "1111", replaced="0101", version=1),
        row("a", "0000", replaced="1111", version=2),
    ]
    assert promotions(result(rows)) == [Promotion(3, 1, 8), Promotion(0, 4, 4)]


def test_only_a_certain_loss_beyond_the_bound_is_harm() -> None:
    fine = [Promotion(50, 50, 400)] * 20
    assert num_harmful(fine, 20) == 0
    # 400 positions, 60 worse: -.15, and a deviation of sqrt(2 * 60) / 400 = .027: 4.4 of them
    # beyond -.03, where one of 21 tests at .05 in all needs 2.8
    assert num_harmful([*fine, Promotion(0, 60, 400)], 21) == 1
    assert num_harmful([Promotion(0, 6, 40)], 1) == 0  # the same loss on few positions


def test_harm_is_judged_by_the_number_of_promotions_in_the_whole_table() -> None:
    """31 worse of 400 positions: .0475 beyond the bound, a deviation of sqrt(2 * 31) / 400 = .0197,
    so 2.41 of them. Alone at .05 that needs 1.64, as one of 20 it needs 2.81.
    """
    lost, kept = f"{'0' * 31}{'1' * 369}", "1" * 400
    bad = result([row("a", lost, replaced=kept, version=1)])
    fine = [
        result([row("a", kept, replaced=kept, version=1)], name="lk x block", seed=seed)
        for seed in range(19)
    ]

    def harmful(arms: list[ArmResult]) -> list[str]:
        (grid,) = (one for one in section(arms).grids if one.columns[-1] == "harmful")
        assert grid.title.endswith(f"{len(arms)} judged together")
        return [one[-1] for one in grid.rows]

    assert harmful([bad]) == ["1"]
    assert harmful([bad, *fine]) == ["0", "0"]


def test_the_report_compares_seed_by_seed_and_writes_three_files(tmp_path: Path) -> None:
    low, high = row("a", "0000"), row("a", "1010")
    arms = [
        result([low] * 40),
        result([high] * 40, seed=1),
        result([high] * 40, name="lk x block"),
        replace(result([high] * 40, name="lk x block", seed=1), promoted=0),
    ]
    shown = section(arms)
    first, second = shown.grids[0].rows
    assert first[:5] == ("kl x block", "2", "40", "0.500 +- 0.707", "0.000 +- 0.000")
    # +1 at seed 0 and 0 at seed 1
    assert second[3:5] == ("1.000 +- 0.000", "0.500 +- 0.707")
    write(shown, {"command": "made up"}, tmp_path)
    text = (tmp_path / "study.md").read_text()
    assert "| lk x block | 2 | 40 | 1.000 +- 0.000 | 0.500 +- 0.707 |" in text
    assert (tmp_path / "study.json").stat().st_size
    assert (tmp_path / "study.png").read_bytes()[:4] == b"\x89PNG"
