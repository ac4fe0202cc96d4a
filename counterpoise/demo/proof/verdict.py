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

Where partitions are split and merged, `lineage.py` adds what must hold then.

A demo with empty partitions would prove nothing. So each join, drain and kill must have moved
partitions, and each of these must have had backlog: flights that were published and not processed
when its previous owner wrote for the last time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from counterpoise.demo.proof.evidence import Event, Evidence, Grant, Period, Reading, read
from counterpoise.demo.proof.lineage import Check, Succession, lineage_checks, successions
from counterpoise.demo.work.flights import expected_statistics
from counterpoise.demo.work.sink import Entry

NEED_BACKLOG = ("join", "drain", "kill")


@dataclass(frozen=True, slots=True)
class Handoff:
    """A partition's change of owner in the journal."""

    partition: int
    epoch: int
    outcome: str
    giver: str
    taker: str | None
    """None: no message of the partition was processed in this epoch."""
    event: Event | None
    """The action of the scenario that caused it; None without one."""
    backlog: int
    """In flights."""
    pause_seconds: float | None
    """From the previous owner's last write to the next owner's first."""
    service_seconds: float
    """The service's time from the beginning of the handoff to the grant."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The promises, and the cost of each handoff."""

    checks: Sequence[Check]
    handoffs: Sequence[Handoff]
    usual_gap_seconds: float | None
    """The median time between two writes to a partition within an epoch, for comparison."""
    successions: Sequence[Succession] = ()
    """The beginning of each partition that came of a split or merge."""

    @property
    def good(self) -> bool:
        return all(check.kept for check in self.checks)


def judge(evidence: Evidence) -> Verdict:
    """Check every promise; takes a few seconds for the whole data set."""
    reading = read(evidence)
    handoffs = _handoffs(evidence, reading)
    return Verdict(
        checks=[
            _every_flight(evidence, reading),
            _order(reading),
            _one_owner(reading),
            _graceful(reading, handoffs),
            *_kill(evidence, reading),
            *_ungraceful(reading),
            _statistics(evidence),
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


def _graceful(reading: Reading, handoffs: Sequence[Handoff]) -> Check:
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


def _statistics(evidence: Evidence) -> Check:
    expected = expected_statistics(evidence.flights)
    wrong = [
        aircraft
        for aircraft in expected.keys() | evidence.statistics.keys()
        if expected.get(aircraft) != evidence.statistics.get(aircraft)
    ]
    found = f"{len(expected):,} rows"
    if wrong:
        found += f"; {len(wrong):,} differ, such as {max(wrong)}"
    return Check("statistics equal to those of the data set", not wrong, found)


def _backlog(event: Event, handoffs: Sequence[Handoff]) -> Check:
    own = [handoff for handoff in handoffs if handoff.event == event]
    idle = sorted(handoff.partition for handoff in own if not handoff.backlog)
    found = f"{len(own)} partitions changed hands"
    if own:
        found += f", at least {min(handoff.backlog for handoff in own):,} flights waiting in each"
    if idle:
        found += f"; none in {', '.join(map(str, idle))}"
    promise = f"the {event.kind} of {event.application} met backlog"
    return Check(promise, bool(own) and not idle, found)


def _say(entry: Entry) -> str:
    return f"{entry.flight} (p{entry.partition} epoch {entry.epoch}, {entry.application})"


# ------------------------------------------------------------------ the handoffs


def _handoffs(evidence: Evidence, reading: Reading) -> list[Handoff]:
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
    grant: Grant, earlier: Sequence[Period], later: Sequence[Period], events: Sequence[Event]
) -> Handoff:
    before = max(earlier, key=lambda period: period.epoch)
    after = next((period for period in later if period.epoch == grant.epoch), None)
    last_write = before.writes[-1]
    giver = min(before.writers)
    taker = min(after.writers) if after else None
    return Handoff(
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
    events: Sequence[Event], giver: str, taker: str | None, until: float | None
) -> Event | None:
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
