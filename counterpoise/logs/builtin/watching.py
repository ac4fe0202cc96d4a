"""Waits at the ends of the built-in log's partitions, and wakes those who do.

A reader says where it waits, listens on its own connection, and looks once more whether that is
still the end; migrations/log/sql/watches.sql says why no append is missed. While it waits it only
looks again, less and less often. It does so because a wake-up may be lost (a publisher ends between
its append and the wake-up; the server has no room for notifications), and because a connection may
be dead without a sign of it.

Notifications of partitions that are not watched cost no statement. Where no notification arrives
(`LogConnection.listen`), the reader asks now and then.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from counterpoise.backoff import Backoff
from counterpoise.logs.builtin.connection import LogConnection, bigint_array, integer_array
from counterpoise.logs.errors import LogError, LogUnavailable
from counterpoise.logs.port import Rest

# How often a reader that waits looks.
LOOK = Backoff(2.0, 30.0)
# An append is about to end.
SOON = Backoff(0.002, 0.2)
# For how long a reader asks now and then that cannot be woken: because no notification arrives, or
# because another reader keeps what it would have to write.
DEAF_SECONDS = 60.0
LOCKED_SECONDS = 1.0
_NOW = Rest(0.0)
_NUMBER = re.compile(r"\b\d{1,9}\b", re.ASCII)

_WATCH = "SELECT counterpoise_log.watch(%b, %b::integer[], %b::bigint[])"
_STILL_WAITS = "SELECT counterpoise_log.still_waits(%b, %b, %b::integer[], %b::bigint[])"
_WAKE = "SELECT counterpoise_log.wake(%b, %b::integer[])"
# `lock_timeout`: another reader keeps a row locked.
_LOCKED = "55P03"


class PostgresWatching:
    """Of one reader of the log `name`."""

    def __init__(
        self,
        connection: LogConnection,
        name: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._name = name
        self._monotonic = monotonic
        # On which the present connection listens, if it is listening.
        self._channel: str | None = None
        # Where it has said that it waits.
        self._ends: Mapping[int, int] = {}
        # How often it has looked at them, and when it does so again.
        self._looks = self._soon = 0
        self._look_at = 0.0
        self._not_before = 0.0

    def watch(self, ends: Mapping[int, int]) -> Rest | None:
        """See `Log.watch`."""
        now = self._monotonic()
        if now < self._not_before:
            return None
        heard = self._connection.heard()
        if heard is None or ends != self._ends:
            return self._begin(ends)
        descriptor, payloads = heard
        if self._is_called(payloads):
            return _NOW
        if now < self._look_at:
            return Rest(self._look_at - now, (descriptor,))
        return self._look()

    def _begin(self, ends: Mapping[int, int]) -> Rest | None:
        self._ends, self._looks, self._soon = {}, 0, 0
        if self._connection.heard() is None:
            self._channel = None
            if not self._connection.hears():
                return self._never(DEAF_SECONDS)
        asked = [self._name, integer_array([*ends]), bigint_array([*ends.values()])]
        try:
            ((channel,),) = self._connection.query(_WATCH, asked, retry=False)
        except LogUnavailable as error:
            if getattr(error.__cause__, "sqlstate", None) == _LOCKED:
                return self._never(LOCKED_SECONDS)
            raise
        if channel != self._channel:
            self._connection.listen(channel)
            self._channel = channel
        self._ends = ends
        return self._look(said=True)

    def _look(self, *, said: bool = False) -> Rest | None:
        positions = bigint_array([*self._ends.values()])
        asked = [self._name, self._channel, integer_array([*self._ends]), positions]
        ((found,),) = self._connection.query(_STILL_WAITS, asked, retry=True)
        heard = self._connection.heard()
        if found == "moved" or heard is None:
            self._ends = {}
            return _NOW
        if found == "unsaid":
            # The server has crashed since, or a resize has made one of the partitions.
            return self._never(LOCKED_SECONDS) if said else self._begin(self._ends)
        descriptor, payloads = heard
        if self._is_called(payloads):
            return _NOW
        if found == "soon":
            self._soon += 1
            seconds = SOON.after(self._soon)
        else:
            self._looks += 1
            seconds = LOOK.after(self._looks)
        self._look_at = self._monotonic() + seconds
        return Rest(seconds, (descriptor,))

    def _is_called(self, payloads: Sequence[str]) -> bool:
        if "" in payloads:
            # Perhaps a resize made a partition, of which nothing is said yet.
            self._look_at = 0.0
        return any(map(self._concerns, payloads))

    def _concerns(self, payload: str) -> bool:
        """Whether a notification is of partitions that are watched, or of any."""
        return not payload or any(int(one) in self._ends for one in _NUMBER.findall(payload))

    def _never(self, seconds: float) -> Rest | None:
        self._ends, self._not_before = {}, self._monotonic() + seconds
        return None


def wake(connection: LogConnection, name: str, partitions: Sequence[int]) -> None:
    """Wake readers that wait for messages of these partitions, which have been appended. If that
    fails they find the messages when they look.
    """
    with suppress(LogError):
        connection.query(_WAKE, [name, integer_array(partitions)], retry=True)
