"""Asks the log where its partitions end, on a thread of its own.

Spark's call for the next offset must not block, and a log can be slow or unavailable. So a thread
asks, and the call waits only for a moment. A late answer serves a later call, however late it is.
(It stays true, because a log only grows. If it were dropped, a log slower than the call's wait
would never be read.)

Where an answer has nothing to read, the thread may wait at the ends until the log wakes it
(`Log.watch`). So an idle query asks nothing, and the log is asked as soon as there is something.
Where no wake-up arrives, the log is asked as often as Spark asks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from counterpoise.backoff import Backoff, Pauses
from counterpoise.errors import CounterpoiseError
from counterpoise.logs import (
    Bounds,
    InvalidPosition,
    Log,
    LogAccessRefused,
    LogUnavailable,
)
from counterpoise.logs.errors import AHEAD_SECONDS
from counterpoise.logs.port import Rest
from counterpoise.spark.errors import InvalidOffset, SourceError
from counterpoise.spark.options import EARLIEST, Floor, find_floor
from counterpoise.spark.queue_log import QueueLog
from counterpoise.spark.source.history import earliest
from counterpoise.spark.source.planning import Answer, Question, answer_to
from counterpoise.waking import Waking

logger = logging.getLogger("counterpoise.spark")

_BACKOFF = Backoff(0.1, 2.0)

# A wake-up may come without a message. The log is not asked more often than this for them, nor is a
# log that has failed asked to wake.
_IN_VAIN_SECONDS = 0.05
_FAILED_SECONDS = 2.0
_ASLEEP = Rest(3600.0)
_NOW = Rest(0.0)

# Fewer answers than this prove nothing, however far apart they are.
_AHEAD_ANSWERS = 3

FATAL = (InvalidOffset, InvalidPosition)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Since when, and in how many answers in a row, the log ended at `end`, before `position`."""

    position: str
    end: str
    since: float
    answers: int = 0

    def __str__(self) -> str:
        return f"at {self.position}, which ends at {self.end}"

    def is_lasting(self, now: float) -> bool:
        return self.answers >= _AHEAD_ANSWERS and now - self.since >= AHEAD_SECONDS


class LogProbe:
    """One thread that answers the latest question."""

    def __init__(
        self,
        connection: QueueLog,
        clock: Callable[[], float] = time.monotonic,
        floor: Floor = EARLIEST,
    ) -> None:
        self._connection = connection
        self._floor = floor
        self._clock = clock
        self._changed = threading.Condition()
        self._question: Question | None = None
        self._expected: Question | None = None
        self._answering: Question | None = None
        self._answer: Answer | None = None
        self._given = True
        self._fatal: CounterpoiseError | None = None
        self._ahead: Mapping[int, _Ahead] = {}
        self._invalid: Mapping[int, str] = {}
        self._pauses = Pauses(_BACKOFF)
        self._not_before = 0.0
        # The thread waits for a question, and at the ends of an answer if there is one.
        self._waking = Waking()
        self._watched: Answer | None = None
        self._watches_not_before = 0.0
        self._closed = False
        self.last_error: CounterpoiseError | None = None
        self._unforeseen: type[Exception] | None = None
        self._away: tuple[float, CounterpoiseError] | None = None
        self._thread = threading.Thread(target=self._run, name="counterpoise-probe", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop; a call in progress ends by itself."""
        with self._changed:
            self._closed = True
        self._waking.wake()

    def watch(self, answer: Answer) -> None:
        """Wait until the log has more than in this answer, the last one, in which all partitions
        are at their ends. Then, or at the next question, `watches` becomes False.
        """
        with self._changed:
            if answer is not self._answer or self._clock() < self._watches_not_before:
                return
            self._watched = answer
        self._waking.wake()

    def watches(self, answer: Answer) -> bool:
        """Whether it waits so, and the log has nothing new as far as it is known."""
        return self._watched is answer

    def look_ahead(self, question: Question) -> None:
        """Answer this question in the background: it is probably the next one to be asked."""
        with self._changed:
            self._expected = question
        self._waking.wake()

    def ask(self, question: Question, max_age: float, wait: float) -> Answer | None:
        """The answer, if it is at most `max_age` seconds old or comes within `wait` seconds.

        Otherwise an answer that was too late for an earlier call, once, or one of `look_ahead`.
        Raises permanent errors: InvalidOffset, when waiting has not helped, and InvalidPosition.
        """
        with self._changed:
            now = self._clock()
            self._watched = None
            if self._fresh(question, now - max_age) or self._foreseen(question):
                return self._give()
            self._expected = None
            before = self._answer
            if self._answering is None or not self._answering.serves(question):
                self._question = question
                self._waking.wake()
            if now >= self._not_before:
                self._changed.wait_for(
                    lambda: (
                        self._fresh(question, now - max_age)
                        or (self._answer is not before and self._late(question))
                        or self._fatal is not None
                        or self._pauses.failures > 0
                    ),
                    wait,
                )
            if self._fatal is not None:
                raise self._fatal
            if self._fresh(question, now - max_age) or self._late(question):
                return self._give()
            return None

    @property
    def invalid(self) -> Mapping[int, str]:
        """The positions that are none of this log, by partition."""
        return self._invalid

    def away_for(self, seconds: float) -> CounterpoiseError | None:
        """The first error of a log that has given none but errors for so long; else None."""
        away = self._away
        return away[1] if away is not None and self._clock() - away[0] >= seconds else None

    def _give(self) -> Answer | None:
        self._given = True
        return self._answer

    def _late(self, question: Question) -> bool:
        answer = self._answer
        return not self._given and answer is not None and answer.question.serves(question)

    def _foreseen(self, question: Question) -> bool:
        """Whether there is an answer that a new one would hardly surpass: its limit is reached."""
        answer = self._answer
        if answer is None or not self._late(question) or not answer.leaves_messages:
            return False
        return not answer.question.is_small_for(question)

    def _fresh(self, question: Question, since: float) -> bool:
        answer = self._answer
        return answer is not None and answer.question == question and answer.asked_at >= since

    def _run(self) -> None:
        while not self._closed:
            rest = self._turn()
            if rest.seconds > 0.0:
                self._waking.wait(rest.seconds, rest.descriptors)
        self._waking.close()
        self._connection.close()

    def _turn(self) -> Rest:
        """Answer a question, if there is one; returns how long there is nothing to do."""
        with self._changed:
            question, watched = self._question or self._expected, self._watched
            if question is not None:
                if (left := self._not_before - self._clock()) > 0.0:
                    return Rest(max(0.001, left))
                self._question = self._expected = None
                self._answering = question
        if question is not None:
            self._take(question)
            return _NOW
        return _ASLEEP if watched is None else self._wait_at(watched)

    def _wait_at(self, answer: Answer) -> Rest:
        """How long to wait at the ends of this answer. Its question is asked again if the log has
        more, or fails: then the next answer tells why.
        """
        rest: Rest | None = _NOW
        pause = _IN_VAIN_SECONDS
        try:
            rest = self._connection.open().watch(answer.at_ends)
        except CounterpoiseError:
            pause = _FAILED_SECONDS
        except Exception:
            logger.exception("counterpoise: waiting for the log failed; it is asked instead")
            pause = _FAILED_SECONDS
        if rest is not None and rest.seconds > 0.0:
            return rest
        with self._changed:
            if self._watched is not answer:
                return _NOW  # another question has come
            self._watched, self._watches_not_before = None, self._clock() + pause
            if rest is not None:
                # The answer is out of date, however new it is.
                self._answer, self._expected = None, answer.question
        return _NOW

    def _take(self, question: Question) -> None:
        asked_at = self._clock()
        answer: Answer | None = None
        fatal: CounterpoiseError | None = None
        error: CounterpoiseError | None = None
        waits: CounterpoiseError | None = None
        try:
            answer = self._answer_to(question, asked_at)
            waits = self._look_at(answer)
        except FATAL as reason:
            fatal = reason
        except CounterpoiseError as reason:
            error = reason
        except Exception as reason:  # if the thread ended, the query would idle for ever
            error = SourceError(f"asking the log failed: {reason!r}")
            if type(reason) is not self._unforeseen:
                logger.exception("counterpoise: asking the log failed; it is tried again")
            self._unforeseen = type(reason)
        with self._changed:
            trouble = error or waits
            self._answering = None
            self._fatal, self.last_error = fatal, trouble or fatal
            if trouble is None:
                self._away = self._unforeseen = None
            elif self._away is None:
                self._away = asked_at, trouble
            if error is not None:
                self._not_before = self._clock() + self._pauses.failed()
            else:
                self._pauses.succeeded()
                self._not_before = 0.0
                self._answer, self._given = answer or self._answer, False
            self._changed.notify_all()

    def _look_at(self, answer: Answer) -> CounterpoiseError | None:
        """The error to show for partitions that end before their position; None if there are none.

        Raises InvalidOffset when one has done so for too long.
        """
        self._tell_invalid(answer.invalid)
        now, before = self._clock(), self._ahead
        ahead: dict[int, _Ahead] = {}
        for number, (position, end) in answer.ahead.items():
            seen = before.get(number)
            if seen is None or seen.position != position:
                seen = _Ahead(position, end, now)
            ahead[number] = replace(seen, end=end, answers=seen.answers + 1)
        self._ahead = ahead
        if not ahead:
            return None
        what = "the log ends before the position to go on from: "
        lasting = {n: one for n, one in ahead.items() if one.is_lasting(now)}
        which = [f"partition {n} {one}" for n, one in list((lasting or ahead).items())[:10]]
        if lasting:
            raise InvalidOffset(
                f"{what}{'; '.join(which)}, for more than {AHEAD_SECONDS:g} s. It was restored or "
                "made anew: reset the queue's positions and choose another checkpointLocation"
            )
        return LogUnavailable(f"{what}{'; '.join(which)}. This is waited for, as it may pass")

    def _tell_invalid(self, invalid: Mapping[int, str]) -> None:
        """Says once of each position that it is none."""
        for number, position in invalid.items() - self._invalid.items():
            logger.error(
                "counterpoise: partition %d has the position %.50r, which is none of this log. "
                "Nothing of it is read until an administrator sets its position",
                number,
                position,
            )
        self._invalid = dict(invalid)

    def _answer_to(self, question: Question, asked_at: float) -> Answer:
        bounds, log = ask_bounds(self._connection, question.partitions)

        def find(partition: int, first: str, target: str) -> str:
            return find_floor(self._floor, log, partition, first, target)

        finder = earliest if self._floor == EARLIEST else find
        return answer_to(question, log, bounds, asked_at, finder)


def ask_bounds(connection: QueueLog, partitions: Sequence[int]) -> tuple[Bounds, Log]:
    """The bounds and their log; with new credentials if the old ones are refused.

    Raises LogError.
    """
    log = connection.open()
    try:
        return log.bounds(partitions), log
    except LogAccessRefused:
        log = connection.open(fresh=True)
        return log.bounds(partitions), log
