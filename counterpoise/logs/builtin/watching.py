"""Waits at the ends of the built-in log's partitions, and wakes those who do.

A reader says where it waits, listens on its own connection, and looks once more whether that is
still the end; migrations/log/sql/watches.sql says why no append is missed. What it has said and
looked at stays true until a partition is named to it. So when it has read a message, it says and
looks at the new end alone, however many partitions it has. All of them it only looks at again less
and less often: a wake-up may be lost (a publisher ends between its append and the wake-up; the
server has no room for notifications), and a connection may be dead without a sign of it.

Notifications of partitions that are not watched cost no statement. Where no notification arrives
(`LogConnection.listen`), the reader asks now and then.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress

from counterpoise.backoff import Backoff
from counterpoise.logs.builtin.connection import (
    LogConnection,
    SentArray,
    bigint_array,
    integer_array,
)
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
_NUMBER = re.compile(r"\b\d{1,9}\b", re.ASCII)

_WATCH = "SELECT counterpoise_log.watch(%b, %b::integer[], %b::bigint[])"
_STILL_WAITS = "SELECT counterpoise_log.still_waits(%b, %b, %b::integer[], %b::bigint[])"
_WAKE = "SELECT counterpoise_log.wake(%b, %b::integer[])"
# `lock_timeout`: another reader keeps a row locked.
_LOCKED = "55P03"


class PostgresWatching:
    """Of one reader of the log `name`, whose positions have this `number`."""

    def __init__(
        self,
        connection: LogConnection,
        name: str,
        number: Callable[[str], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._name = name
        self._number = number
        self._monotonic = monotonic
        # On which the present connection listens, if it is listening.
        self._channel: str | None = None
        # Where it has said that it waits, and where it has looked after that.
        self._said: Mapping[int, str] = {}
        self._sure: Mapping[int, str] = {}
        # How often it has looked at all of them, and when it does so again.
        self._looks = self._soon = 0
        self._look_at = 0.0
        self._not_before = 0.0

    def watch(self, ends: Mapping[int, str]) -> Rest | None:
        """See `Log.watch`."""
        now = self._monotonic()
        if now < self._not_before:
            return None
        heard = self._connection.heard()
        if heard is None:
            self._forget()
            if not self._connection.hears():
                return self._never(DEAF_SECONDS)
        else:
            descriptor, payloads = heard
            named = _named(payloads)
            if named is None:
                return self._now(None)
            # It looks at the others anyway.
            sure = self._sure
            called = {one for one in named if one in sure and sure[one] == ends.get(one)}
            if called:
                return self._now(called)
            if ends == sure and now < self._look_at:
                return Rest(self._look_at - now, (descriptor,))
        try:
            return self._look(ends, now, self._say(ends))
        except LogUnavailable as error:
            if getattr(error.__cause__, "sqlstate", None) == _LOCKED:
                return self._never(LOCKED_SECONDS)
            raise

    def _say(self, ends: Mapping[int, str]) -> bool:
        """Say where it waits, as far as that is new. Returns whether anything was."""
        unsaid = _others(ends, self._said)
        if not unsaid and self._channel is not None:
            return False
        asked = [self._name, *self._sent(unsaid)]
        ((channel,),) = self._connection.query(_WATCH, asked, retry=False)
        if channel != self._channel:
            self._forget()
            self._connection.listen(channel)
            self._channel = channel
            if len(unsaid) < len(ends):
                # The log was made again, and has not heard of the others.
                return self._say(ends)
        self._said = ends
        return True

    def _look(self, ends: Mapping[int, str], now: float, said: bool) -> Rest | None:
        """Look at those that are new, and now and then at all of them."""
        unsure = _others(ends, self._sure)
        places = ends if now >= self._look_at else unsure
        found = "yes"
        if places:
            asked = [self._name, self._channel, *self._sent(places)]
            ((found,),) = self._connection.query(_STILL_WAITS, asked, retry=True)
        heard = self._connection.heard()
        if heard is None:
            self._forget()
            return self._now(None)
        descriptor, payloads = heard
        named = _named(payloads)
        called = None if named is None else named & ends.keys()
        if found == "unsaid":
            # The server has crashed since, or a resize has made one of the partitions.
            self._said, self._sure = {}, {}
            return self._never(LOCKED_SECONDS) if said else self._look(ends, now, self._say(ends))
        if found == "moved":
            # If the log was made again, what was said there is forgotten.
            self._said = {one: end for one, end in self._said.items() if one not in places}
            self._sure = {one: end for one, end in self._sure.items() if one not in places}
            return self._now(None if called is None else called | places.keys())
        if found == "soon":
            self._soon += 1
            seconds = SOON.after(self._soon)
        else:
            self._sure, self._soon = ends, 0
            self._looks = 0 if unsure else self._looks
            if len(places) == len(ends):
                self._looks += 1
                self._look_at = now + LOOK.after(self._looks)
            elif unsure:
                self._look_at = min(self._look_at, now + LOOK.after(1))
            seconds = self._look_at - now
        if called is None or called:
            return self._now(called)
        return Rest(seconds, (descriptor,))

    def _now(self, moved: Set[int] | None) -> Rest:
        """There is something to read in these partitions; None: perhaps in any."""
        if moved is None:
            # A resize may have made one of which nothing is said yet.
            self._sure = {}
            return Rest(0.0)
        return Rest(0.0, moved=dict.fromkeys(moved))

    def _sent(self, ends: Mapping[int, str]) -> tuple[SentArray, SentArray]:
        numbers = [self._number(end) for end in ends.values()]
        return integer_array([*ends]), bigint_array(numbers)

    def _forget(self) -> None:
        self._channel = None
        self._said, self._sure = {}, {}
        self._looks = self._soon = 0
        self._look_at = 0.0

    def _never(self, seconds: float) -> Rest | None:
        self._said, self._sure, self._not_before = {}, {}, self._monotonic() + seconds
        return None


def _named(payloads: Sequence[str]) -> set[int] | None:
    """The partitions that notifications name; None: perhaps any."""
    if "" in payloads:
        return None
    return {int(one) for payload in payloads for one in _NUMBER.findall(payload)}


def _others(ends: Mapping[int, str], known: Mapping[int, str]) -> dict[int, str]:
    """The ends that are not known."""
    if ends == known:
        return {}
    return {one: end for one, end in ends.items() if known.get(one) != end}


def wake(connection: LogConnection, name: str, partitions: Sequence[int]) -> None:
    """Wake readers that wait for messages of these partitions, which have been appended. If that
    fails they find the messages when they look.
    """
    with suppress(LogError):
        connection.query(_WAKE, [name, integer_array(partitions)], retry=True)
