"""A queue as the target of a chain, for the torture of sinks: resized again and again meanwhile."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from broker.logs.ports import LogOwner
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.spark.offsets import Slice
from counterpoise.spark.writer.appender import TargetQueue, append_all
from counterpoise.spark.writer.numbering import ByPosition, Input
from counterpoise.wire import LogAccess, LogView
from tests.counterpoise.spark.sink.places import Rows, batch
from tests.log_support import with_logs

LOG = "builtin:chained"
OWNER = LogOwner("chained", "chained", 1.0)
SOURCE = Input("q-1", "log-1")
COUNTS = range(1, 8)


class Chained:
    """The log of the output queue, as `Place` has it of a sink."""

    def __init__(self, url: str) -> None:
        self._url = url
        with_logs(url, lambda logs: logs.ensure(LOG, COUNTS[-1], OWNER))

    def target(self) -> TargetQueue:
        return TargetQueue(LogView(LOG, COUNTS[-1], LogAccess(self._url), None))

    def write_at_last(
        self, ranges: Sequence[Slice], rows: Rows, *, target: TargetQueue
    ) -> dict[int, str]:
        """Append the rows; the outcome of each range is that of all."""
        done = append_all(target, ByPosition("torture", SOURCE), [batch(rows)])
        outcome = "repeated" if done.duplicates else "written"
        return {one.partition: outcome for one in ranges}

    def rows(self) -> list[dict[str, Any]]:
        """All rows; those of an input partition must be in order within each partition here."""
        found = []
        with closing(PostgresLog("chained", self._url)) as log:
            for number, end in log.bounds(range(COUNTS[-1])).ends.items():
                newest: dict[int, int] = {}
                for one in itertools.chain.from_iterable(
                    part["value"].to_pylist()
                    for part in log.read(number, "0", end, max_messages=10**9)
                ):
                    partition, position = map(int, one.decode().removeprefix("p").split("-"))
                    assert newest.get(partition, -1) < position, f"{one} is out of order"
                    newest[partition] = position
                    found.append({"partition": partition, "position": str(position)})
        return found

    def disturb(self, rng: random.Random) -> None:
        """A resize, as an administrator makes it at any moment."""
        count = rng.choice(COUNTS)
        with_logs(self._url, lambda logs: logs.set_partition_count(LOG, count))
