"""What stays in a built-in log after all queues that read it have processed it.

The queue that owns the log says how long (`retention_seconds`, from the time of publishing) and how
much (`retention_bytes`, of the whole log). What exceeds either of them may go. Messages that a
queue has not processed count for neither: they stay whatever happens (`trim_floor`).

The service looks once a minute, at what may be trimmed [start, floor) of each partition:

1. *Time.* It looks for the first message there that is young enough. The search begins at the
   start, so it reads what will be deleted, and one message more. What it finds old in half a minute
   goes, and the rest is for the next time. Publishers may give times that are not in order; then an
   old message stays behind a younger one, until that one is old too.
2. *Size.* The log takes the mean of a few messages from there on, and thus estimates what the
   partition would keep. If all partitions together would keep too much, each one keeps the same
   share of its messages, the newest ones.

So nothing is counted when messages are appended, and the size is about what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

DEFAULT_SECONDS = 86_400.0
DEFAULT_BYTES = 1 << 30
MOST_SECONDS = 10 * 365 * 86_400
MOST_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class Retention:
    """How long and how much; with 0 in either, nothing stays."""

    seconds: float
    most_bytes: int

    @property
    def keeps(self) -> bool:
        """Whether anything stays at all."""
        return self.seconds > 0 and self.most_bytes > 0


class Young(NamedTuple):
    """Of one partition: where the messages begin that are young enough, and their mean size.

    With a mean of 0: none is before that position, and the search has not gone further.
    """

    position: int
    mean_bytes: float


def kept_bytes(floor: Mapping[int, int], young: Mapping[int, Young]) -> float:
    """How much the partitions in `young` would keep, if only time counted.

    `floor`: up to where all queues have processed each partition.
    """
    return sum((floor[number] - one.position) * one.mean_bytes for number, one in young.items())


def beyond(
    floor: Mapping[int, int], young: Mapping[int, Young], share: float = 1.0
) -> dict[int, int]:
    """Up to which position each partition may be trimmed.

    A partition that is not in `young` has nothing that is young enough. The others keep `share` of
    what is, the newest part.
    """
    kept = {number: int((floor[number] - one.position) * share) for number, one in young.items()}
    return {number: position - kept.get(number, 0) for number, position in floor.items()}
