"""`Consumer`: processes a queue in plain Python, and shares it with other consumers.

    for message in Consumer("flights"):
        print(message.partition, message.key, message.value)

    Consumer("flights", each=handle, concurrency=4, on_poison=DeadLetter("flights-dead")).run()

    Consumer("flights", handle_batch).run()     # handle_batch(owned, batch): pyarrow.RecordBatch

docs/consumer.md says what it promises: order, at least once, bounded memory, and what becomes of a
message that cannot be handled (`poison`) and of a consumer that hangs (`watchdog`).

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

The loop's body runs in the caller's thread. Every way of leaving the loop commits the handled
messages and unbinds. In a `with Consumer(...) as consumer:` block this happens at the end of the
block at the latest, even if a traceback keeps the loop alive.

`AsyncConsumer` shares all of this but the threads of the workers, which are tasks (`asyncio`).
"""

from typing import TYPE_CHECKING

from counterpoise.consumer.consumer import Consumer, stop_on_signals
from counterpoise.consumer.message import Failure, Message, Ownership
from counterpoise.consumer.poison import DeadLetter, Retry, WrongQueue
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
    "Ownership",
    "Retry",
    "Status",
    "WrongQueue",
    "stop_on_signals",
]

if not TYPE_CHECKING:  # asyncio is loaded only for programs that use it
    __getattr__ = lazily(__name__, {"AsyncConsumer": "counterpoise.consumer.asyncio"})
