"""PromQL expressions taken apart: which series they select.

Owns the walk over the parsed expression; knows no metric.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import promql_parser

OPERATORS = {
    "MatchOp.Equal": "=",
    "MatchOp.NotEqual": "!=",
    "MatchOp.Re": "=~",
    "MatchOp.NotRe": "!~",
}
# What Grafana fills in before it asks Prometheus.
GRAFANA_VARIABLES = {"$__rate_interval": "5m", "$instance": ".*", "$job": "dvi"}


@dataclass(frozen=True, slots=True)
class Selector:
    """One series selector: a metric and its label matchers as (label, operator, value)."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]

    def admits(self, labels: dict[str, str]) -> bool:
        """Whether a series with these labels passes every matcher; a missing label is empty."""
        tests = {
            "=": lambda have, want: have == want,
            "!=": lambda have, want: have != want,
            "=~": lambda have, want: re.fullmatch(want, have) is not None,
            "!~": lambda have, want: re.fullmatch(want, have) is None,
        }
        return all(tests[op](labels.get(label, ""), value) for label, op, value in self.matchers)


def selectors(expression: str) -> list[Selector]:
    """Every selector in an expression. ValueError: it is not PromQL."""
    for name, value in GRAFANA_VARIABLES.items():
        expression = expression.replace(name, value)
    found: list[Selector] = []

    def visit(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            matchers = ((m.name, OPERATORS[str(m.op)], m.value) for m in node.matchers.matchers)
            found.append(Selector(node.name or "", tuple(matchers)))
        return True

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found
