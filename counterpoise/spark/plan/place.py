"""The place that offsets belong to: one queue, and one incarnation of its log."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.spark.errors import InvalidOffset
from counterpoise.spark.plan.offsets import Json, Offset, offset_of


@dataclass(frozen=True)
class Place:
    """`incarnation` is the log's. `queue_id` is the queue's, None if unknown."""

    queue: str
    incarnation: str
    queue_id: str | None = None

    def offset(self, document: Json) -> Offset:
        """The offset that Spark handed back. Raises InvalidOffset if its place is another one."""
        offset = offset_of(document, self.queue)
        self.check(offset)
        return offset

    def check(self, offset: Offset) -> None:
        """Raises InvalidOffset if the offset names another queue or incarnation of the log."""
        if offset.queue_id is not None and self.queue_id not in (None, offset.queue_id):
            raise InvalidOffset(
                f"the checkpoint belongs to a queue {offset.queue!r} that was deleted and made "
                "anew since: choose another checkpointLocation"
            )
        if offset.log is not None and offset.log != self.incarnation:
            raise InvalidOffset(
                f"the checkpoint belongs to a log of queue {offset.queue!r} that was deleted and "
                "made anew, or restored from a backup, since: choose another checkpointLocation"
            )
