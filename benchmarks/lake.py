"""The fence of a lake: what it costs beside the same write without one.

    python -m benchmarks.lake [--rows 20000] [--batches 30]

Micro-batches of 1 KB messages in eight partitions go into a Delta and an Iceberg table on the local
disk, by the sink and by the formats' own appends, in turns, with the tasks in this process.
Figures: rows per second of both; what a micro-batch without rows takes (reading the high-waters and
a commit), at the beginning and at the end. Target: 0.8 of Y11, the format's own append.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.figures import Figure, rate, timed
from counterpoise.logs.columns import binaries, counting, repeated
from counterpoise.spark.offsets import Slice
from tests.counterpoise.spark.sink.lakes import LAKES, Delta, Iceberg

PARTITIONS = 8
LEAST = 0.8
Y11 = "Y11"
SCHEMA = pa.schema([("partition", pa.int32()), ("position", pa.string()), ("value", pa.binary())])


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--batches", type=int, default=30)
    arguments = parser.parse_args()
    for kind in LAKES:
        for figure in measured(kind, arguments.rows, arguments.batches):
            print(figure)


def figures(quick: bool = False) -> list[Figure]:
    """Both formats."""
    return [one for kind in LAKES for one in measured(kind, 20_000, 8 if quick else 30)]


def measured(kind: str, rows: int, batches: int) -> list[Figure]:
    """The figures of one format."""
    each = rows // PARTITIONS
    with tempfile.TemporaryDirectory() as directory:
        fenced, bare = (Path(directory) / name for name in ("fenced", "bare"))
        fenced.mkdir()
        bare.mkdir()
        sink, append = LAKES[kind](fenced), appending(LAKES[kind](bare))
        seconds: dict[str, list[float]] = {"fenced": [], "bare": []}
        empty = []
        for number in range(batches):
            start = 2 * number * each
            batch = batch_of(start, each)
            seconds["fenced"].append(seconds_of(write, sink, start, each, batch))
            seconds["bare"].append(seconds_of(append, batch))
            empty.append(seconds_of(write, sink, start + each, each, batch.slice(0, 0)))
    # The first of each creates the table.
    rates = {
        name: [each * PARTITIONS / one for one in found[1:]] for name, found in seconds.items()
    }
    return [
        rate(f"fenced writes to {kind}", rates["fenced"], Y11, rates["bare"], LEAST),
        rate(f"Y11: the format's own append to {kind}", rates["bare"]),
        timed(f"without rows, {kind}: at first", empty[1:4]),
        timed(f"without rows, {kind}: after {2 * batches} commits", empty[-3:]),
    ]


def write(sink: Delta | Iceberg, start: int, each: int, batch: pa.RecordBatch) -> None:
    """A micro-batch that has read so many messages of each partition."""
    ranges = [Slice(one, 1, str(start), str(start + each)) for one in range(PARTITIONS)]
    outcomes = sink.write(ranges, lambda: [batch], schema=SCHEMA)
    assert set(outcomes.values()) == {"written"}


def appending(place: Delta | Iceberg) -> Callable[[pa.RecordBatch], None]:
    """The format's own append, to the same columns."""

    def append(batch: pa.RecordBatch) -> None:
        rows = pa.Table.from_batches([batch])
        if isinstance(place, Delta):
            write_deltalake(place.uri, rows, mode="append")
        else:
            place.catalog().create_table_if_not_exists("db.events", SCHEMA)
            place.table().append(rows)

    return append


def batch_of(start: int, each: int) -> pa.RecordBatch:
    """So many messages of each partition, from this position on."""
    positions = counting(start, each).cast(pa.string())
    values = [os.urandom(512).hex().encode() for _ in range(each)]
    parts = [
        pa.record_batch(
            [repeated(one, each, pa.int32()), positions, binaries(values)], schema=SCHEMA
        )
        for one in range(PARTITIONS)
    ]
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def seconds_of(work: Callable[..., None], *arguments: Any) -> float:
    """How many seconds it takes."""
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
