"""The calls about the logs of queues: positions, access, and the regular upkeep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Literal, TypeAlias

import structlog

from broker.calls import views
from broker.calls.access import QueueAccess, act_of
from broker.calls.cuts import CutCalls
from broker.calls.readers import LogReaders, Trims, log_owner, owner_among
from broker.calls.rendering import queue_view
from broker.core import commands as c
from broker.core.access import Caller, Right
from broker.core.decisions import is_read
from broker.core.errors import BrokerError, Invalid, Unavailable
from broker.core.queue import Queue
from broker.core.transitions import State
from broker.logs.names import builtin_name, canonical, decides_count
from broker.logs.ports import Holder, Logs, Purpose
from broker.logs.positions import number_of, refuse_invalid
from broker.pieces import PIECE, made, mapped, pause, pieces
from broker.replica.coordinator import Coordinator
from broker.replica.store_calls import store_available
from broker.replica.transaction import EARLIEST, Submission, slices
from broker.store.ports import StoreError
from broker.store.trims import Trimming
from counterpoise.logs.address import InvalidLog, kind_of

Where: TypeAlias = Mapping[int, str | None] | Literal["earliest", "latest"] | float
"""Positions, an end of the log, or a time in Unix seconds."""

# Of a call that sets the positions of many partitions, so many are in the audit.
MOST_IN_AUDIT = 1000

_log = structlog.get_logger()


class LogCalls:
    """The logs of queues, and the positions from which consumers continue."""

    def __init__(
        self, queues: QueueAccess, logs: Logs, readers: LogReaders, cuts: CutCalls, trims: Trims
    ) -> None:
        self._queues = queues
        self._logs = logs
        self._readers = readers
        self._cuts = cuts
        self._trims = trims

    async def set_positions(
        self, name: str, where: Where, caller: Caller | None = None, *, dry_run: bool = False
    ) -> views.PositionsView:
        """Sets positions and raises the epochs. Raises QueueNotFound, Invalid, Unavailable.

        `dry_run`: changes nothing, and says how far each partition would move. Very many are set in
        slices, lowest numbers first; a call without an answer may have set some, and is repeated.
        """
        if dry_run:
            return await self._preview(name, await self._wanted(name, where))
        return await self._trims.apart(lambda: self._set_positions(name, where, caller))

    async def _set_positions(
        self, name: str, where: Where, caller: Caller | None
    ) -> views.PositionsView:
        fence = await self._trims.fence(await self._queues.read(name, lambda one: one.settings.log))
        positions = await self._wanted(name, where)
        act = act_of(caller, "set_positions", name)
        if act is not None:
            before = await self._positions(name, sorted(positions)[:MOST_IN_AUDIT])
            after = {number: positions[number] for number in before}
            count = len(positions)
            act = replace(act, before=_shown(before, count), after=_shown(after, count))
        cuts = await self._queues.on(name, lambda one: self._cuts_with(one, positions))
        following = False
        for numbers in slices(sorted(positions)):
            command = c.RaiseEpochs(numbers, cuts, following)
            some = {number: positions[number] for number in numbers}
            await self._queues.submit(
                name, partial(Submission, command, positions=some, fence=fence, act=act)
            )
            act, following = None, True

        async def look(queue: Queue) -> views.PositionsView:
            def one(number: int) -> views.PositionSet:
                epoch = queue.partitions[number].epoch
                return views.PositionSet(number, epoch, positions[number])

            existing: list[int] = []
            async for some in pieces(sorted(positions)):
                existing += [number for number in some if is_read(queue, number)]
            return views.PositionsView(queue.revision, tuple(await made(one, existing)))

        return await self._queues.on(name, lambda queue: queue.read_in_pieces(look))

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
            raise Unavailable("The log cannot be asked for its cuts right now; try again.")
        return cuts

    async def _wanted(self, name: str, where: Where) -> dict[int, str | None]:
        """The position of each partition that `where` means now."""

        async def look(queue: Queue) -> tuple[str, str, list[int], set[int]]:
            existing, numbers = queue.existing(), list[int]()
            while some := list(islice(existing, PIECE)):
                # A finished partition stays finished, wherever its position is.
                numbers += [one.number for one in some if one.state is not State.FINISHED]
                if len(some) == PIECE:
                    await pause()
            finished = set() if queue.lineage is None else set(queue.lineage.finished)
            return queue.settings.log, queue.settings.start, numbers, finished

        log, start, numbers, finished = await self._queues.on(
            name, lambda one: one.read_in_pieces(look)
        )
        if not isinstance(where, Mapping):
            found = await self._logs.positions(log, where)
            return await mapped(lambda number: (number, found.get(number, EARLIEST)), numbers)
        if passed_over := finished.intersection(where):
            where = dict(where)
            for number in passed_over:
                del where[number]
        unknown = sorted(set(where) - set(numbers))
        if unknown:
            raise Invalid(
                f"This queue has no partition {unknown[0]}.",
                [("positions", f"names {unknown}, which do not exist")],
            )
        if kind_of(log) is not None:
            given: list[tuple[int, str]] = []
            async for some in pieces(sorted(where)):
                new = [(number, at) for number in some if (at := where[number]) is not None]
                refuse_invalid(log, {f"positions.{number}": at for number, at in new})
                given += new
            await _refuse_ahead(given, await self._logs.ends(log, sorted(where)))
        positions = dict(where)
        if start == "latest" and None in positions.values() and kind_of(log) is not None:
            ends = await self._logs.positions(log, "latest")
            for number in (n for n, position in where.items() if position is None):
                positions[number] = ends.get(number, EARLIEST)
        return positions

    async def _preview(self, name: str, positions: Mapping[int, str | None]) -> views.PositionsView:
        """How many messages would be read again or skipped, by the ends of this moment."""

        async def look(queue: Queue) -> tuple[views.QueueView, dict[int, int]]:
            epochs: dict[int, int] = {}
            async for some in pieces(sorted(positions)):
                existing = (number for number in some if queue.exists(number))
                epochs.update((number, queue.partitions[number].epoch) for number in existing)
            return queue_view(queue), epochs

        async def work(coordinator: Coordinator) -> views.PositionsView:
            queue, epochs = await coordinator.read_in_pieces(look, fresh=True)
            with store_available():
                stored = await self._stored(coordinator.queue_id, sorted(epochs))
            before: dict[int, str | None] = {**dict.fromkeys(epochs), **stored}
            spans = await self._logs.spans(queue.log, before)

            def one(number: int) -> views.PositionSet:
                previous, span = before[number], spans.get(number)
                again = skipped = None
                if span is not None:
                    # In a queue of an older version that starts at the latest position.
                    is_at_end = previous is None and queue.start == "latest"
                    left, ahead = 0 if is_at_end else span.lag, span.after(positions[number])
                    if left is not None and ahead is not None:
                        again, skipped = max(0, ahead - left), max(0, left - ahead)
                return views.PositionSet(
                    number, epochs[number], positions[number], previous, again, skipped
                )

            return views.PositionsView(queue.revision, tuple(await made(one, [*epochs])))

        return await self._queues.on(name, work)

    async def _positions(self, name: str, numbers: Sequence[int]) -> dict[int, str | None]:
        queue_id = await self._queues.read(name, lambda queue: queue.id)
        with store_available():
            return await self._stored(queue_id, numbers)

    async def access(
        self, name: str, purpose: Purpose, caller: Caller | None = None, *, refused: bool = False
    ) -> views.LogAccessView:
        """A queue's log, and credentials for it. Raises QueueNotFound, Forbidden, Unavailable.

        The right on the queue must have been checked. Who reads a log of another queue was allowed
        to when the queue was made; who publishes to it must have that right there, too. `refused`:
        the log refused the caller's credentials.
        """
        queue = await self._queues.read(name, queue_view)
        if purpose == "publish" and caller is not None:
            await self._readers.refuse_foreign(queue.log, name, caller, Right.PUBLISH)
        flow_id, key_id = (None, None) if caller is None else (caller.flow_id, caller.key_id)
        holder = Holder.caller(queue.id, flow_id, key_id)
        return views.LogAccessView(
            log=queue.log,
            log_name=builtin_name(queue.log),
            partition_count=queue.partition_count,
            start=queue.start,
            access=await self._logs.access(queue.log, purpose, holder, refused=refused),
        )

    async def maintain(self) -> None:
        """The regular upkeep of all logs, and of queues that follow one.

        What goes wrong with one log is logged, and the others get theirs. Raises Unavailable.
        """
        trims = await self._trims.all()
        by_log = await self._by_log()
        for log, readers in by_log.items():
            with _alone(log):
                await self._maintain(readers, trims.get(log))
        await self._trims.forget(trims, by_log)

    async def _maintain(self, readers: Sequence[views.QueueView], seen: Trimming | None) -> None:
        """`seen`: of before these were listed."""
        if decides_count(readers[0].log):
            await self._follow_topic(readers)
            return
        owner = owner_among(readers)
        if owner is None or not await self._is_there(owner):
            return
        if owner.scale_status != "Ready":
            # Between the slices of a resize the log must not have the new count: a message would go
            # to a partition that the queue has not yet, and perhaps never will.
            complete = await self._queues.read(owner.name, _complete)
            if complete is None:
                return
            owner = replace(owner, partition_count=complete[0], revision=complete[1])
        below = await self._logs.maintain(
            owner.log,
            owner.partition_count,
            owner.revision,
            log_owner(owner),
            [await self._usable(one, await self._stored(one.id)) for one in readers],
            await self._keys(owner),
        )
        if not await self._is_there(owner):
            # The queue was deleted meanwhile, and the upkeep may have made its log again.
            await self._logs.drop(owner.log, log_owner(owner))
            return
        for reader in readers if owner.partitioning == "fixed" else ():
            if reader.partition_count != owner.partition_count:
                await self._readers.follow(reader.name, owner.partition_count, discard=False)
        for reader in readers:
            if reader.ordered_resize:
                await self._cuts.look_again(reader.name)
        # Last, because nobody waits for it.
        await self._trims.finish(owner.log, seen)
        if below:
            await self._trims.trim(owner.log, below, log_owner(owner), seen)

    async def _keys(self, owner: views.QueueView) -> Mapping[int, str] | None:
        """The keys of a dynamic queue's partitions, by number; None of a fixed queue."""
        if owner.partitioning == "fixed":
            return None

        def look(queue: Queue) -> dict[int, str]:
            nodes = {} if queue.lineage is None else queue.lineage.nodes
            return {number: node.key for number, node in nodes.items()}

        return await self._queues.read(owner.name, look)

    async def _by_log(self) -> dict[str, list[views.QueueView]]:
        """The readers of each log of a known kind, in the order of their creation."""
        readers: dict[str, list[views.QueueView]] = {}
        async for queue in self._readers.all():
            with _alone(queue.log):
                if kind_of(queue.log) is not None:
                    readers.setdefault(canonical(queue.log), []).append(queue)
        for reading in readers.values():
            reading.sort(key=lambda queue: (queue.created_at, queue.name))
        return readers

    async def end_credentials(self) -> None:
        """End the credentials of flows that have left. Raises Unavailable."""
        flows: dict[str, str] = {}
        for name in await self._logs.holders():
            flow_id = Holder.flow_id(name)
            if flow_id is not None:
                flows[flow_id] = name
        with store_available():
            bound = await self._queues.store.leases([*flows])
        gone = [name for flow_id, name in flows.items() if flow_id not in bound]
        if gone:
            await self._logs.revoke(holders=gone)

    async def end_credentials_of_keys(self) -> None:
        """End the credentials that were made with keys which have ended. Best effort."""
        with suppress(Unavailable):
            keys = await self._logs.keys_in_use()
            if not keys:
                return
            with store_available():
                valid = (await self._queues.store.keys.look(sorted(keys))).counting
            if ended := keys - set(valid):
                await self._logs.revoke(keys=ended)

    async def _is_there(self, queue: views.QueueView) -> bool:
        """Whether this very queue still exists, not only another one of its name."""
        return await self._queues.store.find(queue.name) == queue.id

    async def _follow_topic(self, readers: Sequence[views.QueueView]) -> None:
        """Queues take the partition count of their topic; a topic only grows."""
        try:
            count = await self._logs.partition_count(readers[0].log)
        except Invalid as error:
            _log.warning("a topic cannot be asked", log=readers[0].log, error=str(error))
            return
        for reader in readers:
            if reader.partition_count < count:
                await self._readers.follow(reader.name, count, discard=False)

    async def _stored(
        self, queue_id: str, numbers: Sequence[int] | None = None
    ) -> dict[int, str | None]:
        """The positions of these partitions, by number; of all without `numbers`, also of removed
        ones, whose messages are kept no longer than the others'."""
        rows = await self._queues.store.positions(queue_id, numbers)
        return await mapped(lambda number: (number, rows[number][1]), [*rows])

    async def _usable(
        self, queue: views.QueueView, positions: dict[int, str | None]
    ) -> dict[int, str | None]:
        """Changed: without what is no position. An older version stored whatever it was sent;
        nothing of such a partition is trimmed."""
        wrong: list[int] = []
        async for some in pieces([*positions.items()]):
            given = ((number, at) for number, at in some if at is not None)
            wrong += [number for number, at in given if number_of(queue.log, at) is None]
        if wrong:
            _log.warning(
                "these partitions have a position that is none: set it (POST …/positions)",
                queue=queue.name,
                partitions=wrong[:10],
            )
        positions.update(dict.fromkeys(wrong))
        return positions


def _complete(queue: Queue) -> tuple[int, int] | None:
    """The partition count and the revision; None between the slices of a resize."""
    return None if queue.is_resizing else (queue.settings.partition_count, queue.revision)


@contextmanager
def _alone(log: str) -> Iterator[None]:
    """What goes wrong with one log is logged, and stops nothing else."""
    try:
        yield
    except (BrokerError, StoreError, InvalidLog) as error:
        _log.warning("the upkeep of a log was cut short", log=log, error=str(error))
    except Exception:
        _log.exception("the upkeep of a log failed", log=log)


def _shown(positions: Mapping[int, str | None], count: int) -> Mapping[str, Any]:
    """Positions in the audit, the first ones of many."""
    shown = {str(number): position for number, position in positions.items()}
    return {"partitions": count, "positions": shown}


async def _refuse_ahead(given: Sequence[tuple[int, str]], reached: Mapping[int, str]) -> None:
    """Refuses a position that a partition has not reached: the next published messages would be
    below it, and be passed over. `reached`: the ends of partitions, as far as the log knows."""
    async for some in pieces(given):
        ahead = [
            (number, position)
            for number, position in some
            if number in reached and int(position) > int(reached[number])
        ]
        if ahead:
            first, position = ahead[0]
            raise Invalid(
                f"The log's partition {first} ends at {reached[first]}, and {position} is beyond "
                "that; send 'latest' for the end.",
                [(f"positions.{number}", f"is beyond {reached[number]}") for number, _ in ahead],
            )
