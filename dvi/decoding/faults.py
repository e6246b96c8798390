"""What a failing forward or drafter may raise.

Owns the fault boundary of the decode thread; does not know what is done about a fault.
"""

from __future__ import annotations

# Everything that arithmetic, indexing, allocation or a broken promise between rooms can raise.
# torch raises RuntimeError (out of memory included). Not here: signals and exits, which must stop
# the thread.
FAULTS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
