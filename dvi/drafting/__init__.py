"""Drafters: one file a kind, one interface."""

from dvi.drafting.base import AdapterRefused, Drafter, DraftRequest, DraftWeights, Proposal

__all__ = ["AdapterRefused", "DraftRequest", "DraftWeights", "Drafter", "Proposal"]
