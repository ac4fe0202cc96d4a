"""Short-lived credentials with which consumers read and publishers append to the built-in log.

A few login roles rotate, for any number of clients: a new one of each kind every half hour, valid
for two hours, so each client can log in with its role for at least an hour and a half. Replicas
share the roles through `counterpoise_log.credentials`. This table is in the log's database, because
a role and its row must be made in one transaction, and only the service may read it. The roles are
members of the group roles of migrations/log and can only read, or only append.

A service that may not create roles issues none; consumers then bring a URL of their own.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Row, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from broker.logs.ports import LogAccess, Purpose

ROTATE_SECONDS = 30 * 60.0
VALID_SECONDS = 2 * 60 * 60.0
# A bind waits for this: a bind without an answer is sent again, and delays later calls.
GET_SECONDS = 5.0
# How often a service that may not create roles checks this right again.
_REFUSED_SECONDS = 60.0
# "counterp", with another last byte than the lock of migrations.
_LOCK = 0x636F756E74657271
_GROUPS: dict[Purpose, str] = {
    "read": "counterpoise_log_reader",
    "publish": "counterpoise_log_publisher",
}
_INSUFFICIENT_PRIVILEGE = "42501"


class LogCredentials:
    """Issues the current credentials of each kind, and makes new ones when they are due."""

    def __init__(
        self,
        engine: AsyncEngine,
        address: str,
        *,
        rotate_seconds: float = ROTATE_SECONDS,
        valid_seconds: float = VALID_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`address` is the log's URL as consumers reach it; a user in it is replaced."""
        self._engine = engine
        self._address = make_url(address).set(drivername="postgresql")
        self._rotate_seconds = rotate_seconds
        self._valid_seconds = valid_seconds
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._current: dict[Purpose, tuple[float, LogAccess | None]] = {}

    async def get(self, purpose: Purpose) -> LogAccess | None:
        """Credentials for at least `valid_seconds - rotate_seconds`; None without CREATEROLE.

        Usually from memory, without waiting for the database. Otherwise raises SQLAlchemy's errors
        and OSError if the database fails, TimeoutError after GET_SECONDS without an answer.
        """
        known = self._known(purpose)
        if known is None:
            async with asyncio.timeout(GET_SECONDS), self._lock:
                # Another call may have asked meanwhile.
                known = self._known(purpose)
                if known is None:
                    known = self._current[purpose] = await self._shared(purpose)
                    await self._drop_expired()
        return known[1]

    def _known(self, purpose: Purpose) -> tuple[float, LogAccess | None] | None:
        known = self._current.get(purpose)
        return None if known is None or known[0] <= self._monotonic() else known

    async def _shared(self, purpose: Purpose) -> tuple[float, LogAccess | None]:
        """The current credentials of all replicas, made if needed, and how long to cache them."""
        asked_at = self._monotonic()
        try:
            async with self._engine.begin() as connection:
                await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
                row = await self._find(connection, purpose)
                if row is None:
                    if not await connection.scalar(text("SELECT counterpoise_log.grant_access()")):
                        return asked_at + _REFUSED_SECONDS, None
                    await self._make(connection, purpose)
                    row = await self._find(connection, purpose)
                    assert row is not None
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == _INSUFFICIENT_PRIVILEGE:
                return asked_at + _REFUSED_SECONDS, None
            raise
        url = self._address.set(username=row.role, password=row.password)
        access = LogAccess(url.render_as_string(hide_password=False), row.valid_until)
        return asked_at + max(0.0, self._rotate_seconds - row.age), access

    async def _find(self, connection: AsyncConnection, purpose: Purpose) -> Row[Any] | None:
        found = await connection.execute(
            text(
                "SELECT c.role, c.password,"
                " CAST(extract(epoch FROM c.valid_until) AS double precision) AS valid_until,"
                " CAST(extract(epoch FROM now() - c.created_at) AS double precision) AS age"
                # A role may have been dropped by hand, or be missing in a restored database.
                " FROM counterpoise_log.credentials AS c JOIN pg_roles AS r ON r.rolname = c.role"
                " WHERE c.kind = :kind AND c.created_at > now() - make_interval(secs => :age)"
                " AND c.valid_until > now() ORDER BY c.created_at DESC LIMIT 1"
            ),
            {"kind": purpose, "age": self._rotate_seconds},
        )
        return found.first()

    async def _make(self, connection: AsyncConnection, purpose: Purpose) -> None:
        role = f"{_GROUPS[purpose]}_{secrets.token_hex(6)}"
        password = secrets.token_urlsafe(24)
        inserted = await connection.execute(
            text(
                "INSERT INTO counterpoise_log.credentials"
                " (role, kind, password, created_at, valid_until) VALUES"
                " (:role, :kind, :password, now(), now() + make_interval(secs => :valid))"
                # A role's VALID UNTIL is text; the session's time zone must not matter.
                " RETURNING to_char(valid_until AT TIME ZONE 'UTC',"
                " 'YYYY-MM-DD HH24:MI:SS.US') || 'Z'"
            ),
            {
                "role": role,
                "kind": purpose,
                "password": password,
                "valid": self._valid_seconds,
            },
        )
        # The verifier instead of the password, so that a server that logs statements does not
        # write it down. None of the parts needs quoting.
        await connection.execute(
            text(
                f"CREATE ROLE {role} LOGIN NOCREATEDB NOCREATEROLE INHERIT"
                f" PASSWORD '{scram_verifier(password)}' VALID UNTIL '{inserted.scalar_one()}'"
                f" IN ROLE {_GROUPS[purpose]}".replace(":", "\\:")
            )
        )

    async def _drop_expired(self) -> None:
        """Drop roles that have expired and are not in use. One that cannot be dropped yet stays."""
        async with self._engine.connect() as connection:
            expired = await connection.scalars(
                text(
                    "SELECT role FROM counterpoise_log.credentials WHERE valid_until < now()"
                    " AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE usename = role)"
                )
            )
            roles = list(expired)
        for role in roles:
            try:
                async with self._engine.begin() as connection:
                    await connection.execute(
                        text("DELETE FROM counterpoise_log.credentials WHERE role = :role"),
                        {"role": role},
                    )
                    await connection.execute(text(f'DROP ROLE IF EXISTS "{role}"'))
            except DBAPIError:
                # Another replica drops it, or the role owns an object (a temporary table).
                continue


def scram_verifier(password: str, iterations: int = 4096) -> str:
    """The verifier that Postgres stores (RFC 5803), so that it never sees the password."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${iterations}:{encoded[0]}${encoded[1]}:{encoded[2]}"
