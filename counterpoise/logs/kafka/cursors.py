"""Places in partitions that are read from: consumers of librdkafka that stay where they are.

Theory
------
A reader reads a partition range by range, and mostly each range begins where the last one ended. A
consumer that stays assigned between two reads fetches the beginning of the next range meanwhile:
the next read asks the broker for nothing, and nothing that was fetched is dropped. So a *cursor* is
a consumer, the partition that it is assigned to, and the offset that follows. A read that begins
elsewhere assigns it anew.

What a cursor has fetched ahead may be out of date. Records do not change, and the position of the
next read is a promise of the caller, so that matters in one case: a topic that was deleted and made
again under its name. So a cursor forgets after `KEEP_SECONDS` without a read. To begin at the
positions of another topic, its queue has to be reset, which takes longer than that.

Of one log at most `MOST_CURSORS` stay, because each has connections and threads of its own, and up
to `queued.max.messages.kbytes` in memory. Reads of more partitions than that use spare consumers,
which are unassigned after each read.

All this is for reads of a backlog. Light reads, of a few messages that have just come, go on from
cursors that share one consumer (`counterpoise.logs.kafka.shared`), however many partitions there
are. A partition may change from one kind to the other: a cursor that stayed behind forgets.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress

from confluent_kafka import Consumer, KafkaException

from counterpoise.logs.kafka.cluster import leave_alone
from counterpoise.logs.kafka.reader import Cursor
from counterpoise.logs.kafka.shared import SharedCursor, SharedCursors

MOST_CURSORS = 16
KEEP_SECONDS = 5.0


class Cursors:
    """The cursors of one log. Thread-safe."""

    def __init__(
        self,
        topic: str,
        make: Callable[[], Consumer],
        share: Callable[[], Consumer],
        spare: Callable[[], AbstractContextManager[Consumer]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make` makes a consumer with `STAYING`, `share` with `SHARED`; `spare` lends one with
        `CONSUMER`.
        """
        self._topic = topic
        self._make = make
        self._shared = SharedCursors(topic, share, monotonic)
        self._spare = spare
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # By partition; the one that was used last comes last.
        self._resting: dict[int, Cursor] = {}
        self._count = 0

    @contextmanager
    def of(self, partition: int, *, stays: bool = True, light: bool = False) -> Iterator[Cursor]:
        """A cursor for one reader of this partition; where it is, is up to the reader.

        With `stays` it keeps fetching afterwards, unless the reader raises. `light`: there are few
        messages to read.
        """
        cursor = self._take(partition, light=light) if stays else None
        if cursor is None:
            with self._spare() as consumer:
                yield Cursor(consumer, self._topic)
            return
        made_in = os.getpid()
        failed = False
        try:
            yield cursor
        except GeneratorExit:
            raise
        except BaseException:
            failed = True
            raise
        finally:
            if os.getpid() != made_in:
                # The fork happened during a read.
                leave_alone(cursor.consumer)
            else:
                self._give_back(partition, cursor, failed=failed)

    def begin(self, starts: Mapping[int, int]) -> None:
        """Light reads of these partitions, from there, are next: fetch for all of them at once.

        Raises LogError if the access is not valid.
        """
        self.stop_stale()
        with self._lock:
            new = {one: start for one, start in starts.items() if one not in self._resting}
        with suppress(KafkaException):  # the reads tell
            self._shared.begin(new)

    def begin_own(self, starts: Mapping[int, int]) -> None:
        """Reads of these partitions that are not light are next, one after another. A new cursor
        connects before it fetches: all of them do at once.

        Raises LogError if the access is not valid.
        """
        for partition, start in starts.items():
            with self._lock:
                resting = self._resting.get(partition)
            if resting is not None and resting.is_assigned:
                continue
            cursor = self._take(partition, light=False)
            if cursor is None:
                return
            with suppress(KafkaException, RuntimeError):  # the read tells
                cursor.move(partition, start)
            self._give_back(partition, cursor, failed=False)

    def stop_stale(self) -> float:
        """Those that nobody has read with since a moment fetch nothing more. Returns the moment."""
        stale_at = self._monotonic() - KEEP_SECONDS
        self._shared.forget(stale_at)
        with self._lock:
            for number in [n for n, one in self._resting.items() if one.used_at < stale_at]:
                self._stop(number)
        return stale_at

    def rest_seconds(self) -> float:
        """Stop those that are stale; after how many seconds others may be. 0: none fetches."""
        self.stop_stale()
        with self._lock:
            fetch = any(one.is_assigned for one in self._resting.values())
        return KEEP_SECONDS if fetch or self._shared.fetches else 0.0

    def close(self) -> None:
        """Close those that no reader has."""
        self._shared.close()
        with self._lock:
            resting = list(self._resting.values())
            self._resting.clear()
            self._count -= len(resting)
        for cursor in resting:
            cursor.consumer.close()

    def abandon(self) -> None:
        """In a forked child: forget all without touching them."""
        self._lock = threading.Lock()
        leave_alone(self._shared.abandon())
        leave_alone(*(cursor.consumer for cursor in self._resting.values()))
        self._resting, self._count = {}, 0

    def _take(self, partition: int, *, light: bool) -> Cursor | None:
        """None: there are as many as there may be, all in use."""
        stale_at = self.stop_stale()
        with self._lock:
            own = self._resting.get(partition)
            if light and (own is None or own.used_at < stale_at):
                return self._shared.take(partition)
            # Its own, or the one that has rested longest, if that is stale.
            cursor = self._resting.pop(partition, None)
            if cursor is None and self._resting:
                oldest, resting = next(iter(self._resting.items()))
                if resting.used_at < stale_at:
                    cursor = self._resting.pop(oldest)
            if cursor is not None:
                return cursor
            if self._count >= MOST_CURSORS:
                return None
            self._count += 1
        try:
            return Cursor(self._make(), self._topic)
        except BaseException:
            with self._lock:
                self._count -= 1
            raise

    def _give_back(self, partition: int, cursor: Cursor, *, failed: bool) -> None:
        if isinstance(cursor, SharedCursor):
            self._shared.give_back(partition, cursor, failed=failed)
            return
        cursor.used_at = self._monotonic()
        with self._lock:
            other = self._resting.pop(partition, None)
            self._resting[partition] = cursor
            if failed:
                self._stop(partition)
            if other is not None:
                # Two readers had the same partition.
                self._count -= 1
        if other is not None:
            other.consumer.close()

    def _stop(self, partition: int) -> None:
        cursor = self._resting[partition]
        try:
            cursor.stop()
        except (KafkaException, RuntimeError):
            del self._resting[partition]
            self._count -= 1
            cursor.consumer.close()
