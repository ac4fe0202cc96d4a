"""Dead letters for people: an administrator puts one message aside, as a consumer does.

A consumer with `DeadLetter("flights-dead")` stores a message that it cannot handle in that queue,
and then passes it (`counterpoise.consumer.poison`). One that quarantines it, or halts, leaves the
message to a person. So the service does for the person what such a consumer does, in this order:

1. It reads the message, whole, and makes its letter: with the key, the value, the headers and the
   id that a consumer would give it. What the consumer has said of the failure (the condition
   `quarantined`) is in the headers.
2. The call is recorded in the audit.
3. It appends the letter. A log takes an id once, so a consumer that stores the same letter, and a
   call that is repeated, make no second one.
4. It passes the message, and raises the epoch of the partition: its owner begins anew behind it.

After a crash between two steps the call is repeated. The letter is there before the message is
passed, so no message is lost. Only the one message is passed. If messages before it are not
processed yet (a consumer in the order of keys), the position stays before them, and the message is
noted as done above the position (the contract, *Work above the position*). A message that a
consumer has processed meanwhile is passed already: then nothing is stored. If that happens between
steps 3 and 4, the message is processed, and its letter is there as well.

A *redrive* sends letters back, as `counterpoise dead-letters redrive` does (`counterpoise.cli
.dead_letters`): each as it was, under the id that this command gives it, and then it passes the
letter. What a letter says of its origin is the word of its publisher, so the log of the origin has
to confirm it. Consumers of the letters would take some of them, so there must be none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from msgspec import structs

from broker.calls.access import QueueAccess, act_of
from broker.calls.logs import LogCalls
from broker.calls.positions import PositionCalls
from broker.calls.times import time_of
from broker.core.access import Caller, Right
from broker.core.errors import Invalid, QueueInUse, QueueNotFound, Unavailable
from broker.core.queue import Queue
from broker.logs.names import parts_of
from broker.logs.peeking import PeekedMessage
from broker.logs.ports import CALLER, Logs
from broker.logs.positions import refuse_invalid
from broker.replica.store_calls import store_available
from counterpoise import wire
from counterpoise.logs import InvalidMessage, Message
from counterpoise.logs.port import MAX_MESSAGE_BYTES, OUR_HEADERS_BYTES
from counterpoise.logs.rows import SHOWN_FROM

if TYPE_CHECKING:
    from counterpoise.consumer.letters import Claim

# No message is longer.
WHOLE_BYTES = MAX_MESSAGE_BYTES + 2 * OUR_HEADERS_BYTES
UNKNOWN_ERROR = "no consumer has reported an error: an administrator has put it aside"


class LetterCalls:
    """Puts messages aside, and sends them back."""

    def __init__(
        self, queues: QueueAccess, logs: Logs, log_calls: LogCalls, positions: PositionCalls
    ) -> None:
        self._queues = queues
        self._logs = logs
        self._log_calls = log_calls
        self._positions = positions
        # Each holds a whole message in memory. Of each caller one: its logs that hang keep no other
        # waiting.
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def store(
        self,
        name: str,
        partition: int,
        position: str,
        to: str,
        caller: Caller | None,
        *,
        dry_run: bool = False,
    ) -> wire.Letter:
        """Store a message of a partition as a dead letter in the queue `to`, and pass it.

        The rights to administer the queue and to publish to `to` must have been checked. `dry_run`:
        changes nothing. Raises QueueNotFound for either queue, Forbidden, Invalid, and Unavailable:
        then it may have been carried out, in part or whole.
        """
        # The package brings the consumer with it, which the service does not need to start.
        from counterpoise.consumer.letters import Origin, letter_headers, letter_id

        target = await self._log_calls.published(to, caller)

        async with self._turn():
            log, epoch, passed = await self._positions.passing(name, partition, position)
            if not {*parts_of(log)}.isdisjoint(parts_of(target.log)):
                raise Invalid(
                    f"Dead letters of {name!r} would come back to it: {to!r} has the same log. "
                    "Name another queue.",
                    [("to", "has the log of the message")],
                )
            message = await self._message(log, partition, position)
            bounds = await self._logs.bounds(log, [partition])
            if bounds is None:
                raise Unavailable("The log does not answer right now; try again.")
            failed = await self._failure(name, partition, position)
            published_at = time_of(message.published_at) or SHOWN_FROM
            headers = letter_headers(
                message.headers or {}, name, partition, epoch, position, published_at, *failed
            )
            letter = Message(message.value, message.key, headers)
            try:
                size_bytes = letter.size_bytes()
            except InvalidMessage as error:
                raise Invalid(f"The log cannot hold this letter: {error}.") from None
            shown = wire.Letter(
                partition=partition,
                epoch=epoch,
                position=position,
                next_position=passed.position,
                to=to,
                letter_partition=None,
                before=None,
                key=message.key,
                size_bytes=message.size_bytes,
                headers=headers,
            )
            if dry_run:
                return shown
            act = act_of(caller, "dead_letter", name)
            if act is not None:
                after = {"partition": partition, "position": position, "to": to}
                published = act_of(caller, "publish_message", to)
                assert published is not None
                sized = replace(published, after={"partition": None, "size_bytes": size_bytes})
                with store_available():
                    await self._queues.store.keys.record([replace(act, after=after), sized])
            id = letter_id(Origin(name, log, bounds.incarnation), partition, position)
            appended = await self._logs.append(target.log, letter, id, target.partition_count)
        epoch, at, _ = await self._positions.pass_message(name, partition, position)
        return structs.replace(
            shown,
            epoch=epoch,
            next_position=at,
            letter_partition=appended.partition,
            before=appended.before,
        )

    async def redrive(
        self,
        name: str,
        to: str | None,
        most: int,
        caller: Caller | None,
        *,
        dry_run: bool = False,
    ) -> wire.Redrive:
        """Send at most so many of the letters that wait in a queue back, and pass them there.

        Each goes to the queue that it comes from, whose log has to confirm it, or all go `to` one
        queue. All are looked at before the first is sent. The right to administer the queue must
        have been checked. `dry_run`: changes nothing. Raises QueueNotFound, QueueInUse, Forbidden,
        Invalid, and Unavailable: then some may be sent, and the call is repeated.
        """
        from counterpoise.consumer.letters import letter_id, redrive_origin, without_ours

        async with self._turn():
            bound = await self._queues.read(name, lambda queue: len(queue.flows))
            if bound and not dry_run:
                raise QueueInUse(
                    f"{name!r} is consumed by {bound} flows, which would take some of the letters: "
                    "stop its consumers first."
                )
            log, waiting = await self._positions.waiting(name, most + 1)
            letters, more = waiting[:most], len(waiting) > most
            targets: dict[str, wire.Queue] = {}
            plan: list[tuple[int, str, str]] = []
            for partition, position in letters:
                message = await self._message(log, partition, position)
                target = to or await self._origin(name, partition, message, caller)
                if target not in targets:
                    targets[target] = await self._target(name, log, target, caller)
                plan.append((partition, position, target))
            counts = dict(sorted(Counter(target for _, _, target in plan).items()))
            act = act_of(caller, "redrive", name)
            if dry_run or not plan:
                return wire.Redrive(counts, more)
            if act is not None:
                acts = [
                    replace(act, queue=target, after={"from": name, "letters": count})
                    for target, count in counts.items()
                ]
                with store_available():
                    await self._queues.store.keys.record([replace(act, after=counts), *acts])
            bounds = await self._logs.bounds(log, [plan[0][0]])
            if bounds is None:
                raise Unavailable("The log does not answer right now; try again.")
            origin = redrive_origin(bounds.incarnation)
            for partition, position, target in plan:
                letter = await self._message(log, partition, position)
                own = Message(letter.value, letter.key, without_ours(letter.headers or {}))
                queue = targets[target]
                id = letter_id(origin, partition, position)
                await self._logs.append(queue.log, own, id, queue.partition_count)
                await self._positions.pass_message(name, partition, position)
            return wire.Redrive(counts, more)

    def _turn(self) -> asyncio.Semaphore:
        """What this caller has one of."""
        return self._turns.setdefault(CALLER.get(), asyncio.Semaphore(1))

    async def _target(self, name: str, log: str, target: str, caller: Caller | None) -> wire.Queue:
        """A queue to which letters go. Raises as `redrive`."""
        if caller is not None:
            caller.require(Right.PUBLISH, queue=target)
        queue = await self._log_calls.published(target, caller)
        if not {*parts_of(log)}.isdisjoint(parts_of(queue.log)):
            raise Invalid(
                f"{name!r} would get its letters again from {target!r}: send them to another queue."
            )
        return queue

    async def _origin(
        self, name: str, partition: int, letter: PeekedMessage, caller: Caller | None
    ) -> str:
        """The queue that a letter comes from, as its log confirms. Raises as `redrive`."""
        from counterpoise.consumer.letters import claim_of

        headers, place = (
            letter.headers or {},
            f"position {letter.position} of partition {partition} of {name}",
        )
        claim = claim_of(headers)
        if claim is None:
            raise Invalid(
                f"The message at {place} is no dead letter: it does not say where it comes from. "
                "Nothing was sent. Name a queue for all of them, or pass this message."
            )
        if caller is not None:
            caller.require(Right.PUBLISH, queue=claim.queue)
            caller.require(Right.CONSUME, queue=claim.queue)
        why = await self._objection(claim, letter, headers)
        if why is not None:
            raise Invalid(
                f"The letter at {place} says that it comes from position {claim.position} of "
                f"partition {claim.partition} of {claim.queue}, but {why}. Nothing was sent. Name "
                "a queue for all of them, or pass this message."
            )
        return claim.queue

    async def _objection(
        self, claim: Claim, letter: PeekedMessage, headers: Mapping[str, str]
    ) -> str | None:
        """What keeps the log of the origin from confirming a letter; None: it does."""
        from counterpoise.consumer.letters import content_of

        place = claim.partition

        def extract(queue: Queue) -> str | None:
            return queue.settings.log if queue.exists(place) else None

        try:
            log = await self._queues.read(claim.queue, extract)
            if log is None:
                return "there is no such partition"
            refuse_invalid(log, {"position": claim.position})
            found = await self._message(log, place, claim.position)
        except QueueNotFound:
            return "there is no such queue"
        except Invalid:
            return "its log does not show such a message"
        theirs = found.key, found.value, found.headers or {}, time_of(found.published_at)
        ours = letter.key, letter.value, headers, claim.published_at
        return None if content_of(*theirs) == content_of(*ours) else "another message is there"

    async def _message(self, log: str, partition: int, position: str) -> PeekedMessage:
        """The whole message at a position. Raises Invalid if it cannot be had."""
        found = await self._logs.peek(log, partition, position, 1, WHOLE_BYTES)
        if not found.messages or found.messages[0].position != position:
            raise Invalid(
                f"The log has no message at position {position} of partition {partition}.",
                [("position", "is that of no message in the log")],
            )
        [message] = found.messages
        if message.headers is None:
            raise Invalid(
                "The headers of this message cannot be read here. A consumer with "
                "on_poison=DeadLetter(…) can store it."
            )
        return message

    async def _failure(self, name: str, partition: int, position: str) -> tuple[int, str]:
        """How often the message has failed, and the last error, as its consumer has said it."""
        from counterpoise.conditions import quarantine_of
        from counterpoise.wire import MOST_CONDITIONS

        queue_id = await self._queues.read(name, lambda queue: queue.id)
        with store_available():
            reported = await self._queues.store.conditions.of_queue(queue_id, MOST_CONDITIONS)
        for _, one in reported:
            if (one.kind, one.partition) == ("quarantined", partition):
                said = quarantine_of(one.text)
                if said is not None and said.position == position:
                    return said.attempts, said.error
        return 0, UNKNOWN_ERROR
