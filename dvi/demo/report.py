"""report.json: every number of a demo run, and the verdict.

Owns names and arithmetic of the report; does not know how it is drawn.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dvi.demo.answers import Answer, Block, domain_ends, pass_speed, split_blocks, sum_block
from dvi.demo.compare import Comparison, Divergence

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Passes:
    """The answers of all passes of one run."""

    served: Sequence[Answer]  # greedy, speculation on, the trainer learning
    plain: Sequence[Answer]  # the same prompts, speculation off
    sampled: Sequence[Answer]
    sampled_plain: Sequence[Answer]
    speed_sample: Sequence[Answer]  # plain, as many in flight as the served pass
    control: Sequence[Answer]  # served with the trainer off; empty unless asked for
    tools: Sequence[Answer] = ()  # tool calls, greedy; empty for a model that knows no tools
    tools_plain: Sequence[Answer] = ()


@dataclass(frozen=True, slots=True)
class Checked:
    """A comparison with the margin of each divergence."""

    comparison: Comparison
    margins: Sequence[float | None]


def block_row(block: Block) -> Json:
    """One row of the report: requests counted from 1."""
    return {
        "domain": block.domain,
        "requests": [block.first + 1, block.last + 1],
        "alpha": block.acceptance_rate,
        "tokens_per_round": block.tokens_per_round,
        "adapter_versions": list(block.adapter_versions),
        "rounds": block.rounds,
        "proposed": block.proposed,
        "judged": block.judged,
        "accepted": block.accepted,
        "tokens": block.tokens,
        "seconds": block.seconds,
        "tokens_per_s": block.tokens_per_s,
    }


def _domain_row(domain: str, first: Block, last: Block, control: Block | None) -> Json:
    untrained = None if control is None else control.acceptance_rate
    gain = None
    if untrained is not None and last.acceptance_rate is not None:
        gain = last.acceptance_rate - untrained
    return {
        "domain": domain,
        "alpha_first_ten": first.acceptance_rate,
        "alpha_last_ten": last.acceptance_rate,
        "alpha_last_ten_untrained": untrained,
        "alpha_gain_over_untrained": gain,
        "tokens_per_round_first_ten": first.tokens_per_round,
        "tokens_per_round_last_ten": last.tokens_per_round,
    }


def domain_rows(served: Sequence[Answer], control: Sequence[Answer]) -> list[Json]:
    """First and last ten requests of each domain; the untrained draft's from the control."""
    theirs = {domain: last for domain, (_, last) in domain_ends(control).items()}
    return [
        _domain_row(domain, first, last, theirs.get(domain))
        for domain, (first, last) in domain_ends(served).items()
    ]


def last_speeds(answers: Sequence[Answer]) -> dict[str, float]:
    """Tokens per second of each domain's last ten requests."""
    return {domain: last.tokens_per_s for domain, (_, last) in domain_ends(answers).items()}


def speed_rows(passes: Passes) -> Json:
    """Served against plain decoding: as many in flight, prompts included and shared in both."""
    plain = pass_speed(passes.speed_sample)
    served = pass_speed(passes.served)
    by_domain, last = last_speeds(passes.speed_sample), last_speeds(passes.served)
    ratios = {name: last[name] / by_domain[name] for name in last if by_domain.get(name)}
    return {
        "plain_tokens_per_s": plain,
        "served_tokens_per_s": served,
        "served_over_plain": served / plain,
        "plain_tokens_per_s_by_domain": by_domain,
        "last_ten_tokens_per_s_by_domain": last,
        "last_ten_over_plain_by_domain": ratios,
        "last_ten_over_plain": statistics.mean(ratios.values()) if ratios else None,
        "plain_batch_tokens_per_s": pass_speed(passes.plain),
    }


def tool_row(passes: Passes) -> Json | None:
    """Acceptance and speed of the calls; None without any."""
    if not passes.tools:
        return None
    block = sum_block(passes.tools, 0.0)
    return {
        "calls": len(passes.tools),
        "alpha": block.acceptance_rate,
        "tokens_per_round": block.tokens_per_round,
        "served_over_plain": pass_speed(passes.tools) / pass_speed(passes.tools_plain),
    }


def _divergence_row(item: Divergence, margin: float | None) -> Json:
    return {
        "request": item.index + 1,
        "position": item.position,
        "served_id": item.served_id,
        "plain_id": item.plain_id,
        "margin": margin,
    }


def identity_row(checked: Checked) -> Json:
    """Counts, and each first divergence with its margin in logits."""
    rows = zip(checked.comparison.divergences, checked.margins, strict=True)
    return {
        "compared": checked.comparison.compared,
        "identical": checked.comparison.identical,
        "divergences": [_divergence_row(item, margin) for item, margin in rows],
    }


def make_report(about: Mapping[str, Any], passes: Passes, checked: Mapping[str, Checked]) -> Json:
    """The whole report; ``about`` are the settings and times of the run, ``checked`` is by pass."""
    total = sum_block(passes.served, 0.0)
    return {
        **about,
        "blocks": [block_row(block) for block in split_blocks(passes.served)],
        "control_blocks": [block_row(block) for block in split_blocks(passes.control)],
        "domains": domain_rows(passes.served, passes.control),
        "total": {**block_row(total), "domain": "all"},
        "speed": speed_rows(passes),
        "tools": tool_row(passes),
        "identity": {name: identity_row(one) for name, one in checked.items()},
        "answers": [dataclasses.asdict(answer) for answer in passes.served],
    }


def all_identical(report: Mapping[str, Any]) -> bool:
    """Whether every compared answer of both passes was the same."""
    return all(row["identical"] == row["compared"] for row in report["identity"].values())
