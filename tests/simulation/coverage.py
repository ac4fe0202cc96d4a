"""What a campaign has met, and what it must meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from broker.core.stored import KINDS
from broker.core.transitions import PARTITION_TRANSITIONS, QUEUE_TRANSITIONS, PartitionEvent, State
from tests.simulation.plan import ACTIONS, FAULTS, RESHAPING

# A warm-up always has a successor, which takes the partition when the owner goes. The table has the
# pair to be complete.
UNREACHABLE = {(State.WARMING, PartitionEvent.ORPHANED)}


def expected() -> Iterator[str]:
    """The names of all counts that must not be 0 after some thousands of seeds."""
    for state, event in (*PARTITION_TRANSITIONS, *QUEUE_TRANSITIONS):
        if (state, event) not in UNREACHABLE:
            yield f"pair {state.value}, {event.value}"
    yield from (f"record {kind}" for kind in KINDS)
    for kinds in (*ACTIONS.values(), *FAULTS.values(), *RESHAPING.values()):
        yield from (f"event {kind}" for kind in dict.fromkeys(kinds))
    yield from ("event join follower", "cuts of a follower")
    yield from ("partitions over capacity", "work above at a grant")
    yield from ("outages", "outages before one commit", "stalled commits")
    yield from ("doubled", "answer flow_gone", "answer unavailable")


def missing(counts: Counter[str]) -> list[str]:
    """The items that were never met."""
    return [name for name in expected() if not counts[name]]


def table(counts: Counter[str]) -> str:
    """How often each item was met, one item a line."""
    names = dict.fromkeys((*expected(), "transactions", "messages", "steps"))
    return "\n".join(f"{counts[name]:12,}  {name}" for name in names)
