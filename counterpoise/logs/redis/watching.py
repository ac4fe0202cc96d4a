"""Waits at the ends of the streams of a log in Redis: one blocking XREAD of all of them.

It has a connection of its own, so the reader goes on asking while it is under way. An answer brings
the first message of each partition that has some, and the reader takes them (`first`) when it has
asked for the ends as always. A reader that has found messages by itself meanwhile passes the answer
over, and goes on with the connection. If it waits for other ends and no answer has come, the
connection is closed, which ends the call. So a reader that is busy, and will wait at other ends
soon, asks by a call that does not wait (`glance`).

The call ends after `BLOCK_SECONDS` without a message. Then the reader asks for the ends: the server
may have lost the streams, and a stream that was made anew does not answer for positions of the old
one. A server that does not answer even then is away.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import redis

from counterpoise.logs.errors import LogError
from counterpoise.logs.port import Rest
from counterpoise.logs.redis.connection import RedisConnection, is_refused

BLOCK_SECONDS = 15.0
LATE_SECONDS = 5.0
# For an answer that the server has sent already.
SENT_SECONDS = 0.1
# So long a user asks now and then who may not call XREAD, or whose server does not have it.
DEAF_SECONDS = 60.0
_UNKNOWN = "unknown command"
# All entries with the number of the message before have a lower id.
_LAST = 2**64 - 1


class RedisWatching:
    """Of one reader of a log."""

    def __init__(
        self,
        server: RedisConnection,
        stream: Callable[[int], bytes],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stream`: the key of a partition."""
        self._server = server
        self._stream = stream
        self._monotonic = monotonic
        # On which a call is under way, of these ends.
        self._connection: Any = None
        self._ends: Mapping[int, int] = {}
        self._until = self._not_before = 0.0
        # The last answer.
        self._found: Mapping[bytes, list[Any]] = {}
        self._process = os.getpid()

    def watch(self, ends: Mapping[int, int]) -> Rest | None:
        """See `Log.watch`."""
        now = self._monotonic()
        if now < self._not_before:
            return None
        try:
            if ends != self._ends or not self._is_under_way():
                self._begin(ends)
            elif self._connection.can_read(0):
                self._ends, answer = {}, self._connection.read_response()
                return self._answered(answer, ends)
            elif now >= self._until:
                self.close()
                return Rest(0.0)
        except redis.RedisError as error:
            self.close()
            if not (is_refused(error) or _UNKNOWN in str(error)):
                return Rest(0.0)  # the next call says what it is
            self._not_before = now + DEAF_SECONDS
            return None
        # The client shows its socket nowhere else.
        return Rest(self._until - now, (self._connection._sock.fileno(),))

    def glance(self, ends: Mapping[int, int]) -> Rest | None:
        """See `Log.glance`."""
        asked = self._asked(ends)
        try:
            answer = self._server.call(lambda client: client.execute_command(*asked), retry=True)
        except LogError:
            return None  # the next call says what it is
        return self._answered(answer, ends) if answer else Rest(BLOCK_SECONDS)

    def taken(self) -> Mapping[bytes, list[Any]]:
        """The last answer, once: by stream, the first entry behind its end."""
        found, self._found = self._found, {}
        return found

    def close(self) -> None:
        """End the call that is under way."""
        connection, self._connection, self._ends, self._found = self._connection, None, {}, {}
        if connection is not None and self._process == os.getpid():
            connection.disconnect()

    def _asked(self, ends: Mapping[int, int], *more: Any) -> tuple[Any, ...]:
        """The command for the first message behind each of these ends."""
        after = ("0-0" if end == 0 else f"{end - 1}-{_LAST}" for end in ends.values())
        return ("XREAD", "COUNT", 1, *more, "STREAMS", *map(self._stream, ends), *after)

    def _answered(self, answer: list[Any] | None, ends: Mapping[int, int]) -> Rest:
        self._found = dict(answer or ())
        moved = dict.fromkeys(one for one in ends if self._stream(one) in self._found)
        return Rest(0.0, moved=moved or None)

    def _is_under_way(self) -> bool:
        return self._connection is not None and self._process == os.getpid()

    def _is_passed_over(self, ends: Mapping[int, int]) -> bool:
        """Read away the answer that brings what the reader has found by itself, at these ends."""
        if not any(self._ends.get(one, end) < end for one, end in ends.items()):
            return False
        if not self._connection.can_read(SENT_SECONDS):
            return False
        self._connection.read_response()
        return True

    def _begin(self, ends: Mapping[int, int]) -> None:
        if not self._is_under_way() or (self._ends and not self._is_passed_over(ends)):
            self.close()
            self._process = os.getpid()
            self._connection = self._server.call(_connected, retry=True)
        self._connection.send_command(*self._asked(ends, "BLOCK", round(BLOCK_SECONDS * 1000)))
        self._found = {}
        self._ends, self._until = ends, self._monotonic() + BLOCK_SECONDS + LATE_SECONDS


def _connected(client: Any) -> Any:
    connection = client.connection_pool.make_connection()
    connection.connect()
    return connection
