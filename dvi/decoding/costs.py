"""What a target pass and a draft step cost on this machine, by batch and width.

Owns the record and how to read between its points; knows neither acceptance nor how it was
measured. A recorded profile makes draft lengths a function of the requests alone (ARCHITECTURE,
invariant 8).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dvi.config.files import replace_file

# Times that differ by more than this factor are not those of one machine at rest.
FAR_OFF = 1.5

Point = tuple[float, float]  # (batch or positions, seconds)


@dataclass(frozen=True, slots=True)
class BatchCosts:
    """One number of sessions in rounds."""

    batch: int
    passes: tuple[Point, ...]  # (positions of the pass, seconds), positions ascending from batch
    draft_step_s: float  # one learned proposal for each of them; 0 where none is made


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Undisturbed passes some way into a context; batches ascending from 1."""

    batches: tuple[BatchCosts, ...]

    def pass_s(self, batch: int, num_positions: float) -> float:
        """Seconds of a target pass of ``batch`` sessions over ``num_positions`` in all.

        Linear between measured points and beyond the last ones; between two batches at equal
        positions a session.
        """
        at = [
            (one.batch, between(one.passes, num_positions * one.batch / batch))
            for one in self._around(batch)
        ]
        return between(at, batch)

    def draft_s(self, batch: int) -> float:
        """Seconds of one learned proposal for each of ``batch`` sessions."""
        return between([(one.batch, one.draft_step_s) for one in self._around(batch)], batch)

    def save(self, path: Path) -> None:
        """Write as JSON."""
        replace_file(path, f"{json.dumps(asdict(self))}\n".encode(), durable=False)

    def _around(self, batch: int) -> Sequence[BatchCosts]:
        """The measured batches to read ``batch`` from: itself, or its two neighbours."""
        place = bisect_left(self.batches, batch, key=lambda one: one.batch)
        if place < len(self.batches) and self.batches[place].batch == batch:
            return self.batches[place : place + 1]
        place = min(max(place, 1), len(self.batches) - 1)
        return self.batches[max(place - 1, 0) : place + 1]


def between(points: Sequence[Point], at: float) -> float:
    """Piecewise linear through ``points``, its last stretch prolonged; level before the first."""
    if len(points) == 1 or at <= points[0][0]:
        return points[0][1]
    place = min(bisect_left(points, at, key=lambda point: point[0]), len(points) - 1)
    (low, low_s), (high, high_s) = points[place - 1], points[place]
    return low_s + (high_s - low_s) * (at - low) / (high - low)


def load_costs(path: Path) -> CostProfile:
    """A profile that ``save`` wrote; raises ValueError for any other content."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        batches = tuple(
            BatchCosts(
                batch=int(one["batch"]),
                passes=tuple((float(n), float(s)) for n, s in one["passes"]),
                draft_step_s=float(one["draft_step_s"]),
            )
            for one in data["batches"]
        )
    except OSError as fault:
        raise ValueError(f"cannot read the cost profile {path}: {fault.strerror}") from fault
    except (ValueError, TypeError, KeyError) as fault:
        raise ValueError(f"{path}: not a cost profile: {fault!r}") from fault
    if not batches or not all(one.passes for one in batches):
        raise ValueError(f"{path}: a cost profile without a measurement")
    return CostProfile(batches)
