"""The service as publisher: one message that it appends to a log, for a person.

Programs publish to the log themselves. A person at the dashboard cannot, so there the service
appends for them, one message at a time, with its own access to the log. Whether the person may
publish is checked before (`broker.calls.messages`).

The message has an id, under which a log takes it once: it is sequence 0 of a publisher of this
name. So a call whose outcome is not known is repeated with the same id, also at another replica; a
topic of Kafka is searched for it. The key decides the partition, as for every publisher. A message
without one goes to the given partition, or to one that its id decides, so that a repetition is
routed alike.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from counterpoise.keys import hash_of
from counterpoise.logs import AppendBatch, AppendResult, Message, StaleRouting

# A resize or a split in between is rare, and each attempt knows what the last one was told.
ATTEMPTS = 4


class Appended(NamedTuple):
    """Where the message is. `before`: the log had it already, from an earlier call."""

    partition: int
    before: bool


async def append_one(
    append: Callable[[AppendBatch], Awaitable[AppendResult]],
    message: Message,
    id: str | None,
    partition_count: int,
    partition: int | None = None,
) -> Appended:
    """Append a message under this id; `append` is the log's (`counterpoise.logs.Log.append`).

    `id` None: nobody repeats it. `partition` is for a message without a key. Raises what the log
    raises; the last refusal of the routing if the partitions change all the time.
    """
    # The package brings the client with it, which the service does not need to start.
    from counterpoise.publisher.buffer import Routing

    publisher = f"service-{secrets.token_hex(16)}" if id is None else id
    number = hash_of(publisher if message.key is None else message.key)
    routing = Routing(partition_count)
    for attempt in range(1, ATTEMPTS + 1):
        to = routing.partition(message, number) if partition is None else partition
        by_range = routing.ranges is not None
        batch = AppendBatch(
            publisher,
            0,
            routing.partition_count,
            [to],
            [message],
            by_range=by_range,
            elsewhere=id is not None,
        )
        try:
            result = await append(batch)
        except StaleRouting as stale:
            if attempt == ATTEMPTS:
                raise
            routing = Routing(stale.partition_count, stale.ranges)
        else:
            return Appended(to, before=result.appended == 0)
    raise AssertionError("the last attempt returns or raises")
