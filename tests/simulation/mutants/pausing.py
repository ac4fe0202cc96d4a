"""Bugs in pauses."""

from __future__ import annotations

from msgspec.structs import replace

from broker.core import records as r
from broker.core import replay
from broker.core.pauses import QueuePauses
from counterpoise.flow import core, view
from counterpoise.wire import Update
from tests.simulation.mutants.mutant import Changes


def client_does_not_see_it() -> Changes:
    """A client reads a view as if it had no pauses."""

    def view_of(update: Update, now, known):
        partitions = tuple(replace(one, paused=None) for one in update.partitions)
        return view.view_of(replace(update, partitions=partitions), now, known)

    return [(core, "view_of", view_of)]


def lost_at_a_handoff() -> Changes:
    """A pause is of the owner, as in Kafka: the next one begins without it."""
    real = replay._CHANGES[r.Granted]

    def granted(queue, record):
        real(queue, record)
        for grant in record.grants:
            queue.journal.drop(queue.pauses.of, grant.partition)

    return [(replay, "_CHANGES", {**replay._CHANGES, r.Granted: granted})]


def never_ends() -> Changes:
    """The end of a pause is no deadline."""
    return [
        (QueuePauses, "next_end", lambda self: None),
        (QueuePauses, "due", lambda self, now: ([], False)),
    ]


def owners_are_not_told() -> Changes:
    """A pause changes no view."""
    return [(replay, "_touch_paused", lambda queue, key: None)]
