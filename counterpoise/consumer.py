"""`Consumer`: works through a queue in plain Python, sharing it with whoever else does.

    def handle(owned, batch):          # batch: a pyarrow.RecordBatch of counterpoise.logs
        for value in batch.column("value"):
            print(owned.partition, value.as_py())

    consumer = Consumer("flights", handle)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run()

How it goes. Every partition that the flow owns is a *lane*: its epoch and how far it has been
handled. A turn asks the log once where its partitions end, takes a fair share of what is there
from each lane, hands it to `handle` in order, and commits all lanes in one call. Between two
lanes it looks at the flow's view, which the flow keeps current in the background:

- a lane whose epoch is over is dropped where it stands (its commits would be refused anyway);
- a lane that is being revoked has nothing outstanding between two turns of it: it is released at
  once, with its position;
- a retiring lane is worked on to its end, and once the log says that the end is final (nobody can
  append any more), it is released as finished.

A message is handled at least once: what was handled and not committed when a process dies or a
partition is taken by force is handled again by the next owner. Within a partition the order is
kept. A lane knows nothing of the others, so they can be worked on by several workers later; what
a turn takes at most (`max_messages`) is what is in memory at most.

While the service is away the consumer goes on with what it owns; while the log is away it waits.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError, FlowGone, NotBound, ServiceUnavailable
from counterpoise.flow.blocking import Flow
from counterpoise.flow.view import Owned
from counterpoise.logs import Bounds, Log, LogAccessRefused, LogUnavailable, open_log
from counterpoise.wire import ReleaseItem

__all__ = ["Consumer", "Handle"]

Handle: TypeAlias = Callable[[Owned, pa.RecordBatch], Any]

logger = logging.getLogger("counterpoise.consumer")

COMMIT_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 2.0


@dataclass
class Lane:
    """One owned partition: `position` is next to be handled, None until the log has been asked."""

    partition: int
    epoch: int
    position: str | None
    committed: bool = True


class Consumer:
    """A flow, a log and the loop between them. `flow_options` are those of `Flow`."""

    def __init__(
        self,
        queue: str,
        handle: Handle,
        *,
        url: str | None = None,
        token: str | None = None,
        log_url: str | None = None,
        max_messages: int = 1000,
        limit: int | None = None,
        idle_seconds: float = 0.2,
        drain_seconds: float = 60.0,
        **flow_options: Any,
    ) -> None:
        """Nothing is connected before `run`.

        `log_url` (or COUNTERPOISE_LOG_URL) replaces the access to the log that the service gives. A
        turn handles at most `max_messages`; when there are none the log is asked again after
        `idle_seconds`. After `limit` messages `run` ends, after `stop` when all is handed over,
        which may take `drain_seconds`.
        """
        self.flow = Flow(queue, url=url, token=token, **flow_options)
        self.handled = 0
        self._handle = handle
        self._url, self._token = url, token
        self._log_url = log_url or os.environ.get("COUNTERPOISE_LOG_URL")
        self._max_messages = max_messages
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._drain_seconds = drain_seconds
        self._lanes: dict[int, Lane] = {}
        # (partition, epoch) that are over for us, though the view may still have them.
        self._over: set[tuple[int, int]] = set()
        self._log: Log | None = None
        self._access_refused = False
        self._failures = 0
        self._stopping = False
        self._abandoning = False
        self._drain_until: float | None = None
        self._next_look = 0.0

    def stop(self, *, now: bool = False) -> None:
        """Finish the turn, hand everything over in order, and end. Safe in a signal handler.

        `now`: do not wait for successors; what is handled is still committed.
        """
        self._stopping = True
        self._abandoning = self._abandoning or now

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Work until stopped, or until `until` says so after a turn.

        Raises what `handle` raises, what the service refuses the flow with, and `LogError` when
        the log cannot be read from where the queue says.
        """
        try:
            with self.flow:
                while not self._ended():
                    busy = self.turn()
                    if until() or self._left == 0:
                        self.stop(now=True)
                    elif not busy:
                        self._rest()
                if self.flow.status != "gone":
                    self._let_go()
        finally:
            if self._log is not None:
                self._log.close()

    def turn(self) -> bool:
        """Handle a share of what there is; False if there was nothing."""
        self._follow()
        handled = 0
        try:
            log = self._open_log()
            if self._lanes:
                bounds = log.bounds(sorted(self._lanes))
                self._find_starts(bounds)
                handled = self._work(log, bounds)
                self._finish(log, bounds)
            self._failures = 0
        except (LogUnavailable, ServiceUnavailable) as error:
            self._log_failed(error)
        self._settle()
        return handled > 0

    # -------------------------------------------------------------- lanes

    def _follow(self) -> None:
        """Take up what was granted and drop what is over."""
        view = self.flow.partitions
        for lane in list(self._lanes.values()):
            if self._owned(lane) is None:
                del self._lanes[lane.partition]
        self._over = {key for key in self._over if key[0] in view and view[key[0]].epoch == key[1]}
        for number, owned in view.items():
            if number not in self._lanes and (number, owned.epoch) not in self._over:
                self._lanes[number] = Lane(number, owned.epoch, owned.position)

    def _owned(self, lane: Lane) -> Owned | None:
        owned = self.flow.partitions.get(lane.partition)
        return owned if owned is not None and owned.epoch == lane.epoch else None

    def _find_starts(self, bounds: Bounds) -> None:
        """Where lanes begin that have no position yet.

        A start at the end is committed before anything is read: it must not be looked up anew,
        further on, by the next owner.
        """
        for lane in self._lanes.values():
            if lane.position is None:
                latest = self.flow.start == "latest"
                lane.position = (bounds.ends if latest else bounds.starts)[lane.partition]
                lane.committed = not latest
        self._settle()

    @property
    def _left(self) -> int:
        """How many messages the next turn may handle."""
        if self._limit is None:
            return self._max_messages
        return max(0, min(self._max_messages, self._limit - self.handled))

    def _work(self, log: Log, bounds: Bounds) -> int:
        """Handle a fair share of each lane; returns how many messages that were."""
        starts = {
            lane.partition: lane.position
            for lane in self._lanes.values()
            if lane.position is not None and lane.position != bounds.ends[lane.partition]
        }
        if not starts:
            return 0
        most = self._left
        ends = log.limit(starts, most, bounds)
        handled = 0
        for number, start in starts.items():
            lane = self._lanes.get(number)
            if lane is None or ends[number] == start or self._abandoning:
                continue
            owned = self._owned(lane)
            if owned is None or owned.state == "revoking":
                continue
            for batch in log.read(number, start, ends[number], max_messages=most):
                self._handle(owned, batch)
                handled += batch.num_rows
                self.handled += batch.num_rows
            lane.position, lane.committed = ends[number], False
            self._release_revoked()
        return handled

    def _finish(self, log: Log, bounds: Bounds) -> None:
        """Release the retiring lanes that have come to their final end."""
        ended = []
        for lane in self._lanes.values():
            owned = self._owned(lane)
            if owned is None or owned.state != "retiring" or lane.position is None:
                continue
            at_end = log.compare(lane.position, bounds.ends[lane.partition]) >= 0
            if at_end and bounds.is_final(lane.partition):
                ended.append(ReleaseItem(lane.partition, lane.epoch, lane.position, True))
        self._release(ended)

    # -------------------------------------------------------------- telling the service

    def _settle(self) -> None:
        """Release what is being revoked, commit the rest."""
        self._release_revoked()
        due = [
            (lane.partition, lane.epoch, lane.position)
            for lane in self._lanes.values()
            if not lane.committed and lane.position is not None
        ]
        if not due:
            return
        try:
            outcomes = self.flow.commit(due, timeout_seconds=COMMIT_SECONDS)
        except ServiceUnavailable as error:
            logger.warning("could not commit, going on: %s", error)
            return
        for number, _, position in due:
            lane = self._lanes[number]
            if outcomes[number] == "ok":
                lane.committed = lane.position == position
            else:
                self._drop(lane, outcomes[number])

    def _release_revoked(self) -> None:
        revoked = []
        for lane in self._lanes.values():
            owned = self._owned(lane)
            if owned is not None and owned.state == "revoking":
                revoked.append(ReleaseItem(lane.partition, lane.epoch, lane.position))
        self._release(revoked)

    def _release(self, items: Iterable[ReleaseItem]) -> None:
        items = list(items)
        if not items:
            return
        try:
            outcomes = self.flow.release_many(items, timeout_seconds=COMMIT_SECONDS)
        except ServiceUnavailable as error:
            logger.warning("could not release, trying again: %s", error)
            return
        for item in items:
            self._drop(self._lanes[item.partition], outcomes[item.partition])

    def _drop(self, lane: Lane, outcome: str) -> None:
        if outcome == "not_revoking":
            return  # still ours
        if outcome != "ok":
            logger.info("partition %d epoch %d: %s", lane.partition, lane.epoch, outcome)
        del self._lanes[lane.partition]
        self._over.add((lane.partition, lane.epoch))

    # -------------------------------------------------------------- the end

    def _ended(self) -> bool:
        if not self._stopping:
            return False
        if self._abandoning or self.flow.status == "gone" or self.flow.drained:
            return True
        try:
            return self._draining_ended()
        except ServiceUnavailable as error:
            logger.warning("could not drain: %s", error)
        except (FlowGone, NotBound):
            return True
        return self._drain_until is None or time.monotonic() > self._drain_until

    def _draining_ended(self) -> bool:
        """Begin to drain; then whether there is nobody (any more) to hand over to."""
        now = time.monotonic()
        if self._drain_until is None:
            self.flow.drain(self._drain_seconds)
            self._drain_until = now + self._drain_seconds
        if now > self._drain_until:
            return True
        if now < self._next_look:
            return False
        self._next_look = now + 1.0
        with Client(self._url, token=self._token) as client:
            # A drain that has a successor keeps the queue from being Ready.
            return client.rebalance_status(self.flow.queue).status == "Ready"

    def _let_go(self) -> None:
        """Commit what was handled and release what may be released; the rest goes by unbinding."""
        self._settle()
        if self.flow.draining:
            self._release(
                ReleaseItem(lane.partition, lane.epoch, lane.position)
                for lane in self._lanes.values()
                if self._owned(lane) is not None
            )

    # -------------------------------------------------------------- waiting, the log

    def _rest(self) -> None:
        pause = self._idle_seconds
        if self._failures:
            pause = min(LONGEST_PAUSE_SECONDS, 0.1 * 2.0 ** min(self._failures, 10))
        self.flow.wait(pause)

    def _open_log(self) -> Log:
        if self._log is None:
            access = self._log_url or self.flow.log_access(fresh=self._access_refused)
            self._access_refused = False
            if self.flow.log is None:
                raise LogUnavailable("the flow is being bound again")
            self._log = open_log(self.flow.log, access)
        return self._log

    def _log_failed(self, error: CounterpoiseError) -> None:
        """The log is away, or the service that would give access to it."""
        if self._failures == 0:
            logger.warning("the log is not to be reached, waiting: %s", error)
        self._failures += 1
        self._access_refused = isinstance(error, LogAccessRefused)
        if self._log is not None:
            self._log.close()
            self._log = None
