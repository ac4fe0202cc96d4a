"""What must hold where partitions are split and merged.

A partition that came of a split or merge holds the newer flights of the aircraft of its parents. So
the journal must have no line of it before the last line of each parent. This holds for the lines
themselves, whoever wrote them and under whichever epoch.

A split of an empty partition would prove nothing. So flights must have waited in each parent when
the first one was published to what comes after it, and flights must have been processed in each new
partition.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise.demo.proof.evidence import Period, Reading, Sealing, SealingKind


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


def lineage_checks(sealings: Sequence[Sealing], reading: Reading) -> list[Check]:
    """None without splits and merges."""
    if not sealings:
        return []
    return [_in_turn(sealings, reading), *(_met_backlog(sealing, reading) for sealing in sealings)]


def successions(sealings: Sequence[Sealing], reading: Reading) -> list[Succession]:
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


def _in_turn(sealings: Sequence[Sealing], reading: Reading) -> Check:
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


def _met_backlog(sealing: Sealing, reading: Reading) -> Check:
    waited = {parent: _waiting(reading, parent, sealing) for parent in sealing.sealed}
    empty = [child for child in sealing.children if child not in reading.lines]
    found = ", ".join(f"{count:,} flights waited in {parent}" for parent, count in waited.items())
    if empty:
        found += f"; none were processed in {', '.join(map(str, empty))}"
    promise = f"the {sealing.kind} of {' and '.join(map(str, sealing.sealed))} met backlog"
    return Check(promise, all(waited.values()) and not empty, found)


def _waiting(reading: Reading, parent: int, sealing: Sealing) -> int:
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
