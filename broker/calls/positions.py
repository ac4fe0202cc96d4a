"""Positions that an administrator sets: from where consumers continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from broker.calls.access import QueueAccess, act_of
from broker.calls.cuts import CutCalls
from broker.calls.readers import Trims
from broker.calls.rendering import queue_view
from broker.core import commands as c
from broker.core.access import Caller
from broker.core.decisions import is_read
from broker.core.errors import Invalid, Unavailable
from broker.core.queue import Queue
from broker.core.transitions import State
from broker.logs.names import parts_of
from broker.logs.ports import Logs, Positions
from broker.logs.positions import refuse_invalid
from broker.replica.coordinator import Coordinator
from broker.replica.store_calls import store_available
from broker.replica.transaction import EARLIEST, Submission
from broker.store.ports import Passed, Store, Stored
from counterpoise import wire
from counterpoise.logs.address import kind_of
from counterpoise.logs.groups import place

if TYPE_CHECKING:
    from counterpoise.flow.done_above import DoneAbove

Where: TypeAlias = Mapping[int, str | None] | Literal["earliest", "latest"] | float
"""Positions, an end of the log, or a time in Unix seconds."""

# How often a message is passed that a consumer commits around.
ATTEMPTS = 4
# Of a call that sets the positions of many partitions, so many are in the audit.
MOST_IN_AUDIT = 1000


class Passing(NamedTuple):
    """How a message is passed: its log, the epoch of its partition, and what is processed then."""

    log: str
    epoch: int
    passed: Passed


class Done(NamedTuple):
    """What of a partition is processed: what is stored, and so all below `low` and what is in
    `above`.
    """

    seen: Stored
    above: DoneAbove
    low: int

    def has(self, position: int) -> bool:
        """Whether the message at this position is processed."""
        return position < self.low or self.above.covers(position)


class PositionCalls:
    """The positions of queues."""

    def __init__(self, queues: QueueAccess, logs: Logs, cuts: CutCalls, trims: Trims) -> None:
        self._queues = queues
        self._logs = logs
        self._cuts = cuts
        self._trims = trims

    async def set(
        self, name: str, where: Where, caller: Caller | None = None, *, dry_run: bool = False
    ) -> wire.Positions:
        """Sets positions and raises the epochs. Raises QueueNotFound, Invalid, Unavailable.

        `dry_run`: changes nothing, and says how far each partition would move. Those of several
        logs are set log by log; a call without an answer may have set some, and is repeated.
        """
        if dry_run:
            return await self._preview(name, await self._wanted(name, where))
        return await self._trims.apart(lambda: self._set(name, where, caller))

    async def waiting(self, name: str, most: int) -> tuple[str, list[tuple[int, str]]]:
        """The log of a queue, and the first messages that wait in it: partitions and positions."""
        log, all_done = await self._done(name)
        found: list[tuple[int, str]] = []
        for number, done in sorted(all_done.items()):
            at: str | None = str(done.low)
            while at is not None and len(found) < most:
                look = await self._logs.peek(log, number, at, most - len(found), 0)
                found += [
                    (number, one.position)
                    for one in look.messages
                    if not done.has(int(one.position))
                ]
                # A look at a hole shows nothing, and goes on behind it.
                at = None if look.following == look.end else look.following
        return log, found

    async def passing(self, name: str, partition: int, position: str) -> Passing:
        """How a message is passed; changes nothing.

        Raises QueueNotFound, Unavailable, and Invalid if it is passed already, or if there cannot
        be such a message.
        """
        log, done = await self._done_of(name, partition, position)
        if done.has(int(position)):
            raise Invalid(
                f"The message at {position} of partition {partition} is processed already: the "
                f"partition continues at {done.low}.",
                [("position", "is processed already")],
            )
        return Passing(log, done.seen.epoch, await self._passed(log, partition, position, done))

    async def pass_message(self, name: str, partition: int, position: str) -> Stored:
        """Pass a message, and raise the epoch of its partition, unless it is passed already.

        Returns epoch and position then. Raises QueueNotFound, Invalid, and Unavailable, also if
        the message is not passed because a consumer commits in between every time.
        """
        log, done = await self._done_of(name, partition, position)
        for _ in range(ATTEMPTS):
            if done.has(int(position)):
                break
            passed = await self._passed(log, partition, position, done)
            # It lifts no barrier: that is for the owner, who reaches a cut by its next commit.
            make = partial(Submission, c.RaiseEpochs((partition,)), passed={partition: passed})
            await self._queues.submit(name, make)
            log, done = await self._done_of(name, partition, position)
        if done.has(int(position)):
            return done.seen
        raise Unavailable(
            "The position of the partition changes all the time, and the message is not passed; "
            "repeat the call."
        )

    async def _passed(self, log: str, partition: int, position: str, done: Done) -> Passed:
        """What is processed once this message is passed, too."""
        begin = int(position)
        # Positions may have holes: then none of them is a message that is still to be read.
        first = await self._logs.peek(log, partition, str(done.low), 1, 0)
        if first.messages and first.messages[0].position == position:
            begin = done.low
        done.above.add(begin, int(position) + 1)
        new = done.above.take(done.low)
        at = None if done.seen.position is None and new == 0 else str(new)
        return Passed(done.seen.position, done.seen.done_above, at, done.above.text(at))

    async def _done_of(self, name: str, partition: int, position: str) -> tuple[str, Done]:
        """The log of a queue, and what is processed of a partition. Raises Invalid for one that
        nobody reads, and for what is no position of the log.
        """
        log, done = await self._done(name, partition)
        refuse_invalid(log, {"position": position})
        return log, done[partition]

    async def _done(self, name: str, only: int | None = None) -> tuple[str, dict[int, Done]]:
        """The log of a queue, and what is processed of its partitions, or `only` of one. Raises
        Invalid if nobody reads that.
        """

        def extract(queue: Queue) -> tuple[str, str, dict[int, int]]:
            if only is not None and not is_read(queue, only):
                raise Invalid(
                    f"The queue {name!r} has no partition {only}, or it is finished.",
                    [("partition", "is not in the queue, or finished")],
                )
            existing = [one.number for one in queue.existing()] if only is None else [only]
            read = [number for number in existing if is_read(queue, number)]
            epochs = {number: queue.partitions[number].epoch for number in read}
            return queue.id, queue.settings.log, epochs

        queue_id, log, epochs = await self._queues.read(name, extract)
        if kind_of(log) is None:
            raise Invalid("The service does not know this kind of log, nor its positions.")
        with store_available():
            found = await self._queues.store.positions(queue_id, [*epochs])
        done = {}
        for number, epoch in epochs.items():
            seen = found.get(number, Stored(epoch, None))
            above = done_above(seen)
            done[number] = Done(seen, above, above.take(int(seen.position or 0)))
        return log, done

    async def _set(self, name: str, where: Where, caller: Caller | None) -> wire.Positions:
        log = await self._queues.read(name, lambda one: one.settings.log)
        parts = parts_of(log)
        fences = [await self._trims.fence(part) for part in parts]
        positions = await self._wanted(name, where)
        act = act_of(caller, "set_positions", name)
        if act is not None:
            before = await self._positions(name, sorted(positions)[:MOST_IN_AUDIT])
            after = {number: positions[number] for number in before}
            count = len(positions)
            act = replace(act, before=_shown(before, count), after=_shown(after, count))
        cuts = await self._queues.on(name, lambda one: self._cuts_with(one, positions))
        of_logs: list[dict[int, str | None]] = [{} for _ in parts]
        for number in sorted(positions):
            of_logs[place(number, len(parts))[0]][number] = positions[number]
        for fence, of_log in zip(fences, of_logs, strict=True):
            command = c.RaiseEpochs(tuple(of_log), cuts)
            await self._queues.submit(
                name, partial(Submission, command, positions=of_log, fence=fence, act=act)
            )
            act = None

        def extract(queue: Queue) -> wire.Positions:
            return wire.Positions(
                queue.revision,
                tuple(
                    wire.PositionSet(
                        number, queue.partitions[number].epoch, positions[number], None, None, None
                    )
                    for number in sorted(positions)
                    if is_read(queue, number)
                ),
            )

        return await self._queues.read(name, extract)

    async def _cuts_with(
        self, coordinator: Coordinator, positions: Mapping[int, str | None]
    ) -> c.TakeCuts | None:
        """The cuts of the log, and which are reached with these positions; None if nothing is to be
        kept in order."""
        ordered, log = await coordinator.read(
            lambda queue: (queue.settings.ordered_resize, queue.settings.log)
        )
        if not ordered:
            return None
        cuts = await self._cuts.cuts_of(coordinator, log, positions)
        if cuts is None:
            raise Unavailable("The log does not say its cuts right now; try again.")
        return cuts

    async def _wanted(self, name: str, where: Where) -> dict[int, str | None]:
        """The position of each partition that `where` means now."""

        def extract(queue: Queue) -> tuple[str, str, list[int], set[int]]:
            # A finished partition stays finished, wherever its position is.
            numbers = [one.number for one in queue.existing() if one.state is not State.FINISHED]
            finished = set() if queue.lineage is None else set(queue.lineage.finished)
            return queue.settings.log, queue.settings.start, numbers, finished

        log, start, numbers, finished = await self._queues.read(name, extract)
        if not isinstance(where, Mapping):
            found = await self._logs.positions(log, where)
            return {number: found.get(number, EARLIEST) for number in numbers}
        if passed_over := finished.intersection(where):
            where = dict(where)
            for number in passed_over:
                del where[number]
        unknown = sorted(set(where) - set(numbers))
        if unknown:
            raise Invalid(
                f"This queue has no partition {unknown[0]}.",
                [("positions", f"names {unknown[:10]}, which do not exist")],
            )
        await refuse_unreachable(self._logs, log, where)
        positions = dict(where)
        if start == "latest" and None in positions.values() and kind_of(log) is not None:
            ends = await self._logs.positions(log, "latest")
            for number in (n for n, position in where.items() if position is None):
                positions[number] = ends.get(number, EARLIEST)
        return positions

    async def _preview(self, name: str, positions: Mapping[int, str | None]) -> wire.Positions:
        """How many messages would be read again or skipped, by the ends of this moment."""

        def extract(queue: Queue) -> tuple[wire.Queue, dict[int, int]]:
            existing = filter(queue.exists, sorted(positions))
            return queue_view(queue), {n: queue.partitions[n].epoch for n in existing}

        async def work(coordinator: Coordinator) -> wire.Positions:
            queue, epochs = await coordinator.read(extract, fresh=True)
            with store_available():
                stored = await self._queues.store.positions(coordinator.queue_id, sorted(epochs))
            seen = {number: stored.get(number, Stored(epochs[number], None)) for number in epochs}
            before = {number: row.position for number, row in seen.items()}
            spans = await self._logs.spans(queue.log, before)

            def one(number: int) -> wire.PositionSet:
                position, span = positions[number], spans.get(number)
                again = skipped = None
                if span is not None:
                    left, ahead = span.lag, span.after(position)
                    if left is not None and ahead is not None:
                        # What is done above the position is forgotten when it is set.
                        places = (span.start, position, before[number])
                        done = done_above(seen[number]).count(max(int(one or 0) for one in places))
                        again, skipped = max(0, ahead - left) + done, max(0, left - ahead)
                return wire.PositionSet(
                    number, epochs[number], position, before[number], again, skipped
                )

            return wire.Positions(queue.revision, tuple(map(one, epochs)))

        return await self._queues.on(name, work)

    async def _positions(self, name: str, numbers: Sequence[int]) -> dict[int, str | None]:
        queue_id = await self._queues.read(name, lambda queue: queue.id)
        with store_available():
            return await stored_positions(self._queues.store, queue_id, numbers)


def done_above(seen: Stored) -> DoneAbove:
    """What is processed above the position."""
    # The package brings the client with it, which the service does not need to start.
    from counterpoise.flow.done_above import DoneAbove

    try:
        return DoneAbove.of_text(seen.done_above)
    except ValueError:
        # Of a client with an error: these messages are read again.
        return DoneAbove()


async def stored_positions(
    store: Store, queue_id: str, numbers: Sequence[int] | None = None
) -> dict[int, str | None]:
    """The positions of these partitions, by number; of all without `numbers`, also of removed
    ones, whose messages are kept no longer than the others'.
    """
    rows = await store.positions(queue_id, numbers)
    return {number: row.position for number, row in rows.items()}


def shown_positions(positions: Mapping[int, str | None]) -> Mapping[str, Any]:
    """Positions in the audit, the first ones of many, and how many there are."""
    first = {number: positions[number] for number in sorted(positions)[:MOST_IN_AUDIT]}
    return _shown(first, len(positions))


def _shown(positions: Mapping[int, str | None], count: int) -> Mapping[str, Any]:
    """Positions in the audit, the first ones of many."""
    shown = {str(number): position for number, position in positions.items()}
    return {"partitions": count, "positions": shown}


async def refuse_unreachable(logs: Logs, log: str, positions: Positions) -> None:
    """Raises Invalid for what cannot be a position of the log, and for one beyond the end of its
    partition. Of a log of an unknown kind nothing is known."""
    if kind_of(log) is None:
        return
    given = [(number, at) for number in sorted(positions) if (at := positions[number]) is not None]
    refuse_invalid(log, {f"positions.{number}": at for number, at in given})
    _refuse_ahead(given, await logs.ends(log, sorted(positions)))


def _refuse_ahead(given: Sequence[tuple[int, str]], reached: Mapping[int, str]) -> None:
    """Refuses a position that a partition has not reached: the next published messages would be
    below it, and be passed over. `reached`: the ends of partitions, as far as the log knows."""
    ahead = [
        (number, position)
        for number, position in given
        if number in reached and int(position) > int(reached[number])
    ]
    if ahead:
        first, position = ahead[0]
        raise Invalid(
            f"The log's partition {first} ends at {reached[first]}, and {position} is beyond "
            "that; send 'latest' for the end.",
            [(f"positions.{number}", f"is beyond {reached[number]}") for number, _ in ahead],
        )
