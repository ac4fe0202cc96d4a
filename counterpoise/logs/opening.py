"""Opens the log that a queue names: chooses the implementation and the access."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from counterpoise.logs.address import check_access, environment_access, parse_log
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
    is how to reach it (bind's `log_access`, or a URL; a secret), by default the matching one in the
    environment's COUNTERPOISE_LOG_URL, else for Redis and Kafka the log's own address. Every
    call on the log takes about `timeout_seconds` at most.
    Raises LogError if the log is of an unknown kind, there is no access, or a package is missing.
    """
    try:
        address = parse_log(log)
    except LogError as error:
        raise LogError(f"cannot open the log: {error}") from None
    url = access.url if isinstance(access, LogAccess) else access
    url = url or environment_access(log)
    if url is not None and url.startswith(IN_MEMORY) and address.kind == "builtin":
        # Only tests need it, see `counterpoise.testing`.
        memory = import_module("counterpoise.logs.memory")
        return cast("Log", memory.MemoryLog(memory.opened(url), address.name))
    if url is not None:
        check_access(address, url)
    if address.kind != "builtin":
        opened = implementation(log, _OUTSIDE)(log, url, timeout_seconds=timeout_seconds)
        return cast("Log", opened)
    if url is None:
        raise LogError(
            f"the service gives no access to the log {log}: set COUNTERPOISE_LOG_URL "
            "(postgresql://user:password@host:port/database)"
        )
    builtin = import_module("counterpoise.logs.builtin.log")
    return cast("Log", builtin.PostgresLog(address.name, url, timeout_seconds=timeout_seconds))


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
