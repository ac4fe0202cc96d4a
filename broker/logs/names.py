"""The address of a log: its kind, its one spelling, and the source of its partition count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from broker.core.errors import Invalid
from counterpoise.logs.address import Kind, kind_of, parse_log, refuse_credentials
from counterpoise.logs.errors import InvalidLog

_BUILTIN = "builtin:"
_COUNT_IS: Mapping[Kind, Literal["owner's", "log's", "owners'"]] = {
    "builtin": "owner's",
    "aligned": "owners'",
    "redis": "owner's",
    "kafka": "log's",
}


def builtin_name(log: str) -> str | None:
    """The name of the built-in log in a queue's `log`; None for other logs."""
    return log.removeprefix(_BUILTIN) if kind_of(log) == "builtin" else None


def parts_of(log: str) -> tuple[str, ...]:
    """The logs that a queue reads, each in its one spelling: of aligned ones several."""
    return (log,) if kind_of(log) is None else parse_log(log).parts


def canonical(log: str) -> str:
    """One spelling of a log's address; unchanged for logs of other kinds."""
    return log if kind_of(log) is None else parse_log(log).canonical()


def has_owner(log: str) -> bool:
    """Whether the log's partition count is that of the queue that owns it."""
    return _count_is(log) == "owner's"


def decides_count(log: str) -> bool:
    """Whether the log has its own partition count, which its queues follow."""
    return _count_is(log) == "log's"


def _count_is(log: str) -> str | None:
    kind = kind_of(log)
    return None if kind is None else _COUNT_IS[kind]


def check_log(log: str) -> None:
    """Raises Invalid for a `log` that is not an address, or contains credentials.

    A `log` of an unknown kind is accepted; only its consumers need to know the kind.
    """
    try:
        refuse_credentials(log)
        if kind_of(log) is not None:
            parse_log(log)
    except InvalidLog as error:
        raise Invalid(f"Of the queue's log: {error}.", [("log", str(error))]) from None
