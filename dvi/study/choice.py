"""How ``auto`` fares against either source alone, and it and the draft after a shift.

Owns two tables and their arithmetic; reads results and nothing else. All numbers are of rounds of
the arm's K, means over seeds. Sources are compared by the rate in which silence is a miss: by
accepted / judged a memory that proposes nothing where it knows nothing beats whoever tries there.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from dvi.bench.part import Grid
from dvi.study.measures import early, late, parts
from dvi.study.results import ArmResult, RequestRow
from dvi.study.rounds import Counts, count_letters

Rows = Sequence[RequestRow]
Window = Callable[[Rows], Rows]
FIRST = slice(0, 10)
LATER = slice(50, 60)
MEAN = "mean"  # over the stretches of a stream
SERVERS = ("neural", "memory", "auto")
MEASURES: dict[str, Callable[[Counts], float]] = {
    "rate": lambda one: one.rate,
    "judged": lambda one: one.alpha,
    "tokens": lambda one: one.tokens_per_round,
}


def walked(rows: Rows, name: str) -> Counts:
    """Rounds of a server (``sources.servers``) through some requests."""
    total = Counts()
    for row in rows:
        total += count_letters(row.walks[name])
    return total


def by_stretch(group: Sequence[ArmResult]) -> dict[str, list[Rows]]:
    """Stretches by name, one of each seed; a domain that comes back is ``again``."""
    found: dict[str, list[Rows]] = {}
    for result in group:
        seen: set[str] = set()
        for part in parts(result):
            name = " + ".join(dict.fromkeys(row.domain for row in part))
            found.setdefault(f"{name} again" if name in seen else name, []).append(part)
            seen.add(name)
    return found


def rate(seeds: Sequence[Rows], window: Window, name: str) -> float:
    """Mean rate of a window."""
    return statistics.fmean(walked(window(rows), name).rate for rows in seeds)


def choice_values(seeds: Sequence[Rows]) -> dict[str, float]:
    """Of one stretch: every server's rates, ``auto`` above the better source, its memory share."""
    sums = {name: [walked(rows, name) for rows in seeds] for name in SERVERS}
    values: dict[str, float] = {}
    for label, value in MEASURES.items():
        own = {name: statistics.fmean(map(value, found)) for name, found in sums.items()}
        values |= {f"{name} {label}": one for name, one in own.items()}
        values[f"gain {label}"] = own["auto"] - max(own["neural"], own["memory"])
    text = "".join(row.walks["auto"] for rows in seeds for row in rows).lower()
    by_memory = text.count("m") / max(1, text.count("m") + text.count("n"))
    return {**values, "by memory": by_memory}


def recovery_values(seeds: Sequence[Rows], before: Sequence[Rows], server: str) -> dict[str, float]:
    """Of one stretch of a server: windows, and their shares of the steady level.

    ``before`` is where its domain came first: the first window is compared with that last quarter.
    """
    windows: dict[str, Window] = {
        "1-10": lambda rows: rows[FIRST],
        "21-30": early,
        "51-60": lambda rows: rows[LATER],
        "steady": late,
    }
    values = {label: rate(seeds, window, server) for label, window in windows.items()}
    steady = values["steady"] or 1.0
    return {
        **values,
        "share 1-10": values["1-10"] / (rate(before, late, server) or 1.0),
        "share 21-30": values["21-30"] / steady,
        "share 51-60": values["51-60"] / steady,
    }


def choices(group: Sequence[ArmResult]) -> dict[str, dict[str, float]]:
    """By stretch, then the mean over stretches."""
    return _with_mean({name: choice_values(seeds) for name, seeds in by_stretch(group).items()})


def recoveries(group: Sequence[ArmResult], server: str = "auto") -> dict[str, dict[str, float]]:
    """By stretch, then the mean over stretches."""
    found = by_stretch(group)
    first = {name: found[name.removesuffix(" again")] for name in found}
    return _with_mean(
        {name: recovery_values(seeds, first[name], server) for name, seeds in found.items()}
    )


def _with_mean(values: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    labels = next(iter(values.values()))
    means = {label: statistics.fmean(own[label] for own in values.values()) for label in labels}
    return {**values, MEAN: means}


def choice_grid(groups: Mapping[str, Sequence[ArmResult]]) -> Grid:
    """Either source alone and the choice between both."""
    head = (
        "arm", "stretch", *SERVERS, "auto - better", "accepted / judged: auto - better",
        "tokens a round", "of it by memory",
    )  # fmt: skip
    title = "rounds of the arm's K by either source alone and by the engine's choice: accepted of "
    rows = [
        (
            arm,
            name,
            *_cells(own, *(f"{one} rate" for one in SERVERS)),
            f"{own['gain rate']:+.3f}",
            f"{own['gain judged']:+.3f}",
            ", ".join(f"{own[f'{one} tokens']:.2f}" for one in SERVERS),
            f"{own['by memory']:.2f}",
        )
        for arm, group in groups.items()
        for name, own in choices(group).items()
    ]
    return Grid(f"{title}judged, silence counted as a miss", head, rows)


def recovery_grid(groups: Mapping[str, Sequence[ArmResult]], server: str) -> Grid:
    """A server after a shift."""
    head = (
        "arm", "stretch", "requests 1-10", "21-30", "51-60", "last quarter",
        "share at 1-10", "share at 21-30", "share at 51-60",
    )  # fmt: skip
    windows, shares = ("1-10", "21-30", "51-60", "steady"), ("1-10", "21-30", "51-60")
    rows = [
        (arm, name, *_cells(own, *windows), *(f"{own[f'share {one}']:.2f}" for one in shares))
        for arm, group in groups.items()
        for name, own in recoveries(group, server).items()
    ]
    title = f"{server} after a shift: the same rate, and its share of the last quarter; 1-10 of a"
    return Grid(f"{title} domain that is back: of its first last quarter", head, rows)


def _cells(values: Mapping[str, float], *labels: str) -> list[str]:
    return [f"{values[label]:.3f}" for label in labels]
