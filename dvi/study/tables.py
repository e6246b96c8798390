"""The tables and curves of the study, made from results.

Owns what is shown; does not know how it is laid out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from dvi.bench.part import Grid, Json, Lines, Section
from dvi.study.arms import DEFAULTS
from dvi.study.choice import choice_grid, choices, recoveries, recovery_grid
from dvi.study.measures import (
    Spread,
    agreement,
    counts,
    early,
    late,
    num_harmful,
    over_parts,
    promotions,
    spread,
    whole,
)
from dvi.study.results import ArmResult
from dvi.study.rounds import Counts

BLOCK = 10  # requests of a point of the curves
SHOWN_K = (1, 2, 4, 6, 8)
MAX_LINES = 8  # of a panel
Groups = dict[str, list[ArmResult]]  # setting -> its seeds


def by_setting(results: Sequence[ArmResult]) -> Groups:
    """In order of first appearance."""
    groups: Groups = {}
    for result in results:
        groups.setdefault(result.setting, []).append(result)
    return groups


def alpha(one: Counts) -> float:
    """Of a window."""
    return one.alpha


def section(results: Sequence[ArmResult]) -> Section:
    """Everything that is shown of at least one arm."""
    groups = by_setting(results)
    data: Json = {"settings": {name: _numbers(group) for name, group in groups.items()}}
    grids = [
        _alpha_grid(groups),
        _domain_grid(groups),
        _length_grid(groups),
        _memory_grid(groups),
        choice_grid(groups),
        recovery_grid(groups, "auto"),
        recovery_grid(groups, "neural"),
        _promotion_grid(groups),
        _live_grid(groups),
    ]
    return Section(data, grids, _panels(groups))


def _over_seeds(group: Sequence[ArmResult], value: Callable[[ArmResult], float]) -> Spread:
    return spread([value(result) for result in group])


def _whole(result: ArmResult) -> float:
    return over_parts(result, whole, alpha)


def _early(result: ArmResult) -> float:
    return over_parts(result, early, alpha)


def _late(result: ArmResult) -> float:
    return over_parts(result, late, alpha)


def _gain(group: Sequence[ArmResult], base: Sequence[ArmResult]) -> str:
    """Whole streams against the default learner's on the same requests, seed by seed."""
    others = {(result.seed, *_stream(result)): _whole(result) for result in base}
    keys = {result.arm: (result.seed, *_stream(result)) for result in group}
    gains = [_whole(one) - others[keys[one.arm]] for one in group if keys[one.arm] in others]
    return spread(gains).shown() if gains else "-"


def _stream(result: ArmResult) -> list[str]:
    return [row.domain for row in result.requests]


def _alpha_grid(groups: Groups) -> Grid:
    base = [result for name in DEFAULTS for result in groups.get(name, [])]
    rows = [
        (
            name,
            str(len(group)),
            str(len(group[0].requests)),
            _over_seeds(group, _whole).shown(),
            _gain(group, base),
            _over_seeds(group, _early).shown(),
            _over_seeds(group, _late).shown(),
            _over_seeds(group, lambda one: one.seconds / len(one.requests)).shown(2),
        )
        for name, group in groups.items()
    ]
    head = (
        "arm", "seeds", "requests", "alpha", "vs default", "requests 21-30", "last quarter",
        "s a request",
    )  # fmt: skip
    return Grid("acceptance rate alpha, mean over domains, +- deviation over seeds", head, rows)


def _domain_grid(groups: Groups) -> Grid:
    rows = []
    for name, group in groups.items():
        domains = list(dict.fromkeys(_stream(group[0])))
        for domain in domains:
            own = [_of_domain(result, domain) for result in group]
            then = spread([counts(early(one.requests), one.draft_len).alpha for one in own])
            steady = spread([counts(late(one.requests), one.draft_len).alpha for one in own])
            share = f"{then.mean / steady.mean:.2f}" if steady.mean else "-"
            rows.append((name, domain, then.shown(), steady.shown(), share))
    head = ("arm", "domain", "requests 21-30", "last quarter", "share of it at 21-30")
    return Grid("by domain", head, rows)


def _of_domain(result: ArmResult, domain: str) -> ArmResult:
    """The same arm with the requests of one domain only."""
    own = tuple(row for row in result.requests if row.domain == domain)
    return replace(result, requests=own)


def _length_grid(groups: Groups) -> Grid:
    rows = []
    for name, group in groups.items():
        cells = []
        for length in SHOWN_K:
            tokens = _over_seeds(group, lambda one, k=length: _tokens(one, k))  # type: ignore[misc]
            rate = _over_seeds(group, lambda one, k=length: over_parts(one, late, alpha, k))  # type: ignore[misc]
            cells.append(f"{tokens.shown(2)} ({rate.mean:.2f})")
        rows.append((name, *cells))
    head = ("arm", *(f"K={length}" for length in SHOWN_K))
    title = "tokens a round (alpha), last quarter, the target's own token included"
    return Grid(title, head, rows)


def _tokens(result: ArmResult, draft_len: int) -> float:
    return over_parts(result, late, lambda one: one.tokens_per_round, draft_len)


def _memory_grid(groups: Groups) -> Grid:
    rows = []
    for name, group in groups.items():
        every = [agreement(one.requests, known="01") for one in group]
        new = [agreement(one.requests, known="0") for one in group]
        rows.append(
            (
                name,
                spread([one.neural for one in every]).shown(),
                spread([one.memory for one in every]).shown(),
                spread([one.either for one in every]).shown(),
                f"{sum(n.positions for n in new) / sum(e.positions for e in every):.2f}",
                spread([one.neural for one in new]).shown(),
                spread([one.memory for one in new]).shown(),
            )
        )
    head = ("arm", "neural", "memory", "either right", "share new", "neural, new", "memory, new")
    title = "positions got right, whole stream; new: the memory has no match of three tokens"
    return Grid(title, head, rows)


def _promotion_grid(groups: Groups) -> Grid:
    rows = []
    judged = {
        name: [one for result in group for one in promotions(result)]
        for name, group in groups.items()
    }
    num_judged = sum(map(len, judged.values()))
    for name, group in groups.items():
        found = judged[name]
        gains = [one.gain for one in found]
        rows.append(
            (
                name,
                str(sum(result.promoted for result in group)),
                str(sum(result.held for result in group)),
                str(sum(result.refused for result in group)),
                f"{statistics.fmean(gains):+.3f}" if gains else "-",
                f"{min(gains):+.3f}" if gains else "-",
                str(num_harmful(found, num_judged)),
            )
        )
    head = ("arm", "promoted", "held", "refused", "mean gain", "worst", "harmful")
    title = f"each promoted version against the one that it replaced, {num_judged} judged together"
    return Grid(title, head, rows)


def _live_grid(groups: Groups) -> Grid:
    rows = []
    for name, group in groups.items():
        for source in group[0].live:
            checks = [result.live[source] for result in group]
            total = {key: sum(check[key] for check in checks) for key in checks[0]}
            rows.append(
                (
                    name,
                    source,
                    f"{total['same_answers']} of {total['requests']}",
                    f"{total['simulated_accepted']}/{total['simulated_judged']}",
                    f"{total['live_accepted']}/{total['live_judged']}",
                )
            )
    head = (
        "arm", "drafter", "same answers", "simulated accepted/judged", "live accepted/judged",
    )  # fmt: skip
    return Grid("the last version on the last requests, simulated and by the engine", head, rows)


def _numbers(group: Sequence[ArmResult]) -> Json:
    """For study.json."""
    values = {"alpha": _whole, "alpha_21_30": _early, "alpha_last_quarter": _late}
    found: Json = {}
    for name, value in values.items():
        over = _over_seeds(group, value)
        found[name] = {"mean": over.mean, "deviation": over.deviation, "seeds": over.seeds}
    found["tokens_per_round_last_quarter"] = {
        str(length): _over_seeds(group, lambda one, k=length: _tokens(one, k)).mean  # type: ignore[misc]
        for length in SHOWN_K
    }
    return {
        **found,
        "choice": choices(group),
        "recovery": recoveries(group),
        "recovery_neural": recoveries(group, "neural"),
    }


def _panels(groups: Groups) -> list[Lines]:
    """Alpha by request and by trained tokens; arms of one stream share their panels."""
    streams: dict[tuple[str, ...], Groups] = {}
    for name, group in groups.items():
        shape = (group[0].stream, *sorted(_stream(group[0])))
        streams.setdefault(shape, {})[name] = group
    panels = []
    for (kind, *_), own in streams.items():
        for first in range(0, len(own), MAX_LINES):
            shown = dict(list(own.items())[first : first + MAX_LINES])
            panels.append(_panel(f"{kind} stream", "request", shown, _request_x))
            panels.append(_panel(f"{kind} stream", "trained positions", shown, _trained_x))
    return panels


def _panel(
    title: str, label: str, groups: Groups, place: Callable[[ArmResult, int], float]
) -> Lines:
    series = {name: _curve(group, place) for name, group in groups.items()}
    return Lines(title, label, "alpha", series)


def _request_x(result: ArmResult, first: int) -> float:  # noqa: ARG001
    return first + BLOCK / 2


def _trained_x(result: ArmResult, first: int) -> float:
    return float(result.requests[first].trained_positions)


def _curve(
    group: Sequence[ArmResult], place: Callable[[ArmResult, int], float]
) -> list[tuple[float, float]]:
    """Means over seeds, a point for each BLOCK requests."""
    points = []
    for first in range(0, min(len(result.requests) for result in group), BLOCK):
        x = statistics.fmean(place(result, first) for result in group)
        y = statistics.fmean(
            counts(result.requests[first : first + BLOCK], result.draft_len).alpha
            for result in group
        )
        points.append((x, y))
    return points
