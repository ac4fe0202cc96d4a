"""The common part of `Consumer` and `AsyncConsumer`: settings, status, and all threads but workers.

See the package's docstring.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypeVar

from counterpoise.client import Client
from counterpoise.consumer.lanes import Lanes
from counterpoise.consumer.letters import Origin
from counterpoise.consumer.message import Failure
from counterpoise.consumer.poison import DeadLetter, Policy, Retry, checked
from counterpoise.consumer.reading import LOG_APPEARS_SECONDS, Reader
from counterpoise.consumer.retry_queue import Keeper, RetryQueue
from counterpoise.consumer.settling import Settler
from counterpoise.consumer.status import LaneStatus, Status, conditions_of
from counterpoise.consumer.watchdog import Watchdog
from counterpoise.consumer.work import Each, Handle, OfRows, Rules, Worker, of_rows
from counterpoise.errors import CounterpoiseError, QueueNotFound
from counterpoise.flow.base import OnOwned, OnRevoking, OnWarming, OnWarmingEnded
from counterpoise.flow.blocking import Flow
from counterpoise.flow.programs import LONGEST_DRAIN_SECONDS
from counterpoise.lease_time import lease_time
from counterpoise.options import (
    SHORTEST_SECONDS,
    check_counts,
    check_seconds,
    suggesting,
)
from counterpoise.waking import Waking

logger = logging.getLogger("counterpoise.consumer")
OnQuarantined: TypeAlias = Callable[[int, Failure], Any]
F = TypeVar("F", bound=Callable[..., Any])
# How often `until` is asked.
WAIT_SECONDS = 0.1
LEAVE_SECONDS = 2.0


class Thread(threading.Thread):
    """A thread with a wait that a signal may interrupt, as Ctrl-C does.

    Before Python 3.13 an interrupted join takes a living thread for ended.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self._done = threading.Event()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._done.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended, after so many seconds at most."""
        if not self._done.wait(seconds):
            return False
        self.join()
        return True


class BaseConsumer:
    """The common part: everything but the workers."""

    @suggesting
    def __init__(
        self,
        queue: str,
        handle: Handle | OfRows | None = None,
        *,
        each: Each | None = None,
        url: str | None = None,
        token: str | None = None,
        log_url: str | None = None,
        order: Literal["partition", "key"] = "partition",
        concurrency: int = 1,
        max_messages: int = 1000,
        max_bytes: int = 64 * 1024 * 1024,
        limit: int | None = None,
        ends: Mapping[int, str] | None = None,
        idle_seconds: float = 0.2,
        commit_seconds: float = 0.5,
        commit_messages: int = 1000,
        drain_seconds: float = 60.0,
        on_poison: Policy = "halt",
        attempts: int = 1,
        backoff_seconds: float = 1.0,
        on_quarantined: OnQuarantined | None = None,
        max_processing_seconds: float | None = 300.0,
        log_appears_seconds: float = LOG_APPEARS_SECONDS,
        client_name: str | None = None,
        instance_id: str | None = None,
        lease_seconds: float = 10.0,
        warmup: bool = False,
        at_once: bool = False,
        keeps_state: bool = False,
        weight: int = 1,
        max_partitions: int | None = None,
        rebind: bool = True,
        timeout_seconds: float = 10.0,
        renew_while: Callable[[], bool] | None = None,
        on_granted: OnOwned = None,
        on_revoking: OnRevoking = None,
        on_retiring: OnOwned = None,
        on_lost: OnOwned = None,
        on_warming: OnWarming = None,
        on_warming_ended: OnWarmingEnded = None,
    ) -> None:
        """Nothing is connected before it runs.

        `handle(owned, batch)` takes batches of Arrow (without pyarrow it raises LogError),
        `each(message)` single messages; with neither, iterate. `order`: of each partition one
        message at a time, or with "key" different keys at once (docs/consumer.md, *Keys in
        parallel*). `concurrency`: how many partitions, or messages, are handled at once.
        `max_messages`: the limit of messages read ahead of one partition, and of a batch;
        `max_bytes`: the limit of all partitions together. `limit`: end after so many messages.
        `ends`: read each of these partitions up to its position, and of others nothing.
        `idle_seconds`: how often a log without new messages is asked that cannot wake the consumer.

        Positions are committed every `commit_seconds`, or after `commit_messages`. After `stop`,
        the handover may take `drain_seconds`. `on_poison`, `attempts`, `backoff_seconds`,
        `on_quarantined`: see `counterpoise.consumer.poison`. `max_processing_seconds`: see
        `...watchdog`; None: no limit. `log_url` (or COUNTERPOISE_LOG_URL) replaces the access to
        the log that the service gives. `log_appears_seconds`: how long to wait for the log of a new
        queue. The others, from `client_name` on, are those of `Flow`.
        """
        self._set_up()
        self._check(handle, each)
        self._check_order(order, each, on_poison)
        check_counts(
            concurrency=concurrency,
            max_messages=max_messages,
            max_bytes=max_bytes,
            commit_messages=commit_messages,
            attempts=attempts,
        )
        if limit is not None:
            check_counts(0, limit=limit)
        check_seconds(
            idle_seconds=idle_seconds,
            commit_seconds=commit_seconds,
            backoff_seconds=backoff_seconds,
            log_appears_seconds=log_appears_seconds,
        )
        check_seconds(0, LONGEST_DRAIN_SECONDS, drain_seconds=drain_seconds)
        if max_processing_seconds is not None:
            check_seconds(SHORTEST_SECONDS, max_processing_seconds=max_processing_seconds)
        self.queue = queue
        self._handle, self._each = of_rows(handle), each
        self._concurrency = concurrency
        self._policy = checked(on_poison)
        self._url, self._token = url, token
        self._renew_while = renew_while
        self.flow = Flow(
            queue,
            url=url,
            token=token,
            client_name=client_name,
            instance_id=instance_id,
            lease_seconds=lease_seconds,
            warmup=warmup,
            at_once=at_once,
            keeps_state=keeps_state,
            weight=weight,
            max_partitions=max_partitions,
            rebind=rebind,
            timeout_seconds=timeout_seconds,
            renew_while=self._may_renew,
            on_granted=self._callback(on_granted),
            on_revoking=self._callback(on_revoking),
            on_retiring=self._callback(on_retiring),
            on_lost=self._callback(on_lost),
            on_warming=self._callback(on_warming),
            on_warming_ended=self._callback(on_warming_ended),
        )
        self._wake_reader, self._wake_settler, self._wake_keeper = Waking(), Waking(), Waking()
        self._retries = (
            RetryQueue(self._policy, url=url, token=token)
            if isinstance(self._policy, Retry) and self._policy.queue is not None
            else None
        )
        self._lanes = Lanes(
            lambda: self.flow.partitions,
            max_messages=max_messages,
            max_bytes=max_bytes,
            limit=limit,
            commit_messages=commit_messages,
            by_key=order == "key",
            wake_reader=self._wake_reader.wake,
            wake_settler=self._wake_settler.wake,
            wake_keeper=None if self._retries is None else self._wake_keeper.wake,
            wake_workers=self._wake_workers,
        )
        self._watchdog = Watchdog(lambda: self.flow.in_doubt, max_processing_seconds)
        self._reader = Reader(
            self.flow,
            self._lanes,
            self._wake_reader,
            log_url=log_url,
            ends=ends,
            idle_seconds=idle_seconds,
            log_appears_seconds=log_appears_seconds,
        )
        self._settler = Settler(
            self.flow,
            self._lanes,
            self._watchdog,
            self._wake_settler,
            client=self._client,
            conditions=lambda: conditions_of(self._lanes, self._reader),
            commit_seconds=commit_seconds,
            drain_seconds=drain_seconds,
        )
        self._rules = Rules(
            self._policy,
            attempts,
            backoff_seconds,
            self._origin,
            self._told(on_quarantined),
            self._fail,
            self._retries,
        )
        self._team: list[Worker] = []
        self._error: BaseException | None = None
        self._begun = False

    # -------------------------------------------------------------- what the shells decide

    def _set_up(self) -> None:
        """Create the shell's own objects."""

    def _check(self, handle: Handle | OfRows | None, each: Each | None) -> None:
        """Raise if these are no functions for it."""
        if handle is not None and each is not None:
            raise ValueError("give either a handler of batches or each=, not both")

    @staticmethod
    def _check_order(order: str, each: Each | None, on_poison: Policy) -> None:
        """Raise if there is no such order, or it does not go with the others."""
        if order not in ("partition", "key"):
            raise ValueError(f'order must be "partition" or "key", not {order!r}')
        retry = on_poison if isinstance(on_poison, Retry) else None
        if order == "partition":
            if retry is not None and retry.queue is None:
                raise ValueError(
                    "without a retry queue, Retry would keep all of a partition waiting: name one, "
                    'Retry("queue", after_seconds=[…]), or give order="key"'
                )
            return
        if each is None:
            raise ValueError(
                'order="key" needs a handler of single messages (each=function): a batch or a loop '
                "has the messages of a partition in their order"
            )
        if retry is not None and retry.queue is not None:
            raise ValueError(
                'order="key" needs no retry queue: a message that failed stays in its partition '
                "and keeps only its key waiting. Give Retry(after_seconds=[…]) without a queue"
            )

    def _callback(self, function: F | None) -> F | None:
        """A callback of the program, as the flow's thread calls it."""
        return function

    def _told(self, on_quarantined: OnQuarantined | None) -> OnQuarantined | None:
        """`on_quarantined`, as workers call it."""
        raise NotImplementedError

    def _wake_workers(self) -> None:
        """Wake workers that do not wait for their lanes. Called with a lock held."""

    # -------------------------------------------------------------- use

    @property
    def handled(self) -> int:
        """The number of handled messages, including dead letters and those that were set aside."""
        return self._lanes.handled

    @property
    def set_aside(self) -> int:
        """How many messages of its partitions wait to be tried again, or behind such a one."""
        return sum(lane.set_aside for lane in self._lanes.snapshot())

    def stop(self, *, now: bool = False) -> None:
        """Finish the present messages, hand everything over in order, and end.

        Safe in a signal handler. Returns at once. `now`: do not wait for successors; handled
        messages are still committed.
        """
        if now:
            self._settler.abandoning = True
            self._lanes.closed = True
        self._settler.stopping = True
        self._wake_settler.wake()

    def resume(self, partition: int) -> bool:
        """Try a quarantined partition again from its position; False if it is not in quarantine."""
        return self._lanes.resume_lane(partition)

    def status(self) -> Status:
        """The present state. Any thread may call it."""
        return Status(
            self.flow.status,
            self.handled,
            sum(worker.dead_lettered for worker in self._team),
            self._watchdog.stuck,
            self._reader.away,
            {lane.partition: LaneStatus.of(lane) for lane in self._lanes.snapshot()},
        )

    # -------------------------------------------------------------- threads

    def _begin(self) -> None:
        if self._begun:
            raise RuntimeError(
                "a consumer runs once, and this one has run: make another "
                f"{type(self).__name__} to go on"
            )
        self._begun = True

    def _must_have_handler(self) -> None:
        if self._handle is None and self._each is None:
            raise TypeError("give the consumer handle= or each=, or iterate over it")

    def _must_be_iterable(self) -> None:
        if self._handle is not None or self._each is not None:
            raise TypeError("this consumer has a handler: call run()")
        if self._concurrency > 1 or self._policy != "halt" or self._rules.attempts > 1:
            raise ValueError(
                "the body of a loop cannot be tried again or shared among workers: "
                "give each=function and call run()"
            )

    def _prepared(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Reach everything that is needed, before the bind; False if stopped before."""
        if isinstance(self._policy, DeadLetter | Retry):
            # The policy object may be that of several consumers.
            bound = self._policy.check(self.queue, self._url, self._token)
            self._rules = replace(self._rules, policy=bound)
        return self._reader.reach(self._client, lambda: self._settler.stopping or until())

    def _client(self) -> Client:
        return Client(self._url, token=self._token)

    @contextmanager
    def _running(self) -> Iterator[list[Thread]]:
        """Bind and run the threads, and those that are added to them meanwhile.

        The first one is the settler's, which ends when all is settled.
        """
        with self.flow:
            threads = [
                self._thread("settler", self._settler.run),
                self._thread("reader", self._reader.run),
                self._thread("lookout", self._look_out),
            ]
            if self._retries is not None:
                threads.append(self._thread("keeper", self._keeper(self._retries).run))
            try:
                yield threads
            finally:
                self.stop(now=True)
                threads[0].wait()
                self._wake_reader.wake()
                self._wake_keeper.wake()
                # First: nothing is committed any more, and others wait for the partitions.
                self.flow.close()
                until = lease_time() + LEAVE_SECONDS
                for thread in threads[1:]:
                    thread.wait(max(0.0, until - lease_time()))
                if self._retries is not None:
                    # After the last message in hand, which may be set aside.
                    self._retries.close()
        if self._error is not None and not self._ended_with_its_queue():
            raise self._error

    def _ended_with_its_queue(self) -> bool:
        """Whether the queue was deleted while it was consumed: an end, and no failure to raise."""
        try:
            self.flow.check()
        except QueueNotFound:
            # Several calls may have been told so, each by an error of its own.
            if isinstance(self._error, QueueNotFound) and self.flow.queue_id is not None:
                logger.warning("queue %s was deleted; the consumer has ended", self.queue)
                return True
        except CounterpoiseError:
            pass
        return False

    def _thread(self, name: str, work: Callable[[], None]) -> Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self._fail(error)

        thread = Thread(f"consumer-{self.queue}-{name}", guarded)
        thread.start()
        return thread

    def _keeper(self, retries: RetryQueue) -> Keeper:
        compare = self._reader.compare
        assert compare is not None, "the log was reached before the bind"
        return Keeper(
            self._origin,
            retries,
            self._lanes,
            self._wake_keeper,
            compare,
            client_name=self.flow.client_name,
            lease_seconds=self.flow.lease_seconds,
        )

    def _worker(self) -> Worker:
        worker = Worker(
            self._lanes, self._watchdog, self._rules, handle=self._handle, each=self._each
        )
        self._team.append(worker)
        return worker

    def _fail(self, error: BaseException) -> None:
        """End because of this error; the first one is raised."""
        if self._error is None and not isinstance(error, GeneratorExit):
            self._error = error
        self.stop(now=True)

    # -------------------------------------------------------------- the watchdog

    def _may_renew(self) -> bool:
        asked = self._renew_while
        return self._watchdog.may_renew(lease_time()) and (asked is None or asked())

    def _look_out(self) -> None:
        """Follow the view when it changes, wake the settler, call the watchdog regularly."""
        tick_seconds = min(0.25, self.flow.lease_seconds / 8)
        while self.flow.status != "gone":
            version = self.flow.version
            # Not by the settler: it may be waiting for the answer to a call.
            self._lanes.follow()
            self._wake_settler.wake()
            try:
                while not self.flow.wait(tick_seconds, after=version):
                    self._look()
            except CounterpoiseError:
                break
            self._look()
        self._wake_settler.wake()

    def _look(self) -> None:
        now = lease_time()
        stuck = self._watchdog.look(now)
        if stuck is not None:
            logger.error("queue %s: %s", self.queue, stuck.report(now))
            self._wake_settler.wake()
        working = self._watchdog.may_work()
        if working and self._lanes.paused:
            self._lanes.follow()
            logger.warning("queue %s: continuing with the partitions owned now", self.queue)
        if working == self._lanes.paused:
            self._lanes.pause(not working)

    def _origin(self) -> Origin:
        flow = self.flow
        return Origin(self.queue, flow.log or "", self._reader.incarnation, flow.queue_id or "")
