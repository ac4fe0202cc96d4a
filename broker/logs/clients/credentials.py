"""Short-lived credentials with which consumers read and publishers append to the built-in log.

Each *holder* gets roles of its own (`counterpoise_log_client_…`), one for each log and purpose:
`flow:ID` for a flow that reads, `key:ID` for a caller with a key, `anyone` for callers of a service
without keys. What a role reaches, the log's database decides (migrations/log, log_0003). So who has
the credentials of one holder harms this holder at most: by another password, by taking all
connections of the role, by ending its sessions.

A role is valid for two hours; a holder that asks again after 55 minutes gets another one. A client
asks when an hour is left, so each flow has two roles or three. Passwords are kept nowhere but in
the memory of the replica that made them: replicas need no agreement, and each makes roles of its
own for the holders that ask there. A holder whose role was refused (its password was changed, say)
asks for another one, and gets it at once, but not twice in REFUSED_SECONDS.

Roles are made many at a time, in one statement, so that a thousand binds wait for a few of them. A
bind does not wait until its role is on disk: the commit of the flow, which comes next, brings the
role there, too, if both are in one database. If Postgres crashes before, the role is gone, the log
refuses it like one whose password was changed, and the holder gets another one.

`roles` ends roles: when they have expired, and when their holder has gone.

A service that may not create roles gives none; consumers then bring a URL of their own.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import asyncpg
import structlog
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from broker.logs.clients.address import client_url
from broker.logs.clients.closing import close_to_public
from broker.logs.clients.fetching import LOST, fetch_row
from broker.logs.clients.holders import Holder, LogAccess, Purpose

ROTATE_SECONDS = 55 * 60.0
VALID_SECONDS = 2 * 60 * 60.0
REFUSED_SECONDS = 5.0
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


class LogCredentials:
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
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`address` is the log's URL as consumers reach it; `tls`: see `client_url`.

        `making`: for the statement that makes roles, which tests its connection itself.
        """
        self._engine = engine
        self._making = making or engine
        self._address = client_url(make_url(address), tls=tls)
        self._connections = connections
        self._rotate_seconds = rotate_seconds
        self._valid_seconds = valid_seconds
        self._monotonic = monotonic
        self._made: dict[_Wanted, _Made] = {}
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
        self._made = {
            wanted: made
            for wanted, made in self._made.items()
            if wanted.log != log
            and wanted.holder.name not in holders
            and wanted.holder.key_id not in keys
            and self._monotonic() - made.at < self._valid_seconds
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
        self._made |= {
            one: _Made(asked_at, access) for one, access in zip(wanted, made, strict=True)
        }
        return dict(zip(wanted, made, strict=True))

    async def _make_roles(self, wanted: Sequence[_Wanted]) -> list[LogAccess] | None:
        """A role for each; None if this user may not make roles."""
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
            self._address.set(username=role, password=password)
            for role, password in zip(roles, passwords, strict=True)
        ]
        ends = expires_at.timestamp()
        return [LogAccess(url.render_as_string(hide_password=False), ends) for url in urls]


def scram_verifier(password: str, iterations: int = _ITERATIONS) -> str:
    """The verifier that Postgres stores (RFC 5803), so that it never sees the password."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${iterations}:{encoded[0]}${encoded[1]}:{encoded[2]}"
