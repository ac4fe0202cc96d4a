"""A worker: takes pieces from lanes, one after another, and handles them.

A *turn* is one piece: a batch as it was read, or up to `TURN_MESSAGES` single messages, which end
early when `TURN_SECONDS` are over, so that a long backlog of one partition does not keep the others
waiting. Between two messages it checks whether its lane must stop. To prepare messages that do not
get their turn is wasted, so a worker with slow messages takes fewer at once.

`done` of the grant moves over a message as soon as it has been handled; the settler commits it
later. An exception of the handler becomes a `Failure` of the lane, and after the last attempt the
policy decides (`counterpoise.consumer.poison`). If a batch fails, the failed message is unknown, so
the handler gets its messages again one by one, in batches of one.

In key order a turn is one message (`counterpoise.consumer.key_order`): several workers have
messages of one lane, each of another key, and what has failed is the message and not the lane.

With delayed redelivery a message may be set aside instead of being handled, and a turn may try
again what is set aside and due (`counterpoise.consumer.redelivery`).

A turn is a generator, written once for threads and for asyncio: its *steps* (`Invoke` a function of
the program, `Wait` for another system) are all that takes time. It yields a step, and gets back the
result, or the exception, of whoever takes it: `Consumer` in the worker's thread (`take_steps`),
`AsyncConsumer` in a task of its event loop. Everything else, from `done` to poison policies, is
decided here, between the steps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from counterpoise.backoff import Backoff
from counterpoise.consumer.key_order import Keyed
from counterpoise.consumer.lanes import Chunk, Due, KeyedPiece, Lane, Lanes, Piece
from counterpoise.consumer.letters import Origin, error_text
from counterpoise.consumer.message import Failure, Message, Ownership, messages_of
from counterpoise.consumer.poison import DeadLetter, LastPolicy, Policy, Retry
from counterpoise.consumer.redelivery import MessagePlace, Redelivery, SetAside
from counterpoise.consumer.retry_queue import AWAY, RetryQueue
from counterpoise.consumer.watchdog import Watchdog
from counterpoise.errors import ServiceUnavailable, described
from counterpoise.lease_time import lease_time
from counterpoise.logs import LogUnavailable
from counterpoise.logs.numbered import to_arrow
from counterpoise.logs.rows import Rows
from counterpoise.options import has_run

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")
Handle: TypeAlias = "Callable[[Ownership, pa.RecordBatch], Any]"
# What has the failure of a message: in key order the message, else its lane.
Tried: TypeAlias = Lane | Keyed
HandleRows: TypeAlias = Callable[[Ownership, Rows], Any]
Each: TypeAlias = Callable[[Message], Any]

TURN_MESSAGES = 100
TURN_SECONDS = 0.1
LONGEST_BACKOFF_SECONDS = 60.0
# How long a partition waits at a time while too many of its messages are set aside, and how long a
# record of the retry queue that could not be written.
FULL_SECONDS = 1.0
UNWRITTEN_SECONDS = 1.0

logger = logging.getLogger("counterpoise.consumer")


class Invoke(NamedTuple):
    """Call a function of the program with these arguments. Its exception is the answer; a function
    that has not done its work ends the turn.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Wait(NamedTuple):
    """Call a function of ours, which waits for the service or a log; the answer is its result, or
    its exception. Once begun it is awaited to its end.
    """

    function: Callable[[], Any]


Steps: TypeAlias = Generator[Invoke | Wait, Any, R]


def take_steps(steps: Steps[R]) -> R:
    """Take the steps in this thread. Raises TypeError if a function has not done its work."""
    try:
        step = next(steps)
        while True:
            try:
                answer = step.function(*step.arguments) if type(step) is Invoke else step.function()
            except BaseException as error:
                step = steps.throw(error)
                continue
            has_run(answer)
            step = steps.send(answer)
    except StopIteration as end:
        result: R = end.value
        return result
    finally:
        steps.close()


@dataclass(frozen=True)
class OfRows:
    """A handler of batches that takes them as rows of the log, and so needs no Arrow."""

    function: HandleRows


def of_rows(handle: Handle | OfRows | None) -> HandleRows | None:
    """The handler of batches, as a worker calls it. Raises LogError if it needs pyarrow, which is
    not installed.
    """
    if handle is None:
        return None
    if isinstance(handle, OfRows):
        return handle.function
    record_batch = to_arrow()
    return lambda owned, rows: handle(owned, record_batch(rows))


@dataclass(frozen=True)
class Rules:
    """How failed messages are treated."""

    policy: Policy
    attempts: int
    backoff_seconds: float
    origin: Callable[[], Origin]
    # The program's function to call when a partition has been quarantined.
    on_quarantined: Callable[[int, Failure], Any] | None
    # Called when an error must end the consumer.
    halt: Callable[[BaseException], None]
    # With the policy `Retry`, but not in key order.
    retries: RetryQueue | None = None

    @property
    def tries(self) -> int:
        """How often the handler gets a message before the policy decides."""
        policy = self.policy
        if isinstance(policy, Retry) and policy.queue is None:
            return self.attempts + len(policy.after_seconds)
        return self.attempts


class Worker:
    """One worker, used by one thread or task. Give `handle` or `each`, or iterate over its
    `messages`.
    """

    def __init__(
        self,
        lanes: Lanes,
        watchdog: Watchdog,
        rules: Rules,
        *,
        handle: HandleRows | None = None,
        each: Each | None = None,
    ) -> None:
        self._lanes = lanes
        self._watchdog = watchdog
        self.activity = watchdog.activity()
        self._rules = rules
        self._handle = handle
        self._each = each
        self._most = TURN_MESSAGES
        self.dead_lettered = 0

    def turn(self, wait_seconds: float) -> bool:
        """Handle one piece; False if there was none within `wait_seconds`."""
        steps = self.begin(wait_seconds)
        if steps is None:
            return False
        take_steps(steps)
        return True

    def begin(self, wait_seconds: float) -> Steps[None] | None:
        """The steps of a turn, the first of which is to be taken at once; None if there was no
        piece within `wait_seconds`.
        """
        piece = self._take(wait_seconds)
        if piece is None:
            return None
        if isinstance(piece, Due):
            return self._try_again(piece)
        if isinstance(piece, KeyedPiece):
            assert self._each is not None
            return self._keyed(piece, self._each)
        if self._handle is not None:
            return self._batch(piece, self._handle)
        assert self._each is not None
        return self._singles(piece, self._each)

    def messages(self, wait_seconds: float) -> Generator[Message, None, None]:
        """The messages of one piece; each counts as handled when the next one is asked for."""
        piece = self._take(wait_seconds)
        if piece is None:
            return
        assert isinstance(piece, Piece)
        done = 0
        try:
            for message, following in self._of(piece):
                self._begin(piece.lane, message.position)
                yield message
                self._end()
                piece.lane.grant.done = following
                done += 1
        finally:
            self._end()
            self._lanes.put_back(piece, done)

    # -------------------------------------------------------------- handling

    def _take(self, wait_seconds: float) -> Piece | KeyedPiece | Due | None:
        piece = self._lanes.take(None if self._handle is not None else self._most, wait_seconds)
        if piece is not None and not self._may_go_on(piece.lane):
            if isinstance(piece, Due):
                self._lanes.give_back(piece)
            elif isinstance(piece, KeyedPiece):
                self._lanes.finish(piece, handled=False)
            else:
                self._lanes.put_back(piece, 0)
            return None
        return piece

    def _of(self, piece: Piece) -> Iterator[tuple[Message, str]]:
        """The messages of a piece, each with the position after it, until the turn is over."""
        lane = piece.lane
        messages = messages_of(piece.chunk.rows, piece.lane.owned)
        ends = [message.position for message in messages[1:]]
        ends.append(piece.chunk.end)
        until = lease_time() + TURN_SECONDS
        for number, pair in enumerate(zip(messages, ends, strict=True)):
            now = lease_time()
            if number and now > until:
                self._most = number
                return
            if not self._may_go_on(lane):
                return
            yield pair
        if lease_time() < until:
            self._most = min(TURN_MESSAGES, 2 * self._most)

    def _may_go_on(self, lane: Lane) -> bool:
        lanes = self._lanes
        if not lane.grant.open or lanes.paused or lanes.closed:
            return False
        if not self._watchdog.may_work():
            # The view may be out of date. The look-out goes on when it is current again.
            lanes.pause(True)
            return False
        if lane.owned.lost:
            lanes.follow()  # the look-out is on its way here
            return False
        return True

    def _singles(self, piece: Piece, each: Each) -> Steps[None]:
        lane, done, not_before = piece.lane, 0, 0.0
        try:
            for message, following in self._of(piece):
                self._begin(lane, message.position)
                pause = yield from self._single(lane, message, each, lane)
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

    def _keyed(self, piece: KeyedPiece, each: Each) -> Steps[None]:
        """Handle one message in key order."""
        lane, one = piece.lane, piece.one
        handled, not_before = False, 0.0
        self._begin(lane, one.message.position)
        try:
            pause = yield from self._single(lane, one.message, each, one)
            if pause is None:
                handled = True
            else:
                not_before = pause
        except BaseException as error:
            self._rules.halt(error)
            raise
        finally:
            self._end()
            self._lanes.finish(piece, handled=handled, not_before=not_before)

    def _single(
        self, lane: Lane, message: Message, each: Each, tried: Tried
    ) -> Steps[float | None]:
        """Handle the message. None: pass it; a time: its lane pauses until then."""
        if self._must_wait(lane, message.key, message.position):
            return (yield from self._set_aside(lane, message))
        failure = tried.failure
        if failure is None or failure.attempts < self._rules.tries:
            try:
                yield Invoke(each, (message,))
            except Exception as error:
                failure = self._failed(tried, message.position, error)
            else:
                return None
        return (yield from self._pause_for(lane, failure, message, tried))

    def _batch(self, piece: Piece, handle: HandleRows) -> Steps[None]:
        lane, done, split, not_before = piece.lane, 0, False, 0.0
        self._begin(lane, piece.chunk.start)
        try:
            chunk = self._begin_of(lane, piece.chunk)
            count, failure = len(chunk.rows), lane.failure
            if lane.redelivery is not None:
                message = _first_of(chunk, lane)
                if self._must_wait(lane, message.key, message.position):
                    pause = yield from self._set_aside(lane, message)
                    if pause is None:
                        lane.failure, lane.grant.done, done = None, chunk.end, 1
                    else:
                        not_before = pause
                    return
            if failure is None or failure.attempts < self._rules.attempts:
                try:
                    yield Invoke(handle, (lane.owned, chunk.rows))
                except Exception as error:
                    if count > 1 and not self._halts_at_once:
                        split = True
                        logger.warning(
                            "%s: a batch failed, trying one by one: %s",
                            self._place(lane, piece.chunk.start),
                            described(error),
                        )
                        return
                    failure = self._failed(lane, piece.chunk.start, error)
                else:
                    failure = None
            if failure is not None:
                pause = yield from self._pause_for(lane, failure, _first_of(chunk, lane), lane)
                if pause is not None:
                    not_before = pause
                    return
            lane.failure, lane.grant.done, done = None, chunk.end, count
        except BaseException as error:
            self._rules.halt(error)
            raise
        finally:
            self._end()
            self._lanes.put_back(piece, done, split=split, not_before=not_before)

    def _begin_of(self, lane: Lane, chunk: Chunk) -> Chunk:
        """The first messages of the chunk that are handled together: those before the first that
        must wait, or this one, or the one that has failed, alone.
        """
        count = len(chunk.rows)
        if lane.failure is not None:
            count = 1
        elif lane.redelivery is not None and lane.redelivery.holds_some:
            shown = chunk.rows.columns()
            waits = map(lambda key, at: self._must_wait(lane, key, at), shown.keys, shown.positions)
            count = max(1, next((number for number, found in enumerate(waits) if found), count))
        return chunk if count == len(chunk.rows) else chunk.split(count)[0]

    @property
    def _halts_at_once(self) -> bool:
        return self._rules.policy == "halt" and self._rules.attempts == 1

    # -------------------------------------------------------------- failing

    def _failed(self, tried: Tried, position: str, error: Exception) -> Failure:
        before = tried.failure.attempts if tried.failure is not None else 0
        tried.failure = Failure(position, before + 1, error)
        return tried.failure

    def _pause_for(
        self, lane: Lane, failure: Failure, message: Message, tried: Tried
    ) -> Steps[float | None]:
        """What to do with the message. None: pass it; a time: its lane pauses until then, in key
        order its key.
        """
        rules, place = self._rules, self._place(lane, failure.position)
        if lane.owned.lost:
            return lease_time()  # Not owned any more: no attempt, no verdict.
        if failure.attempts < rules.attempts:
            logger.warning(
                "%s: attempt %d failed: %s", place, failure.attempts, described(failure.error)
            )
            return lease_time() + self._backoff(failure.attempts)
        policy: Policy = rules.policy
        if isinstance(policy, Retry):
            if policy.queue is not None:
                return (yield from self._set_aside(lane, message, failure))
            if failure.attempts < rules.tries:
                delay = policy.after_seconds[failure.attempts - rules.attempts]
                logger.warning(
                    "%s: attempt %d failed, tried again in %g s, and its key waits: %s",
                    place,
                    failure.attempts,
                    delay,
                    described(failure.error),
                )
                return lease_time() + delay
            policy = policy.then
        on_halt = "neither it nor what follows it in this partition is committed"
        return (yield from self._decide(policy, lane, failure, message, on_halt, tried))

    def _decide(
        self,
        policy: LastPolicy,
        lane: Lane,
        failure: Failure,
        message: Message,
        on_halt: str,
        tried: Tried,
    ) -> Steps[float | None]:
        """Apply the policy; returns as `_pause_for`. `on_halt`: where the message is then."""
        rules, place = self._rules, self._place(lane, failure.position)
        if isinstance(policy, DeadLetter):
            try:
                if isinstance(policy.to, str):
                    yield Wait(partial(policy.store, message, failure, rules.origin()))
                else:
                    yield Invoke(policy.to, (message, failure))
            except (ServiceUnavailable, LogUnavailable) as error:
                logger.warning("%s: could not store the dead letter, again later: %s", place, error)
                return lease_time() + max(0.1, rules.backoff_seconds)
            except Exception as error:
                error.add_note(
                    f"{place} could not be stored as a dead letter, after {failure.tried} "
                    f"to handle it that ended with {described(failure.error)}"
                )
                raise
            self.dead_lettered += 1
            logger.error(
                "%s: passed on to %r after %s: %s",
                place,
                policy.to,
                failure.tried,
                described(failure.error),
            )
            return None
        if policy == "quarantine":
            tried.failure = failure
            one = tried if isinstance(tried, Keyed) else None
            logger.error(
                "%s: quarantined after %s, nothing more of %s is handled here: %s",
                place,
                failure.tried,
                "this partition" if one is None else f"key {message.key!r}",
                described(failure.error),
                exc_info=failure.error,
            )
            self._lanes.quarantine(lane, one)
            if rules.on_quarantined is not None:
                try:
                    yield Invoke(rules.on_quarantined, (lane.partition, failure))
                except Exception:
                    logger.exception("on_quarantined failed")
            return lease_time()
        failure.error.add_note(f"{place} could not be handled in {failure.tried}; {on_halt}")
        raise failure.error

    def _backoff(self, attempts: int) -> float:
        return Backoff(self._rules.backoff_seconds, LONGEST_BACKOFF_SECONDS).after(attempts)

    # -------------------------------------------------------------- delayed redelivery

    def _must_wait(self, lane: Lane, key: str | None, position: str) -> bool:
        """Whether the message is set aside, or an earlier one of its key is."""
        table = lane.redelivery
        if table is None:
            return False
        return table.must_wait(key, self._origin_of(lane, position), lane.grant.owned)

    def _origin_of(self, lane: Lane, position: str) -> MessagePlace:
        origin = self._rules.origin()
        return MessagePlace(
            origin.queue, origin.queue_id, origin.incarnation, lane.partition, position
        )

    def _set_aside(
        self, lane: Lane, message: Message, failure: Failure | None = None
    ) -> Steps[float | None]:
        """Set the message aside; without a failure, behind earlier ones of its key. Returns as
        `_pause_for`.
        """
        policy, retries, table = self._rules.policy, self._rules.retries, lane.redelivery
        assert isinstance(policy, Retry)
        assert retries is not None
        assert table is not None
        now, origin = lease_time(), self._origin_of(lane, message.position)
        place = self._place(lane, message.position)
        if table.has(origin):
            return None  # By an owner that was killed before its commit.
        failure = failure or table.doubted.get(origin)
        if not self._may_set_aside(lane):
            return now
        one = SetAside(
            origin,
            lane.epoch,
            message.key,
            message.value,
            message.headers,
            message.published_at,
            era=table.era(origin, lane.grant.owned),
        )
        if not self._lanes.may_set_aside(lane, one.size_bytes):
            if not table.is_full:
                table.is_full = True
                logger.error(
                    "%s: the partition waits, because %d of its messages are set aside",
                    place,
                    table.count,
                )
            return now + FULL_SECONDS
        if failure is not None:
            one.attempts, one.delays, one.error = failure.attempts, 1, error_text(failure.error)
            one.due = now + policy.after_seconds[0]
        try:
            may_write = partial(self._may_set_aside, lane)
            yield Wait(partial(retries.write, "message", one, lane.epoch, may_write))
        except AWAY as error:
            table.doubted[origin] = failure
            logger.warning("%s: could not be set aside, again later: %s", place, error)
            return lease_time() + UNWRITTEN_SECONDS
        except Exception as error:
            error.add_note(f"{place} could not be set aside in {policy.queue!r}")
            raise
        table.add(one)
        if failure is not None:
            logger.warning(
                "%s: set aside after %s, tried again in %g s: %s",
                place,
                failure.tried,
                policy.after_seconds[0],
                described(failure.error),
            )
        else:
            logger.info("%s: set aside behind an earlier message of its key", place)
        return None

    def _may_set_aside(self, lane: Lane) -> bool:
        return not lane.owned.lost and self._watchdog.may_work()

    def _try_again(self, due: Due) -> Steps[None]:
        """Try what is due, until the turn is over."""
        lane, table = due.lane, due.lane.redelivery
        assert table is not None
        until = lease_time() + TURN_SECONDS
        try:
            while (now := lease_time()) < until and self._may_go_on(lane):
                one = table.due(now)
                if one is None or lane.quarantined:
                    break
                self._begin(lane, one.place.position)
                yield from self._redeliver(lane, table, one)
                self._end()
        except BaseException as error:
            self._rules.halt(error)
            raise
        finally:
            self._end()
            self._lanes.give_back(due)

    def _redeliver(self, lane: Lane, table: Redelivery, one: SetAside) -> Steps[None]:
        policy, retries = self._rules.policy, self._rules.retries
        assert isinstance(policy, Retry)
        assert retries is not None
        place = self._place(lane, one.place.position)
        if not one.done and one.failure is None:
            error = yield from self._call(lane, one)
            one.attempts += 1
            if error is None:
                one.done = True
            elif lane.owned.lost:
                return  # Not owned any more: no verdict.
            elif one.delays < len(policy.after_seconds):
                delay = policy.after_seconds[one.delays]
                one.delays, one.due = one.delays + 1, lease_time() + delay
                one.error = error_text(error)
                table.plan()
                logger.warning(
                    "%s: attempt %d failed, tried again in %g s: %s",
                    place,
                    one.attempts,
                    delay,
                    described(error),
                )
                yield from self._write(retries, "failed", one, lane)
                return
            else:
                one.failure = error
        if one.failure is not None:
            failure = Failure(one.place.position, one.attempts, one.failure)
            if not isinstance(policy.then, DeadLetter):
                one.failure = None  # Who goes on with it tries it again.
            pause = yield from self._decide(
                policy.then,
                lane,
                failure,
                one.message(lane.owned),
                "it stays set aside, and what follows it of its key behind it",
                lane,
            )
            if pause is not None:
                one.due = pause
                table.plan()
                return
            one.done, one.failure = True, None
        if (yield from self._write(retries, "done", one, lane)):
            table.remove(one)
            table.is_full = False
            logger.info("%s: done at attempt %d", place, one.attempts)
        else:
            one.due = lease_time() + UNWRITTEN_SECONDS
            table.plan()

    def _call(self, lane: Lane, one: SetAside) -> Steps[Exception | None]:
        try:
            if self._handle is not None:
                yield Invoke(self._handle, (lane.owned, one.rows()))
            else:
                assert self._each is not None
                yield Invoke(self._each, (one.message(lane.owned),))
        except Exception as error:
            return error
        return None

    def _write(self, retries: RetryQueue, kind: str, one: SetAside, lane: Lane) -> Steps[bool]:
        """Write a record; False if that was not possible now."""
        try:
            # Of a log that was made anew the epochs begin anew, too.
            yield Wait(partial(retries.write, kind, one, max(lane.epoch, one.epoch)))
        except AWAY as error:
            place = self._place(lane, one.place.position)
            logger.warning("%s: the retry queue took no record: %s", place, error)
            return False
        return True

    # -------------------------------------------------------------- for the watchdog

    def _begin(self, lane: Lane, position: str) -> None:
        activity = self.activity
        activity.thread_id = threading.get_ident()
        activity.place = (*lane.grant.id, position)
        activity.since = lease_time()

    def _end(self) -> None:
        self.activity.since = 0.0

    def _place(self, lane: Lane, position: str) -> str:
        queue = self._rules.origin().queue
        return f"queue {queue}, partition {lane.partition} epoch {lane.epoch} position {position}"


def _first_of(chunk: Chunk, lane: Lane) -> Message:
    return messages_of(chunk.rows.slice(0, 1), lane.owned)[0]
