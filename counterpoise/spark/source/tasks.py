"""What executors do: read slices of the log as Arrow record batches. They never call the service.

A task waits for the log, makes rows, and writes them to the JVM. One after the other these times
add up. So a thread reads ahead (`ahead`): the log finds the next chunk while Spark takes the
present one. It is at most two chunks ahead: one is kept, and one waits to be kept. Nothing else
changes: the same batches come in the same order, and an error comes after the batches before it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.logs import (
    Log,
    LogAccessRefused,
    LogBehind,
    LogError,
    LogNotFound,
    LogUnavailable,
    PositionAhead,
    PositionTrimmed,
    open_log,
)
from counterpoise.logs.columns import binaries, repeated, strings
from counterpoise.logs.errors import ReadRetries
from counterpoise.logs.rows import TOMBSTONE, is_tombstone
from counterpoise.spark.errors import Trimmed
from counterpoise.spark.offsets import NO_EPOCH, Slice
from counterpoise.spark.source.log_partition import ARROW_SCHEMA, LogPartition, LogSource

logger = logging.getLogger("counterpoise.spark")

Opener = Callable[[LogSource], Log]

# A Python worker of Spark runs many tasks one after another, so it keeps its connection to the log.
_kept: dict[LogSource, Log] = {}


def open_kept(source: LogSource) -> Log:
    """The log of `source`. It stays open in this process until another log is needed."""
    log = _kept.get(source)
    if log is None:
        close_kept()
        log = _kept[source] = open_log(source.log, source.access)
    return log


def close_kept() -> None:
    """Close the log that `open_kept` keeps open."""
    while _kept:
        _kept.popitem()[1].close()


def read_slices(
    partition: LogPartition,
    *,
    open_source: Opener = open_kept,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[pa.RecordBatch]:
    """The rows of all slices, in order within each partition, as batches of ARROW_SCHEMA.

    If a log is unavailable or lags behind, the task tries again until `timeout_seconds` have passed
    since the last rows; then it fails. A log that does not exist, or that ends before the range
    begins, has lost messages and may yet be restored (docs, *Logs*): the task waits for it like the
    probe. Raises Trimmed, and other refusals of the log.
    """
    log = open_source(partition.source)
    if not partition.slices:
        # The task is to be ready for later ones, so it connects. They wait for a log that is away.
        with contextlib.suppress(LogError):
            log.bounds([])
    if len(partition.slices) > 1:
        with contextlib.suppress(LogError):  # the reads tell
            # In the order in which they are read; of a partition with two slices the first one.
            ranges: dict[int, tuple[str, str]] = {}
            for one in partition.slices:
                ranges.setdefault(one.partition, (one.start, one.end))
            log.begin(ranges)
    for one in partition.slices:
        for batch in _read(log, one, partition.source, sleep, clock):
            yield as_rows(batch, one)


def as_rows(batch: pa.RecordBatch, one: Slice) -> pa.RecordBatch:
    """A batch of the log's schema, read for `one`, as a batch of ARROW_SCHEMA."""
    count = batch.num_rows
    if one.epoch == NO_EPOCH:  # of a batch read
        epochs = tenures = pa.nulls(count, pa.int64())
    else:
        epochs = repeated(one.epoch, count, pa.int64())
        tenures = repeated(one.state_of, count, pa.int64())
    replays = repeated(one.replay, count, pa.bool_())
    partition, position, key, value, headers, published_at = batch.columns
    value = with_nulls(value, headers)
    rows = [partition, position, epochs, key, value, headers, published_at, tenures, replays]
    return pa.RecordBatch.from_arrays(rows, schema=ARROW_SCHEMA)


def with_nulls(values: pa.BinaryArray, headers: pa.MapArray) -> pa.BinaryArray:
    """The values, null for messages that have none (`counterpoise.logs.rows.TOMBSTONE`)."""
    # The names may be of more rows than these, which are part of a batch.
    if not pc.any(pc.equal(headers.keys, _TOMBSTONE)).as_py():
        return values
    pairs = zip(values.to_pylist(), headers.to_pylist(), strict=True)
    return binaries([None if is_tombstone(one, dict(of or ())) else one for one, of in pairs])


_TOMBSTONE = strings([TOMBSTONE])[0]


def _read(
    log: Log,
    one: Slice,
    source: LogSource,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> Iterator[pa.RecordBatch]:
    begin = one.start
    given = False
    retries = ReadRetries(source.timeout_seconds, clock)
    while True:
        try:
            for batch in log.read(one.partition, begin, one.end, max_messages=sys.maxsize):
                if given:
                    batch = _after(batch, begin)
                if batch.num_rows:
                    yield batch
                    begin, given = batch.column(1)[batch.num_rows - 1].as_py(), True
                    retries.succeeded()
            return
        except PositionTrimmed as error:
            if source.on_trimmed == "fail" and not one.replay:
                overtaken = (
                    "if another flow has taken the partition over and read on while this query "
                    "was suspended, start the query again, and it skips them. If not, messages "
                    "were lost unread: "
                )
                raise Trimmed(
                    f"{error}: {'' if one.epoch == NO_EPOCH else overtaken}"
                    "set the option onTrimmed to 'earliest' to continue with the rest"
                ) from error
            if one.replay:
                logger.warning("counterpoise: %s; the restored state lacks these messages", error)
            else:
                logger.warning(
                    "counterpoise: %s; continuing from there (onTrimmed=earliest)", error
                )
            if log.compare(error.first, one.end) >= 0:
                return
            begin, given = error.first, False
        except (LogUnavailable, LogNotFound, PositionAhead) as error:
            log.close()
            pause = retries.pause_after(error)
            if pause is None:
                error.add_note(_what_to_do(error))
                raise
            logger.warning(
                "counterpoise: partition %d, reading from %s: %s", one.partition, begin, error
            )
            sleep(pause)


def _what_to_do(error: LogError) -> str:
    """Advice to the user after waiting for the log in vain."""
    if isinstance(error, LogAccessRefused):
        return (
            "a task has the credentials of its micro-batch and cannot fetch others: start the "
            "query again, and it gets new ones (or correct those of logUrl or COUNTERPOISE_LOG_URL)"
        )
    if isinstance(error, LogUnavailable) and not isinstance(error, LogBehind):
        return (
            "the task waited for readTimeoutSeconds. Start the query again once "
            "the log is back, and it goes on with the same messages"
        )
    return "the task waited, because this can be temporary, but it lasted"


def _after(batch: pa.RecordBatch, last: str) -> pa.RecordBatch:
    """The batch without its first row if that is `last`, which was yielded before the failure."""
    if batch.num_rows and batch.column(1)[0].as_py() == last:
        return batch.slice(1)
    return batch


T = TypeVar("T")


class _Closed(Exception):
    """Nothing more is wanted of the thread."""


def ahead(read: Callable[[Callable[[float], None]], Iterator[T]]) -> Iterator[T]:
    """The items of `read`, which runs in a thread of its own, at most two items ahead.

    `read` gets a function to pause with. To close this iterator is to wait for the thread, which
    ends at its next item or pause. So what `read` uses has one user at a time.
    """
    closed = threading.Event()
    found: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=1)

    def pause(seconds: float) -> None:
        if closed.wait(seconds):
            raise _Closed

    def give(item: T | None, error: BaseException | None = None) -> None:
        if closed.is_set():
            raise _Closed
        found.put((item, error))

    def run() -> None:
        with contextlib.suppress(_Closed):
            try:
                for item in read(pause):
                    give(item)
            except _Closed:
                raise
            except BaseException as error:
                give(None, error)
            else:
                give(None)

    thread = threading.Thread(target=run, name="counterpoise-read", daemon=True)
    thread.start()
    try:
        while True:
            item, error = found.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        closed.set()
        # The thread may wait to give an item; it gives it in vain and then ends.
        with contextlib.suppress(queue.Empty):
            found.get_nowait()
        thread.join()
