"""The verdict of an audit: counts, first divergences with their margins, one line for people.

Owns what counts as a near-tie and the layout; does not decode. A report holds no content: request
ids and places, no tokens.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

import dvi
from dvi.audit.pairs import Divergence, Pair, first_divergence

Gap = Callable[[Divergence], float | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """The first place where an answer is not that of plain decoding."""

    request: str  # id/choice
    position: int  # tokens of the answer before it
    temperature: float
    margin: float | None  # logits; None: one answer had ended, or a token could not stand there
    near_tie: bool  # within the bound


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found. answers = identical + near_ties + mismatches."""

    passed: bool
    mode: str  # exact or near_tie
    max_margin: float  # 0 in exact mode
    source: str  # replay store or prompts
    answers: int
    greedy: int
    sampled: int
    tokens: int
    identical: int
    near_ties: int
    mismatches: int
    largest_margin: float | None
    skipped: dict[str, int]
    findings: tuple[Finding, ...]
    deterministic: bool
    system_fingerprint: str
    dvi_version: str
    torch_version: str
    created: str

    def as_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)

    def summary(self) -> str:
        """One line, signed off by who was compared when."""
        verdict = "PASSED" if self.passed else "FAILED"
        margin = "-" if self.largest_margin is None else f"{self.largest_margin:.1e}"
        left_out = sum(self.skipped.values())
        return (
            f"audit {verdict}: {self.answers} answers of {self.source} ({self.greedy} greedy, "
            f"{self.sampled} sampled, {self.tokens} tokens): {self.identical} identical to plain "
            f"decoding, {self.near_ties} near-ties, {self.mismatches} mismatches, {left_out} left "
            f"out; mode {self.mode}, bound {self.max_margin:g} logits, largest margin {margin}; "
            f"{'deterministic' if self.deterministic else 'fast'}, {self.system_fingerprint}, "
            f"dvi {self.dvi_version}, torch {self.torch_version}, {self.created}"
        )

    def details(self) -> list[str]:
        """A line for each finding and each reason for leaving answers out."""
        lines = [
            f"{'near-tie' if one.near_tie else 'MISMATCH'}: {one.request} token {one.position}, "
            f"temperature {one.temperature:g}, margin "
            + ("none (not a tie)" if one.margin is None else f"{one.margin:.2e} logits")
            for one in self.findings
        ]
        return lines + [f"left out: {n} ({why})" for why, n in self.skipped.items() if n]


@dataclass(frozen=True, slots=True)
class Setting:
    """What an audit's verdict depends on besides the answers."""

    mode: str  # exact or near_tie
    max_margin: float
    source: str
    deterministic: bool
    system_fingerprint: str


def make_report(
    pairs: Sequence[Pair], skipped: Counter[str], setting: Setting, gap: Gap
) -> AuditReport:
    """Compare all pairs; ``gap`` measures one divergence in logits."""
    bound = setting.max_margin if setting.mode == "near_tie" else 0.0
    parted = [item for pair in pairs if (item := first_divergence(pair)) is not None]
    findings = tuple(_finding(item, gap(item), setting.mode, bound) for item in parted)
    near_ties = sum(one.near_tie for one in findings)
    sampled = sum(pair.request.sampling.temperature > 0 for pair in pairs)
    margins = [one.margin for one in findings if one.margin is not None]
    return AuditReport(
        passed=near_ties == len(findings),
        mode=setting.mode,
        max_margin=bound,
        source=setting.source,
        answers=len(pairs),
        greedy=len(pairs) - sampled,
        sampled=sampled,
        tokens=sum(len(pair.served.token_ids) for pair in pairs),
        identical=len(pairs) - len(findings),
        near_ties=near_ties,
        mismatches=len(findings) - near_ties,
        largest_margin=max(margins, default=None),
        skipped=dict(skipped),
        findings=findings,
        deterministic=setting.deterministic,
        system_fingerprint=setting.system_fingerprint,
        dvi_version=dvi.__version__,
        torch_version=torch.__version__,
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )


def _finding(item: Divergence, gap: float | None, mode: str, bound: float) -> Finding:
    margin = None if gap is None or math.isinf(gap) else gap
    return Finding(
        request=item.pair.request.request_id,
        position=item.position,
        temperature=item.pair.request.sampling.temperature,
        margin=margin,
        near_tie=mode == "near_tie" and margin is not None and margin <= bound,
    )
