"""Narrow traffic from templates: what demo and bench send. Text only, no torch."""
