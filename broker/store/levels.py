"""Which replicas may change a queue: its level and theirs.

A level is the number of a revision of the control tables. A queue has the level of the newest
feature that it uses, and a replica of a lower level does not load the queue, nor commit to it
(`sql/commit.sql`). So a replica of the release before cannot spoil a queue whose features it does
not know. What it may still do is harmless: renew leases, commit positions, delete the queue.

All releases know the features of today, so every queue has level 0. A later feature that older code
must not meet gets the number of its revision, and the commit that begins to use it stores it in the
queue's row. A setting that older code leaves alone needs no level: it stays in the row, and a
replica that does not know it loads the queue anew when it changes (`broker.core.stored`).
"""

from __future__ import annotations

from broker.store.ports import QueueTooNew

# Of this release: the number of its newest revision.
LEVEL = 1


def check_level(name: str, level: int) -> None:
    """Raises QueueTooNew for a queue that this release does not know well enough."""
    if level > LEVEL:
        raise QueueTooNew(
            f"The queue {name!r} uses what only a newer release knows (level {level}; this "
            f"replica has level {LEVEL}). Upgrade this replica."
        )
