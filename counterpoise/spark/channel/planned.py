"""The document `plan`: the ranges that the running micro-batch really reads, written by the source.

The source alone knows it (docs, *The fenced sink*): the rows do not show a range whose messages
were all filtered out, and Spark's offsets do not show that a range was skipped. The source writes
the plan before `partitions()` returns, and Spark calls that before it runs any of the batch.

    {"start": {…}, "end": {…}, "queue_id": "…", "log": "…",
     "read": [{"partition": 3, "epoch": 2, "from": "10", "to": "20"}], "skipped": […],
     "tasks": [[3, 5], [1]]}

`start` and `end` are Spark's offsets, `log` is the log's incarnation. Epochs of `read` are those of
the present grants. `tasks` has the partitions of `read` that each input partition of the source
holds, in Spark's order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.spark.channel.documents import Channel
from counterpoise.spark.plan.offsets import Json, Slice

logger = logging.getLogger("counterpoise.spark")


@dataclass(frozen=True)
class Planned:
    """A plan as the driver reads it."""

    start: Json
    end: Json
    queue_id: str
    log: str
    read: tuple[Slice, ...]
    tasks: tuple[tuple[int, ...], ...]

    @property
    def queue(self) -> str:
        """The queue's name."""
        return str(self.end["queue"])


def plan_document(
    start: Json,
    end: Json,
    *,
    queue_id: str,
    log: str,
    read: Iterable[Slice],
    skipped: Iterable[Slice],
    tasks: Iterable[Sequence[Slice]],
) -> Json:
    """The document that the source writes. `tasks` holds the slices of each input partition."""
    return {
        "start": start,
        "end": end,
        "queue_id": queue_id,
        "log": log,
        "read": [_range(one) for one in read],
        "skipped": [_range(one) for one in skipped],
        "tasks": [[one.partition for one in group] for group in tasks],
    }


def planned_of(document: Mapping[str, Any]) -> Planned:
    """The plan from the document."""
    return Planned(
        document["start"],
        document["end"],
        document["queue_id"],
        document["log"],
        tuple(_slice(one) for one in document["read"]),
        tuple(tuple(group) for group in document["tasks"]),
    )


def _range(one: Slice) -> Json:
    return {
        "partition": one.partition,
        "epoch": one.epoch,
        "from": one.start,
        "to": one.end,
    }


def _slice(one: Mapping[str, Any]) -> Slice:
    return Slice(one["partition"], one["epoch"], one["from"], one["to"])


class Plans:
    """The source's side: writes each plan to the channel.

    `queue_id` is the service's id of the queue: a queue recreated under its name has another.
    """

    def __init__(self, channel: Channel, queue_id: str, log: str) -> None:
        self._channel = channel
        self._queue_id = queue_id
        self._log = log

    def say(
        self,
        start: Json,
        end: Json,
        tasks: Iterable[Sequence[Slice]],
        skipped: Iterable[Slice],
    ) -> None:
        """Write the plan of the micro-batch; history that is only replayed is not part of it."""
        groups = [[one for one in group if not one.replay] for group in tasks]
        document = plan_document(
            start,
            end,
            queue_id=self._queue_id,
            log=self._log,
            read=sorted((one for group in groups for one in group), key=lambda one: one.partition),
            skipped=skipped,
            tasks=groups,
        )
        try:
            self._channel.put("plan", document)
        except OSError as error:
            # A reader that needs the plan fails without it; a query without a fenced sink does not
            # need it.
            logger.warning(
                "counterpoise: the plan of the micro-batch could not be written: %s", error
            )
