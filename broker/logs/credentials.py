"""Short-lived credentials of the built-in log's clients: consumers read and publishers append with
them, on the log's database itself.

**Whose.** Each *holder* gets roles of its own (`counterpoise_log_client_…`), one for each log and
purpose: `flow:ID` for a flow that reads, `key:ID` for a caller with a key, `anyone` for callers of
a service without keys (`broker.logs.ports.Holder`). What a role reaches, and why, the log's
database decides (migrations/log/sql/access.sql). So who has the credentials of one holder harms
this holder at most: by another password, by taking all connections of the role, by ending its
sessions.

**How long.** A role is valid for two hours; a holder that asks again after 55 minutes gets another
one. A client asks when an hour is left, so each flow has two roles or three. Passwords are kept
nowhere but in the memory of the replica that made them: replicas need no agreement, and each makes
roles of its own for the holders that ask there. A holder whose role was refused (its password was
changed, say) asks for another one, and gets it at once, but not twice in REFUSED_SECONDS. It never
has more than MOST_ROLES for one purpose: beyond that, the oldest one is ended (`surplus`).

**At what cost.** Roles are made many at a time, in one statement, so that a thousand binds wait for
a few of them. A bind does not wait until its role is on disk: the commit of the flow, which comes
next, brings the role there, too, if both are in one database. If Postgres crashes before, the role
is gone, the log refuses it like one whose password was changed, and the holder gets another one.

`roles` ends roles: when they have expired, and when their holder has gone. A service that may not
create roles gives none; consumers then bring a URL of their own.

**Where clients connect** (`client_parameters`). A client gets the service's own address, less what
is not theirs. The service's URL may hold more than a place: a user and a password, also in the
query string, and the paths of keys and certificates of the service's machine. So a client gets only
the settings that are known to be harmless, never the rest.
Encryption follows the service's: a service that speaks HTTPS tells clients beyond this machine to
insist on it (`sslmode=require`) unless its URL says otherwise.

**What Postgres gives to everybody by default is taken away first** (`close_to_public`), before
strangers get credentials. Every role that may connect can make temporary tables and large objects,
and in databases of old releases tables and functions in `public`. It can also take any advisory
lock; many of them fill the server's table of locks, and then nobody's statement gets one. It sees
the locks of all sessions, and so who appends and who reads at this moment. And it can run a loop of
its own making in the server (DO, in PL/pgSQL), of which each turn is a transaction. Taken away is
what is the service's to take: in a database that it owns, the right to make temporary tables and to
create in `public`; in a server that it has started itself (`broker.postgres`), also connecting to
the other databases, PL/pgSQL, and the functions in _FUNCTIONS. In somebody else's server they may
be in use by others; docs/security.md says what its administrator may do.

**The server's own log is not for clients.** Postgres writes failed statements, their messages and
parameters into it whole, and `debug_print_plan`, which every role may set, writes more. In the
service's own server only what ends a session is written for clients, without its statement, details
and parameters. Only a superuser may set that otherwise.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple

import asyncpg
import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from broker.logs.database import LOST, fetch_row
from broker.logs.ports import Holder, LogAccess, Purpose
from counterpoise.lease_time import lease_time
from counterpoise.logs import postgres

# Of pg_catalog; names as for LIKE. They write what nobody reads, keep what others wait for, or show
# who appends and reads at this moment (pg_locks).
_FUNCTIONS = (
    "lo\\_%",
    "loread",
    "lowrite",
    "pg\\_advisory\\_%",
    "pg\\_try\\_advisory\\_%",
    "pg\\_logical\\_emit\\_message",
    "pg\\_lock\\_status",
)
# The service starts its own server with this setting (broker.postgres.embedded).
_IS_OURS = "coalesce(current_setting('counterpoise.own_server', true), '') = 'on'"
_DUE = f"""
SELECT format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', datname) FROM pg_database
WHERE datname = current_database() AND pg_has_role(datdba, 'USAGE')
    AND has_database_privilege('public', oid, 'TEMPORARY')
UNION ALL
SELECT format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', nspname) FROM pg_namespace
WHERE nspname = 'public' AND pg_has_role(nspowner, 'USAGE')
    AND has_schema_privilege('public', oid, 'CREATE')
UNION ALL
SELECT format('REVOKE CONNECT ON DATABASE %I FROM PUBLIC', datname) FROM pg_database
WHERE datname IN ('postgres', 'template1') AND datname <> current_database()
    AND {_IS_OURS} AND has_database_privilege('public', oid, 'CONNECT')
UNION ALL
SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', oid::regprocedure) FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace
    AND proname LIKE ANY (CAST(:functions AS text[]))
    AND {_IS_OURS} AND has_function_privilege('public', oid, 'EXECUTE')
UNION ALL
-- For new functions and for DO; the log's own functions need no right to it.
SELECT format('REVOKE USAGE ON LANGUAGE %I FROM PUBLIC', lanname) FROM pg_language
WHERE lanname = 'plpgsql' AND {_IS_OURS} AND has_language_privilege('public', oid, 'USAGE')
UNION ALL
-- The server's limit is for clients; an index of a large log needs more.
SELECT format('ALTER ROLE %I SET temp_file_limit = -1', current_user)
WHERE {_IS_OURS} AND current_setting('temp_file_limit') <> '-1'
UNION ALL
-- First what the service itself writes into the server's log, then nothing more for all others.
SELECT format('ALTER ROLE %s SET %I = %L', role, name, value)
FROM (VALUES
    (quote_ident(current_user), 'log_min_messages', 'warning'),
    (quote_ident(current_user), 'log_error_verbosity', 'default'),
    ('ALL', 'log_min_messages', 'fatal'),
    ('ALL', 'log_error_verbosity', 'terse')
) AS wanted (role, name, value)
WHERE {_IS_OURS} AND NOT EXISTS (
    SELECT FROM pg_db_role_setting
    WHERE setdatabase = 0 AND setrole = coalesce(to_regrole(role)::oid, 0)
        AND name || '=' || value = ANY (setconfig)
)
"""
ROTATE_SECONDS = 55 * 60.0
VALID_SECONDS = 2 * 60 * 60.0
REFUSED_SECONDS = 5.0
# Of one holder, log and purpose at a time: as many as rotation makes within the validity.
MOST_ROLES = 3
# A bind waits for this: a bind without an answer is sent again, and delays later calls.
GET_SECONDS = 5.0
# For each role: connections of executors, of the driver, and some to spare.
CONNECTIONS = 64
# How often a service that may not create roles checks this right again.
_FORBIDDEN_SECONDS = 60.0
_MOST_AT_ONCE = 200
# A password of 192 random bits cannot be guessed, so nothing is gained by making each guess dear.
_ITERATIONS = 1
# The end of their validity; null if this user may not make roles.
_MAKE = """
SELECT CASE WHEN counterpoise_log.grant_clients() THEN counterpoise_log.make_clients(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7, $8::integer) END,
    set_config('synchronous_commit', 'off', true)
"""
FORBIDDEN = (
    "consumers and publishers of the built-in log have to bring their own URLs: the user of its "
    "database may not create roles (CREATEROLE), or may not put them into counterpoise_log_client "
    "(GRANT counterpoise_log_client TO user WITH ADMIN OPTION)"
)
_log = structlog.get_logger()


def client_parameters(url: str, *, tls: bool) -> dict[str, str]:
    """The parameters of the URL without user, password and settings of the service's own.

    `tls`: the service speaks HTTPS; then connections beyond this machine have to be encrypted.
    """
    given = {n: v for n, v in postgres.read(url).items() if n in postgres.HARMLESS or n == "dbname"}
    if tls and not _is_local(given.get("host", "")):
        given.setdefault("sslmode", "require")
    return given


def _is_local(host: str) -> bool:
    """Whether it is this machine, or the directory of a socket on it."""
    if host.lower() in ("", "localhost") or host.startswith("/"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


async def close_to_public(engine: AsyncEngine) -> Sequence[str]:
    """Take it away, as far as it is still given. The statements that were run.

    Raises SQLAlchemy's errors and OSError if the database fails.
    """
    async with engine.connect() as connection:
        due = list(await connection.scalars(text(_DUE), {"functions": list(_FUNCTIONS)}))
    done = []
    for statement in due:
        try:
            async with engine.begin() as connection:
                await connection.exec_driver_sql(statement)
        except DBAPIError:
            # Another replica does it at this moment; if not, the next start finds it.
            continue
        done.append(statement)
    return done


class _Wanted(NamedTuple):
    """Credentials are the same for the same holder, log and purpose.

    The holder's queue is a part of it: a queue that is made again has other roles.
    """

    holder: Holder
    log: str
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class _Made:
    at: float
    access: LogAccess


class ClientCredentials:
    """Gives each holder its credentials, and makes new ones when they are due."""

    def __init__(
        self,
        engine: AsyncEngine,
        address: str,
        *,
        making: AsyncEngine | None = None,
        tls: bool = False,
        connections: int = CONNECTIONS,
        rotate_seconds: float = ROTATE_SECONDS,
        valid_seconds: float = VALID_SECONDS,
        monotonic: Callable[[], float] = lease_time,
    ) -> None:
        """`address` is the log's URL as consumers reach it; `tls`: see `client_parameters`.

        `making`: for the statement that makes roles, which tests its connection itself.
        """
        self._engine = engine
        self._making = making or engine
        self._address = client_parameters(address, tls=tls)
        self._connections = connections
        self._rotate_seconds = rotate_seconds
        self._valid_seconds = valid_seconds
        self._monotonic = monotonic
        self._made: dict[_Wanted, _Made] = {}
        # When each valid role was made, the oldest first.
        self._roles: dict[_Wanted, dict[str, float]] = {}
        self.surplus: set[str] = set()
        """Roles that a holder has beyond MOST_ROLES, to be ended."""
        self._forbidden_until: float | None = None
        self._closed = False
        # Who gets the lock makes roles for all that wait for it.
        self._lock = asyncio.Lock()
        self._waiting: dict[_Wanted, None] = {}

    async def get(
        self, log: str, purpose: Purpose, holder: Holder, *, refused: bool = False
    ) -> LogAccess | None:
        """Credentials for at least `valid_seconds - rotate_seconds`; None without CREATEROLE.

        `log` is the name of the log in its database. `refused`: the log refused the last ones.
        From memory if there are some, without waiting for the database. Otherwise raises the
        driver's errors, SQLAlchemy's and OSError if the database fails, TimeoutError after
        GET_SECONDS without an answer.
        """
        wanted = _Wanted(holder, log, purpose)
        made = self._made.get(wanted)
        if made is not None:
            age = self._monotonic() - made.at
            if age < (REFUSED_SECONDS if refused else self._rotate_seconds):
                return made.access
            if refused:
                del self._made[wanted]
        self._waiting[wanted] = None
        try:
            async with asyncio.timeout(GET_SECONDS), self._lock:
                access = self._recent(wanted)
                if access is None and not self._is_forbidden():
                    together = dict.fromkeys((wanted, *self._waiting))
                    missing = [one for one in together if self._recent(one) is None]
                    access = (await self._make(missing[:_MOST_AT_ONCE]))[wanted]
                return access
        finally:
            self._waiting.pop(wanted, None)

    def forget(
        self,
        log: str | None = None,
        holders: frozenset[str] = frozenset(),
        keys: frozenset[str] = frozenset(),
    ) -> None:
        """Credentials for this log, of these holders and made with these keys are not given any
        more.
        """

        def stays(wanted: _Wanted, made_at: float) -> bool:
            return (
                wanted.log != log
                and wanted.holder.name not in holders
                and wanted.holder.key_id not in keys
                and self._monotonic() - made_at < self._valid_seconds
            )

        self._made = {one: made for one, made in self._made.items() if stays(one, made.at)}
        self._roles = {
            one: roles for one, roles in self._roles.items() if stays(one, max(roles.values()))
        }

    def _recent(self, wanted: _Wanted) -> LogAccess | None:
        made = self._made.get(wanted)
        is_recent = made is not None and self._monotonic() - made.at < self._rotate_seconds
        return made.access if made is not None and is_recent else None

    def _is_forbidden(self) -> bool:
        return self._forbidden_until is not None and self._monotonic() < self._forbidden_until

    async def _make(self, wanted: Sequence[_Wanted]) -> dict[_Wanted, LogAccess | None]:
        asked_at = self._monotonic()
        try:
            if not self._closed:
                await close_to_public(self._engine)
                self._closed = True
            try:
                made = await self._make_roles(wanted)
            except LOST:
                # The connection was closed meanwhile. Other roles: these may have been made.
                made = await self._make_roles(wanted)
        except asyncpg.InsufficientPrivilegeError:
            made = None
        if made is None:
            if self._forbidden_until is None:
                _log.warning(FORBIDDEN)
            self._forbidden_until = asked_at + _FORBIDDEN_SECONDS
            return dict.fromkeys(wanted)
        self._forbidden_until = None
        for one, (role, access) in zip(wanted, made, strict=True):
            self._made[one] = _Made(asked_at, access)
            self._note(one, role, asked_at)
        return {one: access for one, (_, access) in zip(wanted, made, strict=True)}

    def _note(self, wanted: _Wanted, role: str, made_at: float) -> None:
        roles = self._roles.setdefault(wanted, {})
        roles[role] = made_at
        for oldest in [*roles][:-MOST_ROLES]:
            if made_at - roles.pop(oldest) < self._valid_seconds:
                self.surplus.add(oldest)

    async def _make_roles(
        self, wanted: Sequence[_Wanted]
    ) -> Sequence[tuple[str, LogAccess]] | None:
        """A role for each, and its address; None if this user may not make roles."""
        roles = [f"counterpoise_log_client_{secrets.token_hex(8)}" for _ in wanted]
        passwords = [secrets.token_urlsafe(24) for _ in wanted]
        expires_at, _ = await fetch_row(
            self._making,
            _MAKE,
            roles,
            [scram_verifier(password) for password in passwords],
            [one.log for one in wanted],
            [one.purpose for one in wanted],
            [one.holder.name for one in wanted],
            [one.holder.key_id for one in wanted],
            self._valid_seconds,
            self._connections,
        )
        if expires_at is None:
            return None
        urls = [
            postgres.written({**self._address, "user": role, "password": password})
            for role, password in zip(roles, passwords, strict=True)
        ]
        ends = expires_at.timestamp()
        return list(zip(roles, (LogAccess(url, ends) for url in urls), strict=True))


def scram_verifier(password: str, iterations: int = _ITERATIONS) -> str:
    """The verifier that Postgres stores (RFC 5803), so that it never sees the password."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${iterations}:{encoded[0]}${encoded[1]}:{encoded[2]}"
