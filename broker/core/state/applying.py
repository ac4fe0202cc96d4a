"""What each kind of record does to a queue: the functions are registered by subject.

`replay` has those of flows, handoffs and resizes.
"""

from __future__ import annotations

from functools import singledispatch

from broker.core.state.queue import Queue


@singledispatch
def apply(record: object, queue: Queue) -> None:
    """Changes the queue as the record says."""
    raise AssertionError(f"no replay for {type(record).__name__}")
