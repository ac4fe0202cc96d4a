"""No key takes all connections to the built-in log: when they run short, each has a fair share.

A role has a limit of its own, but a key has a role for each of its flows. So the service looks
(with `ClientRoles.watch`). While more than 7/8 of the server's connections are taken, the rest is
kept free for others: what clients may have is divided equally among the keys that have sessions,
and of a key that has more, the latest sessions are ended. Its roles may then have as many as they
kept (at least one), so that the sessions do not come back; new roles are made every 55 minutes.
Clients connect again by themselves. While there is room, nobody is bounded.

Callers of a service without keys are one key here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

_log = structlog.get_logger()

# Of the connections that clients can have at all, this part may be taken.
TAKEN_AT_MOST = 7 / 8

# What is reserved is not for clients; since Postgres 16 there are two reserves.
_CAPACITY = """
SELECT current_setting('max_connections')::integer
    - current_setting('superuser_reserved_connections')::integer
    - coalesce(current_setting('reserved_connections', true), '0')::integer
"""
_SESSIONS = """
SELECT a.pid, CAST(a.usename AS text) AS role, c.role IS NOT NULL AS client,
    coalesce(c.key_id, '') AS key
FROM pg_stat_activity AS a LEFT JOIN counterpoise_log.clients AS c ON c.role = a.usename
WHERE a.usename IS NOT NULL
    -- Of roles that this user may not see it is null.
    AND coalesce(a.backend_type, 'client backend') = 'client backend'
ORDER BY a.backend_start, a.pid
"""
_END = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE pid = ANY (CAST(:pids AS integer[])) AND usename = ANY (CAST(:roles AS text[]))
"""


@dataclass(frozen=True, slots=True)
class Session:
    """A session of a client: its process, its role, and the key of the role's holder."""

    pid: int
    role: str
    key: str


@dataclass(frozen=True, slots=True)
class Surplus:
    """Sessions to end, and how many sessions the roles of their keys keep."""

    sessions: Sequence[Session]
    kept: Mapping[str, int]


def surplus_of(sessions: Iterable[Session], room: int) -> Surplus:
    """What is beyond the fair shares of `room`. `sessions`: the oldest first."""
    by_key: dict[str, list[Session]] = defaultdict(list)
    for one in sessions:
        by_key[one.key].append(one)
    ended: list[Session] = []
    kept: Counter[str] = Counter()
    # Keys that need less than an equal share leave the rest of it to the others.
    left, waiting = max(0, room), len(by_key)
    for _, own in sorted(by_key.items(), key=lambda item: (len(item[1]), item[0])):
        share = max(1, left // waiting)
        left, waiting = max(0, left - min(share, len(own))), waiting - 1
        if len(own) > share:
            ended += own[share:]
            kept.update(one.role for one in own[:share])
            kept.update({one.role: 0 for one in own[share:]})
    return Surplus(ended, kept)


async def share_out(engine: AsyncEngine, capacity: int | None = None) -> int:
    """End what is beyond the fair shares, if connections run short. How many sessions there were.

    `capacity`: how many connections there are for clients; None: as the server says. Raises
    SQLAlchemy's errors and OSError.
    """
    async with engine.connect() as connection:
        if capacity is None:
            capacity = int(await connection.scalar(text(_CAPACITY)) or 0)
        found = list(await connection.execute(text(_SESSIONS)))
    room = int(capacity * TAKEN_AT_MOST)
    if len(found) <= room:
        return 0
    clients = [Session(row.pid, row.role, row.key) for row in found if row.client]
    surplus = surplus_of(clients, room - (len(found) - len(clients)))
    if not surplus.sessions:
        return 0
    for role, kept in sorted(surplus.kept.items()):
        await _limit(engine, role, max(1, kept))
    pids = [one.pid for one in surplus.sessions]
    async with engine.begin() as connection:
        await connection.execute(text(_END), {"pids": pids, "roles": list(surplus.kept)})
    _log.warning(
        "connections to the log run short: ended sessions of keys with more than their share",
        sessions=len(pids),
        keys=sorted({one.key for one in surplus.sessions}),
    )
    return len(pids)


async def _limit(engine: AsyncEngine, role: str, connections: int) -> None:
    """Before its sessions end, or they would come back."""
    try:
        async with engine.begin() as connection:
            await connection.exec_driver_sql(
                f'ALTER ROLE "{role}" CONNECTION LIMIT {connections:d}'
            )
    except DBAPIError:
        # Another replica does it, or has dropped the role.
        return
