"""How each connection to Postgres is opened: what its URL says, and what it sets.

**A URL has one meaning**, that of libpq (`read`, and `written` back). SQLAlchemy and asyncpg read
blanks, directories of sockets and queries in ways of their own, so they get the parameters.

**No default decides.** An administrator may give a database or a role other defaults (`ALTER
DATABASE … SET`). They reach every session that does not say otherwise: with another isolation a
statement that has waited does not see what it waited for, and without row security a client reads
nothing. So each connection sets what its statements mean and how long they may take (SETTINGS). It
does so in the startup packet: this beats all defaults, holds from the first statement on, and costs
no round trip. Connection poolers refuse it, or ignore it (`broker.postgres.checks`).

**The environment of libpq** (PGSSLMODE, PGOPTIONS, …) speaks of some database, which need not be
this one. It completes a URL that a user gives, as with every program that uses libpq. It completes
none that a service gives to its clients (`guarded`). The service reads it once (`completed`), and
then forgets it (`forget_environment`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv6Address
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from counterpoise.logs.errors import InvalidLog

C = TypeVar("C")

# What statements mean, and no limits: whoever wants one sets it.
SETTINGS: Mapping[str, str] = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "row_security": "on",
    # Whatever is elsewhere has its schema before its name.
    "search_path": "pg_catalog",
    "standard_conforming_strings": "on",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
}
# Of sessions of the log. Who finds a table small takes all of it, and keeps to this as it grows.
BY_KEY: Mapping[str, str] = {"enable_seqscan": "off"}
# Since Postgres 14 and 17: earlier servers refuse a connection that sets them.
_LATER = ("idle_session_timeout", "transaction_timeout")
# By host and port: those that a server has refused.
_unknown: set[tuple[str | None, str | None, str]] = set()

# The settings that a service gives to clients, and that they take from it.
HARMLESS = frozenset(
    {
        "host",
        "port",
        "sslmode",
        "sslnegotiation",
        "ssl_min_protocol_version",
        "channel_binding",
        "target_session_attrs",
        "load_balance_hosts",
        "connect_timeout",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
    }
)
_GIVEN = HARMLESS | {"user", "password", "dbname"}
_GUARDS = {
    "passfile": os.devnull,
    "gssencmode": "disable",
    "require_auth": "!password,!md5,!gss,!sspi",
    "sslcertmode": "disable",
}
# An empty text is none of their values.
_UNSET = {"min_protocol_version": "3.0", "max_protocol_version": "3.0"}
# An empty text does not replace them: libpq would look for that service, or send no user.
_NOT_PINNED = frozenset({"service", "user"})
# By what this machine tells a server that it may trust.
_TRUST = frozenset({"sslrootcert", "sslcrl", "sslcrldir"})
# libpq knows them beside those of its parameters.
_MORE_VARIABLES = ("PGSERVICEFILE", "PGSYSCONFDIR", "PGTZ", "PGDATESTYLE", "PGGEQO")

_SCHEME = re.compile(r"postgres(?:ql)?(?:\+\w+)?://")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PORT = re.compile(r"[0-9]{1,5}")
_BLANKS = re.compile(r"([\\\s])")
_FORM = "this is not a URL like postgresql://user:password@host:port/database"


def read(url: str) -> dict[str, str]:
    """The parameters in a URL, by libpq's names; a driver in its scheme is ignored.

    Raises InvalidLog.
    """
    scheme = _SCHEME.match(url)
    if scheme is None or "\0" in url:
        raise InvalidLog(_FORM)
    try:
        found = conninfo_to_dict(f"postgresql://{url[scheme.end() :]}")
    except (psycopg.Error, UnicodeError):
        # The driver's message may quote a password.
        raise InvalidLog(_FORM) from None
    parameters = {name: str(value) for name, value in found.items()}
    if not all(map(_is_port, parameters.get("port", "").split(","))):
        # libpq says so when it connects, and quotes it.
        raise InvalidLog(_FORM)
    return parameters


def _is_port(text: str) -> bool:
    return not text or (_PORT.fullmatch(text) is not None and 0 < int(text) < 65536)


def is_ipv6(host: str) -> bool:
    """Whether it is an address of IPv6, perhaps with a zone."""
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def written(parameters: Mapping[str, str]) -> str:
    """The URL with these parameters: `read` gives them again."""
    left = {name: value for name, value in parameters.items() if value}
    empty = [f"{name}=" for name, value in parameters.items() if not value]

    def taken(name: str, before: str = "", safe: str = "") -> str:
        return before + quote(left.pop(name), safe=safe) if name in left else ""

    login = taken("user") + taken("password", ":")
    host = left.get("host", "")
    place = ""
    if _NAME.fullmatch(host):
        place = taken("host")
    elif is_ipv6(host):
        place = f"[{taken('host', safe=':')}]"
    if place and "," not in left.get("port", ""):
        place += taken("port", ":")
    path = taken("dbname", "/")
    query = "&".join([f"{name}={quote(value, safe='/:,')}" for name, value in left.items()] + empty)
    return "".join(
        [
            "postgresql://",
            login and f"{login}@",
            place,
            path or (query and "/"),
            query and f"?{query}",
        ]
    )


def completed(parameters: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """With the parameters of these names that are missing, where the environment has them."""
    found = {
        one.keyword.decode(): one.val.decode()
        for one in Conninfo.get_defaults()
        if one.val is not None and one.val != one.compiled
    }
    return {**{name: found[name] for name in names if name in found}, **parameters}


def forget_environment() -> None:
    """Take libpq's variables out of the environment of this process."""
    variables = (one.envvar.decode() for one in Conninfo.get_defaults() if one.envvar is not None)
    for variable in (*variables, *_MORE_VARIABLES):
        os.environ.pop(variable, None)


def guarded(url: str) -> str:
    """An access to the built-in log that a service has given, so that nothing else of this machine
    goes to the server that it names, or decides how it is reached.

    libpq completes an access from the environment (PGPASSWORD, PGSERVICE), from files that it names
    and from ~/.pgpass, and answers whatever the server asks for. So only harmless settings are
    left, the password is the given one or none, it is never sent as it is, and every other
    parameter has the value that it has without an environment. Raises InvalidLog.
    """
    head, _, query = url.partition("?")
    # Before libpq sees them: a later release may give some that this one does not know.
    kept = [each for each in query.split("&") if unquote(each.partition("=")[0]) in _GIVEN]
    given = read(f"{head}?{'&'.join(kept)}")
    left_alone = _NOT_PINNED
    if given.get("sslmode", "").startswith("verify"):
        left_alone |= _TRUST
    pins = {
        name: (one.compiled or b"").decode() or _UNSET.get(name, "")
        for one in Conninfo.get_defaults()
        if one.envvar is not None and (name := one.keyword.decode()) not in left_alone
    }
    return written({**pins, **given, **_GUARDS})


def connect(
    make: Callable[..., C],
    parameters: Mapping[str, str],
    settings: Mapping[str, str] = SETTINGS,
    **more: Any,
) -> C:
    """A connection of psycopg (`make`), with these settings.

    `more`: other parameters, also in place of those in the URL. Raises psycopg's errors.
    """
    while True:
        sent = known(parameters, settings)
        try:
            return make(**{**startup(parameters, sent), **more})
        except psycopg.OperationalError as error:
            if not learned(parameters, sent, error):
                raise


def startup(parameters: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """The parameters for libpq, with these settings; they come after those that are given."""
    given = completed(parameters, ["options"]).get("options", "")
    ours = (f"-c {name}={_escaped(value)}" for name, value in settings.items())
    return {**parameters, "client_encoding": "UTF8", "options": " ".join([given, *ours]).strip()}


def _escaped(value: str) -> str:
    """As the server takes it apart."""
    return _BLANKS.sub(r"\\\1", value)


def known(parameters: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that the server there knows, as far as this process has learned it."""
    return {
        name: value for name, value in settings.items() if _at(parameters, name) not in _unknown
    }


def learned(parameters: Mapping[str, str], sent: Mapping[str, str], error: Exception) -> bool:
    """Whether the server has refused a connection because it is too old for a setting that was
    sent: then `known` leaves it out.
    """
    refused = [name for name in _LATER if name in sent and f'"{name}"' in str(error)]
    _unknown.update(_at(parameters, name) for name in refused)
    return bool(refused)


def _at(parameters: Mapping[str, str], name: str) -> tuple[str | None, str | None, str]:
    return parameters.get("host"), parameters.get("port"), name
