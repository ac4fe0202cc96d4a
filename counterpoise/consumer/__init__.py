"""`Consumer`: processes a queue in plain Python, and shares it with other consumers.

    for message in Consumer("flights"):
        print(message.partition, message.key, message.value)

    Consumer("flights", each=handle, concurrency=4, on_poison=DeadLetter("flights-dead")).run()

    Consumer("flights", handle_batch).run()     # handle_batch(owned, batch): pyarrow.RecordBatch

What it promises
----------------
**Order and at least once.** The messages of a partition are handled one after another, in their
order, by one thread at a time. Commits cover a prefix of the handled messages. If a process dies or
a partition is taken by force, the next owner repeats the handled messages without a commit. A
graceful handoff repeats nothing.

**Partitions do not wait for each other**, only for workers. Reading ahead is bounded for each.

**A revoked partition is released as soon as its present message (or batch) is done.** A slow
handler asks `message.time_left()`; a message finished after the deadline does not count.

**A message that cannot be handled** stops the consumer, stops its partition, or is stored elsewhere
(`counterpoise.consumer.poison`). It is never skipped silently.

**A stuck consumer loses its lease** (`counterpoise.consumer.watchdog`).

How it works
------------
    flow  ──view──►  settler  ──follow──►  lanes  ◄──fill──  reader  ◄──  log
                        ▲                  │   ▲
                        └──── positions ───┘   └── take, put back ──  workers ──►  handler

Each grant of a partition is a *lane* (`lanes`: start reading there). The *reader* fills lanes from
the log, *workers* take pieces from them, the *settler* follows the flow's view, commits and
releases, and a *lookout* watches over the flow and the workers. They share nothing but the lanes.
So a service, a log or a handler that hangs stops only what needs it: without the service the
consumer continues with its partitions, without the log it waits.

Iterating
---------
A message counts as handled when the loop asks for the next one. So an exception in the body, or
`break`, leaves the present message unhandled: it comes again. To end after the present message,
call `consumer.stop(now=True)` in the body and let the loop end by itself. After `consumer.stop()`
it ends once all partitions have been handed over, and works on them until then. The loop's body
runs in the caller's thread. Every way of leaving the loop commits the handled messages and unbinds.
In a `with Consumer(...) as consumer:` block this happens at the end of the block at the latest,
even if a traceback keeps the loop alive.

With an event loop
------------------
`AsyncConsumer` makes the same promises to async handlers and in `async for`. It shares all of the
above but the threads of the workers, which are tasks (`counterpoise.consumer.asyncio`).
"""

from typing import TYPE_CHECKING

from counterpoise.consumer.consumer import Consumer, stop_on_signals
from counterpoise.consumer.message import Failure, Message, Ownership
from counterpoise.consumer.poison import DeadLetter, Retry, SameQueue
from counterpoise.consumer.retry_queue import NotARecord
from counterpoise.consumer.status import LaneStatus, Status
from counterpoise.consumer.work import Each, Handle
from counterpoise.lazy import lazily

if TYPE_CHECKING:
    from counterpoise.consumer.asyncio import AsyncConsumer

__all__ = [
    "AsyncConsumer",
    "Consumer",
    "DeadLetter",
    "Each",
    "Failure",
    "Handle",
    "LaneStatus",
    "Message",
    "NotARecord",
    "Ownership",
    "Retry",
    "SameQueue",
    "Status",
    "stop_on_signals",
]

if not TYPE_CHECKING:  # asyncio is loaded only for programs that use it
    __getattr__ = lazily(__name__, {"AsyncConsumer": "counterpoise.consumer.asyncio"})
