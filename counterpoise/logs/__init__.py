"""Logs hold the messages.

`counterpoise.logs.port` lists the promises of a log. `builtin` is the built-in log, in Postgres;
`redis` and `kafka` are logs outside the service.
"""

from typing import TYPE_CHECKING

from counterpoise.lazy import lazily
from counterpoise.logs.errors import (
    InvalidLog,
    InvalidMessage,
    InvalidPosition,
    LogAccessRefused,
    LogBehind,
    LogError,
    LogNotFound,
    LogRefused,
    LogUnavailable,
    PositionAhead,
    PositionTrimmed,
    StaleRouting,
)
from counterpoise.logs.opening import open_log
from counterpoise.logs.port import (
    MAX_MESSAGE_BYTES,
    AppendBatch,
    AppendResult,
    Bounds,
    Log,
    Message,
    Successor,
)

if TYPE_CHECKING:
    from counterpoise.logs.columns import MESSAGE_SCHEMA

__all__ = [
    "MAX_MESSAGE_BYTES",
    "MESSAGE_SCHEMA",
    "AppendBatch",
    "AppendResult",
    "Bounds",
    "InvalidLog",
    "InvalidMessage",
    "InvalidPosition",
    "Log",
    "LogAccessRefused",
    "LogBehind",
    "LogError",
    "LogNotFound",
    "LogRefused",
    "LogUnavailable",
    "Message",
    "PositionAhead",
    "PositionTrimmed",
    "StaleRouting",
    "Successor",
    "open_log",
]

if not TYPE_CHECKING:  # with __getattr__ visible, mypy would accept every name
    # The service and most commands never read a message, and Arrow takes a tenth of their start.
    __getattr__ = lazily(__name__, {"MESSAGE_SCHEMA": "counterpoise.logs.columns"})
