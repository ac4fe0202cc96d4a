"""Messages of a partition for people: what is in the log, without owning anything.

The right to consume the queue must have been checked: messages are what consumers may read, and
a viewer sees queues and not messages. A look is for a person: its values have at most LOOK_BYTES,
so one that asks for more of each value has fewer messages, and one message is seen whole.
"""

from __future__ import annotations

import base64
import codecs

from broker.calls.access import QueueAccess
from broker.calls.times import time_of
from broker.core.errors import Invalid
from broker.core.queue import Queue
from broker.logs.peeking import PeekedMessage
from broker.logs.ports import Logs
from broker.logs.positions import refuse_invalid
from counterpoise import wire

LOOK_BYTES = 1_000_000


class MessageCalls:
    """Looks at the logs of queues."""

    def __init__(self, queues: QueueAccess, logs: Logs) -> None:
        self._queues = queues
        self._logs = logs

    async def peek(
        self, name: str, partition: int, position: str | None, limit: int, max_bytes: int
    ) -> wire.ShownMessages:
        """At most `limit` messages of a partition from a position on, or from its first message.

        Of each at most `max_bytes` of the value; with more than `LOOK_BYTES` in all, there are
        fewer messages.
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
        most = min(limit, max(1, LOOK_BYTES // max(1, max_bytes)))
        found = await self._logs.peek(log, partition, position, most, max_bytes)
        return wire.ShownMessages(
            partition, found.start, found.end, tuple(map(_shown, found.messages)), found.following
        )


def _shown(message: PeekedMessage) -> wire.ShownMessage:
    """The message with its value as text if it is valid UTF-8, else in base64."""
    whole = len(message.value) == message.size_bytes
    text = encoded = None
    try:
        # A character at the cut may be incomplete.
        text = codecs.getincrementaldecoder("utf-8")().decode(message.value, final=whole)
    except UnicodeDecodeError:
        encoded = base64.b64encode(message.value).decode()
    return wire.ShownMessage(
        position=message.position,
        published_at=time_of(message.published_at),
        key=message.key,
        headers=None if message.headers is None else dict(message.headers),
        size_bytes=message.size_bytes,
        value=text,
        value_base64=encoded,
    )
