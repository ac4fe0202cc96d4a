"""The log that an address and an access open (`counterpoise.logs.address`).

Here every kind of log is known, and no kind imports this module. A kind is imported when its first
log is opened, so no program needs the client of a server that it does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from msgspec import structs

from counterpoise.logs.address import LogAddress, check_access, environment_access, parse_log
from counterpoise.logs.errors import LogError
from counterpoise.wire import LogAccess

if TYPE_CHECKING:
    from counterpoise.logs.port import Log

# The access that a service in memory gives to its logs.
IN_MEMORY = "memory://"

# Each module has a class (log, access, *, timeout_seconds), and imports its server's client.
_OUTSIDE: Mapping[str, tuple[str, str]] = {
    "redis": ("counterpoise.logs.redis", "RedisLog"),
    "kafka": ("counterpoise.logs.kafka", "KafkaLog"),
}


def open_log(
    log: str, access: str | LogAccess | None = None, *, timeout_seconds: float = 30.0
) -> Log:
    """The log that a queue names; nothing is connected before the first call.

    `log` is `builtin:QUEUE`, `redis://host:port/DB/NAME` or `kafka://host:port[,…]/TOPIC`. `access`
    (a secret): bind's `log_access` or a URL; by default the matching one in COUNTERPOISE_LOG_URL,
    else for Redis and Kafka the log's own address. Every call on the log takes about
    `timeout_seconds` at most. Raises LogError if the log is of an unknown kind, there is no access,
    or a package is missing.
    """
    try:
        address = parse_log(log)
    except LogError as error:
        raise LogError(f"cannot open the log: {error}") from None
    if address.kind == "aligned":
        from counterpoise.logs.aligned import AlignedLog

        return AlignedLog(_open_parts(address, access, timeout_seconds))
    # A secret's file may end with a line end.
    url = access.url if isinstance(access, LogAccess) else access and access.strip()
    url = url or environment_access(log)
    if url is not None and url.startswith(IN_MEMORY) and address.kind == "builtin":
        # Only tests need it, see `counterpoise.testing`.
        from counterpoise.logs.memory import MemoryLog, opened

        return MemoryLog(opened(url), address.name)
    if url is not None:
        check_access(address, url)
    if address.kind != "builtin":
        return cast("Log", implementation(log, _OUTSIDE)(log, url, timeout_seconds=timeout_seconds))
    if url is None:
        raise LogError(
            f"the service gives no access to the log {log}: set COUNTERPOISE_LOG_URL "
            "(postgresql://user:password@host:port/database)"
        )
    from counterpoise.logs.builtin.log import PostgresLog
    from counterpoise.logs.postgres import guarded

    if isinstance(access, LogAccess):
        url = guarded(url)
    return PostgresLog(address.name, url, timeout_seconds=timeout_seconds)


def _open_parts(
    address: LogAddress, access: str | LogAccess | None, timeout_seconds: float
) -> list[Log]:
    """Each of the aligned logs; one access may be for all of them."""
    urls = (access.url if isinstance(access, LogAccess) else access or "").split()
    given: list[str | LogAccess | None] = [*urls] or [None]
    if isinstance(access, LogAccess):
        given = [structs.replace(access, url=url) for url in urls]
    if len(given) == 1:
        given *= len(address.parts)
    if len(given) != len(address.parts):
        raise LogError(f"{len(address.parts)} logs need as many accesses, or one for all")
    return [
        open_log(part, one, timeout_seconds=timeout_seconds)
        for part, one in zip(address.parts, given, strict=True)
    ]


def implementation(log: str, kinds: Mapping[str, tuple[str, str]]) -> Callable[..., Any]:
    """The class of a log outside the service; `kinds`: its module and name, by kind.

    Raises LogError for a kind that is not there, or when a package is missing.
    """
    kind = parse_log(log).kind
    module, name = kinds[kind]
    try:
        found: Callable[..., Any] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name == module:
            raise LogError(f"this version cannot open the log {log!r}") from None
        raise LogError(
            f"a log in {kind.capitalize()} needs a package that is not installed: "
            f"pip install 'counterpoise[{kind}]'"
        ) from None
    return found
