"""The parts of the bench, in the order in which they run.

Owns the table and what ``bench.parts`` means; does not know how anything is measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from dvi.bench.curve import CURVE
from dvi.bench.int8 import INT8
from dvi.bench.live import LIVE
from dvi.bench.net import NET
from dvi.bench.part import Part
from dvi.bench.peers import PEERS
from dvi.bench.prefix import PREFIX
from dvi.bench.spec import SPEC
from dvi.bench.staging import STAGING
from dvi.bench.steps import STEPS
from dvi.bench.stream import STREAM
from dvi.bench.swaps import SWAPS

PARTS: Sequence[Part] = (
    STREAM,
    SPEC,
    PEERS,
    INT8,
    LIVE,
    NET,
    CURVE,
    STEPS,
    SWAPS,
    STAGING,
    PREFIX,
)


def chosen_parts(text: str, table: Sequence[Part] = PARTS) -> list[Part]:
    """Parts named in ``text`` (``stream+steps``, ``default`` or ``all``) in the table's order.

    Raises ValueError with one line for a name that is none of them.
    """
    words = [word.strip() for word in text.replace(",", "+").split("+") if word.strip()]
    names = [part.name for part in table]
    unknown = [word for word in words if word not in (*names, "default", "all")]
    if unknown or not words:
        raise ValueError(
            f"bench.parts={text}: name parts as in bench.parts={'+'.join(names[:2])}; there are "
            f"{', '.join(names)}, and default and all"
        )
    return [
        part
        for part in table
        if part.name in words or "all" in words or ("default" in words and part.by_default)
    ]
