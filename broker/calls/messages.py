"""Messages of a partition for people: what is in the log, without owning anything.

The right to consume the queue must have been checked: messages are what consumers may read, and
a viewer sees queues and not messages.
"""

from __future__ import annotations

from broker.calls.access import QueueAccess
from broker.core.errors import Invalid
from broker.core.queue import Queue
from broker.logs.peeking import Peek
from broker.logs.ports import Logs
from broker.logs.positions import refuse_invalid


class MessageCalls:
    """Looks at the logs of queues."""

    def __init__(self, queues: QueueAccess, logs: Logs) -> None:
        self._queues = queues
        self._logs = logs

    async def peek(
        self, name: str, partition: int, position: str | None, limit: int, max_bytes: int
    ) -> Peek:
        """At most `limit` messages of a partition from a position on, or from its first message.

        Raises QueueNotFound, Invalid for a partition that the queue does not have or a log that
        the service cannot read, and Unavailable.
        """

        def log_of(queue: Queue) -> str:
            if not queue.exists(partition):
                raise Invalid(
                    f"The queue {name!r} has no partition {partition}.",
                    [("partition", "is not in the queue")],
                )
            return queue.settings.log

        log = await self._queues.read(name, log_of)
        if position is not None:
            refuse_invalid(log, {"position": position})
        return await self._logs.peek(log, partition, position, limit, max_bytes)
