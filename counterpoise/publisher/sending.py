"""Sends what a publisher has accepted: the sender's thread, and helpers under load.

The *sender* takes batches from the buffer and delivers them (counterpoise.publisher.delivery), one
at a time. A failed batch is tried again, with the same sequences. If the sender cannot deliver it
in time, it waits until its error has been reported, and then begins anew.

A message that the log can never hold must not keep the others waiting. The log refuses the batch
with it. So the sender halves the batch until it finds the message, goes on without it, and reports
what the log has said of it.

When full batches go on waiting while another is on its way, *helpers* send batches of other
partitions at the same time, each over a connection of its own. A helper has sequences of its own,
under an id of its own. It tries each batch once, and leaves what fails to the sender, which repeats
it with the same id and sequences, and meets the same error if it is not the connection's. So all
errors are those of the sender, and where no further connection can be had, a publisher works as
with one. A helper without work ends.

The threads are daemons: a program that ends does not wait for them. So what a publisher that was
not closed has accepted is delivered at the exit of the program, or counted in the log.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from counterpoise.at_exit import at_exit
from counterpoise.logs import InvalidMessage, Message
from counterpoise.publisher.buffer import Batch, Buffer
from counterpoise.publisher.delivery import Delivery

_log = logging.getLogger("counterpoise.publisher")

BATCHES_BEFORE_HELP = 3
"""So many batches in a row leave a full one waiting before a helper starts."""
HELPER_IDLE_SECONDS = 10.0
"""A helper ends after so many seconds without work."""
HELPER_PAUSE_SECONDS = 10.0
"""After a helper failed, none starts for so long."""


@dataclass(slots=True, eq=False)
class _Stream:
    """The sequences of one id: the first (None: the log has to say), and how many are delivered.

    `batch` is on its way, or has failed; `rest` follows it. `helping`: it is a helper's, and the
    helper runs.
    """

    publisher: str
    first: int | None
    delivered: int = 0
    batch: Batch | None = None
    rest: list[Batch] = field(default_factory=list)
    helping: bool = False


class Sending:
    """The threads that empty a buffer. Callers hold `lock`, unless a method says otherwise."""

    def __init__(
        self,
        name: str,
        publisher_id: str,
        first_sequence: int | None,
        buffer: Buffer,
        delivery: Delivery,
        *,
        helpers: int,
        linger_seconds: float,
    ) -> None:
        """`name` of the threads; `first_sequence` None: the log has to say (`Delivery`).

        With helpers, `publisher_id` must be new to the log.
        """
        self.lock = threading.Lock()
        """Guards the buffer and all attributes; taken directly for each message, it is cheaper."""
        self.changed = threading.Condition(self.lock)
        """Is notified of each change of them."""
        self.buffer = buffer
        self.error: Exception | None = None
        """Why the sender waits; whoever reports it sets None and notifies."""
        self.refusals: list[InvalidMessage] = []
        """What the log has said of messages that it can never hold, and nobody has reported."""
        self.refused = 0
        """How many there were."""
        self._name = name
        self._delivery = delivery
        self._linger_seconds = linger_seconds
        self._urgent_below = 0
        self._closing = False
        self._own = _Stream(publisher_id, first_sequence)
        self._helped = [_Stream(f"{publisher_id}-{number}", 0) for number in range(1, helpers + 1)]
        self._sends = False  # The sender's thread runs, or is about to.
        self._threads: list[threading.Thread] = []
        self._full_in_a_row = 0
        self._no_help_until = 0.0

    def put(self, message: Message, size_bytes: int) -> None:
        """Accept a message. The first one starts the sender."""
        if not self._sends:
            self._begin()
        if self.buffer.put(message, size_bytes, time.monotonic()):
            self.changed.notify_all()

    def hurry(self) -> None:
        """Send what has been accepted without waiting for more messages."""
        self._urgent_below = self.buffer.accepted
        self.changed.notify_all()

    def end(self) -> None:
        """Return when all messages are delivered, or the sender has failed. Without `lock`.

        If it is interrupted, the threads go on, and a later call or the exit waits for them.
        """
        with self.changed:
            self._closing = True
            self.hurry()
            # No join: before Python 3.13 an interrupted one takes a living thread for ended.
            while self._sends or any(stream.helping for stream in self._helped):
                self.changed.wait()
            threads = list(self._threads)
        for thread in threads:
            thread.join()  # It has nothing more to do.
        _open.discard(self)

    def first_sequence(self) -> int:
        """The sequence of the first message. The log is asked once. Without `lock`."""
        first = self._own.first
        if first is None:
            asked = self._delivery.next_sequence(self._own.publisher)
            with self.changed:
                if self._own.first is None:
                    self._own.first = asked
                first = self._own.first
        return first

    # ------------------------------------------------------------------ the sender's thread

    def _begin(self) -> None:
        _opened(self)
        # Before the start, which may be interrupted: there are never two senders.
        self._sends = True
        try:
            self._start("publisher", self._run)
        except Exception:  # No thread can be had.
            self._sends = False
            raise

    def _run(self) -> None:
        try:
            self._send()
        finally:
            with self.changed:
                self._sends = False
                self.changed.notify_all()

    def _send(self) -> None:
        while (stream := self._next_to_send()) is not None:
            batch = stream.batch
            assert batch is not None
            try:
                if batch.first_sequence is None:
                    batch.first_sequence = self.first_sequence() + stream.delivered
                self._delivery.deliver(batch)
            except InvalidMessage as error:
                self._find_refused(stream, batch, error)
            except Exception as error:
                with self.changed:
                    self.error = error
                    self.changed.notify_all()
            else:
                self._delivered(stream, self._delivery)

    def _find_refused(self, stream: _Stream, batch: Batch, error: InvalidMessage) -> None:
        """The log can never hold one of these messages."""
        if len(batch.messages) > 1:
            with self.changed:
                stream.batch, second = self.buffer.halve(batch)
                stream.rest.insert(0, second)
            return
        error.add_note(
            f"it is message {batch.ordinals[0] + 1} of this publisher to {self._name}, which "
            "goes on without it"
        )
        with self.changed:
            self.refusals.append(error)
            self.refused += 1
        self._delivered(stream, self._delivery)

    def _next_to_send(self) -> _Stream | None:
        """The stream with the next batch to deliver, when it is due; None after the last one."""
        with self.changed:
            while True:
                if self.error is not None:
                    # The error is not reported yet. When closing, close() reports it.
                    if self._closing:
                        return None
                    self.changed.wait()
                    continue
                for stream in (self._own, *self._helped):
                    if stream.batch is not None and not stream.helping:
                        return stream
                if self._take(self._own):
                    self._see_whether_to_get_help()
                    return self._own
                if self._closing and not self.buffer.unconfirmed:
                    return None
                self.changed.wait(self._due_in())

    def _see_whether_to_get_help(self) -> None:
        self._full_in_a_row = self._full_in_a_row + 1 if self.buffer.has_full_batch else 0
        if self._full_in_a_row < BATCHES_BEFORE_HELP or time.monotonic() < self._no_help_until:
            return
        if not self._delivery.takes_several or self._closing:
            return
        self._full_in_a_row = 0
        stream = next((one for one in self._helped if not one.helping), None)
        if stream is None:
            return
        try:
            self._start("publisher-helper", self._help, stream)
        except RuntimeError:  # No further thread can be had.
            self._no_help_until = time.monotonic() + HELPER_PAUSE_SECONDS
        else:
            stream.helping = True
            self._arrange(self._delivery)

    # ------------------------------------------------------------------ the helpers' threads

    def _help(self, stream: _Stream) -> None:
        try:
            with closing(self._delivery.another()) as delivery:
                while (batch := self._next_to_help(stream)) is not None:
                    delivery.deliver(batch, once=True)
                    self._delivered(stream, delivery)
        except Exception:
            # The sender tries the batch again, and reports the error if it meets it, too.
            with self.lock:
                self._no_help_until = time.monotonic() + HELPER_PAUSE_SECONDS
        finally:
            with self.changed:
                stream.helping = False
                self._arrange(self._delivery)
                self.changed.notify_all()

    def _next_to_help(self, stream: _Stream) -> Batch | None:
        """The next batch of this helper, when it is due; None if it has nothing more to do."""
        with self.changed:
            until = time.monotonic() + HELPER_IDLE_SECONDS
            while not self._take(stream):
                left = until - time.monotonic()
                ended = self._closing and (self.error is not None or not self.buffer.messages)
                if ended or left <= 0:
                    return None
                due = self._due_in()
                self.changed.wait(left if due is None else min(due, left))
            return stream.batch

    # ------------------------------------------------------------------ sender and helpers

    def _take(self, stream: _Stream) -> bool:
        batch = self.buffer.take(time.monotonic(), self._linger_seconds, self._urgent_below)
        if batch is None:
            return False
        batch.publisher = stream.publisher
        if stream.first is not None:
            batch.first_sequence = stream.first + stream.delivered
        stream.batch = batch
        self.changed.notify_all()
        return True

    def _due_in(self) -> float | None:
        return self.buffer.due_in(time.monotonic(), self._linger_seconds, self._urgent_below)

    def _delivered(self, stream: _Stream, by: Delivery) -> None:
        with self.changed:
            assert stream.batch is not None
            self.buffer.delivered(stream.batch)
            stream.delivered += len(stream.batch.messages)
            stream.batch = stream.rest.pop(0) if stream.rest else None
            self._arrange(by)
            self.changed.notify_all()

    def _arrange(self, by: Delivery) -> None:
        """A stripe for each who sends, by the partitions that the log said last."""
        self.buffer.arrange(by.routing, 1 + sum(stream.helping for stream in self._helped))

    def _start(self, name: str, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(
            target=run, args=arguments, name=f"counterpoise-{name}-{self._name}", daemon=True
        )
        thread.start()
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    # ------------------------------------------------------------------ the end of the program

    def end_with_program(self) -> None:
        """Deliver what was accepted; log how many messages could not be delivered. Without `lock`.

        The sender goes on: what runs later at the exit may publish, and start no thread any more.
        """
        with self.changed:
            self.hurry()
            target = self.buffer.accepted
            while self._sends and self.error is None and self.buffer.confirmed_below < target:
                self.changed.wait()
        if lacking := self.buffer.unconfirmed:
            _log.error(
                "a publisher of %s was not closed: %d of its messages are not known to be in the "
                "log: %s",
                self._name,
                lacking,
                self.error,
            )
        for refusal in self.refusals:
            _log.error("a publisher of %s was not closed: %s", self._name, _with_notes(refusal))


def _with_notes(error: Exception) -> str:
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


_open: weakref.WeakSet[Sending] = weakref.WeakSet()
"""Have a sender, and were not ended."""


_are_ended_at_exit = False


def _opened(sending: Sending) -> None:
    global _are_ended_at_exit
    _open.add(sending)
    if not _are_ended_at_exit:
        _are_ended_at_exit = True
        at_exit(_end_open)


def _end_open() -> None:
    for sending in tuple(_open):
        sending.end_with_program()


def _begin_anew() -> None:
    """A forked process has no threads of its parent, and no part in its messages."""
    global _are_ended_at_exit
    _open.clear()
    _are_ended_at_exit = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
