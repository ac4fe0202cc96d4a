"""The port of a log outside the service, as the service treats it; and how to open one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from broker.logs.ports import LogOwner
from counterpoise.logs.address import check_access, parse_log
from counterpoise.logs.errors import LogError
from counterpoise.logs.opening import implementation
from counterpoise.logs.port import Log

# Each has a class (log, access, *, timeout_seconds), and imports the client of its server.
_KINDS: Mapping[str, tuple[str, str]] = {
    "redis": ("broker.logs.redis_upkeep", "RedisUpkeep"),
    "kafka": ("broker.logs.kafka_upkeep", "KafkaUpkeep"),
}


class LogOwned(LogError):
    """The log exists already and was made for another queue; nothing of it was touched."""

    code = "log_owned"


class ManagedLog(Log, Protocol):
    """A log outside the service as the service treats it: made, resized and dropped with its queue.

    All calls may be repeated. Raises LogUnavailable, LogError; LogNotFound where it says so. What
    names an `owner` changes nothing when the log is another queue's: it came too late.
    """

    def ensure(
        self, partition_count: int, owner: LogOwner, begins: Mapping[int, str] | None = None
    ) -> str:
        """Make the log unless it exists; its incarnation. The count of one that exists stays.

        `begins`: positions that consumers have reached. A partition that ends below one has lost
        messages; it goes on there, so that no position consumers know means another message, and
        what lies below can no longer be read. Raises
        LogOwned if it belongs to another queue, LogError if it cannot keep a log's promises.
        """
        ...

    def partition_count(self) -> int:
        """How many partitions the log has. Raises LogNotFound."""
        ...

    def set_partition_count(
        self, partition_count: int, revision: int, owner: LogOwner | None = None
    ) -> bool:
        """Refuse appends routed with another count from now on; False if that comes too late.

        `revision` is the queue's that set the count; lower ones than seen change nothing. Raises
        LogNotFound.
        """
        ...

    def trim(self, below: Mapping[int, str], owner: LogOwner | None = None) -> None:
        """Delete what lies below these positions. Repeating or lowering one does nothing."""
        ...

    def discard(self, partitions: Sequence[int], owner: LogOwner | None = None) -> frozenset[int]:
        """Delete what these hold and return which: those outside the count. Raises LogNotFound."""
        ...

    def position_at(self, time: float) -> Mapping[int, str]:
        """Of each partition the first position published at `time` (Unix seconds) or later.

        Nothing published since lies below it; the partition's end without such a message.
        """
        ...

    def drop(self, owner: LogOwner) -> None:
        """Delete the log with all it holds, if it is this queue's."""
        ...


def open_managed(log: str, access: str | None, *, timeout_seconds: float) -> ManagedLog:
    """A Redis or Kafka log. Raises LogError like `counterpoise.logs.open_log`."""
    address = parse_log(log)
    if access is not None:
        check_access(address, access)
    if address.kind == "builtin":
        raise LogError(f"the service manages the log {log} in another way")
    opened = implementation(log, _KINDS)(log, access, timeout_seconds=timeout_seconds)
    return cast("ManagedLog", opened)
