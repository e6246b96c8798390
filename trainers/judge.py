"""The scores that a gate decides on: several versions of a draft on the same unseen traces.

Owns which versions are scored; the rule is in gate.py. Does not know what becomes of a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dvi.replay import StoredTrace
from dvi.types import Trace
from trainers.gate import GateRule, Scores, Verdict, decide, stricter
from trainers.learner import Learner
from trainers.payback import saved_share
from trainers.probe import ProbeSet
from trainers.versions import Versions


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and what else the traces say of the version in service."""

    verdict: Verdict
    served_fault: str  # why the version in service could not be compared; empty if it could
    probe_rate: float  # its agreement on the probe set
    saved: float | None  # share of decode rounds that it saves over an earlier one; None unknown


@dataclass(frozen=True, slots=True)
class Judge:
    """Scores by one learner. One thread."""

    learner: Learner
    versions: Versions
    rule: GateRule
    probe: ProbeSet

    def judge(self, rows: Sequence[StoredTrace], earlier_version: int | None) -> Judgement:
        """Candidate, version in service, version 0, and an earlier version where one is named."""
        learner, traces = self.learner, [row.trace for row in rows]
        served_version, adapter, fault = self.versions.served()
        candidate = learner.score(traces, self.versions.newest + 1)
        with learner.draft.showing(adapter):
            served = learner.score(traces, served_version)
            probe_rate = self.probe.measure(
                [row.key for row in rows],
                lambda fixed: learner.score(fixed, served_version).agreement,
            )
        untrained = served
        if served_version:
            with learner.draft.showing(None):
                untrained = learner.score(traces, 0)
        scores = Scores(candidate, served, untrained)
        rule = stricter(self.rule, self.versions.recent_rollbacks())
        verdict = Verdict(decide(scores, rule), scores, rule, served_version, len(traces))
        return Judgement(verdict, fault, probe_rate, self._saved(traces, verdict, earlier_version))

    def _saved(
        self, traces: Sequence[Trace], verdict: Verdict, earlier_version: int | None
    ) -> float | None:
        if earlier_version is None:
            return None
        known = {0: verdict.scores.untrained, verdict.served_version: verdict.served}
        score = known.get(earlier_version)
        if score is None:
            adapter = self.versions.usable(earlier_version)
            if adapter is None:
                return None
            with self.learner.draft.showing(adapter):
                score = self.learner.score(traces, earlier_version)
        return saved_share(traces, score, verdict.served, verdict.rule.draft_len)
