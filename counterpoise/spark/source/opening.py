"""The start of a query: reach the log, then bind, and fail clearly if that cannot be done.

*Prepare before binding.* A bind takes partitions from others. So the steps that may fail come
first: the queue is looked up, the service is asked for credentials (they do not need a flow), and
the log is opened with them and asked for its partitions. A query that cannot reach its log never
binds.

*Get ready before binding.* For the same reason a new query that joins others runs its first micro-
batch, which reads nothing, before it binds (`prepare`). What its owners release at the bind would
wait for it, for ever if the application gets no executors.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from counterpoise.client import Client
from counterpoise.errors import ServiceUnavailable
from counterpoise.flow import Flow
from counterpoise.logs import Bounds
from counterpoise.spark.channel.channel import Channel, source_end
from counterpoise.spark.channel.query_state import keeps_state
from counterpoise.spark.channel.running_batch import PlanWriter
from counterpoise.spark.channel.running_driver import Driver
from counterpoise.spark.channel.source_channel import POLL_SECONDS
from counterpoise.spark.channel.status import Handoffs
from counterpoise.spark.errors import CannotStart, Unfinished
from counterpoise.spark.offsets import Json, Offset, Place
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.queue_log import PAUSE_SECONDS, QueueLog, ReadAccess, retry_until
from counterpoise.spark.source.flow import bind
from counterpoise.spark.source.leaving import nobody_else
from counterpoise.spark.source.log_partition import LogPartition, log_partition
from counterpoise.spark.source.probe import ask_bounds
from counterpoise.spark.source.query import Consumption, QueueState
from counterpoise.wire import Queue

logger = logging.getLogger("counterpoise.spark")

# A running rebalance may include warm-ups; the wait for them is limited.
_SETTLE_SECONDS = 60.0


@dataclass(frozen=True)
class ReachedLog:
    """A queue and its log, which have answered."""

    queue: Queue
    connection: QueueLog
    bounds: Bounds


@dataclass(frozen=True)
class PreparedBatch:
    """A micro-batch that reads nothing: its end, and a task for each core."""

    end: Json
    groups: Sequence[LogPartition]
    channel: Channel | None = None

    def wait_done(self, stopped: threading.Event) -> bool:
        """Wait until the driver says that it is done. False: `stopped`, or nobody will say it.

        There is no time limit: an application that has no executors yet would take partitions from
        others and not work on them.
        """
        while self.channel is not None and not stopped.wait(POLL_SECONDS):
            said = self.channel.get("done")
            if said is not None and said["offset"] == self.end:
                return True
        return False


@dataclass
class Opened:
    """A running consumption with its options and its log."""

    options: SourceOptions
    consumption: Consumption
    connection: QueueLog

    def aim_at_now(self) -> None:
        """Trigger.AvailableNow: stop at the log's present ends."""
        self.consumption.available_now(self._ends)

    def _ends(self, partitions: list[int]) -> Mapping[int, str]:
        give_up_at = time.monotonic() + _SETTLE_SECONDS
        bounds = retry_until(
            lambda: ask_bounds(self.connection, partitions)[0], self.options, give_up_at
        )
        return bounds.ends


def prepare(
    options: SourceOptions, start: Offset, cores: int, *, home: str | None = None
) -> PreparedBatch | ReachedLog:
    """The first micro-batch of a new query, while its partitions are still with their owners.

    `ReachedLog`: no other flow is bound, so the query takes nothing from others and binds at once,
    with these answers. Raises CannotStart.
    """
    reached = _reach(options)
    queue, connection, bounds = reached.queue, reached.connection, reached.bounds
    if not queue.flow_count:
        return reached
    connection.close()
    assert start.instance is not None
    end = replace(
        start, log=bounds.incarnation, queue_id=queue.id, prepared=start.prepared + 1
    ).to_json()
    groups = [log_partition(connection, options, ())] * cores
    channel = None if home is None else source_end(home, start.instance, None)
    if channel is not None:
        plans = PlanWriter(channel, queue.id, bounds.incarnation, options.url)
        plans.say(start.to_json(), end, [one.slices for one in groups], ())
    return PreparedBatch(end, groups, channel)


def _reach(options: SourceOptions) -> ReachedLog:
    """Raises CannotStart."""
    give_up_at = time.monotonic() + options.start_timeout_seconds
    with Client(options.url) as client:
        queue = retry_until(lambda: client.queue(options.queue), options, give_up_at)
        access = retry_until(lambda: ReadAccess(client, options.queue), options, give_up_at)
        connection = QueueLog(access, options.log_url)
        bounds = retry_until(lambda: ask_bounds(connection, [])[0], options, give_up_at)
    return ReachedLog(queue, connection, bounds)


def open_consumption(
    options: SourceOptions,
    instance_id: str | None,
    cores: int,
    *,
    renew_while: Callable[[], bool],
    home: str | None = None,
    known_as: str | None = None,
    available_now: bool = False,
    prepared: PreparedBatch | None = None,
    reached: ReachedLog | None = None,
) -> Opened:
    """Bind and start. `home`: the directory for talking with the driver. Raises CannotStart.

    `known_as`: the instance in the checkpoint, by which the driver finds this source too.
    `available_now`: a query that ends by itself requests no warm-ups. `prepared`: what it has run.
    `reached`: just now; None: it is to be reached.
    """
    reached = reached or _reach(options)
    queue, connection, bounds = reached.queue, reached.connection, reached.bounds
    kept = home is not None and keeps_state(home, options)
    if home is None:
        _warn_of_state(queue, options)
    wake = threading.Event()
    handoffs = Handoffs()
    try:
        flow = bind(
            options,
            instance_id,
            warmup=options.warmup and not available_now,
            at_once=available_now,  # it ends before others come
            keeps_state=kept and options.state_on_handoff != "lose",
            renew_while=renew_while,
            wake=wake,
            handoffs=handoffs,
        )
    except BaseException:
        connection.close()
        raise
    try:
        if flow.queue_id not in (None, queue.id):
            raise CannotStart(
                f"queue {options.queue!r} was deleted and made again just now; start once more"
            )
        connection.follow(flow)
        channel = None if home is None else source_end(home, flow.instance_id, known_as)
        consumption = Consumption(
            options,
            flow,
            connection,
            Place(options.queue, bounds.incarnation, queue.id),
            wake=wake,
            cores=cores,
            queue=QueueState(
                queue.max_handoff_time,
                settled=lambda: until_settled(options, flow),
                nobody_else=lambda: nobody_else(options),
            ),
            channel=channel,
            handoffs=handoffs,
            driver=Driver(home),
            warm=prepared is not None,
            keeps_state=kept,
        )
        if prepared is not None:
            consumption.begins_at(prepared.end)
        consumption.start()
    except BaseException:
        flow.close(timeout_seconds=1.0)
        connection.close()
        raise
    return Opened(options, consumption, connection)


def _warn_of_state(queue: Queue, options: SourceOptions) -> None:
    """Only the driver knows what a query does with its rows, and this driver is not known."""
    if queue.access_type == "non_exclusive" and options.state_on_handoff == "refuse":
        logger.warning(
            "counterpoise: queue %s is shared, and this session was not registered: a query that "
            "keeps state (groupBy, dropDuplicates, a join of streams) fails in its first "
            "micro-batch, because it would lose rows at each handoff. Call "
            "counterpoise.spark.register(spark) before the stream is loaded, or accept the loss "
            "with .option('stateOnHandoff', 'lose')",
            options.queue,
        )


def until_settled(options: SourceOptions, flow: Flow) -> None:
    """Wait until the queue has finished the rebalance of this bind, and the flow knows the result.

    The service is Ready before its update has arrived; then the flow may seem to own nothing.
    Partitions still on their way when time is up are processed by their owners. Raises Unfinished
    if no flow may process them: in a holddown, or if the service does not answer.
    """
    waits_for = "the service does not answer"
    give_up_at = time.monotonic() + _SETTLE_SECONDS + options.start_timeout_seconds
    with Client(options.url) as client:
        while time.monotonic() < give_up_at and flow.status != "gone":
            try:
                status = client.rebalance_status(options.queue).status
                waits_for = f"it is still in {status}"
                if status == "Ready":
                    waits_for = "the flow was not told yet"
                    bound = client.flows(options.queue)
                    granted = sum(one.partitions for one in bound if one.flow_id == flow.flow_id)
                    if granted == len(flow.partitions):
                        return
            except ServiceUnavailable as error:
                logger.warning("counterpoise: %s", error)
                waits_for = str(error)
            time.sleep(PAUSE_SECONDS)
    if flow.status != "gone" and waits_for != "it is still in Rebalancing":
        raise Unfinished(
            f"queue {options.queue!r}: it could not be found out in time what this query gets: "
            f"{waits_for}. Start the query again: it goes on where it has stopped"
        )
