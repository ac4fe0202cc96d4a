"""The offset: the checkpoint's complete description of one micro-batch.

For each partition it holds the *range* that was planned last: its epoch, its start and its end. A
micro-batch from offset A to offset B reads exactly the ranges of B that A does not have (`slices`).
To plan it again takes nothing else: neither the service nor memory. So a restart that finds a
planned but uncommitted batch in the checkpoint replays exactly that batch.

A range that both offsets have was read earlier. It stays in the offset as long as the partition is
held, because reading continues at its end. Under another epoch of the same tenure an empty range
replaces it. Partitions enter and leave offsets as they are granted and lost.

The offset also has the *replays*: history that is read to restore the state of a warming partition
(docs, *Warm-up*). They have a field of their own, so they are never mistaken for work. The offset
has the last portion of each partition. The portion stays until the first range of the partition is
planned, because replaying continues at its end.

Spark compares and stores offsets as JSON text. So the text is a function of the content: partitions
in the order of their numbers, fields always in the same order. If nothing is added to a start
offset, it is given back unchanged.

`prepared` counts the micro-batches in a row that read nothing: a query that waits for its first
partitions runs one, so that it is warm when they come. Nothing but the count tells its offset from
the one before.

`instance` is the instance_id of the flow. If the user has not chosen one, a restarted query finds
it in the checkpoint and takes its own place again (the contract, *What triggers what*, 12). `log`
names the incarnation of the log and `queueId` the queue's id: the *place* that an offset belongs
to. So positions of a log or queue that was dropped and created anew are never mistaken for
positions of this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from counterpoise.spark.errors import InvalidOffset

VERSION = 1
# The version of the format. Its presence shows that the offset is one of Counterpoise.
VERSION_FIELD = "counterpoise"

# Rows of a batch read have no epoch: there was no grant.
NO_EPOCH = 0

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Range:
    """Messages [start, end) of one partition, planned under `epoch`.

    `tenure`: the epoch that names its state (docs, *Warm-up*); None: `epoch` itself.
    """

    epoch: int
    start: str
    end: str
    tenure: int | None = None

    @property
    def state_of(self) -> int:
        """The tenure of the state that the rows belong to."""
        return self.epoch if self.tenure is None else self.tenure


@dataclass(frozen=True, slots=True)
class Replay:
    """History [start, end) of one partition, which restores its state for `tenure`."""

    tenure: int
    start: str
    end: str


@dataclass(frozen=True, slots=True)
class Slice:
    """A range that an executor reads. Its rows carry `epoch`, `tenure` (None: the epoch) and
    `replay`.
    """

    partition: int
    epoch: int
    start: str
    end: str
    tenure: int | None = None
    replay: bool = False

    @property
    def state_of(self) -> int:
        """The tenure of the state that the rows belong to."""
        return self.epoch if self.tenure is None else self.tenure


def divided(one: Slice, parts: int) -> list[Slice]:
    """The slice in so many equal pieces; one whose positions are no numbers stays whole."""
    if parts <= 1 or not (one.start.isdecimal() and one.end.isdecimal()):
        return [one]
    start, end = int(one.start), int(one.end)
    cuts = [str(start + (end - start) * part // parts) for part in range(parts + 1)]
    return [replace(one, start=a, end=b) for a, b in pairwise(cuts) if a != b]


def place_of(one: Slice) -> tuple[int, int, str]:
    """The order of pieces: by partition, and within one by position if positions are numbers."""
    return one.partition, len(one.start), one.start


def joined(pieces: Iterable[Slice]) -> list[Slice]:
    """The slices that were divided into these pieces, by partition number."""
    whole: dict[int, Slice] = {}
    for one in sorted(pieces, key=place_of):
        whole[one.partition] = replace(whole.get(one.partition, one), end=one.end)
    return list(whole.values())


@dataclass(frozen=True)
class Offset:
    """One offset. `ranges` and `replays` by partition.

    `instance`, `log` and `queue_id` are None before the first bind.
    """

    queue: str
    ranges: Mapping[int, Range] = field(default_factory=dict)
    instance: str | None = None
    log: str | None = None
    replays: Mapping[int, Replay] = field(default_factory=dict)
    queue_id: str | None = None
    prepared: int = 0

    def to_json(self) -> Json:
        """The dict to give to Spark."""
        head: Json = {VERSION_FIELD: VERSION, "queue": self.queue}
        if self.instance is not None:
            head["instance"] = self.instance
        if self.log is not None:
            head["log"] = self.log
        if self.queue_id is not None:
            head["queueId"] = self.queue_id
        head["partitions"] = {
            str(number): _range_to_json(one) for number, one in sorted(self.ranges.items())
        }
        if self.replays:
            head["replays"] = {
                str(number): {"tenure": one.tenure, "from": one.start, "to": one.end}
                for number, one in sorted(self.replays.items())
            }
        if self.prepared:
            head["prepared"] = self.prepared
        return head


def _range_to_json(one: Range) -> Json:
    document: Json = {"epoch": one.epoch, "from": one.start, "to": one.end}
    if one.tenure is not None:
        document["tenure"] = one.tenure
    return document


def _range_of(document: Mapping[str, Any]) -> Range:
    tenure = document.get("tenure")
    return Range(
        int(document["epoch"]),
        str(document["from"]),
        str(document["to"]),
        None if tenure is None else int(tenure),
    )


def offset_of(document: Any, queue: str) -> Offset:
    """The offset that Spark handed back. Raises InvalidOffset if it belongs to another queue."""
    # Other sources have numbers and texts, too.
    version = document.get(VERSION_FIELD) if isinstance(document, dict) else None
    if version is None:
        raise InvalidOffset(
            "the checkpoint was written by another source: choose another checkpointLocation"
        )
    if version != VERSION:
        raise InvalidOffset(
            f"the checkpoint has offsets of version {version}, and this version of counterpoise "
            f"reads version {VERSION}: upgrade counterpoise, or choose another checkpointLocation"
        )
    if document.get("queue") != queue:
        raise InvalidOffset(
            f"the checkpoint belongs to queue {document.get('queue')!r}, and this query reads "
            f"{queue!r}: choose another checkpointLocation"
        )
    try:
        ranges = {int(number): _range_of(one) for number, one in document["partitions"].items()}
        replays = {
            int(number): Replay(int(one["tenure"]), str(one["from"]), str(one["to"]))
            for number, one in document.get("replays", {}).items()
        }
        prepared = int(document.get("prepared", 0))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidOffset(f"the checkpoint has a broken offset: {error!r}") from error
    instance, log, queue_id = (document.get(name) for name in ("instance", "log", "queueId"))
    return Offset(queue, ranges, instance, log, replays, queue_id, prepared)


def slices(start: Offset, end: Offset) -> list[Slice]:
    """What the micro-batch from `start` to `end` reads for processing, by partition number."""
    return [
        Slice(number, one.epoch, one.start, one.end, one.tenure)
        for number, one in sorted(end.ranges.items())
        if one.start != one.end and start.ranges.get(number) != one
    ]


def replay_slices(start: Offset, end: Offset) -> list[Slice]:
    """The history that it reads to restore state. Its rows carry the tenure as their epoch."""
    return [
        Slice(number, one.tenure, one.start, one.end, one.tenure, replay=True)
        for number, one in sorted(end.replays.items())
        if start.replays.get(number) != one
    ]


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
