"""A query whose state Spark keeps: the source sees to it that the state is of all messages.

The state is in the query's checkpoint, and no handoff takes it along (docs, *State and handoffs*).
So such a query reads an exclusive queue, and its flow says that it keeps state. Then the service
neither shares the queue nor binds a second query with state (the contract, *State outside of the
queue*). What the service cannot know, the source sees when a partition is granted. The state is
whole if the partition goes on where this query has stopped, or if nobody has processed any of it.

| the partition | the query |
|---|---|
| goes to another consumer, and the query does not drain | ends with `StateLost` |
| comes back at another position, because others have processed it | ends with `StateLost` |
| was processed before this query's first micro-batch of it | reports `state_lost` and goes on |

In the last case the user has chosen to begin with empty state. With `stateOnHandoff=lose` the loss
is accepted: then all of it is reported, and nothing ends the query. Positions that an administrator
sets are followed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from counterpoise.conditions import state_lost
from counterpoise.flow import Flow
from counterpoise.spark.errors import StateLost
from counterpoise.spark.offsets import Slice
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.source.progress import Lacking, SharedProgress
from counterpoise.wire import Condition

logger = logging.getLogger("counterpoise.spark")

_INSTEAD = (
    "Aggregate in the sink (docs/spark.md, State and handoffs), keep the queue exclusive with this "
    "one application, or accept the loss: .option('stateOnHandoff', 'lose')"
)


class KeptState:
    """The watch over one query's state. `accepts_loss`: only report."""

    def __init__(self, options: SourceOptions, flow: Flow, shared: SharedProgress) -> None:
        self._queue = options.queue
        self._accepts_loss = options.state_on_handoff == "lose"
        self._flow = flow
        self._shared = shared
        self._begun_without: dict[int, str | None] = {}

    def check(self) -> None:
        """Look at the partitions that are held, before more is read of them. Spark's thread.

        Raises StateLost.
        """
        flow = self._flow
        with self._shared.locked() as progress:
            view = flow.partitions
            lacking = progress.lacking(view)
        going = [one.partition for one in view.values() if one.state == "revoking"]
        if going and not flow.draining and not self._accepts_loss:
            raise StateLost(
                f"queue {self._queue!r}: partition {going[0]} goes to another consumer, and the "
                "state that Spark keeps of it stays here: the queue is not exclusive any more, or "
                f"another consumer comes first. {_INSTEAD}"
            )
        for one in lacking:
            self._take(one)

    def refuse_to_skip(self, skipped: Sequence[Slice]) -> None:
        """A micro-batch that leaves these out must not be done: nobody would miss them later.

        Raises StateLost.
        """
        if skipped:
            one = skipped[0]
            raise StateLost(
                f"queue {self._queue!r}: partition {one.partition} was handed over under epoch "
                f"{one.epoch}, amid a micro-batch, so the state that Spark keeps of it would lack "
                f"the messages from {one.start} on. {_INSTEAD}"
            )

    def _take(self, one: Lacking) -> None:
        if one.reached is not None and not self._accepts_loss:
            raise StateLost(
                f"queue {self._queue!r}: other consumers have processed partition {one.partition} "
                f"up to position {one.position}, and the state that Spark keeps of it ends at "
                f"{one.reached}. To begin with empty state, start the query with another "
                "checkpointLocation (to count everything again, set the positions to earliest "
                f"first). {_INSTEAD}"
            )
        self._begun_without[one.partition] = one.position
        logger.warning(
            "counterpoise: queue %s: partition %d begins at position %s without the state of what "
            "was processed before: windows, keys and ids of these messages are missing or "
            "incomplete in the result",
            self._queue,
            one.partition,
            one.position,
        )

    def conditions(self) -> Iterator[Condition]:
        """What the query reports to the service."""
        return state_lost(self._begun_without)
