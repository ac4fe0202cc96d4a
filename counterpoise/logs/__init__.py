"""Logs: where messages live.

`counterpoise.logs.port` says what a log promises. `postgres` is the built-in log; `redis` and
`kafka` are logs outside the service.
"""

from counterpoise.logs.errors import (
    InvalidMessage,
    InvalidPosition,
    LogAccessRefused,
    LogBehind,
    LogError,
    LogNotFound,
    LogOwned,
    LogUnavailable,
    PositionAhead,
    PositionTrimmed,
    StalePartitionCount,
)
from counterpoise.logs.opening import open_log, open_managed
from counterpoise.logs.port import (
    MAX_MESSAGE_BYTES,
    MESSAGE_SCHEMA,
    AppendBatch,
    AppendResult,
    Bounds,
    Log,
    LogOwner,
    ManagedLog,
    Message,
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
    "LogOwned",
    "LogOwner",
    "LogUnavailable",
    "ManagedLog",
    "Message",
    "PositionAhead",
    "PositionTrimmed",
    "StalePartitionCount",
    "open_log",
    "open_managed",
]
