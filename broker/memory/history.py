"""Which entries the history is read from; the twin of `broker.store.history`."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from broker.core.state.records import Entry
from broker.core.state.stored import ShownEntry
from broker.store.rows import decode_shown


def with_their_causes(entries: Sequence[Entry], limit: int, before: int | None) -> set[int]:
    """The revisions of the newest `limit` rebalances with an id below `before`, and of the entries
    without a rebalance between them and up to the rebalance before them.
    """
    ids = {entry.rebalance_id for entry in entries if entry.rebalance_id is not None}
    newest = sorted((id for id in ids if before is None or id < before), reverse=True)[:limit]
    revisions = [entry.revision for entry in entries if entry.rebalance_id in newest]
    if not revisions:
        return set()
    former = max(
        (
            entry.revision
            for entry in entries
            if entry.rebalance_id is not None and entry.revision < revisions[0]
        ),
        default=0,
    )
    between = {
        entry.revision
        for entry in entries
        if entry.rebalance_id is None and former < entry.revision < revisions[-1]
    }
    return between.union(revisions)


def shown_entry(stored: tuple[Entry, bytes]) -> ShownEntry:
    """A stored entry, for showing."""
    entry, records = stored
    shown = decode_shown(orjson.loads(records))
    return ShownEntry(entry.revision, entry.at, shown, entry.rebalance_id)
