"""Promotions of a server that ran, judged by the study's rule on the answers that it stored.

Owns which answers are a version's and which version it followed; the arithmetic is in measures.py,
what a version proposes is the trainer's code. Reads registry and store and writes neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from dvi.bench.part import Grid, Section
from dvi.config import DviConfig
from dvi.config.home import adapters_dir, replay_url
from dvi.decoding.startup import load_model
from dvi.drafting import AdapterRefused
from dvi.drafting.ground import draft_fingerprint
from dvi.drafting.version import checked_tensors
from dvi.modeling.target import TargetModel
from dvi.registry import Act, Event, Registry, RegistryError
from dvi.registry.history import service_stack
from dvi.replay import is_there, open_store
from dvi.study.measures import Promotion, count_pairs, num_harmful
from dvi.study.run import cut
from dvi.study.simulate import guess, hits
from dvi.types import Source, Trace
from trainers.batch import is_usable
from trainers.build import make_learner
from trainers.draft import make_draft
from trainers.learner import Learner

MOST_ROWS = 20_000  # newest answers of the store that are looked at
PAGE_ROWS = 32  # read at a time: some 1 MB


@dataclass(frozen=True, slots=True)
class Judged:
    """One promotion."""

    version: int
    before: int  # the version that drafted before it
    requests: int
    promotion: Promotion


@dataclass(frozen=True, slots=True)
class ServedRun:
    """What a registry and a store show of their promotions."""

    judged: Sequence[Judged]
    num_promoted: int  # versions ever promoted


def drafter_of(trace: Trace) -> int | None:
    """The version that drafted last in an answer; None where no draft proposed."""
    own = [one for one in trace.rounds if one.source is Source.NEURAL and one.proposed_ids]
    return own[-1].adapter_version if own else None


def predecessors(events: Sequence[Event], drafted: Collection[int]) -> dict[int, int]:
    """Of each promoted version that drafted: the one in service before that drafted, else 0."""
    found: dict[int, int] = {}
    for place, event in enumerate(events):
        if event.act is Act.PROMOTE and event.version in drafted:
            stack = [one for one in service_stack(events[:place]) if one in {0, *drafted}]
            found.setdefault(event.version, stack[-1] if stack else 0)
    found.pop(0, None)
    return found


@dataclass(frozen=True, slots=True)
class Scorer:
    """What versions propose, by the trainer's copy of the draft."""

    learner: Learner
    registry: Registry
    fingerprint: str

    def right(self, version: int, traces: Sequence[Trace]) -> list[bool] | None:
        """Where a version proposes the token, position by position.

        None where its files are gone or do not fit this config.
        """
        adapter = None
        try:
            if version:
                adapter = self.registry.read(version)
                checked_tensors(adapter, self.learner.draft.layout, self.fingerprint)
        except (RegistryError, AdapterRefused):
            return None
        return [
            hit
            for trace in traces
            for hit in hits(guess(self.learner, trace, version, adapter), trace)
        ]


def judge_served(config: DviConfig) -> ServedRun:
    """Every promotion whose version drafted a stored answer and whose files are still there.

    Raises ValueError where there is no store.
    """
    url, registry = replay_url(config), Registry(adapters_dir(config))
    if not is_there(url):
        raise ValueError("there is no replay store: give the keys that the server ran with")
    loaded = load_model(config)
    served = _by_drafter(_stored(config, url, loaded.target.spec.num_token_ids))
    events = registry.history()
    scorer = Scorer(
        _learner(config, loaded.target, served), registry, draft_fingerprint(loaded.path, config)
    )
    judged: list[Judged] = []
    for version, before in predecessors(events, served).items():
        own = served[version]
        new, old = (scorer.right(one, own) for one in (version, before))
        if new is not None and old is not None:
            pairs = list(zip(new, old, strict=True))
            judged.append(Judged(version, before, len(own), count_pairs(pairs)))
    promoted = {one.version for one in events if one.act is Act.PROMOTE and one.version}
    return ServedRun(judged, len(promoted))


def _stored(config: DviConfig, url: str, num_token_ids: int) -> list[Trace]:
    """What can be scored, oldest first, without the target logits: memory for thousands."""
    with open_store(url, config.replay) as store:
        keys = store.newest(MOST_ROWS)[::-1]
        return [
            cut(row.trace, 1)
            for first in range(0, len(keys), PAGE_ROWS)
            for row in store.load(keys[first : first + PAGE_ROWS])
            if is_usable(row.trace, num_token_ids)
        ]


def _by_drafter(traces: Sequence[Trace]) -> dict[int, list[Trace]]:
    served: dict[int, list[Trace]] = {}
    for trace in traces:
        version = drafter_of(trace)
        if version is not None:
            served.setdefault(version, []).append(trace)
    return served


def _learner(
    config: DviConfig, target: TargetModel, served: Mapping[int, Sequence[Trace]]
) -> Learner:
    """One that reads the longest answer whole."""
    lengths = [len(one.prompt_ids) + len(one.output_ids) for own in served.values() for one in own]
    longest = max(lengths, default=0)
    trainer = replace(config.trainer, max_seq_len=max(longest, config.trainer.max_seq_len))
    draft = make_draft(config.drafter, target, config.run.seed)
    return make_learner(replace(config, trainer=trainer), target, draft)


def served_section(run: ServedRun) -> Section:
    """A line a promotion, the worst of them, and how many did harm."""
    found = [one.promotion for one in run.judged]
    harmful = num_harmful(found, len(found))
    worst = min((one.gain for one in found), default=0.0)
    rows = [
        (
            str(one.version),
            str(one.before),
            str(one.requests),
            str(one.promotion.positions),
            f"{one.promotion.gain:+.3f}",
            f"{one.promotion.doubt_of_harm():.2g}",
        )
        for one in run.judged
    ]
    head = ("version", "before it", "requests", "positions", "gain", "doubt of harm")
    notes = [
        f"{len(found)} of {run.num_promoted} promoted versions judged: those that drafted last in "
        "a stored answer, whose files are there and those of the version before",
        f"worst gain {worst:+.3f}; harmful: {harmful}",
    ]
    data = {"judged": len(found), "promoted": run.num_promoted, "harmful": harmful}
    title = "each promoted version against the one that drafted before it, on its own answers"
    return Section(data, [Grid(title, head, rows)], notes=notes)
