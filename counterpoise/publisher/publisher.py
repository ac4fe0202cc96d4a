"""`Publisher`: puts messages into a queue, in order, none lost and none twice.

    with Publisher("flights") as publisher:
        publisher.publish(b'{"dest": "IAH"}', key="N14228")

How it works: `publish` puts a message into a buffer. A thread takes batches from the front of the
buffer and delivers them (counterpoise.publisher.delivery), one at a time, so that the order holds.
Messages get their sequences in the order of `publish`. A failed batch stays at the front and is
tried again, with the same sequences. If the thread cannot deliver a batch within `timeout_seconds`,
the next call raises the error; a call after that starts a new attempt.

A publisher with its own `publisher_id` can continue where an earlier process with this id
stopped: `next_sequence` counts the messages that are in the log already. A program that publishes
the same messages in the same order again, beginning there, publishes each message once.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Self

from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError, Invalid
from counterpoise.logs import Message, open_log
from counterpoise.publisher.delivery import Batch, Delivery, OpenLog
from counterpoise.wire import LogView

MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_BUFFER_BYTES = 64 * 1024 * 1024


class PublisherClosed(CounterpoiseError):
    """The publisher has been closed and publishes no more messages."""

    code = "publisher_closed"


class BufferFull(CounterpoiseError):
    """The buffer stayed full for `timeout_seconds`; the message was not taken."""

    code = "buffer_full"


class Publisher:
    """Publishes to one queue. Thread-safe; not to be shared with a forked process."""

    def __init__(
        self,
        queue: str,
        *,
        url: str | None = None,
        token: str | None = None,
        log_url: str | None = None,
        publisher_id: str | None = None,
        batch_messages: int = 1000,
        linger_seconds: float = 0.05,
        timeout_seconds: float = 60.0,
        buffer_messages: int = 10_000,
        client: Client | None = None,
        open_log: OpenLog = open_log,
    ) -> None:
        """Nothing is connected yet.

        `url` and `token` are for the service, as for `Client`; your own `client` replaces them
        and stays open. `log_url` (or COUNTERPOISE_LOG_URL) replaces the access to the log
        that the service gives. A batch is sent when it has `batch_messages`, or when its first
        message has waited for `linger_seconds`. `publish` blocks while `buffer_messages` (or 64
        MiB) wait. `publisher_id` must be used by one publisher at a time; by default it is random.
        """
        if batch_messages < 1 or buffer_messages < 1:
            raise ValueError("batch_messages and buffer_messages must be at least 1")
        if linger_seconds < 0 or timeout_seconds <= 0:
            raise ValueError("linger_seconds must not be negative, timeout_seconds positive")
        if publisher_id is not None and not 1 <= len(publisher_id.encode()) <= 200:
            raise ValueError("publisher_id must have 1 to 200 bytes")
        self.queue = queue
        self.publisher_id = publisher_id or uuid.uuid4().hex
        self._batch_messages = batch_messages
        self._buffer_messages = max(buffer_messages, batch_messages)
        self._linger_seconds = linger_seconds
        self._timeout_seconds = timeout_seconds
        service = client or Client(url, token=token, timeout_seconds=min(10.0, timeout_seconds))
        self._own_client = service if client is None else None
        self._delivery = Delivery(
            self.publisher_id,
            lambda refused: _log_view(service, queue, refused),
            open_log,
            log_url=log_url,
            timeout_seconds=timeout_seconds,
        )
        # The condition guards all attributes below, and is notified of each change of them.
        self._changed = threading.Condition()
        self._buffer: deque[tuple[Message, int]] = deque()
        self._buffer_bytes = 0
        self._oldest_at = 0.0
        self._batch: Batch | None = None
        # A random id is new to the log; a given one may be known there.
        self._first_sequence = 0 if publisher_id is None else None
        self._accepted = 0
        self._delivered = 0
        self._flush_below = 0
        self._error: Exception | None = None
        self._closing = False
        self._sender: threading.Thread | None = None

    @property
    def next_sequence(self) -> int:
        """The sequence of the next message to be published; asks the log the first time.

        It counts the messages published under this `publisher_id`, now and by earlier processes.
        """
        first = self._base()
        with self._changed:
            return first + self._accepted

    @property
    def unconfirmed(self) -> int:
        """How many accepted messages are not known to be in the log (yet)."""
        with self._changed:
            return self._accepted - self._delivered

    def publish(
        self,
        value: bytes,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        published_at: datetime | None = None,
    ) -> None:
        """Take a message to be appended soon; messages with the same key stay in this order.

        `published_at` None means the time at which the log appends it. Blocks while the buffer is
        full. Raises InvalidMessage, BufferFull, PublisherClosed, and the background error of an
        earlier message; then this message was not taken.
        """
        message = Message(value, key, dict(headers) if headers else None, published_at)
        size = message.size_bytes()
        with self._changed:
            self._raise_if_unusable()
            if not self._has_room(size):
                self._await_room(size)
            if not self._buffer:
                self._oldest_at = time.monotonic()
            self._buffer.append((message, size))
            self._buffer_bytes += size
            self._accepted += 1
            if self._sender is None:
                self._start()
            if len(self._buffer) in (1, self._batch_messages) or self._full_batch():
                self._changed.notify_all()

    def flush(self) -> None:
        """Return when all messages published before are in the log; else raises the error."""
        with self._changed:
            self._raise_if_unusable()
            target = self._accepted
            self._flush_below = max(self._flush_below, target)
            self._changed.notify_all()
            while self._delivered < target:
                self._changed.wait()
                self._raise_if_unusable()

    def close(self) -> None:
        """Flush and end; closing again does nothing.

        Raises the error if it cannot flush, with a note of how many messages are not known to be
        in the log.
        """
        with self._changed:
            closed_before = self._closing
            self._closing = True
            self._changed.notify_all()
        if self._sender is not None:
            self._sender.join()
        if closed_before:
            return
        with self._changed:
            error, self._error = self._error, None
            self._changed.notify_all()
        self._delivery.close()
        if self._own_client is not None:
            self._own_client.close()
        if error is not None:
            error.add_note(f"{self.unconfirmed} messages are not known to be in the log")
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as on_close:
            if error is None:
                raise
            error.add_note(f"and closing the publisher failed: {on_close}")
            for note in getattr(on_close, "__notes__", ()):
                error.add_note(note)

    # ------------------------------------------------------------------ callers, condition held

    def _raise_if_unusable(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            # The error is reported, so the sender may try again.
            self._changed.notify_all()
            raise error
        if self._closing:
            raise PublisherClosed(
                "the publisher has been closed: publish before the end of its with block (or its "
                "close()), or make another Publisher"
            )

    def _has_room(self, size: int) -> bool:
        return not self._buffer or (
            len(self._buffer) < self._buffer_messages
            and self._buffer_bytes + size <= MAX_BUFFER_BYTES
        )

    def _await_room(self, size: int) -> None:
        deadline = time.monotonic() + self._timeout_seconds
        while not self._has_room(size):
            if not self._changed.wait(deadline - time.monotonic()):
                raise BufferFull(
                    f"the message was not taken: {len(self._buffer)} others have filled the buffer "
                    f"for {self._timeout_seconds:g} s. Publish it again later; if the log is there "
                    "and only slower than this, raise buffer_messages or timeout_seconds"
                )
            self._raise_if_unusable()

    def _full_batch(self) -> bool:
        return len(self._buffer) >= self._batch_messages or self._buffer_bytes >= MAX_BATCH_BYTES

    def _start(self) -> None:
        self._sender = threading.Thread(
            target=self._run, name=f"counterpoise-publisher-{self.queue}", daemon=True
        )
        self._sender.start()

    # ------------------------------------------------------------------ the sender's thread

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            try:
                if batch.first_sequence < 0:
                    batch.first_sequence = self._base() + self._delivered
                self._delivery.deliver(batch)
            except Exception as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
            else:
                with self._changed:
                    self._batch = None
                    self._delivered += len(batch.messages)
                    self._changed.notify_all()

    def _next_batch(self) -> Batch | None:
        """The next batch to deliver, when it is due; None after the last one."""
        with self._changed:
            while True:
                if self._error is not None:
                    # The error is not reported yet. When closing, close() reports it.
                    if self._closing:
                        return None
                    self._changed.wait()
                elif self._batch is not None:
                    return self._batch
                elif self._buffer and (left := self._lingers_seconds()) <= 0:
                    self._batch = self._take()
                    self._changed.notify_all()
                    return self._batch
                elif self._buffer:
                    self._changed.wait(left)
                elif self._closing:
                    return None
                else:
                    self._changed.wait()

    def _lingers_seconds(self) -> float:
        """How long the front of the buffer may still wait for more messages."""
        if self._closing or self._full_batch() or self._flush_below > self._delivered:
            return 0.0
        return self._oldest_at + self._linger_seconds - time.monotonic()

    def _take(self) -> Batch:
        messages: list[Message] = []
        taken_bytes = 0
        while self._buffer and len(messages) < self._batch_messages:
            message, size = self._buffer[0]
            if messages and taken_bytes + size > MAX_BATCH_BYTES:
                break
            self._buffer.popleft()
            messages.append(message)
            taken_bytes += size
        self._buffer_bytes -= taken_bytes
        self._oldest_at = time.monotonic()
        first = -1 if self._first_sequence is None else self._first_sequence + self._delivered
        return Batch(first, messages)

    def _base(self) -> int:
        """The sequence of this publisher's first message. The log is asked once."""
        first = self._first_sequence
        if first is None:
            asked = self._delivery.next_sequence()
            with self._changed:
                if self._first_sequence is None:
                    self._first_sequence = asked
                first = self._first_sequence
        return first


def _log_view(service: Client, queue: str, refused: bool) -> LogView:
    """How to reach the queue's log; `refused`: with other credentials than the last time."""
    if refused:
        # A service of the release before does not know the word.
        with suppress(Invalid):
            return service.log_access(queue, "publish", refused=True)
    return service.log_access(queue, "publish")
