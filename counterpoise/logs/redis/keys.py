"""Where a log is in Redis: its keys, and the connection to the server."""

from __future__ import annotations

from typing import Any

from counterpoise.logs.address import parse_log
from counterpoise.logs.errors import LogNotFound
from counterpoise.logs.numbered import TOO_LARGE, NumberedLog
from counterpoise.logs.redis.connection import RedisConnection


class RedisKeys(NumberedLog):
    """The log's keys and connection."""

    kind = "a log in Redis"
    too_large = TOO_LARGE["redis"]

    def __init__(self, log: str, access: str | None = None, *, timeout_seconds: float = 30.0):
        """`log` is the queue's, `access` a URL with credentials. Raises LogError for bad ones."""
        address = parse_log(log)
        self.name = address.name
        self._log = log
        self._redis = RedisConnection(address, access, timeout_seconds)
        self._prefix = f"counterpoise:{{{address.name}}}:".encode()
        self._meta = self._prefix + b"meta"
        self._partitions = self._prefix + b"partitions"

    def __repr__(self) -> str:
        return f"RedisLog({self._log!r})"

    def _stream(self, partition: int) -> bytes:
        return self._prefix + b"stream:%d" % partition

    def _publisher(self, publisher: str) -> bytes:
        return self._prefix + b"publisher:" + publisher.encode()

    def _not_found(self) -> LogNotFound:
        return LogNotFound(
            f"there is no log {self._log}: its queue is gone, or the Redis has lost its data, and "
            "then the service makes the log anew within a minute"
        )

    def _there(self, answer: Any) -> Any:
        if answer[0] == b"missing":
            raise self._not_found()
        return answer
