"""A good run gets a good verdict; each planted kind of violation gets a bad one.

The run is made by hand: twelve hundred flights over four partitions, worked on in micro-batches of
30 per partition. alpha and beta share them; gamma joins and takes one from each; alpha is drained;
beta is killed after writing a micro-batch that it has not committed, and comes back.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from broker.demo.evidence import EpochGrant, Evidence, ScenarioEvent
from broker.demo.verdict import Check, DemoVerdict, judge
from broker.demo.work.flights import Flight, Statistics, expected_statistics
from broker.demo.work.sink import JournalEntry

PARTITIONS = 4
PER_BATCH = 30


def make_flights(count: int = 1200) -> list[Flight]:
    flights = []
    sequences: defaultdict[str, int] = defaultdict(int)
    for number in range(count):
        aircraft = None if number % 29 == 0 else f"N{number * 7 % 41}"
        if aircraft:
            sequences[aircraft] += 1
        flights.append(
            Flight(
                flight=f"2013-01-01T{number // 60:02}:{number % 60:02}Z UA{number} EWR",
                aircraft=aircraft,
                sequence=sequences[aircraft] if aircraft else None,
                origin="EWR" if number % 3 else "JFK",
                destination="IAH",
                distance=100 + number,
                departure_delay=number % 5,
                arrival_delay=None if number % 11 == 0 else number % 7,
                air_time=200,
            )
        )
    return flights


class Run:
    """Writes a journal like applications do."""

    def __init__(self, flights: Sequence[Flight]) -> None:
        self.log: dict[int, list[Flight]] = {partition: [] for partition in range(PARTITIONS)}
        for flight in flights:
            key = flight.aircraft or flight.flight
            self.log[zlib.crc32(key.encode()) % PARTITIONS].append(flight)
        self.position = dict.fromkeys(range(PARTITIONS), 0)
        self.epoch = dict.fromkeys(range(PARTITIONS), 0)
        self.owner: dict[int, str] = {}
        self.batches: defaultdict[str, int] = defaultdict(int)
        self.journal: list[JournalEntry] = []
        self.grants: list[EpochGrant] = []
        self.events: list[ScenarioEvent] = []
        self.now = 1000.0

    def grant(self, partition: int, owner: str, outcome: str) -> None:
        self.epoch[partition] += 1
        self.owner[partition] = owner
        self.grants.append(EpochGrant(partition, self.epoch[partition], outcome, 0.3))

    def happen(self, kind: str, application: str) -> None:
        self.now += 0.1
        self.events.append(ScenarioEvent(kind, application, self.now))  # type: ignore[arg-type]

    def work(self, application: str, *, commit: bool = True) -> None:
        """One micro-batch of all partitions that the application owns."""
        self.now += 1.0
        self.batches[application] += 1
        for partition in [p for p, owner in self.owner.items() if owner == application]:
            start = self.position[partition]
            messages = self.log[partition][start : start + PER_BATCH]
            for position, flight in enumerate(messages, start):
                self.journal.append(
                    JournalEntry(
                        flight=flight.flight,
                        aircraft=flight.aircraft,
                        sequence=flight.sequence,
                        partition=partition,
                        position=position,
                        epoch=self.epoch[partition],
                        application=application,
                        batch=self.batches[application],
                        published_at=1000.0,
                        time=self.now,
                    )
                )
            if commit:
                self.position[partition] = start + len(messages)


def good_run() -> Evidence:
    flights = make_flights()
    run = Run(flights)
    for partition in range(PARTITIONS):
        run.grant(partition, "alpha" if partition < 2 else "beta", "initial")
    run.work("alpha")
    run.work("beta")
    run.happen("join", "gamma")
    run.grant(1, "gamma", "graceful")
    run.work("alpha")
    run.work("beta")
    run.work("gamma")
    run.happen("drain", "alpha")
    run.work("alpha")
    run.grant(0, "gamma", "graceful")
    run.work("gamma")
    run.work("beta")
    run.work("beta", commit=False)
    run.happen("kill", "beta")
    for partition in (2, 3):
        run.grant(partition, "gamma", "orphaned")
    run.work("gamma")
    run.happen("return", "beta.2")
    for partition in (2, 3):
        run.grant(partition, "beta.2", "graceful")
    while any(run.position[p] < len(run.log[p]) for p in range(PARTITIONS)):
        run.work("gamma")
        run.work("beta.2")
    return Evidence(flights, run.journal, expected_statistics(flights), run.grants, run.events)


@pytest.fixture(scope="module")
def good() -> Evidence:
    return good_run()


def failing(verdict: DemoVerdict) -> list[Check]:
    return [check for check in verdict.checks if not check.kept]


def the(verdict: DemoVerdict, promise: str) -> Check:
    (check,) = [check for check in verdict.checks if promise in check.promise]
    return check


def test_a_good_run_gets_a_good_verdict(good: Evidence) -> None:
    verdict = judge(good)
    assert failing(verdict) == []
    assert verdict.good


def test_the_delta_table_must_have_each_flight_once(good: Evidence) -> None:
    right = expected_statistics(good.flights)
    assert the(judge(replace(good, table=right)), "Delta table").kept
    some = max(right)
    twice = right | {some: replace(right[some], flights=right[some].flights + 1)}
    for wrong in (twice, {}):
        assert not the(judge(replace(good, table=wrong)), "Delta table").kept


def test_duplicates_from_the_kill_are_counted_and_bounded(good: Evidence) -> None:
    check = the(judge(good), "kill bounded")
    assert check.found == "60, of 60 in its uncommitted micro-batch"
    assert check.kept


def test_each_handoff_says_what_caused_it_and_how_long_its_partition_paused(
    good: Evidence,
) -> None:
    verdict = judge(good)
    moved = [(h.partition, h.giver, h.taker, h.event and h.event.kind) for h in verdict.handoffs]
    assert moved == [
        (0, "alpha", "gamma", "drain"),
        (1, "alpha", "gamma", "join"),
        (2, "beta", "gamma", "kill"),
        (2, "gamma", "beta.2", "return"),
        (3, "beta", "gamma", "kill"),
        (3, "gamma", "beta.2", "return"),
    ]
    join = verdict.handoffs[1]
    assert join.pause_seconds == pytest.approx(4.1)
    assert join.service_seconds == 0.3
    assert join.backlog > 100
    assert verdict.usual_gap_seconds == pytest.approx(2.0)


def changed(good: Evidence, change: Callable[[list[JournalEntry]], None]) -> DemoVerdict:
    journal = list(good.journal)
    change(journal)
    return judge(replace(good, journal=journal))


def find(journal: Sequence[JournalEntry], application: str, batch: int) -> list[int]:
    """The place of a micro-batch in the journal."""
    return [
        index
        for index, entry in enumerate(journal)
        if (entry.application, entry.batch) == (application, batch)
    ]


def test_a_skipped_flight_is_noticed(good: Evidence) -> None:
    def skip(journal: list[JournalEntry]) -> None:
        del journal[find(journal, "alpha", 1)[5]]

    assert not the(changed(good, skip), "every flight").kept


def test_a_flight_that_was_never_published_is_noticed(good: Evidence) -> None:
    def invent(journal: list[JournalEntry]) -> None:
        journal.append(journal[-1]._replace(flight="ghost", aircraft="N999", sequence=1))

    check = the(changed(good, invent), "every flight")
    assert not check.kept
    assert "ghost" in check.found


def test_two_flights_of_an_aircraft_in_the_wrong_order_are_noticed(good: Evidence) -> None:
    def swap(journal: list[JournalEntry]) -> None:
        batch = find(journal, "alpha", 1)
        aircraft = journal[batch[5]].aircraft
        other = next(i for i in reversed(batch) if journal[i].aircraft == aircraft)
        journal[batch[5]], journal[other] = journal[other], journal[batch[5]]

    assert not the(changed(good, swap), "order kept").kept


def test_flights_repeated_in_the_wrong_order_are_noticed(good: Evidence) -> None:
    def reverse_the_repetition(journal: list[JournalEntry]) -> None:
        repeated = [
            index
            for index in find(journal, "gamma", 3)
            if journal[index].partition == 2 and journal[index].aircraft
        ]
        entries = [journal[index] for index in reversed(repeated)]
        for index, entry in zip(repeated, entries, strict=True):
            journal[index] = entry

    assert not the(changed(good, reverse_the_repetition), "order kept").kept


def test_keyless_flights_have_no_order(good: Evidence) -> None:
    def swap(journal: list[JournalEntry]) -> None:
        keyless = [index for index, entry in enumerate(journal) if entry.aircraft is None]
        first = journal[keyless[0]]
        other = next(
            index
            for index in keyless[1:]
            if journal[index].batch == first.batch and journal[index].partition == first.partition
        )
        journal[keyless[0]], journal[other] = journal[other], first

    assert changed(good, swap).good


def test_a_duplicate_from_a_graceful_handoff_is_noticed(good: Evidence) -> None:
    def repeat(journal: list[JournalEntry]) -> None:
        taker = find(journal, "gamma", 1)
        given = next(e for e in reversed(journal[: taker[0]]) if e.partition == 1)
        journal.insert(taker[0], given._replace(application="gamma", batch=1, epoch=2))

    check = the(changed(good, repeat), "graceful")
    assert not check.kept
    assert check.found.startswith("1 in")


def test_a_duplicate_within_an_epoch_is_noticed(good: Evidence) -> None:
    def repeat(journal: list[JournalEntry]) -> None:
        index = find(journal, "beta", 1)[3]
        journal.insert(index + 1, journal[index])

    assert not the(changed(good, repeat), "graceful").kept


def test_a_flight_that_is_in_the_log_twice_is_noticed(good: Evidence) -> None:
    def publish_again(journal: list[JournalEntry]) -> None:
        journal.append(journal[-1]._replace(position=10_000))

    assert not the(changed(good, publish_again), "graceful").kept


def test_more_duplicates_from_the_kill_than_its_last_micro_batch_are_noticed(
    good: Evidence,
) -> None:
    def repeat_an_earlier_batch(journal: list[JournalEntry]) -> None:
        earlier = [journal[index] for index in find(journal, "beta", 3)]
        repeated = [e._replace(application="gamma", batch=3, epoch=2, time=0.0) for e in earlier]
        start = find(journal, "gamma", 3)[0]
        journal[start:start] = repeated

    assert not changed(good, repeat_an_earlier_batch).good


def test_a_zombie_that_writes_after_losing_its_partition_is_noticed(good: Evidence) -> None:
    def write_on(journal: list[JournalEntry]) -> None:
        taken = [journal[index] for index in find(journal, "gamma", 1)]
        late = [entry._replace(application="alpha", batch=2, epoch=1) for entry in taken]
        journal.extend(late)

    verdict = changed(good, write_on)
    assert not the(verdict, "one owner").kept
    assert not the(verdict, "graceful").kept


def test_a_zombie_that_writes_first_is_noticed_when_the_new_owner_writes_it_again(
    good: Evidence,
) -> None:
    def write_ahead(journal: list[JournalEntry]) -> None:
        taken = find(journal, "gamma", 1)
        late = [journal[i]._replace(application="alpha", batch=2, epoch=1) for i in taken]
        journal[taken[0] : taken[0]] = late

    assert not the(changed(good, write_ahead), "graceful").kept


def test_two_writers_under_one_epoch_are_noticed(good: Evidence) -> None:
    def share(journal: list[JournalEntry]) -> None:
        index = find(journal, "alpha", 1)[3]
        journal[index] = journal[index]._replace(application="beta")

    assert not the(changed(good, share), "one owner").kept


@pytest.mark.parametrize("name", ["flights", "distance_miles", "airport_changes", "last_flight"])
def test_wrong_statistics_are_noticed(good: Evidence, name: str) -> None:
    wrong = {aircraft: replace(own) for aircraft, own in good.statistics.items()}
    value = getattr(wrong["N7"], name)
    setattr(wrong["N7"], name, value + (1 if isinstance(value, int) else "!"))
    check = the(judge(replace(good, statistics=wrong)), "statistics")
    assert not check.kept
    assert "N7" in check.found


def test_statistics_of_an_unknown_aircraft_are_noticed(good: Evidence) -> None:
    wrong = {**good.statistics, "N999": Statistics()}
    assert not the(judge(replace(good, statistics=wrong)), "statistics").kept


@pytest.mark.parametrize(
    ("kind", "application"), [("join", "gamma"), ("drain", "alpha"), ("kill", "beta")]
)
def test_an_event_that_meets_a_partition_without_backlog_fails(
    good: Evidence, kind: str, application: str
) -> None:
    (handoff,) = [
        h
        for h in judge(good).handoffs
        if h.event and h.event.kind == kind and h.partition in (0, 1, 2)
    ]
    last = max(
        e.time for e in good.journal if e.partition == handoff.partition and e.epoch < handoff.epoch
    )
    journal = [
        e._replace(published_at=last + 0.5)
        if e.partition == handoff.partition and e.epoch >= handoff.epoch
        else e
        for e in good.journal
    ]
    check = the(judge(replace(good, journal=journal)), f"{kind} of {application}")
    assert not check.kept
    assert f"none in {handoff.partition}" in check.found


@pytest.mark.parametrize("kind", ["join", "drain", "kill"])
def test_an_event_that_moves_nothing_fails(good: Evidence, kind: str) -> None:
    events = [*good.events, ScenarioEvent(kind, "delta", 1004.0)]  # type: ignore[arg-type]
    check = the(judge(replace(good, events=events)), f"{kind} of delta")
    assert not check.kept


def test_duplicates_from_a_forced_handoff_are_told_apart_and_bounded(good: Evidence) -> None:
    """gamma repeats alpha's last micro-batch of partition 1: right if forced, wrong if graceful."""

    def repeat(journal: list[JournalEntry]) -> None:
        taker = find(journal, "gamma", 1)
        given = [e for e in journal[: taker[0]] if e.partition == 1]
        journal[taker[0] : taker[0]] = [
            e._replace(application="gamma", batch=1, epoch=2, time=journal[taker[0]].time)
            for e in given
        ]

    forced = [
        replace(grant, outcome="forced") if (grant.partition, grant.epoch) == (1, 2) else grant
        for grant in good.grants
    ]
    assert not changed(good, repeat).good
    verdict = changed(replace(good, grants=forced), repeat)
    assert verdict.good
    assert the(verdict, "forced").found.startswith("30,")
