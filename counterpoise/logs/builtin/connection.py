"""One Postgres connection for a log: bounded calls, new connections, errors of our own.

Arrays travel in the binary form of Postgres, read and written without a call for each element. An
array of one dimension has a head and, for each element, the number of its bytes (-1: null) and
these. All numbers are big-endian.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format, TransactionStatus
from psycopg.types.numeric import Int8BinaryLoader

from counterpoise.logs import postgres
from counterpoise.logs.builtin import (
    LOG_NOT_FOUND,
    OUT_OF_RANGE,
    STALE_PARTITION_COUNT,
    STALE_RANGES,
)
from counterpoise.logs.errors import (
    InvalidMessage,
    LogAccessRefused,
    LogError,
    LogNotFound,
    LogUnavailable,
    StaleRouting,
)

T = TypeVar("T")
Row = tuple[Any, ...]
# By place or by name.
Parameters = Sequence[object] | Mapping[str, object]

_UNDEFINED_FUNCTION = "42883"
# SQLSTATE classes and codes of temporary errors: connection, rollback, resources, operator,
# lock not available, read-only (a standby that has not taken over yet).
_TRANSIENT_CLASSES = ("08", "40", "53", "57", "58", "XX")
_READ_ONLY = "25006"
_TRANSIENT_CODES = ("55P03", _READ_ONLY)
_CONNECT_SECONDS = 10.0
MOST_HEARD = 1000
_WHOSE = "SELECT pg_backend_pid(), pg_is_in_recovery()"
_POOLED = "startup parameter"
# The server is full, or the connection ended within the login: other credentials do not help.
_NOT_REFUSED = (
    "too many connections for role",
    "too many clients",
    "remaining connection slots",
    "unexpectedly",
    "EOF detected",
    "reset by peer",
)

# Dimensions, whether there are nulls, type, length, first index.
_HEAD = struct.Struct("!iiIii")
_HEAD_BYTES, _EMPTY_BYTES = _HEAD.size, 12
_INTEGER, _BIGINT, _BYTEA, _TEXT = 23, 20, 17, 25


class _AsReceived(Loader):
    """Bytes stay in the buffer in which the driver received them, until they have been used."""

    format = Format.BINARY

    def load(self, data: Buffer) -> memoryview:
        return memoryview(data)


class _BoundedConnection(psycopg.Connection[Row]):
    """A connection that stops waiting for the server at `deadline` (monotonic seconds).

    TCP time-outs detect a server that is gone, but not a server that is stopped.
    """

    deadline: float = float("inf")

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        left = max(0.0, self.deadline - time.monotonic())
        return super().wait(gen, interval, left if timeout is None else min(timeout, left))


class LogConnection:
    """Runs statements over one connection that is made when needed and made anew when broken.

    Every statement is its own transaction. Threads take turns. The URL contains a password, so
    no message and no repr shows it.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        """Raises InvalidLog."""
        self._parameters = postgres.read(url)
        # The server also stops, so that abandoned calls do not pile up there.
        limit = str(max(1, int(timeout_seconds * 1000)))
        self._settings = {**postgres.SETTINGS, **postgres.BY_KEY, "statement_timeout": limit}
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._connection: _BoundedConnection | None = None
        self._process = os.getpid()
        # The connection that listens to notifications, if it is still this one, and their payloads.
        self._listening: _BoundedConnection | None = None
        self._heard: list[str] = []

    def query(self, statement: str, parameters: Parameters, *, retry: bool) -> list[Row]:
        """All rows of a statement, read in binary; byte strings are views of the received answer.

        With `retry` a broken connection is replaced and the statement is sent once more; use it
        only for statements that may run twice. Raises LogUnavailable and the other LogErrors.
        """
        deadline = time.monotonic() + self._timeout_seconds
        if not self._lock.acquire(timeout=self._timeout_seconds):
            raise LogUnavailable("another thread's call on this log took too long")
        try:
            return self._query(statement, parameters, retry, deadline)
        finally:
            self._lock.release()

    def hears(self) -> bool:
        """Whether notifications can arrive: not from a standby, nor through a connection pooler.

        Raises LogUnavailable and the other LogErrors.
        """
        ((process, standby),) = self.query(_WHOSE, [], retry=True)
        connection = self._connection
        # libpq has the number of the process from the program that has accepted the connection.
        return connection is not None and not standby and connection.info.backend_pid == process

    def listen(self, channel: str) -> None:
        """Listen to notifications on a channel, as long as the present connection lasts.

        Raises LogUnavailable and the other LogErrors.
        """
        self.query(f'LISTEN "{channel}"', [], retry=False)
        with self._lock:
            connection, self._heard[:] = self._connection, []
            if connection is not None and connection is not self._listening:
                self._heard = _heard_by(connection)
            self._listening = connection

    def heard(self) -> tuple[int, list[str]] | None:
        """The descriptor of the connection that listens, and the payloads that have come since the
        last call, or `listen`. None: there is no such connection (any more).
        """
        with self._lock:
            connection = self._connection
            if connection is None or connection is not self._listening or not self._usable():
                return None
            try:
                connection.pgconn.consume_input()
                while (notify := connection.pgconn.notifies()) is not None:
                    self._heard.append(notify.extra.decode())
            except psycopg.Error:
                self._discard()
                return None
            heard = [*self._heard]
            self._heard.clear()
            return connection.fileno(), heard

    def close(self) -> None:
        """Close the connection if there is one; the next statement makes a new one."""
        with self._lock:
            self._discard()

    def _query(
        self, statement: str, parameters: Parameters, retry: bool, deadline: float
    ) -> list[Row]:
        reused = self._usable()
        try:
            connection = self._connection or self._connect(deadline)
            connection.deadline = deadline
            with connection.cursor(binary=True) as cursor:
                cursor.execute(statement.encode(), parameters)
                return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            # A server that is ended amid a statement may leave a connection that is neither broken
            # nor free for the next one.
            connection_lost = self._connection is None or not _is_idle(self._connection)
            # After a failover the URL may lead to the new primary, and this connection never does.
            connection_lost = connection_lost or error.sqlstate == _READ_ONLY
            timed_out = time.monotonic() >= deadline
            if connection_lost or timed_out or isinstance(error, psycopg.InterfaceError):
                self._discard()
                if retry and reused and not timed_out:
                    return self._query(statement, parameters, False, deadline)
            raise _in_our_words(error) from error
        except BaseException:
            # Interrupted in the middle: the state of the connection is unknown.
            self._discard()
            raise

    def _usable(self) -> bool:
        """Whether there is a connection to reuse. A forked child does not use its parent's."""
        if self._process != os.getpid():
            self._connection, self._listening, self._process = None, None, os.getpid()
        return self._connection is not None

    def _connect(self, deadline: float) -> _BoundedConnection:
        left = max(1.0, min(_CONNECT_SECONDS, deadline - time.monotonic()))
        try:
            connection = postgres.connect(
                _BoundedConnection.connect,
                self._parameters,
                self._settings,
                autocommit=True,
                connect_timeout=int(left + 0.999),
                application_name="counterpoise-log",
            )
        except psycopg.OperationalError as error:
            message = str(error).strip()
            if _POOLED in message:
                raise LogError(
                    "the address of the log is that of a connection pooler, which refuses the "
                    f"settings of a session ({message.splitlines()[-1]}): give that of Postgres "
                    "itself"
                ) from None
            # The driver has no code for it.
            known = any(text in message for text in _NOT_REFUSED)
            if not known and error.pgconn is not None and error.pgconn.used_password:
                raise LogAccessRefused(f"the log refused the credentials: {message}") from None
            raise LogUnavailable(f"the log cannot be reached: {message}") from None
        # Microseconds since 2000 instead of objects; see counterpoise.logs.builtin.reading.
        connection.adapters.register_loader("timestamptz", Int8BinaryLoader)
        connection.adapters.register_loader("bytea", _AsReceived)
        connection.adapters.register_dumper(SentArray, SentArrayDumper)
        connection.deadline = deadline
        self._connection = connection
        return connection

    def _discard(self) -> None:
        connection, self._connection, self._listening = self._connection, None, None
        if connection is not None and self._process == os.getpid():
            connection.close()


def _heard_by(connection: psycopg.Connection[Row]) -> list[str]:
    """The payloads that come with the answers to statements. A reader that has much to read does
    not look at them: many are as good as one of any partition.
    """
    heard: list[str] = []

    def hear(notify: psycopg.Notify) -> None:
        if len(heard) >= MOST_HEARD:
            heard[:] = [""]
        heard.append(notify.payload)

    connection.add_notify_handler(hear)
    return heard


def _is_idle(connection: psycopg.Connection[Row]) -> bool:
    """Whether a statement can be sent. Each is its own transaction, so one that failed is over."""
    return connection.info.transaction_status == TransactionStatus.IDLE


def _in_our_words(error: psycopg.Error) -> LogError:
    state = error.sqlstate
    message = error.diag.message_primary or str(error).strip()
    if state is None or state.startswith(_TRANSIENT_CLASSES) or state in _TRANSIENT_CODES:
        return LogUnavailable(f"the log does not answer: {message}")
    special: dict[str, Callable[[], LogError]] = {
        LOG_NOT_FOUND: lambda: LogNotFound(message),
        "42P01": lambda: LogError("this database has no built-in log (counterpoise migrate)"),
        "3F000": lambda: LogError("this database has no built-in log (counterpoise migrate)"),
        _UNDEFINED_FUNCTION: lambda: LogError(
            "this database has no built-in log (counterpoise migrate)"
        ),
        "42501": lambda: LogAccessRefused(f"the log's credentials lack rights: {message}"),
    }
    if state in special:
        return special[state]()
    if state.startswith(("22", "23")) or state == OUT_OF_RANGE:
        return InvalidMessage(f"the log refused the messages: {message}")
    return LogError(f"the log failed: {message} ({state})")


def stale_partition_count(error: BaseException | None, routed_with: int) -> StaleRouting | None:
    """`error` as the refusal of an append routed with an old partition count, else None."""
    if isinstance(error, psycopg.Error) and error.sqlstate == STALE_PARTITION_COUNT:
        return StaleRouting(routed_with, int(error.diag.message_detail or 0))
    return None


def has_stale_ranges(error: BaseException | None) -> bool:
    """Whether `error` refuses an append that was not routed with the ranges of a dynamic log."""
    return isinstance(error, psycopg.Error) and error.sqlstate == STALE_RANGES


@dataclass(frozen=True, slots=True)
class SentArray:
    """An array in its binary form, as a parameter of a statement that names its type."""

    data: bytes


class SentArrayDumper(Dumper):
    """Sends a SentArray as it is."""

    format = Format.BINARY

    def dump(self, obj: SentArray) -> Buffer:
        return obj.data


def integer_array(values: Sequence[int]) -> SentArray:
    """An `integer[]` to send. Raises OverflowError for a number beyond 32 bits."""
    words = array("i", [4]) * (2 * len(values))
    words[1::2] = array("i", values)
    return SentArray(_head(_INTEGER, len(values)) + _swapped(words).tobytes())


def bigint_array(values: Sequence[int]) -> SentArray:
    """A `bigint[]` to send. Raises OverflowError for a number beyond 64 bits."""
    halves = array("i", _swapped(array("q", values)).tobytes())
    words = _swapped(array("i", [8])) * (3 * len(values))
    words[1::3], words[2::3] = halves[0::2], halves[1::2]
    return SentArray(_head(_BIGINT, len(values)) + words.tobytes())


def bytea_array(values: Sequence[bytes]) -> SentArray:
    """A `bytea[]` to send."""
    return _of_sizes(_BYTEA, map(len, values), values, has_nulls=False)


def text_array(values: Sequence[str | None]) -> SentArray:
    """A `text[]` to send over a connection whose encoding is UTF-8."""
    there = [b"" if value is None else value.encode() for value in values]
    has_nulls = None in values
    sizes: Iterable[int] = map(len, there)
    if has_nulls:
        sizes = (-1 if value is None else size for value, size in zip(values, sizes, strict=True))
    return _of_sizes(_TEXT, sizes, there, has_nulls)


def _head(kind: int, count: int, has_nulls: bool = False) -> bytes:
    head = _HEAD.pack(1, has_nulls, kind, count, 1)
    # An array without elements has no dimension either.
    return head if count else _HEAD.pack(0, 0, kind, 0, 0)[:_EMPTY_BYTES]


def _of_sizes(
    kind: int, sizes: Iterable[int], values: Sequence[bytes], has_nulls: bool
) -> SentArray:
    sent = _swapped(array("i", sizes)).tobytes()
    parts = [b""] * (2 * len(values))
    parts[0::2] = [sent[place : place + 4] for place in range(0, len(sent), 4)]
    parts[1::2] = values
    return SentArray(b"".join([_head(kind, len(values), has_nulls), *parts]))


def sent_integers(sent: bytes | memoryview) -> array[int]:
    """The elements of an `integer[]` without nulls, as `array_send` writes it."""
    return _swapped(_words(sent)[1::2])


def sent_bigints(sent: bytes | memoryview) -> array[int]:
    """As `sent_integers`, of a `bigint[]`, or of a `timestamptz[]`: microseconds since 2000."""
    words = _words(sent)
    halves = array("i", bytes(8 * (len(words) // 3)))
    halves[0::2], halves[1::2] = words[1::3], words[2::3]
    return _swapped(array("q", halves.tobytes()))


def _words(sent: bytes | memoryview) -> array[int]:
    words = array("i")
    words.frombytes(memoryview(sent)[_HEAD_BYTES:])
    return words


def _swapped(numbers: array[int]) -> array[int]:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
