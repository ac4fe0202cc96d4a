"""The evidence of the demo, as facts for the judge.

Users run the demo's own verdict (`broker/demo/verdict.py`). It knows micro-batches and
the service's history and checks more than the judge does: the cost of a handoff, whether there was
backlog, whether the statistics are right. Both must agree on the promises that both know.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.demo.evidence import Evidence
from broker.demo.work.sink import JournalEntry
from tests.judge.journal import OVERLOADED, Fault, Handled, Line
from tests.judge.judge import Stored, Verdict, judge

# A fault of the demo excuses its effects until the demo ends.
REACH_SECONDS = float("inf")


def judged(evidence: Evidence) -> Verdict:
    """The judge's verdict on a demo."""
    ordered = bool(evidence.sealings)
    return judge(_facts(evidence), _log(evidence), REACH_SECONDS, ordered=ordered)


def _log(evidence: Evidence) -> dict[int, list[Stored]]:
    """The published flights of each partition, at the position where the journal has them first."""
    published = {flight.flight: flight for flight in evidence.flights}
    partitions: dict[int, dict[int, Stored]] = {}
    for entry in evidence.journal:
        flight = published.pop(entry.flight, None)
        if flight is not None:
            stored = _stored(entry)
            partitions.setdefault(entry.partition, {})[entry.position] = stored
    # A flight that was never processed gets a partition of its own.
    log = {number: [at[n] for n in sorted(at)] for number, at in partitions.items()}
    for number, name in enumerate(published):
        log[-1 - number] = [Stored(0, name, f"{name}:0")]
    return log


def _stored(entry: JournalEntry) -> Stored:
    key = entry.aircraft or entry.flight
    return Stored(entry.position, key, f"{key}:{entry.sequence or 0}")


def _facts(evidence: Evidence) -> Iterator[Line]:
    """Faults first; then all that was handled, in the order of the journal's transactions."""
    outcomes = {(grant.partition, grant.epoch): grant.outcome for grant in evidence.grants}
    at = min((entry.time for entry in evidence.journal), default=0.0)
    if "forced" in outcomes.values():
        # The scenario itself forces no handoff: only an overloaded machine does.
        yield Line(at, OVERLOADED)
    for event in evidence.events:
        if event.kind == "kill":
            yield Line(event.time, Fault(event.application, "killed"))
    for entry in evidence.journal:
        at = max(at, entry.time)
        how = outcomes.get((entry.partition, entry.epoch), "unknown")
        message = _stored(entry)
        where = (entry.application, entry.partition, entry.epoch, entry.position)
        yield Line(at, Handled(*where, message.key, message.value, how))
