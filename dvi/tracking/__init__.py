"""Curves: local JSON lines and W&B. Never slows or stops what it watches.

Owns where numbers go; does not know what they mean.
"""

from dvi.tracking.base import Alert, KeptAdapter, MetricRow, Value
from dvi.tracking.make import Tracker, make_tracker
from dvi.tracking.sink import Sink, SinkThread

__all__ = [
    "Alert",
    "KeptAdapter",
    "MetricRow",
    "Sink",
    "SinkThread",
    "Tracker",
    "Value",
    "make_tracker",
]
