"""`Consumer`: works through a queue in plain Python, sharing it with whoever else does.

    for message in Consumer("flights"):
        print(message.partition, message.key, message.value)

    Consumer("flights", each=handle, workers=4, on_poison=DeadLetter("flights-dead")).run()

    Consumer("flights", handle_batch).run()     # handle_batch(owned, batch): pyarrow.RecordBatch

What it promises
----------------
**Order and at least once.** The messages of a partition are handled one after another, in their
order, by one thread at a time; what is committed is a prefix of what was handled. What was handled
and not committed when a process dies or a partition is taken by force is handled again by the next
owner. A graceful handoff repeats nothing.

**Partitions do not wait for each other**, but for workers. What is read ahead of each is bounded.

**A revoked partition is released as soon as the message (or batch) in hand is done.** A handler
that takes long asks `message.time_left()`; what it finishes after the deadline does not count.

**A message that cannot be handled** stops all, stops its partition, or is put elsewhere
(`counterpoise.consumer.poison`). It is never passed in silence.

**Who is stuck loses the lease** (`counterpoise.consumer.watchdog`).

How it goes
-----------
    flow  ──view──►  settler  ──follow──►  lanes  ◄──fill──  reader  ◄──  log
                        ▲                  │   ▲
                        └──── positions ───┘   └── take, put back ──  workers ──►  handler

Each grant of a partition is a *lane* (`lanes`: start reading there). The *reader* fills lanes from
the log, *workers* take pieces from them, the *settler* follows the flow's view, commits and
releases, and a *lookout* watches over the flow and the workers. They share nothing but the lanes,
so a service, a log, or a handler that hangs stops only what needs it: while the service is away
the consumer goes on with what it owns, while the log is away it waits.

Iterating
---------
A message counts as handled when the next one is asked for. So an exception in the body, or
`break`, leaves the message in hand unhandled: it comes again. To end after the message in hand call
`consumer.stop(now=True)` in the body and let the loop end by itself; after `consumer.stop()` it
ends once all partitions have been handed over, and goes on with them meanwhile. The loop's body
runs in the caller's thread, and leaving the loop by whatever way commits what was handled and
unbinds. In a `with Consumer(...) as consumer:` block that happens at the latest at its end, also
where a traceback keeps the loop alive.

There is no `async for`: `AsyncFlow` is for programs with an event loop.
"""

from counterpoise.consumer.consumer import Consumer
from counterpoise.consumer.lane import Failure
from counterpoise.consumer.message import Message, Ownership
from counterpoise.consumer.poison import DeadLetter, SameQueue
from counterpoise.consumer.signals import stop_on_signals
from counterpoise.consumer.status import LaneStatus, Status
from counterpoise.consumer.work import Each, Handle

__all__ = [
    "Consumer",
    "DeadLetter",
    "Each",
    "Failure",
    "Handle",
    "LaneStatus",
    "Message",
    "Ownership",
    "SameQueue",
    "Status",
    "stop_on_signals",
]
