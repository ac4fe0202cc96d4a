"""Whether the applications processed the flights as Counterpoise promises.

The verdict is computed from the applications' output: the journal, in the order of its
transactions, and the statistics. The service's rebalance history only adds how each epoch of a
partition began; the data set gives the correct result. This module looks at no clock and at no
running system.

The promises (the contract, *What must never happen*):

- every flight was processed, and no other message;
- an aircraft's flights were processed in its order. Flights without an aircraft are counted, not
  ordered;
- an epoch of a partition has one writer, and no write under a lower epoch follows a higher one;
- a graceful handoff repeats no message;
- a kill repeats at most the messages that the killed application had written and not committed at
  the service: its last micro-batch;
- the statistics equal those of the data set in spite of the repetitions: the sink counts a message
  once (see `sink.py`), while the journal shows every delivery.

A demo with empty partitions would prove nothing. So each join, drain and kill must have moved
partitions, and each of these must have had backlog: flights that were published and not processed
when its previous owner wrote for the last time.

Where partitions are split and merged, more must hold. A partition that came of a split or merge
holds the newer flights of the aircraft of its parents. So the journal must have no line of it
before the last line of each parent. This holds for the lines themselves, whoever wrote them and
under whichever epoch. A split of an empty partition would prove nothing. So flights must have
waited in each parent when the first one was published to what comes after it, and flights must have
been processed in each new partition.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from broker.demo.evidence import (
    EpochGrant,
    Evidence,
    Period,
    Reading,
    ScenarioEvent,
    SealingKind,
    SealingRecord,
    read,
)
from broker.demo.work.flights import Statistics, expected_statistics
from broker.demo.work.sink import JournalEntry

NEED_BACKLOG = ("join", "drain", "kill")


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, whether it was kept, and the findings."""

    promise: str
    kept: bool
    found: str


@dataclass(frozen=True, slots=True)
class Succession:
    """How a partition that came of a split or merge began."""

    kind: SealingKind
    parents: Sequence[int]
    waited: int
    """Flights that waited in the parents when its first one was published."""
    partition: int
    taker: str | None
    """None: no flight of the partition was processed."""
    flights: int
    """How many of its flights were processed."""
    pause_seconds: float | None
    """From the last write of a parent to its own first one."""


def lineage_checks(sealings: Sequence[SealingRecord], reading: Reading) -> list[Check]:
    """None without splits and merges."""
    if not sealings:
        return []
    return [_in_turn(sealings, reading), *(_met_backlog(sealing, reading) for sealing in sealings)]


def successions(sealings: Sequence[SealingRecord], reading: Reading) -> list[Succession]:
    """The beginning of each new partition, in the order of splits and merges."""
    found = []
    for sealing in sealings:
        last = max((w for p in sealing.sealed for w in _writes(reading, p)), default=None)
        for child in sealing.children:
            writes = _writes(reading, child)
            own = _periods(reading, child)
            found.append(
                Succession(
                    sealing.kind,
                    tuple(sealing.sealed),
                    sum(_waiting(reading, parent, sealing) for parent in sealing.sealed),
                    child,
                    min(own[0].writers) if own else None,
                    sum(len(period.published) for period in own),
                    writes[0] - last if writes and last is not None else None,
                )
            )
    return found


def _in_turn(sealings: Sequence[SealingRecord], reading: Reading) -> Check:
    families = [(p, c) for sealing in sealings for p in sealing.sealed for c in sealing.children]
    early = [
        (parent, child)
        for parent, child in families
        if parent in reading.lines
        and child in reading.lines
        and reading.lines[child][0] < reading.lines[parent][1]
    ]
    count = sum(len(sealing.children) for sealing in sealings)
    found = f"{count} new partitions of {len(sealings)} splits and merges"
    if early:
        parent, child = early[0]
        found += f"; {len(early)} too early, such as {child} before {parent} was finished"
    return Check("no partition began before its parents were finished", not early, found)


def _met_backlog(sealing: SealingRecord, reading: Reading) -> Check:
    waited = {parent: _waiting(reading, parent, sealing) for parent in sealing.sealed}
    empty = [child for child in sealing.children if child not in reading.lines]
    found = ", ".join(f"{count:,} flights waited in {parent}" for parent, count in waited.items())
    if empty:
        found += f"; none were processed in {', '.join(map(str, empty))}"
    promise = f"the {sealing.kind} of {' and '.join(map(str, sealing.sealed))} met backlog"
    return Check(promise, all(waited.values()) and not empty, found)


def _waiting(reading: Reading, parent: int, sealing: SealingRecord) -> int:
    """The flights of the parent that were processed after a newer one was in the log already."""
    published = [
        at
        for child in sealing.children
        for period in _periods(reading, child)
        for at in period.published
    ]
    begun = min(published, default=sealing.time)
    return sum(e.partition == parent and e.time > begun for e in reading.first.values())


def _periods(reading: Reading, partition: int) -> list[Period]:
    own = [period for period in reading.periods.values() if period.partition == partition]
    return sorted(own, key=lambda period: period.epoch)


def _writes(reading: Reading, partition: int) -> list[float]:
    return sorted(w for period in _periods(reading, partition) for w in period.writes)


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """A partition's change of owner in the journal."""

    partition: int
    epoch: int
    outcome: str
    giver: str
    taker: str | None
    """None: no message of the partition was processed in this epoch."""
    event: ScenarioEvent | None
    """The action of the scenario that caused it; None without one."""
    backlog: int
    """In flights."""
    pause_seconds: float | None
    """From the previous owner's last write to the next owner's first."""
    service_seconds: float
    """The service's time from the beginning of the handoff to the grant."""


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    """The promises, and the cost of each handoff."""

    checks: Sequence[Check]
    handoffs: Sequence[OwnerChange]
    usual_gap_seconds: float | None
    """The median time between two writes to a partition within an epoch, for comparison."""
    successions: Sequence[Succession] = ()
    """The beginning of each partition that came of a split or merge."""

    @property
    def good(self) -> bool:
        return all(check.kept for check in self.checks)


def judge(evidence: Evidence) -> DemoVerdict:
    """Check every promise; takes a few seconds for the whole data set."""
    reading = read(evidence)
    handoffs = _handoffs(evidence, reading)
    return DemoVerdict(
        checks=[
            _every_flight(evidence, reading),
            _order(reading),
            _one_owner(reading),
            _graceful(reading, handoffs),
            *_kill(evidence, reading),
            *_ungraceful(reading),
            *_statistics(evidence),
            *(_backlog(event, handoffs) for event in evidence.events if event.kind in NEED_BACKLOG),
            *lineage_checks(evidence.sealings, reading),
        ],
        handoffs=handoffs,
        successions=successions(evidence.sealings, reading),
        usual_gap_seconds=_usual_gap(reading.periods.values()),
    )


# ------------------------------------------------------------------ the promises


def _every_flight(evidence: Evidence, reading: Reading) -> Check:
    expected = {flight.flight for flight in evidence.flights}
    missing = expected - reading.first.keys()
    unknown = reading.first.keys() - expected
    found = f"{len(expected) - len(missing):,} of {len(expected):,}"
    if missing:
        found += f"; {len(missing):,} missing, such as {min(missing)}"
    if unknown:
        found += f"; {len(unknown):,} that were never published, such as {min(unknown)}"
    return Check("every flight processed", not missing and not unknown, found)


def _order(reading: Reading) -> Check:
    found = f"{reading.aircraft:,} aircraft; {reading.keyless:,} flights without one, only counted"
    if reading.disorder:
        found += f"; {len(reading.disorder):,} out of order, such as {_say(reading.disorder[0])}"
    return Check("order kept for every aircraft", not reading.disorder, found)


def _one_owner(reading: Reading) -> Check:
    shared = [period for period in reading.periods.values() if len(period.writers) > 1]
    partitions = {period.partition for period in reading.periods.values()}
    found = f"{len(reading.periods):,} epochs of {len(partitions)} partitions"
    if shared:
        example = shared[0]
        found += f"; {len(shared)} with two writers, such as {example.epoch} of {example.partition}"
    if reading.late:
        found += f"; {len(reading.late):,} written too late, such as {_say(reading.late[0])}"
    return Check("one owner at a time", not shared and not reading.late, found)


def _graceful(reading: Reading, handoffs: Sequence[OwnerChange]) -> Check:
    graceful, unexplained = reading.again["graceful"], reading.again["unexplained"]
    count = sum(handoff.outcome == "graceful" for handoff in handoffs)
    found = f"{len(graceful):,} in {count} handoffs"
    if graceful:
        found += f", such as {_say(graceful[0])}"
    if unexplained:
        found += f"; {len(unexplained):,} that nothing explains, such as {_say(unexplained[0])}"
    return Check("no duplicates from graceful handoffs", not graceful and not unexplained, found)


def _kill(evidence: Evidence, reading: Reading) -> list[Check]:
    """Only if there was one."""
    if all(event.kind != "kill" for event in evidence.events):
        return []
    repeated = len(reading.again["kill"])
    found = f"{repeated:,}, of {reading.uncommitted:,} in its uncommitted micro-batch"
    kept = repeated <= reading.uncommitted
    return [Check("duplicates from the kill bounded", kept, found)]


def _ungraceful(reading: Reading) -> list[Check]:
    """Only if there are any, as on a busy machine."""
    repeated = len(reading.again["ungraceful"])
    if not repeated:
        return []
    found = f"{repeated:,}, all from the losers' last micro-batches"
    return [Check("duplicates from forced handoffs and expired leases bounded", True, found)]


def _statistics(evidence: Evidence) -> Iterator[Check]:
    expected = expected_statistics(evidence.flights)
    yield _equal("statistics equal to those of the data set", expected, evidence.statistics)
    if evidence.table is not None:
        yield _equal("each flight once in the Delta table, in order", expected, evidence.table)


def _equal(
    promise: str, expected: Mapping[str, Statistics], statistics: Mapping[str, Statistics]
) -> Check:
    wrong = [
        aircraft
        for aircraft in expected.keys() | statistics.keys()
        if expected.get(aircraft) != statistics.get(aircraft)
    ]
    found = f"{len(expected):,} rows"
    if wrong:
        found += f"; {len(wrong):,} differ, such as {max(wrong)}"
    return Check(promise, not wrong, found)


def _backlog(event: ScenarioEvent, handoffs: Sequence[OwnerChange]) -> Check:
    own = [handoff for handoff in handoffs if handoff.event == event]
    idle = sorted(handoff.partition for handoff in own if not handoff.backlog)
    found = f"{len(own)} partitions changed hands"
    if own:
        found += f", at least {min(handoff.backlog for handoff in own):,} flights waiting in each"
    if idle:
        found += f"; none in {', '.join(map(str, idle))}"
    promise = f"the {event.kind} of {event.application} met backlog"
    return Check(promise, bool(own) and not idle, found)


def _say(entry: JournalEntry) -> str:
    return f"{entry.flight} (p{entry.partition} epoch {entry.epoch}, {entry.application})"


# ------------------------------------------------------------------ the handoffs


def _handoffs(evidence: Evidence, reading: Reading) -> list[OwnerChange]:
    """Every grant of a partition that had been processed before."""
    handoffs = []
    for grant in sorted(evidence.grants, key=lambda grant: (grant.partition, grant.epoch)):
        own = [period for period in reading.periods.values() if period.partition == grant.partition]
        earlier = [period for period in own if period.epoch < grant.epoch]
        if earlier:
            later = [period for period in own if period.epoch >= grant.epoch]
            handoffs.append(_handoff(grant, earlier, later, evidence.events))
    return handoffs


def _handoff(
    grant: EpochGrant,
    earlier: Sequence[Period],
    later: Sequence[Period],
    events: Sequence[ScenarioEvent],
) -> OwnerChange:
    before = max(earlier, key=lambda period: period.epoch)
    after = next((period for period in later if period.epoch == grant.epoch), None)
    last_write = before.writes[-1]
    giver = min(before.writers)
    taker = min(after.writers) if after else None
    return OwnerChange(
        partition=grant.partition,
        epoch=grant.epoch,
        outcome=grant.outcome,
        giver=giver,
        taker=taker,
        event=_event(events, giver, taker, after.writes[0] if after else None),
        backlog=sum(time <= last_write for period in later for time in period.published),
        pause_seconds=after.writes[0] - last_write if after else None,
        service_seconds=grant.seconds,
    )


def _event(
    events: Sequence[ScenarioEvent], giver: str, taker: str | None, until: float | None
) -> ScenarioEvent | None:
    """The last action on the previous owner, else on the next, before the next one's write."""
    past = [event for event in events if until is None or event.time <= until]
    for kinds, application in ((("drain", "kill"), giver), (("start", "join", "return"), taker)):
        matching = [e for e in past if e.kind in kinds and e.application == application]
        if matching:
            return max(matching, key=lambda event: event.time)
    return None


def _usual_gap(periods: Iterable[Period]) -> float | None:
    gaps = [later - earlier for period in periods for earlier, later in pairwise(period.writes)]
    return median(gaps) if gaps else None
