"""Which replica mirrors positions into consumer groups, and which mirrors fail.

**One replica mirrors** all queues that have a `mirror_group`. It claims this for some seconds, in
the row of the service, and again before they are over. If it dies, another one claims it then. Two
may still write at the same time, if a frozen one wakes up: what that does is in
`broker.calls.mirrors`. Without such a queue nothing is claimed, and nothing written.

**A failure is a row**, so that all replicas show it. It goes when the mirror works again, or with
the queue. It is shown while the queue has the group that failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Double, Text, bindparam, delete, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from broker.store.bulk import PreparedStatement, any_of
from broker.store.tables import is_mirrored, mirror_failures, queues, service


class Mirrored(NamedTuple):
    """A queue whose positions are mirrored into a group."""

    queue_id: str
    log: str
    group: str


class MirrorFailure(NamedTuple):
    """Why a mirror fails, and since when (Unix seconds)."""

    text: str
    since: float


class MirrorStore(Protocol):
    """The mirrors of positions. Raises StoreUnavailable."""

    async def claim(self, replica: str, seconds: float) -> bool:
        """Whether this replica mirrors from now on for so long: no other one does, and there is a
        queue to mirror.
        """

    async def queues(self) -> Sequence[Mirrored]:
        """The queues whose positions are mirrored, in the order of their creation."""

    async def report(self, queue: Mirrored, text: str | None) -> None:
        """The mirror of the queue fails, for this reason; None: it works. A failure keeps its
        time. Without effect if the queue is gone.
        """

    async def failures(self, queue_ids: Sequence[str]) -> Mapping[str, MirrorFailure]:
        """Those of these queues whose mirrors fail."""


class PostgresMirrors:
    """Implements `MirrorStore`; `fetch` carries out one statement."""

    def __init__(
        self, fetch: Callable[[PreparedStatement, Mapping[str, Any]], Awaitable[Sequence[Any]]]
    ) -> None:
        self._fetch = fetch

    async def claim(self, replica: str, seconds: float) -> bool:
        return bool(await self._fetch(_CLAIM, {"replica": replica, "seconds": seconds}))

    async def queues(self) -> Sequence[Mirrored]:
        return [Mirrored(*row) for row in await self._fetch(_QUEUES, {})]

    async def report(self, queue: Mirrored, text: str | None) -> None:
        given: dict[str, Any] = {"queue": queue.queue_id}
        if text is None:
            await self._fetch(_WORKS, given)
        else:
            await self._fetch(_FAILS, {**given, "group": queue.group, "text": text})

    async def failures(self, queue_ids: Sequence[str]) -> Mapping[str, MirrorFailure]:
        found = await self._fetch(_FAILURES, {"queue_ids": [*queue_ids]})
        return {queue_id: MirrorFailure(text, since) for queue_id, text, since in found}


_NOW = func.extract("epoch", func.statement_timestamp()).cast(Double)
_REPLICA = bindparam("replica", type_=Text)
_SECONDS = bindparam("seconds", type_=Double)
_CLAIM = PreparedStatement(
    update(service)
    .where(
        service.c.id == 1,
        or_(
            service.c.mirrored_by.is_(None),
            service.c.mirrored_by == _REPLICA,
            service.c.mirrored_until < _NOW,
            # The clock was set back.
            service.c.mirrored_until > _NOW + _SECONDS,
        ),
        exists(select(queues.c.id).where(is_mirrored)),
    )
    .values(mirrored_by=_REPLICA, mirrored_until=_NOW + _SECONDS)
    .returning(service.c.id)
)
_QUEUES = PreparedStatement(
    select(queues.c.id, queues.c.log, queues.c.mirror_group)
    .where(is_mirrored)
    .order_by(queues.c.created_at, queues.c.id)
)
_QUEUE = bindparam("queue", type_=Text)
_WORKS = PreparedStatement(
    delete(mirror_failures)
    .where(mirror_failures.c.queue_id == _QUEUE)
    .returning(mirror_failures.c.queue_id)
)
# The lock waits for a deletion of the queue, which then has no row.
_there = select(
    queues.c.id, bindparam("group", type_=Text), bindparam("text", type_=Text), _NOW
).where(queues.c.id == _QUEUE)
_written = insert(mirror_failures).from_select(
    ["queue_id", "consumer_group", "text", "since"],
    _there.with_for_update(read=True, key_share=True),
)
_FAILS = PreparedStatement(
    _written.on_conflict_do_update(
        index_elements=[mirror_failures.c.queue_id],
        set_={
            "consumer_group": _written.excluded.consumer_group,
            "text": _written.excluded.text,
        },
    ).returning(mirror_failures.c.queue_id)
)
_FAILURES = PreparedStatement(
    select(mirror_failures.c.queue_id, mirror_failures.c.text, mirror_failures.c.since)
    .join(queues, queues.c.id == mirror_failures.c.queue_id)
    .where(
        any_of(mirror_failures.c.queue_id, "queue_ids"),
        queues.c.mirror_group == mirror_failures.c.consumer_group,
    )
)
