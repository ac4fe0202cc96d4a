"""Which replicas may change a queue: its level and theirs.

A level is the number of a revision of the control tables. A queue has the level of the newest
feature that it uses, stored in its row by each commit. A replica of a lower level does not load the
queue, and the database refuses its commits (`migrations/control`, `v0012_levels`). So a replica of
the release before cannot spoil a queue whose features it does not know.

Whoever adds a feature that older code must not meet gives it the number of its revision here. A
setting that older code leaves alone needs none: it stays in the row, and a replica that does not
know it loads the queue anew when it changes (`broker.core.stored`). So the retention of a log has
no level. Almost all new queues have one, and with a level older replicas could serve none of them;
and a level would not keep older replicas from trimming, which is no commit.
"""

from __future__ import annotations

from broker.core.queue import Queue

# Of this release: the highest that it gives, or more.
LEVEL = 19
# The SQLSTATE of a commit that the database refuses. Its class means an error of the system, which
# older replicas answer with 503.
TOO_NEW = "58C01"
_DYNAMIC = 7
_ORDERED_RESIZES = 9
_HELD_FLOWS = 14
_ALIGNED_LOGS = 15
_MIRRORS = 19


def level_of(queue: Queue) -> int:
    """The level that the queue needs; 0: every release knows all of it."""
    if queue.settings.mirror_group is not None:
        return _MIRRORS
    if queue.settings.aligned > 1:
        return _ALIGNED_LOGS
    if queue.held:
        return _HELD_FLOWS
    if queue.settings.ordered_resize or queue.barriers is not None:
        return _ORDERED_RESIZES
    return _DYNAMIC if queue.lineage is not None else 0
