"""Were the promises kept? Passes a whole journal to the rules and collects the violations.

What the rules cannot know from one fact is checked here, over the whole run:

* **Nothing is lost.** Every number that a publisher was acknowledged is in the log, once and in
  order. Every message of the log was handled, and every handled message is in the log.
* **Order.** The first time, the messages of a key are handled in the order in which its publisher
  published them. A resize, a split and a merge move keys to other partitions: with `ordered` (all
  resizes of the queue were ordered, or it is dynamic) the order is judged between partitions too,
  else within each.
* **Causes.** A repeated message, and a superseded owner that still works, need a fault as the
  cause; see `causes.py`. What the service says of a handover is believed only where a fault
  explains it.
* **Unseen.** Where a consumer dies or freezes, there may be a grant that no consumer is told of,
  because the next grant follows at once. How it was handed over is unknown, so it excuses very
  little: only near a fault, and only UNSEEN_MOST messages of a whole run.
* **There was something to check.** A run in which no message was handled fails.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.judge import causes
from tests.judge.causes import Faults, Grants
from tests.judge.journal import (
    OVERLOADED,
    Acknowledged,
    Asked,
    Done,
    Entry,
    Failed,
    Granted,
    Handled,
    Line,
    Told,
)
from tests.judge.rules import Answers, Keys, Known, Lane, Owners
from tests.judge.violation import (
    DUPLICATE,
    FAILED,
    KINDS,
    LOST,
    ORDER,
    OWNERS,
    Violation,
)

REPEATED = "repeated after force or a crash"
UNSEEN = "  of which only an unseen grant explains"
UNSEEN_MOST = 10
LATE = "late, superseded by force"


class Stored(NamedTuple):
    """A message of the log. The value is `PUBLISHER:NUMBER`."""

    position: int
    key: str
    value: str


@dataclass
class Verdict:
    """The result: the violations by kind, and how much was checked."""

    violations: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def kept(self) -> bool:
        return not any(self.violations.values())

    def table(self) -> str:
        rows = [(name, f"{count:,}") for name, count in self.counts.items()]
        rows += [(f"{kind} (must be 0)", f"{len(self.violations[kind]):,}") for kind in KINDS]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {figure:>12}" for name, figure in rows)

    def examples(self) -> str:
        return "\n".join(f"{kind}: {line}" for kind in KINDS for line in self.violations[kind][:5])

    def add(self, where: str, violations: Iterable[Violation]) -> None:
        for violation in violations:
            self.violations[violation.kind].append(f"{where}: {violation.text}")


def judge(
    journal: Iterable[Line],
    log: Mapping[int, Sequence[Stored]] | None,
    reach_seconds: float,
    *,
    ordered: bool = False,
) -> Verdict:
    """`log`: all messages of each partition, in the order of the log. None: there is no log, and no
    message is handled.

    `reach_seconds`: for how long after a fault its possible effects are attributed to it.
    `ordered`: the order of a key is promised between partitions.
    """
    verdict = Verdict()
    lines = list(journal)
    sink = [line.entry for line in lines]
    faults = Faults(lines, reach_seconds)
    grants = Grants(lines, faults)
    _look_at_owners(verdict, lines, faults)
    _look_at_answers(verdict, sink)
    if log is not None:
        _look_at_messages(verdict, log, lines, faults, grants)
        _look_at_keys(verdict, log, sink, ordered)
    verdict.violations[FAILED] += [
        f"{entry.who}: {entry.error}" for entry in sink if isinstance(entry, Failed)
    ]
    return verdict


def _look_at_messages(
    verdict: Verdict,
    log: Mapping[int, Sequence[Stored]],
    lines: Sequence[Line],
    faults: Faults,
    grants: Grants,
) -> None:
    handled = [(at, entry) for at, entry in lines if isinstance(entry, Handled)]
    _count(verdict, log, lines, faults, grants)
    if not handled:
        verdict.violations[LOST].append("nothing was handled at all")
    _look_at_publishers(verdict, log, (line.entry for line in lines))
    _look_for_losses(verdict, log, (entry for _, entry in handled))
    by_partition: dict[int, list[tuple[float, Handled]]] = defaultdict(list)
    for at, entry in handled:
        by_partition[entry.partition].append((at, entry))
    for partition in sorted(by_partition):
        _look_at_partition(verdict, by_partition[partition], faults, grants)
    if verdict.counts[UNSEEN] > UNSEEN_MOST:
        verdict.violations[DUPLICATE].append(
            f"{verdict.counts[UNSEEN]} messages came again after grants that nobody saw"
        )


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
                verdict.violations[ORDER].append(
                    f"in the log, partition {partition}: {message} after {last[message.key]}"
                )
            last[message.key] = int(number)
    for publisher, end in told.items():
        verdict.violations[LOST] += [
            f"{publisher}:{number} was acknowledged and is not in the log"
            for number in range(end)
            if number not in there[publisher]
        ]
    for publisher, numbers in there.items():
        verdict.violations[DUPLICATE] += [
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
            verdict.violations[LOST].append(f"{entry} is not what the log has")
    verdict.violations[LOST] += [
        f"partition {partition}: {stored[partition, position]} was never handled"
        for partition, position in sorted(stored.keys() - seen)
    ]


def _look_at_keys(
    verdict: Verdict,
    log: Mapping[int, Sequence[Stored]],
    entries: Iterable[Entry],
    ordered: bool,
) -> None:
    keys, places = Keys(), {}
    for partition, messages in log.items():
        for message in messages:
            publisher, _, number = message.value.rpartition(":")
            key = (publisher, message.key) if ordered else (publisher, message.key, partition)
            places[int(number), partition, message.position] = key
    # A publisher's numbers rise from message to message.
    for (_, *place), key in sorted(places.items()):
        keys.publish(key, (place[0], place[1]))
    moved = sum(len({place[0] for place in order}) > 1 for order in keys.published.values())
    verdict.counts["keys judged in several partitions"] = moved
    for entry in entries:
        if isinstance(entry, Handled):
            verdict.add(entry.consumer, keys.handled((entry.partition, entry.position)))


def _look_at_owners(verdict: Verdict, lines: Iterable[Line], faults: Faults) -> None:
    owners = Owners()
    newest: dict[int, int] = {}
    for at, entry in lines:
        if isinstance(entry, Told) and entry.state != "warming":
            claims = owners.claim(entry.partition, entry.epoch, entry.consumer)
            verdict.add(entry.consumer, claims)
        if not isinstance(entry, Handled | Granted):
            continue
        last = newest.get(entry.partition, 0)
        late = entry.epoch < last and owners.get(entry.partition, entry.epoch) is None
        # The answer that told the consumer of the grant may have been on its way for long.
        if late and not faults.explain(at, entry.consumer):
            verdict.violations[OWNERS].append(
                f"partition {entry.partition} epoch {entry.epoch}: "
                f"granted to {entry.consumer} after epoch {last}"
            )
        newest[entry.partition] = max(last, entry.epoch)
        claims = owners.claim(entry.partition, entry.epoch, entry.consumer)
        verdict.add(f"partition {entry.partition}", claims)


def _look_at_answers(verdict: Verdict, entries: Iterable[Entry]) -> None:
    answers = Answers()
    calls: dict[int, Known] = {}
    for entry in entries:
        if isinstance(entry, Asked):
            calls[entry.call] = answers.known()
        elif isinstance(entry, Told):
            known = calls[entry.call]
            found = answers.told(entry.partition, entry.epoch, entry.position, known)
            verdict.add(entry.consumer, found)
        elif isinstance(entry, Done):
            verdict.counts[f"{entry.what} {entry.outcome}"] += 1
            if entry.outcome != "ok" or entry.position is None:
                continue
            where = (entry.partition, entry.epoch, entry.position)
            if entry.what == "commit":
                verdict.add("a commit", answers.committed(*where, calls[entry.call]))
            else:
                answers.released(*where)


def _look_at_partition(
    verdict: Verdict, entries: Sequence[tuple[float, Handled]], faults: Faults, grants: Grants
) -> None:
    """`entries`: all that was handled of one partition, with times, in that order."""
    partition = entries[0][1].partition
    lane = Lane()
    under: dict[int, int] = {}  # position -> the latest epoch under which it was handled

    def excused(earlier: int, later: int) -> bool:
        return grants.cause(partition, earlier, later) is not None

    for at, entry in entries:
        where = f"partition {partition}, {entry.consumer}"
        if lane.late(entry.epoch):
            # The consumer did not know yet that it had been superseded.
            if not excused(entry.epoch, lane.newest) or not faults.explain(at, entry.consumer):
                verdict.violations[OWNERS].append(
                    f"{where}: went on in epoch {entry.epoch} after {lane.newest} had begun"
                )
            verdict.counts[LATE] += 1
        verdict.add(where, lane.handled(entry.epoch, entry.position, excused))
        earlier = under.get(entry.position)
        if earlier is not None and earlier != entry.epoch:
            verdict.counts[REPEATED] += 1
            cause = grants.cause(partition, *sorted((earlier, entry.epoch)))
            verdict.counts[UNSEEN] += cause == causes.UNSEEN
        under[entry.position] = max(entry.epoch, earlier or 0)
