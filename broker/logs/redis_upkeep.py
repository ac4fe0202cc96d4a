"""The service's work on a log in Redis: make, resize, discard, trim, find a time, drop.

Each is a script. What the log is made of, and why the checks of a script still hold when it writes:
`counterpoise.logs.redis.scripts`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker.logs.ports import LogOwner
from counterpoise.logs.errors import LogError, LogRefused
from counterpoise.logs.redis.connection import Script
from counterpoise.logs.redis.log import RedisLog
from counterpoise.logs.redis.scripts import STATE

# What a late call of a queue that is gone must not touch. `id` '' is anybody.
_OWNED = """
local function owned_by(key, id)
    return id == '' or redis.call('HGET', key, 'owner_id') == id
end
"""

# KEYS meta, partitions, stream   ARGV partition, position, step, queue id or ''
# Answers whether something is left to delete
TRIM = (
    STATE
    + _OWNED
    + """
if not owned_by(KEYS[1], ARGV[4]) then return 0 end
local state = state_of(KEYS[2], ARGV[1])
local below = math.min(tonumber(ARGV[2]), state.next)
-- Where messages were lost, those that can be read begin behind that.
if below >= state.first then below = next_message(KEYS[3], below) or state.next end
if below > state.first then
    state.first = below
    keep(KEYS[2], ARGV[1], state)
end
local oldest = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)
if not oldest[1] then return 0 end
local at = tonumber(string.match(oldest[1][1], '^(%d+)-'))
if at >= state.first then return 0 end
local cut = math.min(state.first, at + tonumber(ARGV[3]))
redis.call('XTRIM', KEYS[3], 'MINID', '=', text(cut) .. '-0')
return cut < state.first and 1 or 0
"""
)

# KEYS meta, partitions
# ARGV partition_count, queue id, queue, created_at, incarnation, then partition, position pairs
# Answers incarnation, owner's id and name, and of how many partitions messages are gone that ended
# below their position
ENSURE = (
    STATE
    + """
local there = redis.call('HMGET', KEYS[1], 'incarnation', 'owner_id', 'owner')
local made = not there[1]
if made then
    redis.call('HSET', KEYS[1], 'partition_count', ARGV[1], 'owner_id', ARGV[2], 'owner', ARGV[3],
        'owner_created_at', ARGV[4], 'incarnation', ARGV[5], 'revision', '0')
    there = {ARGV[5], ARGV[2], ARGV[3]}
elseif there[2] ~= ARGV[2] then
    return {there[1], there[2], there[3], 0}
end
local behind = 0
for i = 6, #ARGV, 2 do
    local at, state = tonumber(ARGV[i + 1]), state_of(KEYS[2], ARGV[i])
    if state.next < at and at < 9007199254740992 then
        state.next = at
        keep(KEYS[2], ARGV[i], state)
        behind = behind + 1
    end
end
return {there[1], there[2], there[3], behind}
"""
)

# KEYS meta   ARGV partition_count, revision, queue id or ''
SET_COUNT = (
    _OWNED
    + """
local revision = redis.call('HGET', KEYS[1], 'revision')
if not revision then return {'missing'} end
if tonumber(ARGV[2]) < tonumber(revision) or not owned_by(KEYS[1], ARGV[3]) then
    return {'ok', 0}
end
redis.call('HSET', KEYS[1], 'partition_count', ARGV[1], 'revision', ARGV[2])
return {'ok', 1}
"""
)

# KEYS meta, partitions, streams…   ARGV queue id or '', partitions…
# Answers the partitions whose messages were deleted
DISCARD = (
    STATE
    + _OWNED
    + """
local count = redis.call('HGET', KEYS[1], 'partition_count')
if not count then return {'missing'} end
local done = {}
if not owned_by(KEYS[1], ARGV[1]) then return {'ok', done} end
for i = 1, #ARGV - 1 do
    local partition = ARGV[1 + i]
    if tonumber(partition) >= tonumber(count) then
        local state = state_of(KEYS[2], partition)
        state.first, state.discarded = state.next, state.next
        keep(KEYS[2], partition, state)
        redis.call('UNLINK', KEYS[2 + i])
        done[#done + 1] = partition
    end
end
return {'ok', done}
"""
)

# KEYS meta, partitions, the stream of partition 0   ARGV queue id
DROP = """
local owner = redis.call('HGET', KEYS[1], 'owner_id')
if not owner or owner ~= ARGV[1] then return 0 end
local prefix = string.sub(KEYS[3], 1, -2)
for _, partition in ipairs(redis.call('HKEYS', KEYS[2])) do
    redis.call('UNLINK', prefix .. partition)
end
redis.call('UNLINK', KEYS[1], KEYS[2])
return 1
"""

# KEYS partitions, stream   ARGV partition, time, '' or where to look on, most steps
# Answers a position and whether it is the one: the first message published at that time or later
FIND_TIME = (
    STATE
    + """
local state = state_of(KEYS[1], ARGV[1])
local wanted = tonumber(ARGV[2])
if state.next <= state.first or not state.latest or state.latest < wanted then
    return {text(state.next), 1}
end
-- The time of the first message from there on, the latest up to it, and its position.
local function times(position)
    local there, _, fields = next_message(KEYS[2], position)
    if not there then return nil end
    local own, latest = tonumber(fields[2]), nil
    for i = 5, #fields, 2 do
        if fields[i] == 'm' then latest = tonumber(fields[i + 1]) end
    end
    -- What another program has written may have no time: it counts as the time before.
    own = own or latest or 0
    return own, latest or own, there
end
local at = tonumber(ARGV[3])
if not at or at < state.first then
    -- The latest time never falls, so below this position everything is older.
    local low, high = state.first, state.next
    while low < high do
        local middle = math.floor((low + high) / 2)
        local _, latest = times(middle)
        if latest and latest < wanted then low = middle + 1 else high = middle end
    end
    at = low
end
for _ = 1, tonumber(ARGV[4]) do
    if at >= state.next then return {text(state.next), 1} end
    local own, _, there = times(at)
    if not there then return {text(state.next), 1} end
    if own >= wanted then return {text(there), 1} end
    at = there + 1
end
return {text(at), 0}
"""
)


logger = logging.getLogger("counterpoise.logs")

TRIM_MESSAGES = 10_000
FIND_MESSAGES = 1000

_LEAST_VERSION = (6, 2)

_TRIM = Script(TRIM)
_ENSURE = Script(ENSURE)
_SET_COUNT = Script(SET_COUNT)
_DISCARD = Script(DISCARD)
_DROP = Script(DROP)
_FIND_TIME = Script(FIND_TIME)


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
            raise LogRefused(
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
            raise LogRefused(f"the Redis of {self._log} is too old; 6.2 or later is needed")
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy != "noeviction" and int(info.get("maxmemory", 0)) > 0:
            raise LogRefused(
                f"the Redis of {self._log} evicts keys when its memory is full, so messages would "
                "vanish: set maxmemory-policy noeviction"
            )
