"""From turns to figures: speeds, ratios by group and block, acceptance, shares of time.

Owns the arithmetic and the tables of a race; does not know what raced.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dvi.bench.part import Bars, Grid, Json
from dvi.bench.race import Result, Turn
from dvi.bench.stats import Spread, ratios, spread
from dvi.decoding.stats import Phase
from dvi.types import AcceptanceCounts

DECODE_PHASES = (Phase.DRAFT, Phase.VERIFY, Phase.COMMIT, Phase.LOG)


@dataclass(frozen=True, slots=True)
class Figures:
    """One runner in one race."""

    name: str
    tokens_per_s: Spread  # over the blocks
    over_base: dict[str, Spread]  # by group
    first_token_ms: float | None  # median over prompts
    counts: AcceptanceCounts | None
    shares: dict[Phase, float]  # of decode time
    round_ms: float | None  # decode time over rounds

    @property
    def mean_ratio(self) -> float:
        """Mean over the groups of each one's median ratio: a long group weighs no more."""
        return statistics.fmean(one.median for one in self.over_base.values())

    @property
    def worst_ratio(self) -> float:
        """Of the group that gains least."""
        return min(one.median for one in self.over_base.values())

    def as_json(self) -> Json:
        """For bench.json."""
        counts = self.counts
        return {
            "way": self.name,
            "tokens_per_s": dataclasses.asdict(self.tokens_per_s),
            "over_plain": self.mean_ratio,
            "over_plain_worst": self.worst_ratio,
            "over_plain_by_group": {
                group: dataclasses.asdict(one) for group, one in self.over_base.items()
            },
            "first_token_ms": self.first_token_ms,
            "acceptance_rate": counts.acceptance_rate() if counts else None,
            "mean_accepted_length": counts.mean_accepted_length() if counts else None,
            "time_shares": {str(phase): share for phase, share in self.shares.items()},
            "round_ms": self.round_ms,
        }


def figures(result: Result, base: str) -> list[Figures]:
    """One for each runner, ratios against ``base`` on the same prompts."""
    return [_figures(result, name, base) for name in result.turns]


def _figures(result: Result, name: str, base: str) -> Figures:
    turns = result.turns[name]
    counts = _counts(turns)
    spent = {
        phase: sum(turn.phase_s[phase] for turn in turns if turn.phase_s) for phase in DECODE_PHASES
    }
    whole = sum(spent.values())
    firsts = [one.first_token_s for turn in turns for one in turn.answers]
    seen = [first for first in firsts if first is not None]
    return Figures(
        name=name,
        tokens_per_s=spread(_speeds(result, name, None)),
        over_base={
            group: ratios(_speeds(result, name, group), _speeds(result, base, group))
            for group in dict.fromkeys(unit.group for unit in result.units)
        },
        first_token_ms=1e3 * statistics.median(seen) if seen else None,
        counts=counts,
        shares={phase: value / whole for phase, value in spent.items()} if whole else {},
        round_ms=1e3 * whole / counts.rounds if whole and counts and counts.rounds else None,
    )


def _speeds(result: Result, name: str, group: str | None) -> list[float]:
    """Tokens a second of each block, of one group or of all."""
    blocks = sorted({unit.block for unit in result.units if group in (None, unit.group)})
    speeds = []
    for block in blocks:
        own = [
            turn
            for unit, turn in zip(result.units, result.turns[name], strict=True)
            if unit.block == block and group in (None, unit.group)
        ]
        speeds.append(sum(turn.num_tokens for turn in own) / sum(turn.seconds for turn in own))
    return speeds


def _counts(turns: Sequence[Turn]) -> AcceptanceCounts | None:
    total = AcceptanceCounts()
    for one in (answer.counts for turn in turns for answer in turn.answers):
        if one is None:
            return None
        total.add(one)
    return total


def way_grid(title: str, found: Sequence[Figures]) -> Grid:
    """One row a runner."""
    columns = ("way", "tok/s (spread)", "vs plain", "worst", "first token ms", "alpha",
               "tok/round", "ms/round", "draft", "verify", "commit", "log")  # fmt: skip
    return Grid(title, columns, [_way_row(one) for one in found])


def _way_row(one: Figures) -> Sequence[str]:
    counts = one.counts
    return (
        one.name,
        one.tokens_per_s.shown(1),
        f"{one.mean_ratio:.2f}x",
        f"{one.worst_ratio:.2f}x",
        _number(one.first_token_ms, 0),
        _number(counts.acceptance_rate() if counts else None, 2),
        _number(counts.mean_accepted_length() if counts else None, 2),
        _number(one.round_ms, 1),
        *(f"{100 * one.shares[p]:.1f}%" if one.shares else "-" for p in DECODE_PHASES),
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def group_grid(title: str, found: Sequence[Figures]) -> Grid:
    """Ratio to the base, one row a group."""
    groups = list(found[0].over_base)
    rows = [(group, *(one.over_base[group].shown(2) for one in found[1:])) for group in groups]
    return Grid(title, ("group", *(one.name for one in found[1:])), rows)


def group_bars(title: str, found: Sequence[Figures]) -> Bars:
    """Ratio to the base by group."""
    groups = list(found[0].over_base)
    series = {one.name: [one.over_base[group].median for group in groups] for one in found[1:]}
    return Bars(title, "tokens/s over plain", groups, series)
