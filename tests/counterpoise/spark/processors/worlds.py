"""Applications that hand one partition over and over, in memory: what a processor puts out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from counterpoise.spark.processors.clock import TIME
from tests.counterpoise.spark.state.memory import Map, Value

SECOND = 1_000_000


class Handle:
    """The state of one key in one application, by name."""

    def __init__(self) -> None:
        self.states: dict[str, Value | Map] = {}

    def getValueState(self, name: str, schema: str) -> Value:  # noqa: N802
        self.states[name] = state = Value()
        return state

    def getMapState(self, name: str, key: str, value: str) -> Map:  # noqa: N802
        self.states[name] = state = Map()
        return state

    def held(self, name: str) -> int:
        """The number of entries of a map state."""
        state = self.states[name]
        assert isinstance(state, Map)
        return len(state.content)


class Application:
    """One application, whose state store keeps what earlier tenures have left."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.handle = Handle()
        self.processor.init(self.handle)

    def read(self, rows: Sequence[Row], tenure: int, *, replay: bool = False) -> list[Row]:
        """The output of one micro-batch."""
        return self.read_as_given(in_tenure(rows, tenure, replay=replay))

    def read_as_given(self, rows: Sequence[Row]) -> list[Row]:
        """The output of one micro-batch of rows with tenures. The shuffle keeps no order."""
        return list(self.processor.handleInputRows((0,), reversed(rows), None)) if rows else []


def in_tenure(rows: Sequence[Row], tenure: int, *, replay: bool = False) -> list[Row]:
    return [Row(**row.asDict(), tenure=tenure, replay=replay) for row in rows]


def message(position: int, at: float | None, partition: int = 0, **columns: Any) -> Row:
    time = None if at is None else round(at * SECOND)
    return Row(partition=partition, position=str(position), **columns, **{TIME: time})


def pieces(rows: Sequence[Row], random: Random) -> Iterator[Sequence[Row]]:
    """The rows in micro-batches of random size."""
    while rows:
        size = random.randint(1, 7)
        yield rows[:size]
        rows = rows[size:]


def handed_over(
    make: Callable[[], StatefulProcessor], rows: Sequence[Row], seed: int, *, crashes: bool = False
) -> list[Row]:
    """What a fenced sink has when two applications own the partition in turns, each restored from
    history. `crashes`: the owner has read on, so its successor reads the same messages again.
    """
    random = Random(seed)
    applications = [Application(make()), Application(make())]
    turns = sorted(random.sample(range(len(rows)), 4))
    out: list[Row] = []
    written = 0
    for tenure, (begin, end) in enumerate(zip([0, *turns], [*turns, len(rows)], strict=True)):
        owner = applications[tenure % 2]
        for piece in pieces(rows[:begin], random):
            assert not owner.read(piece, tenure, replay=True)
        for piece in pieces(rows[begin : end + 9 * crashes], random):
            found = owner.read(piece, tenure)
            assert {one["position"] for one in found} <= {row["position"] for row in piece}
            out += [one for one in found if int(one["position"]) >= written]
            written = max(written, int(piece[-1]["position"]) + 1)
    return out
