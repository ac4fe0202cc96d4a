"""`flights(count)`: flights like those of the data set, which takes seconds to read.

As in the data set, an aircraft flies often, one flight in a hundred names no aircraft, airports
change, and some delays and air times are missing.
"""

from collections import Counter

from broker.demo.work.flights import Flight

AIRCRAFT = 997
AIRPORTS = ("EWR", "JFK", "LGA")


def flights(count: int) -> list[Flight]:
    """The first `count` of them, in the order of their time."""
    flown: Counter[str] = Counter()
    made = []
    for number in range(count):
        aircraft = None if number % 100 == 33 else f"N{number // 3 * 7 % AIRCRAFT:03}"
        if aircraft is not None:
            flown[aircraft] += 1
        origin = AIRPORTS[number * 5 % 7 % 3]
        time = f"2013-01-{number // 1440 + 1:02}T{number // 60 % 24:02}:{number % 60:02}Z"
        cancelled = number % 40 == 7
        made.append(
            Flight(
                flight=f"{time} UA{number} {origin}",
                aircraft=aircraft,
                sequence=None if aircraft is None else flown[aircraft],
                origin=origin,
                destination="SFO",
                distance=200 + number % 2000,
                departure_delay=None if cancelled else number % 90 - 10,
                arrival_delay=None if cancelled or number % 40 == 8 else number % 70 - 20,
                air_time=None if cancelled else 30 + number % 300,
            )
        )
    return made
