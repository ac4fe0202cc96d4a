"""The ends of the clients' roles, and of what their sessions may do to others (see `credentials`).

* A role that has expired, or whose holder has gone, cannot log in; its sessions are ended and it is
  dropped, within a minute. A client that still needs the log connects again with new credentials.
* A session that keeps a transaction open is ended: it keeps locks, and rows that VACUUM cannot
  remove. So is one whose statement takes as long: a procedural block may commit now and then.
  Postgres lets each role change its own time limits, so the service looks (every WATCH_SECONDS).
  Our clients' statements are transactions of their own and end in half a minute.
* A session whose temporary files are as old is ended: a cursor WITH HOLD keeps its rows there when
  its transaction is over. To see the files, the service needs the right to list them.
* Sessions beyond the fair share of their key are ended when connections run short (`share_out`).
* A role belongs to the whole server: a session in another database is ended, too.

Every replica does all of it; what another one has done already is passed over. Without the right to
end the sessions of a role, it waits until they have ended.

**Fair shares.** No key takes all connections to the built-in log: when they run short, each has a
fair share. A role has a limit of its own, but a key has a role for each of its flows. While more
than 7/8 of the server's connections are taken, the rest is kept free for others: what clients may
have is divided equally among the keys that have sessions, and of a key that has more, the latest
sessions are ended. Its roles may then have as many as they kept (at least one), so that the
sessions do not come back; new roles are made every 55 minutes. Clients connect again by themselves.
While there is room, nobody is bounded. Callers of a service without keys are one key here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

_log = structlog.get_logger()

# Of the connections that clients can have at all, this part may be taken.
TAKEN_AT_MOST = 7 / 8

# What is reserved is not for clients; since Postgres 16 there are two reserves. The service's own
# server also has room for logins (`broker.postgres.embedded`).
_CAPACITY = """
SELECT coalesce(nullif(current_setting('counterpoise.clients', true), '')::integer,
    current_setting('max_connections')::integer
    - current_setting('superuser_reserved_connections')::integer
    - coalesce(current_setting('reserved_connections', true), '0')::integer)
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
WATCH_SECONDS = 5.0
# The longest transaction of a client, and the longest time that it may do nothing within one.
TRANSACTION_SECONDS = 60.0
IDLE_SECONDS = 5.0
# After a role has expired, before its sessions are ended.
EXPIRED_SECONDS = 30.0
# A role is made before its flow is bound: it is not without a holder yet.
YOUNG_SECONDS = 60.0
_AT_ONCE = 100
# In the transaction that drops the log.
EXPIRE_FOR_LOG = """
UPDATE counterpoise_log.clients SET expires_at = least(expires_at, now()) WHERE log = :log
"""
_WATCH = """
SELECT counterpoise_log.end_sessions(:transaction, :idle) + (
    SELECT count(*) FROM (
        SELECT pg_terminate_backend(a.pid)
        FROM pg_stat_activity AS a JOIN counterpoise_log.clients AS c ON c.role = a.usename
        WHERE a.state = 'active'
            AND a.query_start < clock_timestamp() - make_interval(secs => :transaction)
    ) AS ended
)
"""
_MAY_LIST_FILES = "SELECT has_function_privilege('pg_ls_tmpdir()', 'EXECUTE')"
_END_KEEPERS_OF_FILES = """
SELECT count(*) FROM (
    SELECT pg_terminate_backend(a.pid)
    FROM pg_stat_activity AS a JOIN counterpoise_log.clients AS c ON c.role = a.usename
    WHERE EXISTS (
        SELECT FROM pg_ls_tmpdir()
        WHERE starts_with(name, format('pgsql_tmp%s.', a.pid))
            AND modification <= clock_timestamp() - make_interval(secs => :transaction)
    )
) AS ended
"""
_EMPTY_NOTIFICATIONS = "SELECT pg_notification_queue_usage()"
_HOLDERS = """
SELECT DISTINCT holder FROM counterpoise_log.clients
WHERE created_at < now() - make_interval(secs => :young)
"""
_EXPIRED = """
SELECT CAST(role AS text) FROM counterpoise_log.clients
WHERE expires_at < now() - make_interval(secs => :expired) ORDER BY role
"""
_OF_HOLDERS = """
SELECT CAST(role AS text) FROM counterpoise_log.clients
WHERE holder = ANY (CAST(:holders AS text[])) OR key_id = ANY (CAST(:keys AS text[])) ORDER BY role
"""
_KEYS = "SELECT DISTINCT key_id FROM counterpoise_log.clients WHERE key_id IS NOT NULL"


@dataclass(frozen=True, slots=True)
class LogSession:
    """A session of a client: its process, its role, and the key of the role's holder."""

    pid: int
    role: str
    key: str


@dataclass(frozen=True, slots=True)
class Surplus:
    """Sessions to end, and how many sessions the roles of their keys keep."""

    sessions: Sequence[LogSession]
    kept: Mapping[str, int]


def surplus_of(sessions: Iterable[LogSession], room: int) -> Surplus:
    """What is beyond the fair shares of `room`. `sessions`: the oldest first."""
    by_key: dict[str, list[LogSession]] = defaultdict(list)
    for one in sessions:
        by_key[one.key].append(one)
    ended: list[LogSession] = []
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
    clients = [LogSession(row.pid, row.role, row.key) for row in found if row.client]
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


class ClientRoles:
    """The roles of one log database. All calls raise SQLAlchemy's errors and OSError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def watch(self) -> int:
        """End the sessions that would be in the way of others. How many there were."""
        limits = {"transaction": TRANSACTION_SECONDS, "idle": IDLE_SECONDS}
        async with self._engine.begin() as connection:
            ended = int(await connection.scalar(text(_WATCH), limits) or 0)
            if await connection.scalar(text(_MAY_LIST_FILES)):
                ended += int(await connection.scalar(text(_END_KEEPERS_OF_FILES), limits) or 0)
            # Postgres empties a full queue of notifications when one is sent, which it refuses
            # while the queue is full, or when somebody asks how full it is.
            await connection.execute(text(_EMPTY_NOTIFICATIONS))
        if ended:
            _log.warning(
                "ended sessions of clients that were in the way",
                sessions=ended,
            )
        return ended + await share_out(self._engine)

    async def holders(self) -> frozenset[str]:
        """All that have had roles for a while."""
        async with self._engine.connect() as connection:
            found = await connection.scalars(text(_HOLDERS), {"young": YOUNG_SECONDS})
            return frozenset(found)

    async def keys(self) -> frozenset[str]:
        """The ids of all keys with which roles were made."""
        return frozenset(await self._roles(_KEYS, {}))

    async def revoke(self, holders: Collection[str] = (), keys: Collection[str] = ()) -> None:
        """End all roles of these holders, and those made with these keys, at once."""
        which = {"holders": sorted(holders), "keys": sorted(keys)}
        await self._end(await self._roles(_OF_HOLDERS, which))

    async def end(self, roles: Collection[str]) -> None:
        """End these roles, and their sessions, at once."""
        await self._end(sorted(roles))

    async def drop_expired(self) -> None:
        """End the roles that have expired."""
        await self._end(await self._roles(_EXPIRED, {"expired": EXPIRED_SECONDS}))

    async def _roles(self, statement: str, parameters: Mapping[str, object]) -> Sequence[str]:
        async with self._engine.connect() as connection:
            return list(await connection.scalars(text(statement), parameters))

    async def _end(self, roles: Sequence[str]) -> None:
        for start in range(0, len(roles), _AT_ONCE):
            some = {"roles": list(roles[start : start + _AT_ONCE])}
            for step in ("lock_out_clients", "drop_clients"):
                async with self._engine.begin() as connection:
                    await connection.execute(
                        text(f"SELECT counterpoise_log.{step}(CAST(:roles AS text[]))"), some
                    )
