"""The evidence for the verdict, and the findings of one pass over the journal.

The journal is read once, in the order of its transactions. On the way every entry is classified:
the first processing of its flight, or a repetition; in order within its aircraft or not; under the
current epoch of its partition or an old one. A repetition has one of these causes:

- `kill`: the first processing was in the killed application's last micro-batch, the only one
  that it cannot have committed at the service (its source commits each before it plans the next);
- `graceful`: the partition was handed over in order in between, which must not repeat messages;
- `ungraceful`: a forced handoff or an expired lease lies in between, and the first processing was
  in the loser's last micro-batch of the partition;
- `unexplained`: anything else.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from broker.demo.work.flights import Flight, Statistics
from broker.demo.work.sink import JournalEntry

SealingKind = Literal["split", "merge"]
EventKind = Literal["start", "join", "drain", "kill", "return"]
Cause = Literal["kill", "graceful", "ungraceful", "unexplained"]


@dataclass(frozen=True, slots=True)
class EpochGrant:
    """One grant in the service's history. `outcome` as in the contract.

    `seconds` is the service's time from the beginning of the handoff to the grant.
    """

    partition: int
    epoch: int
    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ScenarioEvent:
    """An action of the scenario on an application, and its time (Unix seconds)."""

    kind: EventKind
    application: str
    time: float


@dataclass(frozen=True, slots=True)
class SealingRecord:
    """A split or merge: the partitions that ended, and those that came after them."""

    kind: SealingKind
    sealed: Mapping[int, int]
    """By partition: its final end."""
    children: Sequence[int]
    time: float
    """When it was done (Unix seconds)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The data set, the applications' journal, the scenario's actions, the service's history."""

    flights: Sequence[Flight]
    journal: Sequence[JournalEntry]
    statistics: Mapping[str, Statistics]
    grants: Sequence[EpochGrant]
    events: Sequence[ScenarioEvent]
    sealings: Sequence[SealingRecord] = ()
    table: Mapping[str, Statistics] | None = None
    """The statistics of the flights in the Delta table, if there is one."""


@dataclass(slots=True)
class Period:
    """The journal's entries of one partition under one epoch. Times in Unix seconds."""

    partition: int
    epoch: int
    writers: set[str] = field(default_factory=set)
    last_batch: int = -1
    writes: list[float] = field(default_factory=list)
    """The time of each micro-batch's write."""
    published: list[float] = field(default_factory=list)
    """The publishing times of the messages that were processed here for the first time."""


@dataclass(slots=True)
class Reading:
    """The findings in the journal."""

    first: dict[str, JournalEntry] = field(default_factory=dict)
    """By flight: its first entry."""
    again: dict[Cause, list[JournalEntry]] = field(default_factory=lambda: defaultdict(list))
    disorder: list[JournalEntry] = field(default_factory=list)
    """Entries that came after a later flight of their aircraft."""
    late: list[JournalEntry] = field(default_factory=list)
    """Entries under an old epoch of their partition."""
    periods: dict[tuple[int, int], Period] = field(default_factory=dict)
    """By partition and epoch."""
    lines: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By partition: its first and its last line in the journal."""
    aircraft: int = 0
    keyless: int = 0
    uncommitted: int = 0
    """How many messages the killed applications wrote in their last micro-batches."""


def read(evidence: Evidence) -> Reading:
    """One pass over the journal."""
    reading = Reading()
    outcomes = {(grant.partition, grant.epoch): grant.outcome for grant in evidence.grants}
    last_batches = _last_batches(evidence)
    highest_epoch: Counter[int] = Counter()
    highest_sequence: Counter[str] = Counter()
    within_epoch: Counter[tuple[str, int, int]] = Counter()

    for line, entry in enumerate(evidence.journal):
        began, _ = reading.lines.get(entry.partition, (line, line))
        reading.lines[entry.partition] = (began, line)
        if entry.epoch < highest_epoch[entry.partition]:
            reading.late.append(entry)
        highest_epoch[entry.partition] = max(highest_epoch[entry.partition], entry.epoch)

        key = (entry.partition, entry.epoch)
        period = reading.periods.get(key)
        if period is None:
            period = reading.periods[key] = Period(*key)
        period.writers.add(entry.application)
        period.last_batch = entry.batch
        if not period.writes or period.writes[-1] != entry.time:
            period.writes.append(entry.time)
        if entry.batch == last_batches.get(entry.application):
            reading.uncommitted += 1

        first = reading.first.get(entry.flight)
        if first is None:
            reading.first[entry.flight] = entry
            period.published.append(entry.published_at)
        else:
            reading.again[_cause(reading, outcomes, last_batches, first, entry)].append(entry)

        if entry.aircraft is None or entry.sequence is None:
            reading.keyless += first is None
        else:
            # First entries must be in order over all epochs, all entries within their epoch.
            passed = highest_sequence[entry.aircraft] if first is None else 0
            within = (entry.aircraft, entry.partition, entry.epoch)
            passed = max(passed, within_epoch[within])
            if entry.sequence <= passed:
                reading.disorder.append(entry)
            highest_sequence[entry.aircraft] = max(highest_sequence[entry.aircraft], entry.sequence)
            within_epoch[within] = entry.sequence
    reading.aircraft = len(highest_sequence)
    return reading


def _last_batches(evidence: Evidence) -> dict[str, int]:
    """By killed application: its last micro-batch in the journal."""
    killed = {event.application for event in evidence.events if event.kind == "kill"}
    batches: dict[str, int] = {}
    for entry in evidence.journal:
        if entry.application in killed:
            batches[entry.application] = entry.batch
    return batches


def _cause(
    reading: Reading,
    outcomes: Mapping[tuple[int, int], str],
    last_batches: Mapping[str, int],
    first: JournalEntry,
    again: JournalEntry,
) -> Cause:
    if (first.partition, first.position) != (again.partition, again.position):
        return "unexplained"  # it is in the log twice
    if again.epoch <= first.epoch:
        return "unexplained"  # its owner repeats it, or a former owner that has lost the partition
    if first.batch == last_batches.get(first.application):
        return "kill"
    between = range(first.epoch + 1, again.epoch + 1)
    if all(outcomes.get((first.partition, epoch)) == "graceful" for epoch in between):
        return "graceful"
    if first.batch == reading.periods[first.partition, first.epoch].last_batch:
        return "ungraceful"
    return "unexplained"
