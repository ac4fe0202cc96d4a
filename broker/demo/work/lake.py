"""The flights in a Delta table, for `--sink delta`: how applications write it, and how it is read.

The table gets the messages as they are, through the fenced sink, so each is there once. Reading it
computes the statistics anew, from the table alone and with delta-rs alone.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from broker.demo.work.flights import Flight, Statistics
from broker.demo.work.sink import count

if TYPE_CHECKING:
    from counterpoise.spark import FencedSink

COLUMNS = ("partition", "position", "epoch", "value")


def fenced_sink(table: Path) -> "FencedSink":
    """For `foreachBatch`."""
    from counterpoise.spark import FencedSink

    return FencedSink.to_delta(str(table), name="flights", columns=COLUMNS)


def statistics_in(table: Path) -> dict[str, Statistics]:
    """By aircraft, "" for the keyless flights: the rows counted in the order of their positions."""
    from deltalake import DeltaTable

    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["partition", "position", "value"])
    columns = (rows.column(name).to_pylist() for name in rows.column_names)
    ordered = sorted((p, int(position), value) for p, position, value in zip(*columns, strict=True))
    statistics: dict[str, Statistics] = {}
    for _, _, value in ordered:
        flight = Flight.of(value)
        count(statistics.setdefault(flight.aircraft or "", Statistics()), flight)
    return statistics
