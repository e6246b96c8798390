"""Counter-based noise, truncation and the one choice rule; pure functions."""

from dvi.sampling.choice import ChoicePoint, choose, choose_draft
from dvi.sampling.margin import choice_margin
from dvi.sampling.noise import GUMBEL_MAX, Purpose, gumbel, hashed_bits

__all__ = [
    "GUMBEL_MAX",
    "ChoicePoint",
    "Purpose",
    "choice_margin",
    "choose",
    "choose_draft",
    "gumbel",
    "hashed_bits",
]
