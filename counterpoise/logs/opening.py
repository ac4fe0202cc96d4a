"""Opening the log that a queue names: the right implementation, the right access."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, cast

from counterpoise.logs.address import LogAddress, check_access, environment_access, parse_log
from counterpoise.logs.errors import LogError
from counterpoise.wire import LogAccess

if TYPE_CHECKING:
    from counterpoise.logs.port import Log, ManagedLog

# Each has a class (log, access, *, timeout_seconds), and imports the client of its server.
_OUTSIDE: Mapping[str, tuple[str, str]] = {
    "redis": ("counterpoise.logs.redis", "RedisLog"),
    "kafka": ("counterpoise.logs.kafka", "KafkaLog"),
}


def open_log(
    log: str, access: str | LogAccess | None = None, *, timeout_seconds: float = 30.0
) -> Log:
    """The log that a queue names; nothing is connected before the first call.

    `log` is `builtin:QUEUE`, `redis://host:port/DB/NAME` or `kafka://host:port[,…]/TOPIC`. `access`
    is how to reach it (what bind's `log_access` says, or a URL; a secret), by default what fits in
    the environment's COUNTERPOISE_LOG_URL, else for Redis and Kafka the log's own address. Every
    call on the log takes about `timeout_seconds` at most.
    Raises LogError if the log is of an unknown kind, there is no access, or a package is missing.
    """
    try:
        address = parse_log(log)
    except LogError as error:
        raise LogError(f"cannot open the log: {error}") from None
    url = access.url if isinstance(access, LogAccess) else access
    url = url or environment_access(log)
    if url is not None:
        check_access(address, url)
    if address.kind != "builtin":
        return _outside(address, log, url, timeout_seconds)
    if url is None:
        raise LogError(
            f"the service gives no access to the log {log}: set COUNTERPOISE_LOG_URL "
            "(postgresql://user:password@host:port/database)"
        )
    from counterpoise.logs.postgres import PostgresLog

    return PostgresLog(address.name, url, timeout_seconds=timeout_seconds)


def open_managed(log: str, access: str | None, *, timeout_seconds: float) -> ManagedLog:
    """A Redis or Kafka log as the service sees it. Raises LogError like `open_log`."""
    address = parse_log(log)
    if access is not None:
        check_access(address, access)
    return _outside(address, log, access, timeout_seconds)


def _outside(
    address: LogAddress, log: str, access: str | None, timeout_seconds: float
) -> ManagedLog:
    if address.kind == "builtin":
        raise LogError(f"the service manages the log {log} in another way")
    module, name = _OUTSIDE[address.kind]
    try:
        implementation = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name == module:
            raise LogError(f"this version cannot open the log {log!r}") from None
        raise LogError(
            f"a log in {address.kind.capitalize()} needs a package that is not installed: "
            f"pip install 'counterpoise[{address.kind}]'"
        ) from None
    return cast("ManagedLog", implementation(log, access, timeout_seconds=timeout_seconds))
