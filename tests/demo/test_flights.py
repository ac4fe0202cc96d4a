"""The data set has the documented contents."""

from collections import defaultdict

import pytest

from broker.demo.work.flights import (
    FLIGHTS,
    KEYLESS_FLIGHTS,
    Flight,
    expected_statistics,
    load,
)

# The data set is read once, in seconds.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("flights")]


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return load()


def test_the_data_set_has_336_776_flights_and_2_512_of_them_name_no_aircraft(
    flights: list[Flight],
) -> None:
    assert len(flights) == FLIGHTS == 336_776
    assert sum(flight.aircraft is None for flight in flights) == KEYLESS_FLIGHTS == 2_512


def test_the_name_of_a_flight_identifies_it(flights: list[Flight]) -> None:
    assert len({flight.flight for flight in flights}) == FLIGHTS


def test_flights_are_in_the_order_of_their_scheduled_time_in_utc(flights: list[Flight]) -> None:
    # The first departure was scheduled for 5:15 in New York, five hours behind UTC.
    assert flights[0].flight == "2013-01-01T10:15Z UA1545 EWR"
    times = [flight.flight.split(" ")[0] for flight in flights]
    assert times == sorted(times)


def test_flights_of_an_aircraft_are_numbered_from_one(flights: list[Flight]) -> None:
    sequences: defaultdict[str, list[int | None]] = defaultdict(list)
    for flight in flights:
        if flight.aircraft is None:
            assert flight.sequence is None
        else:
            sequences[flight.aircraft].append(flight.sequence)
    assert all(own == list(range(1, len(own) + 1)) for own in sequences.values())


def test_fewer_rows_are_the_first_of_them(flights: list[Flight]) -> None:
    assert load(1000) == flights[:1000]


def test_the_message_has_all_fields(flights: list[Flight]) -> None:
    assert Flight.of(flights[0].value()) == flights[0]


def test_expected_statistics_add_up_to_the_data_set(flights: list[Flight]) -> None:
    statistics = expected_statistics(flights)
    assert len(statistics) == 4043 + 1
    assert statistics[""].flights == KEYLESS_FLIGHTS
    assert sum(of.flights for of in statistics.values()) == FLIGHTS
    assert sum(of.departures for of in statistics.values()) == FLIGHTS - 8_255
    assert sum(of.arrivals for of in statistics.values()) == FLIGHTS - 9_430


def test_airport_changes_depend_on_the_order() -> None:
    def flight(sequence: int, origin: str) -> Flight:
        return Flight(f"f{sequence}", "N1", sequence, origin, "IAH", 1400, 2, 11, 227)

    flights = [flight(1, "EWR"), flight(2, "EWR"), flight(3, "LGA")]
    assert expected_statistics(flights)["N1"].airport_changes == 1
    flights[1], flights[2] = flights[2], flights[1]
    assert expected_statistics(flights)["N1"].airport_changes == 2
