"""Logs hold the messages.

`counterpoise.logs.port` lists the promises of a log. `postgres` is the built-in log; `redis` and
`kafka` are logs outside the service.
"""

from counterpoise.logs.errors import (
    InvalidMessage,
    InvalidPosition,
    LogAccessRefused,
    LogBehind,
    LogError,
    LogNotFound,
    LogUnavailable,
    PositionAhead,
    PositionTrimmed,
    StalePartitionCount,
    StaleRanges,
)
from counterpoise.logs.opening import open_log
from counterpoise.logs.port import (
    MAX_MESSAGE_BYTES,
    MESSAGE_SCHEMA,
    AppendBatch,
    AppendResult,
    Bounds,
    Log,
    Message,
    Successor,
)

__all__ = [
    "MAX_MESSAGE_BYTES",
    "MESSAGE_SCHEMA",
    "AppendBatch",
    "AppendResult",
    "Bounds",
    "InvalidMessage",
    "InvalidPosition",
    "Log",
    "LogAccessRefused",
    "LogBehind",
    "LogError",
    "LogNotFound",
    "LogUnavailable",
    "Message",
    "PositionAhead",
    "PositionTrimmed",
    "StalePartitionCount",
    "StaleRanges",
    "Successor",
    "open_log",
]
