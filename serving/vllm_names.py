"""Our counts under vLLM's metric names, for `vllm bench serve` and dashboards made for vLLM.

Owns four names and their two labels; knows nothing of our own metrics.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from dvi.decoding import EngineStats

ENGINE = "0"  # vLLM numbers the engines behind one server; we have one


def vllm_counters(stats: EngineStats, model: str) -> Iterator[Metric]:
    """The four ``vllm:spec_decode_num_*_total`` with vLLM's labels, every child from the start.

    A draft is a round that proposed something, whoever proposed it. So vLLM's mean acceptance
    length, 1 + accepted / drafts, leaves out rounds without a proposal, which ours counts as 1.
    """
    positions = stats.proposed_per_position
    totals = {
        "drafts": ("Rounds with at least one proposed token.", positions[0] if positions else 0),
        "draft_tokens": ("Draft tokens proposed.", sum(positions)),
        "accepted_tokens": ("Draft tokens accepted.", sum(stats.accepted_per_position)),
    }
    labels = ["model_name", "engine"]
    for name, (text, value) in totals.items():
        family = CounterMetricFamily(f"vllm:spec_decode_num_{name}", text, labels=labels)
        family.add_metric([model, ENGINE], value)
        yield family
    by_position = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens accepted at a position of the round.",
        labels=[*labels, "position"],
    )
    for position, value in enumerate(stats.accepted_per_position):
        by_position.add_metric([model, ENGINE, str(position)], value)
    yield by_position
