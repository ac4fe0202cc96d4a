"""Were the promises kept? Answered from the log and the sink alone.

The checker knows what was in the log, what the consumers wrote down that they did, and what the run
wrote down that it broke (`tests.faults.journal`), in that order, and nothing of the service's
tables. What the service says of a grant is believed only where a fault explains it.

* **Nothing is lost.** Every number that a publisher was told is in the log is there, once and in
  order; every message of the log was handled, and what was handled is in the log.
* **One owner for each epoch.** Of a partition and an epoch, all was handled by one consumer. Epochs
  rise: once a later epoch's owner has begun, an earlier one's does nothing any more, and is granted
  nothing, unless a fault kept from him that he had been superseded.
* **Order.** Within an epoch the positions rise without a hole; an epoch begins at or before the
  end of what was handled before it; the messages of a key are handled in the order of the log the
  first time. (A resize moves keys to other partitions; between partitions the order of a key is
  not promised, and not looked at.)
* **No duplicates without a cause.** What is handled a second time was so under a later epoch, and
  one of the grants in between was not graceful, and a fault explains that (`tests.faults.excuses`).
  Within an epoch nothing repeats.
* **Unseen.** Where a consumer dies or freezes, a grant may follow of which nobody is told, because
  the next one comes at once. Nobody knows how that came about, so it excuses next to nothing: only
  near a fault, and only UNSEEN_MOST messages of a whole run.
* **Something was looked at.** A run in which nothing was handled has kept no promise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.faults import excuses
from tests.faults.excuses import Faults, Grants
from tests.faults.journal import Acknowledged, Entry, Failed, Granted, Handled, Line
from tests.faults.machine import OVERLOADED

REPEATED = "repeated after force or a crash"
UNSEEN = "  of which only an unseen grant explains"
UNSEEN_MOST = 10
LATE = "late, superseded by force"
PROMISES = ("lost", "double ownership", "out of order", "duplicate", "failed")


class Stored(NamedTuple):
    """A message of the log. The value is `PUBLISHER:NUMBER`."""

    position: int
    key: str
    value: str


@dataclass
class Verdict:
    """What was found: a list of violations for each promise, and how much there was to look at."""

    violations: dict[str, list[str]] = field(
        default_factory=lambda: {promise: [] for promise in PROMISES}
    )
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def kept(self) -> bool:
        return not any(self.violations.values())

    def table(self) -> str:
        rows = [(name, f"{count:,}") for name, count in self.counts.items()]
        rows += [(f"{promise} (must be 0)", f"{len(self.violations[promise]):,}")
                 for promise in PROMISES]  # fmt: skip
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {figure:>12}" for name, figure in rows)

    def examples(self) -> str:
        return "\n".join(
            f"{promise}: {line}" for promise in PROMISES for line in self.violations[promise][:5]
        )


def check(
    log: Mapping[int, Sequence[Stored]], journal: Iterable[Line], reach_seconds: float
) -> Verdict:
    """`log`: of each partition all its messages in order, as the log gives them.

    `reach_seconds`: for how long after a fault what it may cause is put down to it.
    """
    verdict = Verdict()
    lines = list(journal)
    sink = [line.entry for line in lines]
    handled = [(at, entry) for at, entry in lines if isinstance(entry, Handled)]
    faults = Faults(lines, reach_seconds)
    grants = Grants(lines, faults)
    _count(verdict, log, lines, faults, grants)
    if not handled:
        verdict.violations["lost"].append("nothing was handled at all")
    _look_at_publishers(verdict, log, sink)
    _look_for_losses(verdict, log, (entry for _, entry in handled))
    _look_at_owners(verdict, lines, faults)
    by_partition: dict[int, list[tuple[float, Handled]]] = defaultdict(list)
    for at, entry in handled:
        by_partition[entry.partition].append((at, entry))
    for partition in sorted(by_partition):
        _look_at_partition(verdict, by_partition[partition], faults, grants)
    if verdict.counts[UNSEEN] > UNSEEN_MOST:
        verdict.violations["duplicate"].append(
            f"{verdict.counts[UNSEEN]} messages came again after grants that nobody saw"
        )
    verdict.violations["failed"] += [
        f"{entry.who}: {entry.error}" for entry in sink if isinstance(entry, Failed)
    ]
    return verdict


def _count(
    verdict: Verdict,
    log: Mapping[int, Sequence[Stored]],
    lines: Sequence[Line],
    faults: Faults,
    grants: Grants,
) -> None:
    handled = [entry for _, entry in lines if isinstance(entry, Handled)]
    times = [line.at for line in lines] or [0.0]
    took = max(times) - min(times)
    disturbed = faults.seconds(min(times), max(times))
    overloaded = faults.seconds(min(times), max(times), OVERLOADED.kind)
    verdict.counts.update(
        {
            "messages in the log": sum(map(len, log.values())),
            "handled": len(handled),
            "partitions": len(log),
            "grants seen": len(grants.seen),
            **{f"  {way}": grants.ways[way] for way in sorted(grants.ways)},
            "  unseen, between those": len(list(grants.unseen())),
            "  ungraceful, which no fault explains": len(list(grants.unexplained())),
            "consumers": len({entry.consumer for entry in handled}),
            "seconds": round(took),
            "  in which the machine was overloaded": round(overloaded),
            "  in which nothing excuses everybody": round(took - disturbed),
            REPEATED: 0,
            UNSEEN: 0,
            LATE: 0,
        }
    )


def _look_at_publishers(
    verdict: Verdict, log: Mapping[int, Sequence[Stored]], sink: Iterable[Entry]
) -> None:
    told: dict[str, int] = {}
    for entry in sink:
        if isinstance(entry, Acknowledged):
            told[entry.publisher] = max(told.get(entry.publisher, 0), entry.end)
    there: dict[str, Counter[int]] = defaultdict(Counter)
    for partition, messages in log.items():
        last: dict[str, int] = {}
        for message in messages:
            publisher, _, number = message.value.rpartition(":")
            there[publisher][int(number)] += 1
            if last.get(message.key, -1) >= int(number):
                verdict.violations["out of order"].append(
                    f"in the log, partition {partition}: {message} after {last[message.key]}"
                )
            last[message.key] = int(number)
    for publisher, end in told.items():
        verdict.violations["lost"] += [
            f"{publisher}:{number} was acknowledged and is not in the log"
            for number in range(end)
            if number not in there[publisher]
        ]
    for publisher, numbers in there.items():
        verdict.violations["duplicate"] += [
            f"{publisher}:{number} is in the log {times} times"
            for number, times in numbers.items()
            if times > 1
        ]


def _look_for_losses(
    verdict: Verdict, log: Mapping[int, Sequence[Stored]], handled: Iterable[Handled]
) -> None:
    stored = {
        (partition, message.position): message
        for partition, messages in log.items()
        for message in messages
    }
    seen = set()
    for entry in handled:
        place = (entry.partition, entry.position)
        seen.add(place)
        if stored.get(place) != Stored(entry.position, entry.key, entry.value):
            verdict.violations["lost"].append(f"{entry} is not what the log has")
    verdict.violations["lost"] += [
        f"partition {partition}: {stored[partition, position]} was never handled"
        for partition, position in sorted(stored.keys() - seen)
    ]


def _look_at_owners(verdict: Verdict, lines: Iterable[Line], faults: Faults) -> None:
    owners: dict[tuple[int, int], str] = {}
    newest: dict[int, int] = {}
    for at, entry in lines:
        if not isinstance(entry, Handled | Granted):
            continue
        where = f"partition {entry.partition} epoch {entry.epoch}"
        last = newest.get(entry.partition, 0)
        late = entry.epoch < last and (entry.partition, entry.epoch) not in owners
        # The answer that told him so may have been on its way for long.
        if late and not faults.explain(at, entry.consumer):
            verdict.violations["double ownership"].append(
                f"{where}: granted to {entry.consumer} after epoch {last}"
            )
        newest[entry.partition] = max(last, entry.epoch)
        owner = owners.setdefault((entry.partition, entry.epoch), entry.consumer)
        if owner != entry.consumer:
            verdict.violations["double ownership"].append(f"{where}: {owner} and {entry.consumer}")


def _look_at_partition(
    verdict: Verdict, entries: Sequence[tuple[float, Handled]], faults: Faults, grants: Grants
) -> None:
    """`entries`: all that was handled of one partition and when, in the order in which it was."""
    partition = entries[0][1].partition
    under: dict[int, int] = {}  # position -> the latest epoch under which it was handled
    last: dict[int, int] = {}  # epoch -> its last position
    numbers: dict[str, int] = {}  # key -> the last number that was new
    newest, end = 0, 0
    for at, entry in entries:
        where = f"partition {partition} epoch {entry.epoch} position {entry.position}"
        if entry.epoch < newest:
            # Somebody who did not know yet that he had been superseded.
            cause = grants.cause(partition, entry.epoch, newest)
            if cause is None or not faults.explain(at, entry.consumer):
                verdict.violations["double ownership"].append(
                    f"{where}: {entry.consumer} went on after epoch {newest} had begun"
                )
            verdict.counts[LATE] += 1
        newest = max(newest, entry.epoch)
        before = last.get(entry.epoch)
        if before is not None and entry.position <= before:
            promise = "duplicate" if entry.position in under else "out of order"
            verdict.violations[promise].append(f"{where}: comes after {before} in the same epoch")
        elif before is not None and entry.position != before + 1:
            verdict.violations["out of order"].append(f"{where}: follows {before}, with a hole")
        elif before is None and entry.position > end:
            verdict.violations["out of order"].append(f"{where}: begins beyond the end, {end}")
        last[entry.epoch] = entry.position
        earlier = under.get(entry.position)
        if earlier is None:
            number = int(entry.value.rpartition(":")[2])
            if numbers.get(entry.key, -1) >= number:
                verdict.violations["out of order"].append(
                    f"{where}: {entry.value} of {entry.key} after number {numbers[entry.key]}"
                )
            numbers[entry.key] = number
        elif earlier != entry.epoch:
            cause = grants.cause(partition, *sorted((earlier, entry.epoch)))
            if cause is None:
                verdict.violations["duplicate"].append(f"{where}: was handled in epoch {earlier}")
            verdict.counts[REPEATED] += 1
            verdict.counts[UNSEEN] += cause == excuses.UNSEEN
        under[entry.position] = max(entry.epoch, earlier or 0)
        end = max(end, entry.position + 1)
