"""What is asked of a queue: one command in its mailbox, and what goes with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from broker.core import commands as c
from broker.core.errors import BrokerError, Unavailable
from broker.core.queue import Queue
from broker.store.ports import Act
from broker.store.trims import Fence
from broker.tracing import TracedCall, traced_call

T = TypeVar("T")


class LogMoved(Unavailable):
    """The log was trimmed meanwhile: what was to be committed relies on how it was before."""

    def __init__(self) -> None:
        super().__init__("The log is being trimmed; try again.")


@dataclass(slots=True, eq=False)
class Ask:
    """One command in the mailbox and what goes with it into the transaction.

    `token_hash` goes with a bind, `renews` names the flow whose lease begins anew, `seq` and
    `released` (position by partition) go with a release, `positions` with raised epochs, `begins`
    (for partitions without a position) with a change of `start` to `latest`. It is refused with
    LogMoved if `fence` does not hold. `act` is recorded unless the command is refused, with what
    `shown` shows of the queue before and after.
    """

    command: c.Command
    token_hash: bytes | None = None
    renews: str | None = None
    seq: int | None = None
    released: Mapping[int, str | None] = field(default_factory=dict)
    positions: Mapping[int, str | None] = field(default_factory=dict)
    begins: Mapping[int, str] = field(default_factory=dict)
    fence: Fence | None = None
    moved: bool = False
    act: Act | None = None
    shown: Callable[[Queue], Mapping[str, Any] | None] | None = None
    trace: TracedCall | None = field(default_factory=traced_call)
    answer: asyncio.Future[Any] = field(default_factory=asyncio.Future)

    def joins(self, queue: Queue) -> bool:
        """Whether it is a bind of an instance that was not bound before."""
        if not isinstance(self.command, c.Bind):
            return False
        instance = (self.command.key_id, self.command.instance_id)
        return instance not in queue.by_instance and instance not in queue.absent

    def give(self, answer: Any) -> None:
        """The answer to who asked, unless they gave up; a BrokerError is raised there."""
        if self.answer.done():
            return
        if isinstance(answer, BrokerError):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


async def all_of(answers: Sequence[asyncio.Future[T]]) -> list[T]:
    """The answers, once the last one is known, in this round of the event loop. Raises the first
    error.
    """
    try:
        return [await one for one in answers]
    finally:
        for one in answers:
            if not one.cancel() and not one.cancelled():
                one.exception()  # Else asyncio would log it.


class Late(NamedTuple):
    """A release that came after a later call of its flow, by `seq`: nothing is done for it."""

    partition: int
    epoch: int
    seq: int | None
