"""A worker: takes pieces from lanes, one after another, and handles them.

A *turn* is one piece: a batch as it was read, or up to `TURN_MESSAGES` single messages, which end
early when `TURN_SECONDS` are over, so that a long backlog of one partition does not keep the others
waiting. Between two messages it checks whether its lane must stop. To prepare messages that do not
get their turn is wasted, so a worker with slow messages takes fewer at once.

`done` of the grant moves over a message as soon as it has been handled; the settler commits it
later. An exception of the handler becomes a `Failure` of the lane, and after the last attempt the
policy decides (`counterpoise.consumer.poison`). If a batch fails, the failed message is unknown, so
the handler gets its messages again one by one, in batches of one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from counterpoise.backoff import Backoff
from counterpoise.consumer.lanes import Failure, Lane, Lanes, Piece
from counterpoise.consumer.message import Message, Ownership, messages_of
from counterpoise.consumer.poison import DeadLetter, Origin, Policy
from counterpoise.consumer.watchdog import Watchdog
from counterpoise.errors import ServiceUnavailable
from counterpoise.logs import LogUnavailable

Handle: TypeAlias = Callable[[Ownership, pa.RecordBatch], Any]
Each: TypeAlias = Callable[[Message], Any]

TURN_MESSAGES = 100
TURN_SECONDS = 0.1
LONGEST_BACKOFF_SECONDS = 60.0

logger = logging.getLogger("counterpoise.consumer")


@dataclass(frozen=True)
class Rules:
    """How failed messages are treated."""

    policy: Policy
    attempts: int
    backoff_seconds: float
    origin: Callable[[], Origin]
    # Called when a partition has been quarantined, and when an error must end the consumer.
    quarantined: Callable[[Lane, Failure], None]
    halt: Callable[[BaseException], None]


class Worker:
    """One worker, used by one thread. Give `handle` or `each`, or iterate over `messages`."""

    def __init__(
        self,
        lanes: Lanes,
        watchdog: Watchdog,
        rules: Rules,
        *,
        handle: Handle | None = None,
        each: Each | None = None,
    ) -> None:
        self._lanes = lanes
        self._watchdog = watchdog
        self._activity = watchdog.activity()
        self._rules = rules
        self._handle = handle
        self._each = each
        self._most = TURN_MESSAGES
        self.dead_lettered = 0

    def turn(self, wait_seconds: float) -> bool:
        """Handle one piece; False if there was none within `wait_seconds`."""
        piece = self._take(wait_seconds)
        if piece is None:
            return False
        if self._handle is not None:
            self._batch(piece, self._handle)
        else:
            assert self._each is not None
            self._singles(piece, self._each)
        return True

    def messages(self, wait_seconds: float) -> Iterator[Message]:
        """The messages of one piece; each counts as handled when the next one is asked for."""
        piece = self._take(wait_seconds)
        if piece is None:
            return
        done = 0
        try:
            for message, following in self._of(piece):
                self._begin(piece, message.position)
                yield message
                self._end()
                piece.lane.grant.done = following
                done += 1
        finally:
            self._end()
            self._lanes.put_back(piece, done)

    # -------------------------------------------------------------- handling

    def _take(self, wait_seconds: float) -> Piece | None:
        piece = self._lanes.take(None if self._handle is not None else self._most, wait_seconds)
        if piece is not None and not self._watchdog.may_work(time.monotonic()):
            # The process was suspended, so its view may be out of date. The watchdog resolves that.
            self._lanes.pause(True)
            self._lanes.put_back(piece, 0)
            return None
        return piece

    def _of(self, piece: Piece) -> Iterator[tuple[Message, str]]:
        """The messages of a piece, each with the position after it, until the turn is over."""
        grant, lanes, watchdog = piece.lane.grant, self._lanes, self._watchdog
        messages = messages_of(piece.chunk.batch, piece.lane.owned)
        ends = [message.position for message in messages[1:]]
        ends.append(piece.chunk.end)
        until = time.monotonic() + TURN_SECONDS
        for number, pair in enumerate(zip(messages, ends, strict=True)):
            now = time.monotonic()
            if not grant.open or lanes.paused or lanes.closed:
                return
            if number and now > until:
                self._most = number
                return
            if not watchdog.may_work(now):
                lanes.pause(True)
                return
            yield pair
        if time.monotonic() < until:
            self._most = min(TURN_MESSAGES, 2 * self._most)

    def _singles(self, piece: Piece, each: Each) -> None:
        lane, done, not_before = piece.lane, 0, 0.0
        try:
            for message, following in self._of(piece):
                self._begin(piece, message.position)
                failure = lane.failure
                if failure is None or failure.attempts < self._rules.attempts:
                    try:
                        each(message)
                        failure = None
                    except Exception as error:
                        failure = self._failed(lane, message.position, error)
                if failure is not None:
                    pause = self._pause_for(lane, failure, message)
                    if pause is not None:
                        not_before = pause
                        break
                self._end()
                lane.failure, lane.grant.done = None, following
                done += 1
        except BaseException as error:
            self._rules.halt(error)
            raise
        finally:
            self._end()
            self._lanes.put_back(piece, done, not_before=not_before)

    def _batch(self, piece: Piece, handle: Handle) -> None:
        lane, batch = piece.lane, piece.chunk.batch
        rows, done, split, not_before = batch.num_rows, 0, False, 0.0
        self._begin(piece, piece.chunk.start)
        try:
            failure = lane.failure
            if failure is None or failure.attempts < self._rules.attempts:
                try:
                    handle(lane.owned, batch)
                    failure = None
                except Exception as error:
                    if rows > 1 and not self._halts_at_once:
                        split = True
                        logger.warning(
                            "%s: a batch failed, trying one by one: %r",
                            self._place(lane, piece.chunk.start),
                            error,
                        )
                        return
                    failure = self._failed(lane, piece.chunk.start, error)
            if failure is not None:
                message = messages_of(batch.slice(0, 1), lane.owned)[0]
                pause = self._pause_for(lane, failure, message)
                if pause is not None:
                    not_before = pause
                    return
            lane.failure, lane.grant.done, done = None, piece.chunk.end, rows
        except BaseException as error:
            self._rules.halt(error)
            raise
        finally:
            self._end()
            self._lanes.put_back(piece, done, split=split, not_before=not_before)

    @property
    def _halts_at_once(self) -> bool:
        return self._rules.policy == "halt" and self._rules.attempts == 1

    # -------------------------------------------------------------- failing

    def _failed(self, lane: Lane, position: str, error: Exception) -> Failure:
        before = lane.failure.attempts if lane.failure is not None else 0
        lane.failure = Failure(position, before + 1, error)
        return lane.failure

    def _pause_for(self, lane: Lane, failure: Failure, message: Message) -> float | None:
        """What to do with the message. None: pass it; a time: its lane pauses until then."""
        rules, place = self._rules, self._place(lane, failure.position)
        if lane.owned.lost:
            return time.monotonic()  # Not owned any more: no attempt, no verdict.
        if failure.attempts < rules.attempts:
            logger.warning("%s: attempt %d failed: %r", place, failure.attempts, failure.error)
            return time.monotonic() + self._backoff(failure.attempts)
        if isinstance(rules.policy, DeadLetter):
            try:
                rules.policy.store(message, failure, rules.origin())
            except (ServiceUnavailable, LogUnavailable) as error:
                logger.warning("%s: could not store the dead letter, again later: %s", place, error)
                return time.monotonic() + max(0.1, rules.backoff_seconds)
            except Exception as error:
                error.add_note(
                    f"{place} could not be stored as a dead letter, after {failure.attempts} "
                    f"attempts to handle it that ended with {failure.error!r}"
                )
                raise
            self.dead_lettered += 1
            logger.error(
                "%s: passed on to %r after %d attempts: %r",
                place,
                rules.policy.to,
                failure.attempts,
                failure.error,
            )
            return None
        if rules.policy == "quarantine":
            logger.error(
                "%s: quarantined after %d attempts, nothing more of this partition is handled "
                "here: %r",
                place,
                failure.attempts,
                failure.error,
                exc_info=failure.error,
            )
            self._lanes.quarantine(lane)
            rules.quarantined(lane, failure)
            return time.monotonic()
        failure.error.add_note(
            f"{place} could not be handled in {failure.attempts} attempts; "
            "neither it nor what follows it in this partition is committed"
        )
        raise failure.error

    def _backoff(self, attempts: int) -> float:
        return Backoff(self._rules.backoff_seconds, LONGEST_BACKOFF_SECONDS).after(attempts)

    # -------------------------------------------------------------- for the watchdog

    def _begin(self, piece: Piece, position: str) -> None:
        activity = self._activity
        activity.thread_id = threading.get_ident()
        activity.place = (*piece.lane.key, position)
        activity.since = time.monotonic()

    def _end(self) -> None:
        self._activity.since = 0.0

    def _place(self, lane: Lane, position: str) -> str:
        queue = self._rules.origin().queue
        return f"queue {queue}, partition {lane.partition} epoch {lane.epoch} position {position}"
