"""Drafters: one file a kind, one interface. Training lives in ``dvi.drafting.lora``."""

from dvi.drafting.base import AdapterRefused, Drafter, DraftRequest, DraftWeights, Proposal
from dvi.drafting.branch import DraftBranch
from dvi.drafting.factory import DRAFTERS, draft_branch, make_drafter
from dvi.drafting.module import DraftModule

__all__ = [
    "DRAFTERS",
    "AdapterRefused",
    "DraftBranch",
    "DraftModule",
    "DraftRequest",
    "DraftWeights",
    "Drafter",
    "Proposal",
    "draft_branch",
    "make_drafter",
]
