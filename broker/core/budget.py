"""How much one key may make a queue move in an hour.

A flow that binds takes partitions from others, and each of them pauses for a moment. So flows that
come and go all the time keep a queue from its work, though each bind is allowed. What a key's flows
take from bound flows of other keys is counted (`Queue.moved`). A key that has taken as much as it
may can bind still, but its new flows are *held back*: they take no part in the balance until there
is room for what they would take (the contract, *A budget of moves*).

Not counted is what nobody loses: partitions without an owner, of flows that drain, and of the key's
own flows. So a queue that one key alone consumes is never held up.

The count is a leaky bucket, which is full with as much as leaks from it in an hour. How much that
is, is a setting of the service and comes with each bind; so the bucket leaks with the binds of its
key (`FlowBound.moved`), and the records of handoffs only fill it. Flows that bind together all join
before any of them has taken something, so there may be more in it than that: the next ones wait for
longer then. A bucket is forgotten when it is empty whatever the setting is, which is a multiple of
the number of partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

HOUR = 3600.0
# Sums are the same then, in whatever steps they are made.
_DIGITS = 6


class Moves(NamedTuple):
    """What a key has taken: so much of it counted `at` that time, or came later."""

    level: float
    at: float

    def leaked(self, most: int, time: float) -> float:
        """What counts at this time, if so many leak in an hour."""
        passed = max(0.0, time - self.at)
        return round(max(0.0, self.level - most * passed / HOUR), _DIGITS)


def counted(
    moved: Mapping[str, Moves], taken: Mapping[str, int], time: float, least: int
) -> dict[str, Moves]:
    """`moved` with what keys have taken at this time, without what has surely leaked away by now:
    in an hour at least so many (`least`) leak."""
    result = {key: moves for key, moves in moved.items() if moves.leaked(least, time)}
    for key, count in taken.items():
        level, at = result.get(key, Moves(0.0, time))
        result[key] = Moves(round(level + count, _DIGITS), at)
    return result


def held_until(level: float, most: int, share: int, waiting: int, time: float) -> float | None:
    """Until when a new flow of a key is held back; None: it is not.

    `level` counts at this time, of the `most` with which the bucket is full. `share` is what the
    flow would take. So would each of the flows of the key, so many, that are `waiting` already, and
    before it.
    """
    above = level + share * (1 + waiting) - most
    return time + HOUR * above / most if level and above > 0 else None
