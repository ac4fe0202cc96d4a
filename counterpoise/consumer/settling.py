"""The settler: a thread that commits positions and releases partitions.

It follows the flow's view, commits by time and number, releases a revoked lane as soon as no worker
handles it, and drains the flow at the end. A flow that an administrator drains ends like
that, too. The settler never waits for the log, and the reader never waits for the service. So if
one of them is unavailable, work that needs only the other continues.

While a worker is stuck, the settler commits once more when all other workers are idle, and then is
silent, because every call would renew the lease. When the watchdog doubts the view, the settler
asks by repeating commits (`counterpoise.consumer.watchdog`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from counterpoise.client import Client
from counterpoise.consumer.lanes import Lanes
from counterpoise.consumer.throttling import Warnings
from counterpoise.consumer.watchdog import Watchdog
from counterpoise.errors import FlowGone, NotBound, ServiceUnavailable, reached_before
from counterpoise.flow.blocking import Flow
from counterpoise.flow.ledger import REFUSALS, Item
from counterpoise.flow.refusals import Refusals, raise_refused
from counterpoise.lease_time import lease_time
from counterpoise.waking import Waking
from counterpoise.wire import ChildrenItem, Condition, ReleaseItem

logger = logging.getLogger("counterpoise.consumer")

COMMIT_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 0.25
ASK_SECONDS = 1.0
# A child's other parent may be reported later, by another flow.
PARENT_SECONDS = 0.5
# For the messages in hand at the end of a drain that took all of its time.
IN_HAND_SECONDS = 2.0


class Settler:
    """Settles until told to stop. One thread calls `run`."""

    def __init__(
        self,
        flow: Flow,
        lanes: Lanes,
        watchdog: Watchdog,
        waking: Waking,
        *,
        client: Callable[[], Client],
        conditions: Callable[[], Iterable[Condition]],
        commit_seconds: float,
        drain_seconds: float,
    ) -> None:
        """`client` makes a client of the service; `conditions`: what is wrong at present."""
        self._flow = flow
        self._lanes = lanes
        self._watchdog = watchdog
        self._waking = waking
        self._client = client
        self._conditions = conditions
        self._commit_seconds = commit_seconds
        self._drain_seconds = drain_seconds
        self._committed_at = lease_time()
        self._asked_at = float("-inf")
        self._ends_not_before = float("-inf")
        self._refusals = Refusals(logger)
        self._warnings = Warnings(logger, flow.queue)
        self._last_word = False
        self._drain_until: float | None = None
        self._next_look = 0.0
        self._told_of_drain = False
        # Requests to end: hand over in order; do not wait for successors.
        self.stopping = False
        self.abandoning = False

    def run(self) -> None:
        """Run until stopped, then until all is settled. Raises the reason if the flow is gone, and
        EndRefused if the service has not taken the end of a partition.
        """
        try:
            while not self._ended():
                if not self.stopping:
                    self._flow.check()
                self._lanes.follow()
                self._turn()
                self._waking.wait(self._wait_seconds())
        finally:
            self._lanes.close()
        # Before the partitions are released: the next owners meet the same.
        refused = self._lanes.refused()
        if not self._lanes.wait_idle(self._seconds_left()):
            logger.warning(
                "queue %s: a message is still being handled; leaving without it", self._flow.queue
            )
        if self._flow.status != "gone":
            self._lanes.follow()
            self._let_go()
            raise_refused(self._flow.queue, refused)

    def _seconds_left(self) -> float:
        """For the messages in hand: what is left of the drain, if there was one."""
        if self._drain_until is None:
            return self._drain_seconds
        least = min(IN_HAND_SECONDS, self._drain_seconds)
        return max(least, self._drain_until - lease_time())

    def _turn(self) -> None:
        if self._watchdog.stuck:
            if not self._last_word and self._lanes.in_work() <= self._watchdog.stuck_count:
                self._last_word = True
                self.settle(at_once=True)
            return
        self._last_word = False
        if self._watchdog.doubtful and lease_time() - self._asked_at >= ASK_SECONDS:
            self._asked_at = lease_time()
            self.settle(everything=True)
        else:
            self.settle()
        self._report()
        for lane in self._lanes.filled():
            logger.error(
                "queue %s: partition %d epoch %d waits at %s for a message that is tried again: "
                "%d messages, and those done above it, are as many as memory may have",
                self._flow.queue,
                lane.partition,
                lane.epoch,
                lane.position,
                lane.waiting_messages,
            )

    def _wait_seconds(self) -> float:
        now = lease_time()
        due = self._lanes.call_due(now)
        longest = min(LONGEST_WAIT_SECONDS, self._commit_seconds or LONGEST_WAIT_SECONDS)
        return longest if due is None else max(0.0, min(longest, due - now))

    # -------------------------------------------------------------- calls

    def settle(self, *, at_once: bool = False, everything: bool = False) -> None:
        """Release what may be released; commit what is due, or with `at_once` all that is done.

        `everything`: also repeat commits, to learn whether the partitions are still owned.
        """
        self._release(self._lanes.to_release())
        self._end(self._lanes.to_end())
        now = lease_time()
        due = (
            at_once
            or everything
            or now - self._committed_at >= self._commit_seconds
            or self._lanes.enough_to_commit()
            or self._lanes.must_say()
        )
        items = self._lanes.to_commit(everything=everything) if due else ()
        if not items:
            return
        self._committed_at = now
        try:
            outcomes = self._flow.commit(
                items,
                timeout_seconds=COMMIT_SECONDS,
            )
        except ServiceUnavailable as error:
            self._warnings.warn("could not commit, continuing", error)
            return
        self._answered(items, outcomes)

    def _report(self) -> None:
        """Say what is wrong, if that has changed."""
        try:
            self._flow.report(self._conditions(), timeout_seconds=COMMIT_SECONDS)
        except ServiceUnavailable as error:
            logger.debug("could not report, trying again: %s", error)

    def _release(self, items: Sequence[ReleaseItem]) -> None:
        if not items:
            return
        try:
            outcomes = self._flow.release_many(items, timeout_seconds=COMMIT_SECONDS)
        except ServiceUnavailable as error:
            self._warnings.warn("could not release, trying again", error)
            return
        self._answered(items, outcomes)

    def _end(self, items: Sequence[ChildrenItem]) -> None:
        if not items or lease_time() < self._ends_not_before:
            return
        try:
            outcomes = self._flow.children_many(items, timeout_seconds=COMMIT_SECONDS)
        except ServiceUnavailable as error:
            self._warnings.warn(
                "could not report what comes after a partition, trying again", error
            )
            return
        if not {"unknown_parent", *REFUSALS}.isdisjoint(outcomes.values()):
            self._ends_not_before = lease_time() + PARENT_SECONDS
        self._answered(items, outcomes)

    def _answered(self, items: Iterable[Item], outcomes: Mapping[int, str]) -> None:
        for item in items:
            outcome = outcomes[item.partition]
            if outcome not in ("ok", "not_revoking", "unknown_parent", *REFUSALS):
                logger.info(
                    "queue %s: partition %d epoch %d: %s",
                    self._flow.queue,
                    item.partition,
                    item.epoch,
                    outcome,
                )
            self._lanes.answered(item, outcome)
        self._refusals.log(self._flow.queue, self._lanes.refused())

    # -------------------------------------------------------------- the end

    def _ended(self) -> bool:
        if self._lanes.reached_limit():
            self.stopping = self.abandoning = True
        if not self.stopping and not self._drained_from_outside():
            return False
        if self.abandoning or self._flow.status == "gone" or self._flow.drained:
            return True
        try:
            return self._draining_ended()
        except ServiceUnavailable as error:
            self._warnings.warn("could not drain", error)
        except (FlowGone, NotBound):
            return True
        if not self.stopping:
            return False
        return self._drain_until is None or lease_time() > self._drain_until

    def _drained_from_outside(self) -> bool:
        """Whether an administrator has drained the flow; told once.

        There is no time of our own then: the service bounds the warm-ups of successors.
        """
        if self._flow.draining and not self._told_of_drain:
            self._told_of_drain = True
            logger.warning(
                "queue %s: drained by an administrator; the consumer hands its partitions over "
                "and ends",
                self._flow.queue,
            )
        return self._flow.draining

    def _draining_ended(self) -> bool:
        """Begin to drain. Returns whether no successor is left."""
        now = lease_time()
        if self.stopping and self._drain_until is None:
            self._flow.drain(self._drain_seconds)
            self._drain_until = now + self._drain_seconds
        if self._drain_until is not None and now > self._drain_until:
            return True
        if now < self._next_look:
            return False
        self._next_look = now + 1.0
        with reached_before(), self._client() as client:
            # While a drain has a successor, the queue is not Ready.
            status = client.rebalance_status(self._flow.queue).status
            return status == "Ready" or (status == "Holddown" and self._is_last(client))

    def _is_last(self, client: Client) -> bool:
        """Whether nobody is left to take over after the holddown.

        Of many flows that leave together, the last two are told so; the others wait.
        """
        first = list(client.flows(self._flow.queue, max_items=3))
        return len(first) < 3 and all(flow.draining for flow in first)

    def _let_go(self) -> None:
        """Commit handled messages and release what may be released; the unbind ends the rest."""
        self.settle(at_once=True)
        if self._flow.draining:
            self._release(self._lanes.to_release(parting=True))
