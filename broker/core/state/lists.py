"""Records that say the same of several partitions: how many, and how several become one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from broker.core.state import records as r
from broker.core.state.lineage import records as lr
from broker.core.state.ordered import records as o

# The records that may name several partitions, and where.
_LISTS: dict[type[Any], str] = {
    r.Orphaned: "partitions",
    r.Granted: "grants",
    r.WarmupsStarted: "moves",
    r.RevokesStarted: "moves",
    r.WarmupsEnded: "partitions",
    r.WarmupsReady: "partitions",
    r.HandoffsRedirected: "redirects",
    r.HandoffsCalledOff: "partitions",
    o.CutsTaken: "cuts",
    o.CutsReached: "partitions",
    lr.ChildrenAdded: "children",
    lr.WaitsEnded: "partitions",
    lr.FinishedRemoved: "partitions",
}
# What each of them says of all its partitions.
_SHARED = {
    kind: tuple(field.name for field in fields(kind) if field.name != name)
    for kind, name in _LISTS.items()
}


def size(record: r.Record) -> int:
    """How many partitions it names."""
    match record:
        case r.PartitionsAdded(first, end, _):
            return end - first
        case r.PartitionsRetired() | r.PartitionsRemoved() | r.EpochsRaised():
            return len(record.partitions)
    name = _LISTS.get(type(record))
    return 0 if name is None else len(getattr(record, name))


def merged(records: list[r.Record]) -> list[r.Record]:
    """The same records, neighbours that say the same of several partitions made one."""
    result: list[r.Record] = []
    run: list[r.Record] = []

    def flush() -> None:
        if not run:
            return
        head = run[0]
        name = _LISTS.get(type(head))
        if name is None or len(run) == 1:
            result.extend(run)
        else:
            values = {field.name: getattr(head, field.name) for field in fields(head)}
            values[name] = tuple(item for record in run for item in getattr(record, name))
            result.append(type(head)(**values))
        run.clear()

    for record in records:
        if run and not _alike(run[0], record):
            flush()
        run.append(record)
    flush()
    return result


def _alike(one: r.Record, other: r.Record) -> bool:
    shared = _SHARED.get(type(one))
    if shared is None or type(one) is not type(other):
        return False
    return all(getattr(one, name) == getattr(other, name) for name in shared)
