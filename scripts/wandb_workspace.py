"""Makes a saved W&B view of our curves: alpha and drift, speed, adapters, training.

    pip install wandb-workspaces && wandb login
    python scripts/wandb_workspace.py ENTITY [PROJECT]

Owns which curves stand side by side; docs/wandb.md shows the same list for a view made by hand.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

VIEW = "dvi"


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves of one family over its own axis."""

    title: str
    axis: str
    curves: tuple[str, ...]


SERVED = "serve/tokens"
SECTIONS: dict[str, tuple[Panel, ...]] = {
    "Acceptance and drift": (
        Panel("alpha, fast and slow", SERVED, ("drift/alpha_fast", "drift/alpha_slow")),
        Panel("drift events so far", SERVED, ("drift/event",)),
        Panel("alpha at a drift event", SERVED, ("drift/before", "drift/after")),
        Panel("adapter version in service", SERVED, ("serve/adapter_version",)),
    ),
    "Speed": (
        Panel("tokens per round", SERVED, ("serve/tokens_per_round",)),
        Panel("proposals a round", SERVED, ("serve/draft_length_tokens",)),
        Panel(
            "proposed, judged, accepted",
            SERVED,
            ("serve/proposed", "serve/judged", "serve/accepted"),
        ),
        Panel("running and waiting", SERVED, ("serve/running_requests", "serve/queue_depth")),
    ),
    "Adapters": (
        Panel(
            "agreement on held-out traces",
            "adapter/version",
            (
                "adapter/candidate_agreement",
                "adapter/served_agreement",
                "adapter/untrained_agreement",
            ),
        ),
        Panel("promoted (1) or held (0)", "adapter/version", ("adapter/gate_promoted",)),
        Panel(
            "dvi train: held-out acceptance",
            "adapter/version",
            ("adapter/holdout_acceptance_before", "adapter/holdout_acceptance"),
        ),
    ),
    "Training": (
        Panel("loss", "train/step", ("train/loss",)),
        Panel("agreement", "train/step", ("train/agreement",)),
        Panel("gradient norm", "train/step", ("train/grad_norm",)),
    ),
}


def workspace(entity: str, project: str) -> Any:
    """The view, not saved yet; runs are grouped as their state folders are."""
    from wandb_workspaces import workspaces
    from wandb_workspaces.reports import v2 as reports

    sections = [
        workspaces.Section(
            name=name,
            is_open=True,
            panels=[
                reports.LinePlot(title=panel.title, x=panel.axis, y=list(panel.curves))
                for panel in panels
            ],
        )
        for name, panels in SECTIONS.items()
    ]
    return workspaces.Workspace(name=VIEW, entity=entity, project=project, sections=sections)


def main(arguments: list[str]) -> int:
    """Save the view and print its address; 2 for wrong usage or a missing package."""
    if len(arguments) not in (1, 2) or arguments[0].startswith("-"):
        print("usage: python scripts/wandb_workspace.py ENTITY [PROJECT]", file=sys.stderr)
        return 2
    try:
        view = workspace(*arguments) if len(arguments) == 2 else workspace(arguments[0], "dvi")
    except ModuleNotFoundError:
        print("pip install wandb-workspaces", file=sys.stderr)
        return 2
    view.save()
    print(view.url)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
