"""The sink counts every message once and journals every delivery."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from broker.demo.work.flights import Flight, expected_statistics
from broker.demo.work.sink import FlightMessage, FlightSlice, Record, Sink
from tests.demo.sample import flights
from tests.log_support import until

FLIGHTS = flights(400)


class Files:
    """Opens sinks on one file, and closes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: list[Sink] = []
        self.record = Record(path)

    def sink(self, application: str, *, fenced: bool = True) -> Sink:
        self._open.append(Sink(self.path, application, fenced=fenced))
        return self._open[-1]

    def close(self) -> None:
        for sink in self._open:
            sink.close()
        self.record.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    files = Files(tmp_path / "sink.db")
    yield files
    files.close()


def part(start: int, end: int, *, epoch: int = 1, partition: int = 0) -> FlightSlice:
    messages = [
        FlightMessage(position, FLIGHTS[position], 1000.0) for position in range(start, end)
    ]
    return FlightSlice(partition, epoch, messages)


def journaled(files: Files) -> Sequence[tuple[str, int]]:
    return [(entry.application, entry.position) for entry in files.record.journal()]


def test_statistics_are_those_that_are_expected(files: Files) -> None:
    sink = files.sink("alpha")
    for batch, start in enumerate(range(0, 400, 50)):
        assert sink.write(batch, [part(start, start + 50)]) == 50
    assert files.record.statistics() == expected_statistics(FLIGHTS)
    assert files.record.counted() == files.record.messages() == 400


def test_the_journal_has_message_time_place_and_consumer(files: Files) -> None:
    before = time.time()
    files.sink("alpha").write(7, [part(0, 1, epoch=3, partition=2)])
    (entry,) = files.record.journal()
    flight: Flight = FLIGHTS[0]
    assert entry[:-1] == (
        *(flight.flight, flight.aircraft, flight.sequence),
        *(2, 0, 3, "alpha", 7, 1000.0),
    )
    assert before <= entry.time <= time.time()


def test_a_repeated_message_is_journaled_again_and_counted_once(files: Files) -> None:
    files.sink("alpha").write(0, [part(0, 100)])
    files.sink("beta").write(0, [part(50, 400, epoch=2)])
    assert len(journaled(files)) == 450
    assert files.record.statistics() == expected_statistics(FLIGHTS)


def test_a_writer_whose_epoch_is_over_is_refused(files: Files) -> None:
    zombie, owner = files.sink("alpha"), files.sink("beta")
    zombie.write(0, [part(0, 100)])
    owner.write(0, [part(100, 200, epoch=2)])
    assert zombie.write(1, [part(100, 200), part(0, 10, partition=1)]) == 10
    assert Counter(application for application, _ in journaled(files)) == {
        "alpha": 110,
        "beta": 100,
    }
    assert files.record.refused() == 100


def test_an_unfenced_sink_counts_what_it_must_not(files: Files) -> None:
    zombie, owner = files.sink("alpha", fenced=False), files.sink("beta")
    owner.write(0, [part(0, 100, epoch=2)])
    zombie.write(0, [part(0, 100)])
    assert files.record.statistics() != expected_statistics(FLIGHTS[:100])


def test_a_batch_is_written_whole_or_not_at_all(files: Files) -> None:
    sink = files.sink("alpha")
    broken = FlightSlice(1, 1, [FlightMessage(0, None, 0.0)])  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        sink.write(0, [part(0, 100), broken])
    assert journaled(files) == []
    assert sink.write(0, [part(0, 100)]) == 100


WRITER = """
import sys
from pathlib import Path
from broker.demo.work.sink import FlightMessage, FlightSlice, Sink
from tests.demo.sample import flights
flights, sink = flights(100), Sink(Path(sys.argv[1]), "alpha")
print("ready", flush=True)
for batch in range(1_000_000):
    messages = [FlightMessage(batch * 100 + i, flights[i], 0.0) for i in range(100)]
    sink.write(batch, [FlightSlice(p, 1, messages) for p in range(3)])
"""


def test_a_killed_writer_leaves_whole_batches(files: Files) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(files.path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    until(lambda: files.record.messages() >= 900)
    writer.kill()
    writer.wait()
    writer.stdout.close()
    batches = Counter(entry.batch for entry in files.record.journal())
    assert batches
    assert set(batches.values()) == {300}
    assert files.record.counted() == files.record.messages()
    assert files.sink("beta").write(0, [part(0, 10, epoch=2)]) == 10
