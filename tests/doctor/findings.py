"""What tests read of a list of findings. Owns no test."""

from __future__ import annotations

from dvi.doctor.finding import Finding, Level


def levels(findings: list[Finding]) -> dict[str, Level]:
    return {one.name: one.level for one in findings}
