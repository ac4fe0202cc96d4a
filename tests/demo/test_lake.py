"""The flights of a Delta table, counted: each once, in the order of their positions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from broker.demo.work.flights import Flight, expected_statistics
from broker.demo.work.lake import statistics_in
from tests.demo import sample


def rows(flights: Sequence[Flight]) -> pa.Table:
    """All in one partition, the last position first."""
    return pa.table(
        {
            "partition": pa.array([0] * len(flights), pa.int32()),
            "position": [str(position) for position in range(len(flights))][::-1],
            "value": [flight.value() for flight in flights][::-1],
        }
    )


def test_the_table_gives_the_statistics_of_its_flights(tmp_path: Path) -> None:
    flights = sample.flights(3000)
    write_deltalake(tmp_path, rows(flights))
    assert statistics_in(tmp_path) == expected_statistics(flights)
    write_deltalake(tmp_path, rows(flights[:1]), mode="append")
    assert statistics_in(tmp_path) != expected_statistics(flights)
