"""How many tokens to propose: all that is configured while drafting pays, else none but a probe.

Owns the running estimate of acceptance that decides it; reads no clock, so a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

from dvi.config import DecodingConfig
from dvi.decoding.session import Session
from dvi.decoding.verdict import Commit
from dvi.metrics import TokenAverage

# Judged tokens the estimate looks back on. A probe judges one to K of them, so a draft that became
# good is believed after some ten probes; at acceptance .5 the estimate strays by about .06.
WINDOW_TOKENS = 32.0
# Judged tokens before the first estimate counts; until then the draft has the benefit of doubt.
MIN_JUDGED_TOKENS = 16


class Controller:
    """Decides draft lengths from acceptance and one break-even point. Decode thread only.

    ``break_even``: acceptance from which K = ``draft_len`` beats plain decoding.
    """

    def __init__(self, config: DecodingConfig, break_even: float) -> None:
        self._draft_len = min(config.draft_len, config.max_draft_len)
        self._adaptive = config.adaptive
        self._probe_interval = config.probe_interval_rounds
        self._break_even = break_even
        self._average = TokenAverage(WINDOW_TOKENS)
        self._num_judged = 0
        self._rounds_since_probe = 0

    def draft_lengths(self, sessions: Sequence[Session]) -> list[int]:
        """K of each session for the coming round of all of them.

        0 where a session may not draft; never more than it can still use. A round in which no
        session could draft is no probe.
        """
        room = [session.max_proposals for session in sessions]
        wanted = self._next_draft_len() if any(room) else 0
        return [min(wanted, most) for most in room]

    def learn(self, commits: Sequence[Commit]) -> None:
        """Take the fate of this round's proposals into the estimate."""
        for commit in commits:
            num_judged = len(commit.round.proposed_ids)
            if num_judged:
                self._num_judged += num_judged
                self._average.update(num_judged, commit.round.num_accepted)

    def pays(self) -> bool:
        """Whether drafting is believed to beat plain decoding."""
        if not self._adaptive or self._num_judged < MIN_JUDGED_TOKENS:
            return True
        alpha = self._average.value
        return alpha is None or alpha >= self._break_even

    def _next_draft_len(self) -> int:
        """K before the sessions' own limits; keeps count of the rounds since the last probe."""
        self._rounds_since_probe += 1
        if self.pays() or self._rounds_since_probe >= self._probe_interval:
            self._rounds_since_probe = 0
            return self._draft_len
        return 0
