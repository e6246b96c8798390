"""Watching live acceptance for change."""

from dvi.drift.acceptance import AcceptanceDrift

__all__ = ["AcceptanceDrift"]
