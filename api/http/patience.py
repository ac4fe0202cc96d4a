"""How long a call waits for a database that does not answer.

A stopped Postgres, or a network that swallows everything, neither answers nor refuses. What waits
for it ends by the limits of the connections, after half a minute. A caller is told sooner: a call
that has no answer after `ANSWER_SECONDS` gets 503 if the database has not answered the replica's
own look, once a second, either. A call that takes long while the database answers goes on.

The call itself is not ended: it may be in the middle of a commit. It ends by those limits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from broker.core.errors import Unavailable

T = TypeVar("T")

ANSWER_SECONDS = 6.5
LOOK_SECONDS = 0.25
PROBE_SECONDS = 1.5


async def answered(
    call: Coroutine[Any, Any, T], is_reachable: Callable[[], bool], seconds: float = ANSWER_SECONDS
) -> T:
    """The result of `call`. Raises its errors, and `Unavailable` if the database is away."""
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait((task,), timeout=seconds)
        while not done:
            if not is_reachable():
                # Nobody asks for its result any more.
                task.add_done_callback(_forget)
                raise Unavailable(
                    "The service's database does not answer; the call may or may not be carried "
                    "out. Try again in a moment."
                )
            done, _ = await asyncio.wait((task,), timeout=LOOK_SECONDS)
    except asyncio.CancelledError:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        raise
    return task.result()


async def in_time(call: Coroutine[Any, Any, T], seconds: float = PROBE_SECONDS) -> T:
    """The result of `call`, which is given up after so many seconds. Raises TimeoutError."""
    task = asyncio.ensure_future(call)
    done, _ = await asyncio.wait((task,), timeout=seconds)
    if done:
        return task.result()
    # Not awaited: its connection takes its own time to close.
    task.add_done_callback(_forget)
    task.cancel()
    raise TimeoutError


def _forget(task: asyncio.Task[Any]) -> None:
    """A result that comes too late interests nobody, nor does its error."""
    if not task.cancelled():
        task.exception()
