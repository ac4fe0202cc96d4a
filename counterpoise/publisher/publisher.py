"""`Publisher`: puts messages into a queue, each key's in order, none lost and none twice.

    with Publisher("flights") as publisher:
        publisher.publish(b'{"dest": "IAH"}', key="N14228")

`publish` puts a message into a buffer (counterpoise.publisher.buffer), which threads empty
(counterpoise.publisher.sending). If they cannot deliver a message within `timeout_seconds`, the
next call raises the error; a call after that starts a new attempt. A program that ends without
`close` delivers what was accepted at its exit, and logs what it could not deliver. A message that
the log can never hold is left out, and the next call raises InvalidMessage, which says which one.

A publisher with its own `publisher_id` can continue where an earlier process with this id
stopped: `next_sequence` counts the messages that are in the log already. A program that publishes
the same messages in the same order again, beginning there, publishes each message once. This needs
one order of all messages, so it has no helpers.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Self
from zlib import crc32

from counterpoise.calls import check_queue
from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError
from counterpoise.logs import Message, open_log
from counterpoise.logs.rows import tombstone
from counterpoise.options import SHORTEST_SECONDS, check_counts, check_seconds, suggesting
from counterpoise.publisher.buffer import Buffer
from counterpoise.publisher.delivery import Delivery, OpenLog
from counterpoise.publisher.sending import Sending

MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_BUFFER_BYTES = 64 * 1024 * 1024


class PublisherClosed(CounterpoiseError):
    """The publisher has been closed, or belongs to a parent process: make another one."""

    code = "publisher_closed"


class BufferFull(CounterpoiseError):
    """The buffer stayed full for `timeout_seconds`; the message was not taken."""

    code = "buffer_full"


class Publisher:
    """Publishes to one queue. Thread-safe. A forked process has to make its own."""

    @suggesting
    def __init__(
        self,
        queue: str,
        *,
        url: str | None = None,
        token: str | None = None,
        log_url: str | None = None,
        publisher_id: str | None = None,
        batch_messages: int = 1000,
        linger_seconds: float = 0.005,
        timeout_seconds: float = 60.0,
        buffer_messages: int = 10_000,
        connections: int | None = None,
        client: Client | None = None,
        open_log: OpenLog = open_log,
    ) -> None:
        """Nothing is connected yet.

        `url` and `token` are for the service, as for `Client`; your own `client` replaces them
        and stays open. `log_url` (or COUNTERPOISE_LOG_URL) replaces the access to the log
        that the service gives. A batch is sent when it has `batch_messages`, or when its first
        message has waited for `linger_seconds`. `publish` blocks while `buffer_messages` (or 64
        MiB) wait. `publisher_id` must be used by one publisher at a time; by default it is random.
        `connections` (2, and with a `publisher_id` 1, which then is the most) bounds how many
        batches are on their way to the built-in log at once; other logs take one at a time.
        """
        check_queue(queue)
        check_counts(batch_messages=batch_messages, buffer_messages=buffer_messages)
        check_seconds(linger_seconds=linger_seconds)
        check_seconds(SHORTEST_SECONDS, timeout_seconds=timeout_seconds)
        if publisher_id is not None and not 1 <= len(publisher_id.encode()) <= 200:
            raise ValueError("publisher_id must have 1 to 200 bytes")
        if connections is None:
            connections = 2 if publisher_id is None else 1
        check_counts(connections=connections)
        if connections > 1 and publisher_id is not None:
            raise ValueError(
                "a publisher with a publisher_id must have 1 connection: over several, no sequence "
                "says which messages are in the log"
            )
        self.queue = queue
        self.publisher_id = publisher_id or uuid.uuid4().hex
        self._buffer_messages = max(buffer_messages, batch_messages)
        self._timeout_seconds = timeout_seconds
        service = client or Client(url, token=token, timeout_seconds=min(10.0, timeout_seconds))
        self._own_client = service if client is None else None
        self._delivery = Delivery(
            lambda refused: service.log_access(queue, "publish", refused=refused),
            open_log,
            log_url=log_url,
            timeout_seconds=timeout_seconds,
        )
        self._buffer = Buffer(batch_messages, MAX_BATCH_BYTES, crc32(self.publisher_id.encode()))
        self._sending = Sending(
            queue,
            self.publisher_id,
            # A random id is new to the log; a given one may be known there.
            0 if publisher_id is None else None,
            self._buffer,
            self._delivery,
            helpers=connections - 1,
            linger_seconds=linger_seconds,
        )
        self._lock, self._changed = self._sending.lock, self._sending.changed
        self._closed = False
        self._ended = False
        self._pid = os.getpid()

    @property
    def next_sequence(self) -> int:
        """The sequence of the next message to be published; asks the log the first time.

        It counts the messages published under this `publisher_id`, now and by earlier processes.
        """
        self._check_process()
        first = self._sending.first_sequence()
        with self._changed:
            return first + self._buffer.accepted

    @property
    def refused(self) -> int:
        """How many accepted messages the log has refused, because it can never hold them."""
        with self._changed:
            return self._sending.refused

    @property
    def unconfirmed(self) -> int:
        """How many accepted messages are not known to be in the log (yet)."""
        with self._changed:
            return self._buffer.unconfirmed

    def publish(
        self,
        value: bytes | None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        published_at: datetime | None = None,
    ) -> None:
        """Take a message to be appended soon; messages with the same key stay in this order.

        `value` None: the message has no value (docs, *Messages without a value*). `published_at`
        None means the time at which the log appends it. Blocks while the buffer is full. Raises
        InvalidMessage, BufferFull, PublisherClosed, and the background error
        of an earlier message; then this message was not taken.
        """
        self._check_process()
        headers = _copied(headers)
        if value is None:
            value, headers = b"", tombstone(headers)
        message = Message(value, key, headers, published_at)
        size = message.size_bytes()
        with self._lock:
            self._raise_if_unusable()
            if not self._has_room(size):
                self._await_room(size)
            self._sending.put(message, size)

    def flush(self) -> None:
        """Return when all messages published before are in the log; else raises the error."""
        self._check_process()
        with self._changed:
            self._raise_if_unusable()
            target = self._buffer.accepted
            self._sending.hurry()
            while self._buffer.confirmed_below < target:
                self._changed.wait()
                self._raise_if_unusable()
            self._raise_refusal()

    def close(self) -> None:
        """Flush and end; closing again, or in a forked child, does nothing.

        If it is interrupted, closing again finishes it, or else the exit of the program.
        Raises the error if it cannot flush, with a note of how many messages are not known to be
        in the log.
        """
        if self._pid != os.getpid():
            return
        with self._changed:
            self._closed = True
        self._sending.end()
        with self._changed:
            if self._ended:
                return
            self._ended = True
            error, self._sending.error = self._sending.error, None
            refusals, self._sending.refusals = self._sending.refusals, []
            self._changed.notify_all()
        self._delivery.close()
        if self._own_client is not None:
            self._own_client.close()
        if error is not None:
            error.add_note(f"{self.unconfirmed} messages are not known to be in the log")
            raise error
        if refusals:
            if len(refusals) > 1:
                refusals[0].add_note(f"it has refused {len(refusals) - 1} more")
            raise refusals[0]

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

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise PublisherClosed(
                f"this publisher belongs to process {self._pid}, whose thread sends its messages; "
                "a forked process has to make its own"
            )

    # ------------------------------------------------------------------ callers, condition held

    def _raise_if_unusable(self) -> None:
        error, self._sending.error = self._sending.error, None
        if error is not None:
            # The error is reported, so the sender may try again.
            self._changed.notify_all()
            raise error
        self._raise_refusal()
        if self._closed:
            raise PublisherClosed(
                "the publisher has been closed: publish before the end of its with block (or its "
                "close()), or make another Publisher"
            )

    def _raise_refusal(self) -> None:
        if self._sending.refusals:
            raise self._sending.refusals.pop(0)

    def _has_room(self, size: int) -> bool:
        return not self._buffer.messages or (
            self._buffer.messages < self._buffer_messages
            and self._buffer.size_bytes + size <= MAX_BUFFER_BYTES
        )

    def _await_room(self, size: int) -> None:
        deadline = time.monotonic() + self._timeout_seconds
        while not self._has_room(size):
            if not self._changed.wait(deadline - time.monotonic()):
                raise BufferFull(
                    f"the message was not taken: {self._buffer.messages} others have filled the "
                    f"buffer for {self._timeout_seconds:g} s. Publish it again later; if the log "
                    "is there and only slower than this, raise buffer_messages or timeout_seconds"
                )
            self._raise_if_unusable()


def _copied(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    # What is no mapping is left to the message's own check.
    return dict(headers) or None if isinstance(headers, Mapping) else headers
