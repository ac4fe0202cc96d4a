"""The service's work on a log in Redis: make, resize, discard, trim, find a time, drop."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker.logs import redis_upkeep_scripts as scripts
from broker.logs.managed import LogOwned
from broker.logs.ports import LogOwner
from counterpoise.logs.errors import LogError
from counterpoise.logs.redis.connection import Script
from counterpoise.logs.redis.log import RedisLog

logger = logging.getLogger("counterpoise.logs")

TRIM_MESSAGES = 10_000
FIND_MESSAGES = 1000

_LEAST_VERSION = (6, 2)

_TRIM = Script(scripts.TRIM)
_ENSURE = Script(scripts.ENSURE)
_SET_COUNT = Script(scripts.SET_COUNT)
_DISCARD = Script(scripts.DISCARD)
_DROP = Script(scripts.DROP)
_FIND_TIME = Script(scripts.FIND_TIME)


def _id_of(owner: LogOwner | None) -> str:
    return "" if owner is None else owner.queue_id


class RedisUpkeep(RedisLog):
    """See `ManagedLog`."""

    def ensure(
        self, partition_count: int, owner: LogOwner, begins: Mapping[int, str] | None = None
    ) -> str:
        self._refuse_forgetful()
        begin: Iterable[Any] = (
            part
            for partition, position in (begins or {}).items()
            if self.number(position) > 0
            for part in (partition, position)
        )
        incarnation, owner_id, queue, behind = self._redis.script(
            _ENSURE,
            [self._meta, self._partitions],
            partition_count,
            owner.queue_id,
            owner.queue,
            repr(owner.created_at),
            uuid.uuid4().hex,
            *begin,
            retry=True,
        )
        if owner_id.decode() != owner.queue_id:
            raise LogOwned(
                f"the log {self._log} exists already and belongs to a queue "
                f"{queue.decode()!r} (id {owner_id.decode()}); choose another name, or delete the "
                f"keys '{self._prefix.decode()}*' if that queue is gone"
            )
        if behind:
            logger.error(
                "counterpoise: %s has lost messages of %d partitions; they continue after the "
                "positions that readers had reached, and reading lost messages fails",
                self._log,
                behind,
            )
        return str(incarnation.decode())

    def partition_count(self) -> int:
        count = self._redis.call(
            lambda client: client.hget(self._meta, "partition_count"), retry=True
        )
        if count is None:
            raise self._not_found()
        return int(count)

    def set_partition_count(
        self, partition_count: int, revision: int, owner: LogOwner | None = None
    ) -> bool:
        answer = self._redis.script(
            _SET_COUNT, [self._meta], partition_count, revision, _id_of(owner), retry=True
        )
        return bool(self._there(answer)[1])

    def discard(self, partitions: Sequence[int], owner: LogOwner | None = None) -> frozenset[int]:
        keys = [self._meta, self._partitions, *map(self._stream, partitions)]
        answer = self._redis.script(_DISCARD, keys, _id_of(owner), *partitions, retry=True)
        return frozenset(map(int, self._there(answer)[1]))

    def position_at(self, time: float) -> Mapping[int, str]:
        known = self._redis.call(lambda client: client.hkeys(self._partitions), retry=True)
        partitions = sorted({*range(self.partition_count()), *map(int, known)})
        return {partition: self._find(partition, int(time * 1e6)) for partition in partitions}

    def drop(self, owner: LogOwner) -> None:
        keys = [self._meta, self._partitions, self._stream(0)]
        self._redis.script(_DROP, keys, owner.queue_id, retry=True)

    def trim(self, below: Mapping[int, str], owner: LogOwner | None = None) -> None:
        for partition, position in below.items():
            keys = [self._meta, self._partitions, self._stream(partition)]
            step = (partition, self.number(position), TRIM_MESSAGES, _id_of(owner))
            while self._redis.script(_TRIM, keys, *step, retry=True):
                pass

    def _find(self, partition: int, time: int) -> str:
        keys = [self._partitions, self._stream(partition)]
        position, found = self._redis.script(
            _FIND_TIME, keys, partition, time, "", FIND_MESSAGES, retry=True
        )
        while not found:
            position, found = self._redis.script(
                _FIND_TIME, keys, partition, time, position, FIND_MESSAGES, retry=True
            )
        return str(position.decode())

    def _refuse_forgetful(self) -> None:
        """Raises LogError for a server that would lose messages silently; warns if it may."""
        try:
            info: Any = self._redis.call(lambda client: client.info("default"), retry=True)
        except LogError as error:
            if "INFO" not in str(error) and "NOPERM" not in str(error):
                raise
            logger.warning("counterpoise: cannot read the settings of %s: %s", self._log, error)
            return
        version = str(info.get("redis_version", "0"))
        if tuple(int(part) for part in version.split(".")[:2]) < _LEAST_VERSION:
            raise LogError(f"the Redis of {self._log} is version {version}; 6.2 or later is needed")
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy != "noeviction" and int(info.get("maxmemory", 0)) > 0:
            raise LogError(
                f"the Redis of {self._log} evicts keys when its memory is full (maxmemory-policy "
                f"{policy}), so messages would vanish: set maxmemory-policy noeviction"
            )
