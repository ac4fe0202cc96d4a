"""The calls of administrators: queues and their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar
from uuid import uuid4

from msgspec import UNSET, structs

from broker.calls.access import QueueAccess, act_of, mention, sentence
from broker.calls.cuts import CutCalls
from broker.calls.lineage import roots_of
from broker.calls.positions import refuse_unreachable, shown_positions
from broker.calls.previews import PreviewCalls
from broker.calls.readers import LogReaders, Trims, log_owner
from broker.calls.rendering import queue_row_view, queue_view, status_of
from broker.core import commands as c
from broker.core.access import ALL_QUEUES, Caller, Right
from broker.core.creation import create
from broker.core.errors import (
    BrokerError,
    Forbidden,
    Invalid,
    LogChanged,
    QueueExists,
    QueueInUse,
    QueueNotFound,
    Unavailable,
)
from broker.core.model import MOST_PARTITIONS, Settings
from broker.core.queue import Queue
from broker.core.transitions import State
from broker.logs.names import builtin_name, check_log, decides_count, has_owner, parts_of
from broker.logs.ports import LogOwner, Logs
from broker.logs.retention import DEFAULT_BYTES, DEFAULT_SECONDS, Retention
from broker.replica.store_calls import store_available
from broker.replica.transaction import Submission
from broker.store.ports import (
    Commit,
    FlowsBound,
    LogTrimmed,
    NameTaken,
    QueueGone,
    StoreError,
)
from counterpoise import wire
from counterpoise.logs.address import kind_of

T = TypeVar("T")

FLOWS_BOUND = "Flows are bound to this queue; stop them first, or delete with ?force=true."
# Of the names of consumer groups that are named after their queues.
GROUP_PREFIX = "counterpoise."


class QueueCalls:
    """The calls of administrators on queues."""

    def __init__(
        self,
        queues: QueueAccess,
        logs: Logs,
        readers: LogReaders,
        cuts: CutCalls,
        trims: Trims,
        previews: PreviewCalls,
    ) -> None:
        self._queues = queues
        self._store = queues.store
        self._replica = queues.replica
        self._logs = logs
        self._readers = readers
        self._cuts = cuts
        self._trims = trims
        self._previews = previews

    async def create(self, spec: wire.QueueCreate, caller: Caller | None = None) -> wire.Queue:
        """Creates a queue; answers the one that is there if an equal call has made it.

        Raises QueueExists, Invalid, Forbidden, Unavailable.
        """
        return await self._trims.apart(lambda: self._create(spec, caller))

    async def _create(self, spec: wire.QueueCreate, caller: Caller | None) -> wire.Queue:
        log = _log_of(spec)
        check_log(log)
        spec = structs.replace(spec, ordered_resize=self._cuts.ordered(log, spec))
        retention = _retention_of(spec, log)
        if caller is not None:
            await self._readers.refuse_foreign(log, spec.name, caller, Right.ADMINISTER)
        await self._refuse_group(spec.mirror_group, spec.name, log, caller)
        with store_available():
            is_there = await self._store.find(spec.name) is not None
        if is_there:
            return await self._made_before(spec, log, retention)
        owner = await self._readers.owner(log, but=spec.name)
        commit, keys = await self._planned(spec, log, owner, retention, caller)
        with store_available():
            try:
                await self._store.create(commit)
            except NameTaken:
                return await self._made_before(spec, log, retention)
            except LogTrimmed:
                raise LogChanged("trimmed") from None
        queue = commit.queue
        if has_owner(log) and owner is None:
            await self._make_log(queue, keys, caller)
        view = queue_view(queue)
        self._replica.adopt(queue)
        if _awaits_cuts(queue, owner):
            await self._cuts.settle(spec.name)
        return view

    async def _planned(
        self,
        spec: wire.QueueCreate,
        log: str,
        owner: wire.Queue | None,
        retention: Retention | None,
        caller: Caller | None,
    ) -> tuple[Commit, Mapping[int, str] | None]:
        """The new queue as it is to be stored, and the keys of its first partitions, if it is
        dynamic. `owner`: the queue whose log it follows."""
        # Before the log is asked for anything. The queue's own log is made after it.
        fences = await self._trims.fences(log, spec.name)
        first = await roots_of(spec, log, owner, self._logs.ranges)
        roots = first.partitions
        ends = await self._ends(log, owner) if spec.start == "latest" else {}
        count = 0 if roots else await self._first_count(spec, log, owner)
        clock = self._replica.clock
        settings = _settings_of(spec, log, count, retention)
        queue = Queue(str(uuid4()), spec.name, settings, clock.now())
        queue.outage_seen = clock.outage_id
        if not roots and (owner is not None or len(parts_of(log)) > 1):
            count = await self._held_count(log, count, owner)
        entry = create(
            queue,
            uuid4().hex,
            partition_count=count,
            roots=roots,
            awaits_cuts=_awaits_cuts(queue, owner),
        )
        positions = await self._given_positions(spec, log, owner, queue)
        act = act_of(caller, "create_queue", spec.name)
        if act is not None:
            after = {**_shown(queue), **(shown_positions(positions) if positions else {})}
            act = replace(act, after=after)
        acts = () if act is None else (act,)
        partitions = [*queue.partitions.values()]
        commit = Commit(queue, 0, entry.commit_id, (entry,), partitions, children=roots, acts=acts)
        commit.next_deadline, commit.fences = queue.next_deadline(), fences
        if spec.start == "latest":
            positions = {**ends, **first.begins, **positions}
        commit.first_positions = {n: positions[n] for n in queue.partitions if n in positions}
        return commit, first.keys or None

    async def _made_before(
        self, spec: wire.QueueCreate, log: str, retention: Retention | None
    ) -> wire.Queue:
        """The queue of this name, if an equal call has made it and nobody has changed it since.

        The answer to that call may have been lost, or its replica may have died before the log was
        made. Raises QueueExists, Invalid, Unavailable.
        """
        owner = await self._readers.owner(log, but=spec.name)
        keys = (await roots_of(spec, log, owner, self._logs.ranges)).keys

        def equal(queue: Queue) -> wire.Queue:
            given = {name: getattr(spec, name) for name in _AS_GIVEN}
            if spec.partition_count is not UNSET and not keys:
                given["partition_count"] = spec.partition_count
            if retention is not None:
                given["retention_seconds"] = retention.seconds
                given["retention_bytes"] = retention.most_bytes
            made = replace(queue.settings, **given, log=log)
            numbers = {} if queue.lineage is None else queue.lineage.numbers
            # A queue on another's log has begun with the partitions that this had then.
            same = owner is not None or keys == {at: key for key, at in numbers.items()}
            if made != queue.settings or not same:
                raise QueueExists(spec.name)
            return queue_view(queue)

        try:
            view = await self._queues.read(spec.name, equal)
        except QueueNotFound:
            raise Unavailable("The queue of this name was just deleted; try again.") from None
        if has_owner(log) and owner is None:
            count = len(keys) or view.partition_count
            await self._logs.ensure(log, count, log_owner(view), keys or None)
        if given := _set(_positions_of(spec)):
            with store_available():
                stored = await self._store.positions(view.id, [*given])
            if given != {number: one.position for number, one in stored.items()}:
                raise QueueExists(spec.name)
        return view

    async def _refuse_group(
        self, group: str | None, name: str, log: str, caller: Caller | None
    ) -> None:
        """Raises Invalid and Forbidden for a group into which the queue cannot be mirrored.

        The service may write to every group of the cluster. So a key may choose only groups that
        are named after queues that it administers, or any group if it is for all queues.
        """
        if group is None:
            return
        if kind_of(log) != "kafka":
            raise Invalid(
                "Only the positions of a queue on a topic of Kafka are mirrored into a consumer "
                "group; leave mirror_group out.",
                [("mirror_group", "is for logs in Kafka")],
            )
        if caller is not None and not _may_write(group, caller):
            raise Forbidden(
                f"This key may not write to the consumer group {group!r}: name it "
                f"'{GROUP_PREFIX}{name}', or use a key for all queues ('*')."
            )
        others = [one for one in await self._readers.of(log) if one.name != name]
        if any(one.mirror_group == group for one in others):
            raise Invalid(
                f"Another queue on this topic is mirrored into the consumer group {group!r}; "
                "choose another one.",
                [("mirror_group", "is that of another queue on the topic")],
            )

    async def _make_log(
        self, queue: Queue, keys: Mapping[int, str] | None, caller: Caller | None
    ) -> None:
        """Makes the log of a new queue; if that is refused, the queue is deleted again.

        A log that is away is made later, by a repeated call or by the upkeep. An equal call may
        have been answered meanwhile, so the queue stays then.
        """
        try:
            count = len(queue.partitions)
            await self._logs.ensure(queue.settings.log, count, log_owner(queue), keys)
        except Unavailable:
            raise
        except BaseException:
            # If the queue cannot be deleted now, it stays as if the log were away.
            with suppress(BrokerError, StoreError):
                await self._undo(queue, caller)
            raise

    async def _undo(self, queue: Queue, caller: Caller | None) -> None:
        """Deletes a queue that was just created, unless somebody uses it already."""
        with store_available():
            revisions = await self._store.revisions([queue.id])
        is_new = revisions == {queue.id: queue.revision}
        if is_new and not await self._readers.followers(queue.name, queue.settings.log):
            act = act_of(caller, "delete_queue", queue.name)
            await self._store.delete(queue.id, force=False, act=act)

    async def _ends(self, log: str, owner: wire.Queue | None) -> Mapping[int, str]:
        """Where the log ends now, so that a queue begins there (the contract, *Queue*, `start`).

        It is asked before the queue is stored or changed, so a message that is published after the
        answer to the administrator is read. A log that is made for the queue is empty. Raises
        Unavailable; Invalid for a log of a kind that the service does not know.
        """
        if has_owner(log) and owner is None:
            return {}
        if kind_of(log) is None:
            raise Invalid(
                "The service does not know this kind of log, nor where it ends: leave "
                "start out, and set the positions of the queue that is there.",
                [("start", "cannot be 'latest' for a log of an unknown kind")],
            )
        return await self._logs.positions(log, "latest")

    async def _held_count(self, log: str, count: int, owner: wire.Queue | None) -> int:
        """How many partitions a new queue on a log of others has in all; so many (`count`) stay.

        A log that was shrunk may hold messages in further ones: the queue reads them, too. `owner`
        None: the log is of several queues. Raises Unavailable.
        """
        parts = parts_of(log)
        names = [builtin_name(part) or "" for part in parts] if owner is None else [owner.name]
        ever = [await self._queues.read(one, lambda queue: len(queue.partitions)) for one in names]
        width = len(parts)
        if max(ever) * width <= count:
            return count
        bounds = await self._logs.bounds(log)
        if bounds is None:
            raise Unavailable("The log does not say what it holds right now; try again.")
        ends = bounds.ends.items()
        held = (number for number, end in ends if int(bounds.starts[number]) < int(end))
        return max(count, (max(held, default=-1) // width + 1) * width)

    async def _given_positions(
        self, spec: wire.QueueCreate, log: str, owner: wire.Queue | None, queue: Queue
    ) -> dict[int, str]:
        """The positions that the administrator gives. Raises Invalid.

        They are stored with the queue, so no consumer begins elsewhere before.
        """
        positions = _positions_of(spec)
        if not positions:
            return {}
        if spec.partitioning != "fixed" or (has_owner(log) and owner is None):
            raise Invalid(
                "Only a queue that reads an existing log with fixed partitions begins at given "
                "positions: leave them out.",
                [("positions", "are for existing logs with fixed partitions")],
            )
        unknown = sorted(positions.keys() - queue.partitions.keys())
        if unknown:
            raise Invalid(
                f"The log has no partition {unknown[0]}.",
                [("positions", f"names {unknown[:10]}, which do not exist")],
            )
        await refuse_unreachable(self._logs, log, positions)
        return _set(positions)

    async def _first_count(self, spec: wire.QueueCreate, log: str, owner: wire.Queue | None) -> int:
        """The partition count of a new queue: the given one, or that of the followed log."""
        if len(parts_of(log)) > 1:
            whose, count = "several queues", await self._readers.aligned_count(log, spec.name)
            if count > MOST_PARTITIONS:
                raise Invalid(
                    f"A queue that reads these logs side by side would have {count} partitions, "
                    f"and {MOST_PARTITIONS} is the most: align fewer logs.",
                    [("align_with", f"makes {count} partitions")],
                )
        elif decides_count(log):
            whose, count = "the topic", await self._logs.partition_count(log)
        elif owner is not None:
            whose, count = f"the queue {owner.name!r}", owner.partition_count
        elif spec.partition_count is UNSET:
            raise Invalid(
                "Give the partition count of the queue.",
                [("partition_count", "is required")],
            )
        else:
            return spec.partition_count
        if spec.partition_count not in (UNSET, count):
            raise Invalid(
                f"A queue that reads the log of {whose} has its partition count, {count}; "
                "leave it out.",
                [("partition_count", f"is {count}, that of {whose}")],
            )
        return count

    async def get(self, name: str) -> wire.Queue:
        """One queue. Raises QueueNotFound."""
        return await self._queues.read(name, queue_view)

    async def change(
        self,
        name: str,
        changes: Mapping[str, object],
        discard: bool,
        caller: Caller | None = None,
        *,
        dry_run: bool = False,
    ) -> wire.Queue | wire.Preview:
        """Changes settings, any of `wire.QueueChange`. `dry_run`: changes nothing, and says what
        would come of it.

        Raises QueueNotFound, Invalid, Forbidden, ResizeUnsettled, StateKept, Unavailable.
        """
        if discard and "partition_count" not in changes:
            raise Invalid(
                "Only a resize discards: send partition_count too (the present one removes the "
                "partitions that are still retiring), or leave discard out.",
                [("discard", "needs partition_count")],
            )
        before = await self.get(name)
        if changes.get("ordered_resize"):
            self._cuts.refuse_unordered(before.log, before.partitioning)
        group = changes.get("mirror_group")
        if group is not None:
            await self._refuse_group(str(group), name, before.log, caller)
        if _RETENTION & set(changes):
            _refuse_retention(name, before.log)
        count = changes.get("partition_count", before.partition_count)
        resizes = count != before.partition_count
        if resizes:
            await self._readers.refuse_resize_of_follower(before)
            assert isinstance(count, int)
            await self._readers.refuse_wide(before, count, caller)
        checked = None
        if resizes or discard:
            checked = await self._refuse_disorder(before, changes, discard, caller)
        # What has no position yet begins at the ends of now, not at those of a later reader.
        begins: Mapping[int, str] = {}
        if changes.get("start", before.start) != before.start and changes["start"] == "latest":
            begins = await self._ends(before.log, before)
        command = c.Change(changes, discard, checked)
        if dry_run:
            shown = await self._followers(before, caller) if resizes or discard else ()
            return await self._previews.of(name, command, followers=shown)
        await self._change(name, command, begins, caller)
        ordered = changes.get("ordered_resize", before.ordered_resize)
        if ordered and ("partition_count" in changes or "ordered_resize" in changes):
            await self._cuts.settle(name)
        return await self.get(name)

    async def _followers(self, queue: wire.Queue, caller: Caller | None) -> Sequence[str]:
        """The queues that read the log of this one, as far as the caller may see them."""
        if not await self._readers.owns(queue.name, queue.log):
            return ()
        names = [one.name for one in await self._readers.followers(queue.name, queue.log)]
        return [name for name in names if caller is None or caller.sees(name)]

    async def _refuse_disorder(
        self,
        queue: wire.Queue,
        changes: Mapping[str, object],
        discard: bool,
        caller: Caller | None,
    ) -> tuple[int, int] | None:
        """Raises Invalid and ResizeUnsettled for what a reader with ordered resizes cannot follow.

        The queue itself says in its own transaction whether it is settled. Returns at which of its
        resizes the others are settled (`Change.checked`).
        """
        readers = await self._readers.of(queue.log) if has_owner(queue.log) else [queue]
        ordered = [
            one.name
            for one in readers
            if one.ordered_resize
            and (one.name != queue.name or changes.get("ordered_resize", True))
        ]
        if discard and ordered:
            which = mention(ordered, caller)
            raise Invalid(
                f"{sentence(which)} has ordered resizes, and messages that are discarded "
                "cannot be processed before newer ones; leave discard out, or change that queue's "
                "ordered_resize to false first.",
                [("discard", f"is not possible: {which} has ordered resizes")],
            )
        followers = [name for name in ordered if name != queue.name]
        if not followers:
            return None
        return await self._cuts.settled_followers(queue.name, followers, caller)

    async def _change(
        self,
        name: str,
        command: c.Change,
        begins: Mapping[int, str],
        caller: Caller | None,
    ) -> None:
        """Carries out a change, and its consequences for the log and its other readers.

        A discard is part of a resize. It deletes the messages of all removed partitions, so
        repeating an interrupted one completes it. `begins`: see `Submission`.
        """

        def extract(queue: Queue) -> tuple[LogOwner, str, int, int, list[int]]:
            removed = [p.number for p in queue.partitions.values() if p.state is State.REMOVED]
            of = log_owner(queue)
            return of, queue.settings.log, queue.settings.partition_count, queue.revision, removed

        discard, act = command.discard, act_of(caller, "change_queue", name)
        await self._queues.submit(
            name, lambda: Submission(command, begins=begins, act=act, shown=_shown)
        )
        if "partition_count" not in command.changes:
            return
        owner, log, count, revision, removed = await self._queues.read(name, extract)
        if not await self._readers.owns(name, log):
            return
        await self._logs.set_partition_count(
            log, count, revision, owner, removed if discard else ()
        )
        await self._cuts.lead(name, log, count, discard=discard, caller=caller)

    async def delete(
        self, name: str, force: bool, caller: Caller | None = None, *, dry_run: bool = False
    ) -> wire.Preview | None:
        """Deletes a queue, and the log it owns. Raises QueueNotFound, QueueInUse.

        `dry_run`: changes nothing, and says what would be lost. Of a queue that cannot be loaded
        nobody can say it: raises QueueUnreadable.
        """
        return await self._trims.apart(lambda: self._delete(name, force, caller, dry_run))

    async def _delete(
        self, name: str, force: bool, caller: Caller | None, dry_run: bool
    ) -> wire.Preview | None:
        # By its row alone: a queue that cannot be loaded can be deleted.
        with store_available():
            rows = await self._store.list(1, None, [name])
        # A name that is taken for a pattern matches others.
        if not rows or rows[0].queue.name != name:
            raise QueueNotFound(name)
        before = queue_row_view(rows[0])
        end = None
        if await self._readers.owns(name, before.log):
            end = await self._trims.end(before.log, log_owner(before))
        followers = await self._readers.followers(name, before.log) if end is not None else []
        if followers:
            which = sentence(mention([each.name for each in followers], caller))
            raise QueueInUse(f"{which} reads the log of {name!r}; delete that queue first.")
        if dry_run:
            preview, bound = await self._previews.of_deletion(name, deletes_log=end is not None)
            if bound and not force:
                raise QueueInUse(FLOWS_BOUND)
            return preview
        coordinator = self._replica.coordinator_of(before.id, name)
        act = act_of(caller, "delete_queue", name)
        if act is not None:
            act = replace(act, before=_shown(rows[0].queue))
        try:
            with store_available():
                await self._store.delete(coordinator.queue_id, force=force, act=act, end=end)
        except LogTrimmed:
            raise LogChanged("trimmed") from None
        except FlowsBound:
            raise QueueInUse(FLOWS_BOUND) from None
        except QueueGone:
            raise QueueNotFound(name) from None
        finally:
            coordinator.catch_up()
            self._replica.forget_name(name)
        self._replica.notify(coordinator.queue_id)
        if end is not None:
            await self._trims.drop(end)
        return None

    async def rebalance(
        self, name: str, caller: Caller | None = None, *, dry_run: bool = False
    ) -> wire.RebalanceStatus | wire.Preview:
        """Rebalances at once, ending any holddown. Raises QueueNotFound.

        `dry_run`: changes nothing, and says what would move.
        """
        if dry_run:
            return await self._previews.of(name, c.RebalanceNow())
        act = act_of(caller, "rebalance_now", name)

        def shown(queue: Queue) -> Mapping[str, Any]:
            return {"status": queue.status.value, "revision": queue.revision}

        await self._queues.submit(name, lambda: Submission(c.RebalanceNow(), act=act, shown=shown))
        return await self._queues.on(name, status_of)

    async def list(
        self, limit: int, cursor: str | None, patterns: Sequence[str] = ALL_QUEUES
    ) -> wire.Page[wire.Queue]:
        """The queues that match a pattern, by name; the cursor is the last name of the previous
        page.
        """
        with store_available():
            rows = await self._store.list(limit + 1, cursor, patterns)
        items = tuple(queue_row_view(row) for row in rows[:limit])
        return wire.Page(items, items[-1].name if len(rows) > limit else None)


def _may_write(group: str, caller: Caller) -> bool:
    """Whether this key may have a queue mirrored into this group."""
    if "*" in caller.patterns:
        return True
    named = group.removeprefix(GROUP_PREFIX)
    return named != group and caller.has(Right.ADMINISTER, named)


def _log_of(spec: wire.QueueCreate) -> str:
    """The log of a new queue. Raises Invalid where `align_with` does not fit."""
    log = spec.log or f"builtin:{spec.name}"
    if spec.align_with is UNSET:
        return log
    if kind_of(log) not in ("builtin", "aligned"):
        raise Invalid(
            "Only built-in logs are read side by side.",
            [("align_with", "is for the built-in log")],
        )
    # As it is shown, the log has the others already.
    others = f"+{spec.align_with}"
    return log if log.endswith(others) else log + others


def _positions_of(spec: wire.QueueCreate) -> dict[int, str | None]:
    return {int(number): at for number, at in (spec.positions or {}).items()}


def _set(positions: Mapping[int, str | None]) -> dict[int, str]:
    return {number: at for number, at in positions.items() if at is not None}


_RETENTION = frozenset({"retention_seconds", "retention_bytes"})
# What a call that creates a queue says, as its settings have it.
_AS_GIVEN = {one.name for one in fields(Settings)} & {*wire.QueueCreate.__struct_fields__}
_AS_GIVEN -= {"partition_count", "log", *_RETENTION}


def _settings_of(
    spec: wire.QueueCreate, log: str, count: int, retention: Retention | None
) -> Settings:
    given = {name: getattr(spec, name) for name in _AS_GIVEN}
    return Settings(
        partition_count=count,
        log=log,
        aligned=len(parts_of(log)),
        retention_seconds=retention.seconds if retention else None,
        retention_bytes=retention.most_bytes if retention else None,
        **given,
    )


def _awaits_cuts(queue: Queue, owner: wire.Queue | None) -> bool:
    """Whether the cuts of the log that the new queue follows are to be read."""
    return queue.settings.ordered_resize and owner is not None


def _retention_of(spec: wire.QueueCreate, log: str) -> Retention | None:
    """The retention of a new queue; None for one without a built-in log of its own."""
    seconds, most_bytes = spec.retention_seconds, spec.retention_bytes
    if log == f"builtin:{spec.name}":
        return Retention(
            DEFAULT_SECONDS if seconds is UNSET else seconds,
            DEFAULT_BYTES if most_bytes is UNSET else most_bytes,
        )
    if seconds is not UNSET or most_bytes is not UNSET:
        _refuse_retention(spec.name, log)
    return None


def _refuse_retention(name: str, log: str) -> None:
    """Raises Invalid if the queue has no built-in log of its own."""
    if log != f"builtin:{name}":
        raise Invalid(
            f"The queue {name!r} reads {log}, and only a queue with a built-in log of its own says "
            "what that log keeps: change the queue that owns this log, or leave it out.",
            [(field, "is for the queue's own built-in log") for field in sorted(_RETENTION)],
        )


def _shown(queue: Queue) -> Mapping[str, Any]:
    """A queue in the audit."""
    return {"id": queue.id, "revision": queue.revision, **asdict(queue.settings)}
