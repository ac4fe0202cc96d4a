"""Messages for people: what is in the log, without owning anything, and one that they publish.

The right to consume the queue must have been checked: messages are what consumers may read, and
a viewer sees queues and not messages. A look is for a person: its values have at most LOOK_BYTES,
so one that asks for more of each value has fewer messages, and one message is seen whole.

What a person publishes is in the audit: where, and how large, and nothing of it. The log and the
audit are two databases, so the row is written first. A message that the log then refuses has a row,
too; none is published without one.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
from dataclasses import replace

from broker.calls.access import QueueAccess, act_of
from broker.calls.logs import LogCalls
from broker.calls.times import time_of
from broker.core.access import Caller
from broker.core.errors import Invalid
from broker.core.queue import Queue
from broker.logs.peeking import PeekedMessage
from broker.logs.ports import Logs
from broker.logs.positions import refuse_invalid
from broker.replica.store_calls import store_available
from counterpoise import wire
from counterpoise.logs import InvalidMessage, Message

LOOK_BYTES = 1_000_000


class MessageCalls:
    """Looks at the logs of queues."""

    def __init__(self, queues: QueueAccess, logs: Logs, log_calls: LogCalls) -> None:
        self._queues = queues
        self._logs = logs
        self._log_calls = log_calls

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

    async def publish(
        self,
        name: str,
        message: Message,
        caller: Caller | None,
        *,
        id: str | None = None,
        partition: int | None = None,
    ) -> wire.PublishedMessage:
        """Append a message to the log of a queue; once, however often it is repeated with an `id`.

        `partition` is for a message without a key. The right to publish to the queue must have been
        checked.
        Raises QueueNotFound, Forbidden, Invalid for what the queue's log cannot take, and
        Unavailable: then it may have been published.
        """
        queue = await self._log_calls.published(name, caller)
        if partition is not None:
            _check_partition(queue, message, partition)
        try:
            size_bytes = message.size_bytes()
        except InvalidMessage as error:
            raise Invalid(f"The log cannot hold this message: {error}.") from None
        act = act_of(caller, "publish_message", name)
        if act is not None:
            with store_available():
                await self._queues.store.keys.record(
                    [replace(act, after={"partition": partition, "size_bytes": size_bytes})]
                )
        appended = await self._logs.append(
            queue.log,
            message,
            None if id is None else _publisher_of(id),
            queue.partition_count,
            partition,
        )
        return wire.PublishedMessage(appended.partition, appended.before)


def _publisher_of(id: str) -> str:
    """The publisher id of a message. No program has it, whatever the caller calls the message."""
    return f"service-{hashlib.sha256(id.encode()).hexdigest()}"


def _check_partition(queue: wire.Queue, message: Message, partition: int) -> None:
    """Raises Invalid unless a person may choose this partition for this message."""
    wrong = None
    if message.key is not None:
        wrong = "is for a message without a key: the key decides the partition"
    elif queue.partitioning == "dynamic":
        wrong = "is for a queue with a partition count: this one routes by ranges of hashes"
    elif partition >= queue.partition_count:
        wrong = f"is not among the {queue.partition_count} to which messages are published"
    if wrong is not None:
        raise Invalid(f"The partition {wrong}.", [("partition", wrong)])


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
