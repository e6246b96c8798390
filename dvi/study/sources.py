"""What an engine of fixed K makes of a stream with the draft alone, the memory alone, and ``auto``.

Owns a round over a recorded answer: the engine's controller chooses, its session counts, its memory
recalls, and the recorded tokens stand for the target. Holds no rule of its own and knows neither
training nor tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from dvi.acceptance import accept_prefix
from dvi.config import DviConfig
from dvi.decoding.controller import Controller
from dvi.decoding.plans import DraftPlan, Offers
from dvi.decoding.propose import NOTHING, first_of, make_draft_request
from dvi.decoding.session import Session
from dvi.decoding.text import DecoderFactory
from dvi.decoding.verdict import Verdict
from dvi.drafting import Proposal
from dvi.drafting.memory import MemoryDrafter
from dvi.study.rounds import letters
from dvi.study.simulate import Guess
from dvi.types import DecodeRequest, Source, Trace

ROW = 0
NO_LOGITS = torch.empty(0, 0)  # nobody asks a recorded answer for log-probabilities


@dataclass(frozen=True, slots=True)
class Setup:
    """An engine's config and what makes its detokenizers."""

    config: DviConfig  # K is fixed
    make_decoder: DecoderFactory


class Server:
    """One engine over a stream, request after request, with the sources that it is given."""

    def __init__(self, setup: Setup, memory: MemoryDrafter | None, *, can_draft: bool) -> None:
        assert not setup.config.decoding.adaptive
        self._setup = setup
        self._memory = memory
        self._can_draft = can_draft
        self._controller = Controller(setup.config.decoding)

    def serve(self, trace: Trace, guess: Guess) -> str:
        """The rounds of one answer in letters (``rounds.letters``); the memory then knows it."""
        decoder = self._setup.make_decoder(skip_special_tokens=trace.sampling.skip_special_tokens)
        request = DecodeRequest(trace.request_id, trace.prompt_ids, trace.sampling)
        session = Session(request, ROW, self._setup.config.serving.max_context_len, decoder)
        text = ""
        while session.finish_reason is None:
            text += self._round(session, trace, guess)
        self.remember(trace)
        if self._memory is not None:
            self._memory.release(ROW)
        return text

    def remember(self, trace: Trace) -> None:
        """Let the memory, if there is one, learn an answer."""
        if self._memory is not None:
            self._memory.remember_trace(trace, "")

    def _round(self, session: Session, trace: Trace, guess: Guess) -> str:
        """As ``Engine.step``, for one session."""
        most = self._controller.most_proposals(session)
        offers = self._offers(session, guess)
        (plan,) = self._controller.plan([session], offers)
        proposal = _proposed(plan, offers.recalled[0], guess, session.num_generated)
        commit = session.commit(_verdict(proposal, trace.output_ids[session.num_generated :]))
        self._controller.learn([session], [proposal], [commit])
        is_short = session.finish_reason is None and len(proposal.ids) < most
        return letters(commit.round, is_short=is_short)

    def _offers(self, session: Session, guess: Guess) -> Offers:
        most, recalled = self._controller.most_proposals(session), NOTHING
        if self._memory is not None and most:
            (recalled,) = self._memory.recall([make_draft_request(session, most)])
        return Offers([recalled], self._can_draft, guess.version, guess.published)


def _proposed(plan: DraftPlan, recalled: Proposal, guess: Guess, start: int) -> Proposal:
    """What the planned source proposes for the tokens from ``start`` on.

    The guess is right up to the first reject, and what comes after it is never judged.
    """
    if plan.source is Source.MEMORY:
        return first_of(recalled, plan.length)
    own = slice(start, start + plan.length)
    drafted = Proposal(
        tuple(guess.ids[own]), tuple(guess.logprobs[own]), Source.NEURAL, guess.version
    )
    return drafted if drafted.ids else NOTHING


def _verdict(proposal: Proposal, left: Sequence[int]) -> Verdict:
    """``left``: the answer's tokens from the round's first on; there may be none after the last."""
    chosen = left[: len(proposal.ids) + 1]
    num_accepted = accept_prefix(proposal.ids, chosen)
    return Verdict(proposal, num_accepted, tuple(chosen[: num_accepted + 1]), NO_LOGITS)


def servers(setup: Setup) -> Mapping[str, Server]:
    """By name: either source alone and the choice between both."""
    config = setup.config.drafter
    return {
        "neural": Server(setup, None, can_draft=True),
        "memory": Server(setup, MemoryDrafter(config), can_draft=False),
        "auto": Server(setup, MemoryDrafter(config), can_draft=True),
    }


def serve_all(setup: Setup, stream: Sequence[tuple[Trace, Guess]]) -> list[dict[str, str]]:
    """Every answer by every server, see ``Server.serve``."""
    by_name = servers(setup)
    return [
        {name: one.serve(trace, guess) for name, one in by_name.items()} for trace, guess in stream
    ]
