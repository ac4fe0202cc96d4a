"""`MemoryService`: the service and its log in this process, and what a test does to them.

The service is the real one, HTTP interface included; only its database, its log and its time are in
memory. Its clock stands still until `advance` moves it. So nothing expires because a machine is
slow, and an hour takes about a second.

Consumers run as always, in real threads, by their own clocks: a consumer's `idle_seconds` is real.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from weakref import WeakKeyDictionary

from counterpoise.client import SERVICES, Client
from counterpoise.errors import FlowGone, QueueNotFound
from counterpoise.flow.done_above import DoneAbove
from counterpoise.logs import Message, open_log
from counterpoise.options import check_seconds
from counterpoise.publisher import Publisher
from counterpoise.testing.exchanges import AsyncTransport, BlockingTransport, Flows, Killed
from counterpoise.wire import LogAccess, Queue

if TYPE_CHECKING:
    from counterpoise.consumer import AsyncConsumer, Consumer
    from counterpoise.flow.base import BaseFlow

    Who: TypeAlias = Consumer | AsyncConsumer | BaseFlow | str

GROUP = "counterpoise.testing"
START = datetime(2026, 1, 1, tzinfo=UTC)
JOIN_SECONDS = 10.0

_numbers = itertools.count(1)


def _server_class() -> Any:
    """The service in memory, from the server's wheel."""
    for point in entry_points(group=GROUP, name="service"):
        return point.load()
    raise ModuleNotFoundError(
        "counterpoise.testing runs the service itself, which is not installed: "
        "pip install 'counterpoise[testing]'"
    )


class MemoryService:
    """A service in memory. Use it as a context manager, or call `start` and `close`."""

    def __init__(self, *, start: datetime = START, **settings: Any) -> None:
        """`start`: the time that its clock shows first. `settings`: other settings of the service
        (`docs/settings.md`), by their names in lower case; variables of the environment do not
        count.

        Raises ModuleNotFoundError if the service is not installed.
        """
        number = next(_numbers)
        # No name server knows such a name (RFC 2606).
        host = f"counterpoise-{number}.invalid"
        self.url = f"http://{host}"
        """The address for `Client(url)`, `Consumer(..., url=)` and all others of this process."""
        self._flows = Flows()
        self._killed: WeakKeyDictionary[object, list[str]] = WeakKeyDictionary()
        self._server = _server_class()(host, start.timestamp(), settings)
        self._changed = threading.Condition()
        self._server.logs.appended = self._tell
        self._client: Client | None = None

    def start(self) -> Self:
        """Begin to serve."""
        self._server.start()
        SERVICES[self.url] = self
        self._client = Client(self.url)
        return self

    def close(self) -> None:
        """End. Clients get `ServiceUnavailable` from then on."""
        if self._client is not None:
            self._client.close()
            self._client = None
            SERVICES.pop(self.url, None)
            self._server.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<MemoryService at {self.url}>"

    def transport(self) -> BlockingTransport:
        """See `counterpoise.client.Within`."""
        return BlockingTransport(self._server, self._flows)

    def async_transport(self) -> AsyncTransport:
        """See `counterpoise.client.Within`."""
        return AsyncTransport(self._server, self._flows)

    @property
    def client(self) -> Client:
        """A client of this service, for every other call. Raises RuntimeError unless it runs."""
        if self._client is None:
            raise RuntimeError(
                "this service does not run: use it in its with block, or between start and close"
            )
        return self._client

    def _time(self) -> Any:
        """The server, whose clock moves only while it runs: else a caller would wait for ever."""
        _ = self.client
        return self._server

    # -------------------------------------------------------------- queues and messages

    def create_queue(self, name: str, partitions: int = 4, **settings: Any) -> Queue:
        """Create a queue with a log in memory.

        Unlike in production it rebalances at once (`rebalance_delay` 0). Other settings as for
        `Client.create_queue`.
        """
        return self.client.create_queue(name, partitions, **{"rebalance_delay": 0.0, **settings})

    def publish(self, queue: str, *values: bytes | str | Message, key: str | None = None) -> None:
        """Publish messages in this order; they are in the log when this returns.

        `key` is that of values that are not a `Message`. Raises like `Publisher`.
        """
        with Publisher(queue, client=self.client) as publisher:
            for value in values:
                if isinstance(value, Message):
                    publisher.publish(
                        value.value,
                        key=value.key,
                        headers=value.headers,
                        published_at=value.published_at,
                    )
                else:
                    data = value.encode() if isinstance(value, str) else value
                    publisher.publish(data, key=key)

    def messages(self, queue: str) -> list[dict[str, Any]]:
        """All messages in the queue's log, by partition and position: dicts with `partition`,
        `position`, `key`, `value`, `headers` (None, or pairs of name and value), `published_at`.
        """
        view = self.client.log_access(queue, "read")
        log = open_log(view.log, view.access or LogAccess(self._server.logs.access))
        bounds = log.bounds(range(view.partition_count))
        return [
            row
            for number, start in sorted(bounds.starts.items())
            for rows in log.rows(number, start, bounds.ends[number], max_messages=2**31)
            for row in rows.to_pylist()
        ]

    def committed(self, queue: str) -> dict[int, str | None]:
        """The next position of each partition: `{0: "0", 1: "17"}`; None before the first owner."""
        return {one.partition: one.position for one in self.client.partitions(queue)}

    def lag(self, queue: str) -> int:
        """How many messages of the queue are not committed."""
        return sum(one.lag or 0 for one in self.client.partitions(queue))

    def owners(self, queue: str) -> dict[int, str | None]:
        """The client name of each partition's owner: `{0: "host:4711", 1: None}`."""
        names = {flow.flow_id: flow.client_name for flow in self.client.flows(queue)}
        return {
            one.partition: None if one.owner is None else names.get(one.owner, one.owner)
            for one in self.client.partitions(queue)
        }

    # -------------------------------------------------------------- consumers

    def run(self, consumer: Consumer | AsyncConsumer, timeout_seconds: float = 30.0) -> None:
        """Run a consumer in this thread until it has handled and committed what is in the queue.

        An `AsyncConsumer` gets an event loop of its own; in an async test use
        `await consumer.run(until=…)`.

        Raises what its handler raises, ValueError for a consumer of another service, and
        TimeoutError after so many real seconds: a consumer that passes messages by (quarantine) or
        shares the queue with others does not get there.
        """
        check_seconds(timeout_seconds=timeout_seconds)
        self._check_ours(consumer)
        waiting = self._waiting(consumer.queue)
        deadline = time.monotonic() + timeout_seconds
        late = False

        def done() -> bool:
            nonlocal late
            # What is set aside (`Retry`) will be tried again.
            complete = consumer.handled >= waiting and not consumer.set_aside
            late = not complete and time.monotonic() > deadline
            return late or complete

        _run(consumer, done)
        if late:
            raise TimeoutError(
                f"{consumer.handled} of {waiting} messages were handled within "
                f"{timeout_seconds:g} s; {consumer.status()}"
            )

    @contextmanager
    def running(self, *consumers: Consumer | AsyncConsumer) -> Iterator[None]:
        """Run consumers, each in a thread of its own, until the block ends. Then they commit what
        they have handled and leave; the first error of one that was not killed is raised.
        """
        errors: list[BaseException] = []
        for consumer in consumers:
            self._check_ours(consumer)

        def work(consumer: Consumer | AsyncConsumer) -> None:
            try:
                _run(consumer)
            except Killed:
                pass
            except BaseException as error:
                errors.append(error)
            finally:
                self._tell()

        threads = [threading.Thread(target=work, args=(one,), daemon=True) for one in consumers]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for consumer in consumers:
                consumer.stop(now=True)
            for thread in threads:
                thread.join(JOIN_SECONDS)
            if errors:
                # Before an error of the block, which often follows from it, and is its context.
                raise errors[0]
        if alive := sum(thread.is_alive() for thread in threads):
            raise TimeoutError(
                f"{alive} of {len(threads)} consumers have not ended within {JOIN_SECONDS:g} s: "
                "a handler does not return"
            )

    def wait_until(self, condition: Callable[[], object], timeout_seconds: float = 10.0) -> None:
        """Return as soon as the condition holds; it is tried whenever something happens here.

        Raises TimeoutError after so many real seconds.
        """
        check_seconds(timeout_seconds=timeout_seconds)
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"it did not come about within {timeout_seconds:g} s")
            with self._changed:
                self._changed.wait(0.01)

    def _waiting(self, queue: str) -> int:
        """How many messages of the queue are to be handled."""
        return sum(
            (one.lag or 0) - DoneAbove.of_text(one.done_above).count(int(one.position or 0))
            for one in self.client.partitions(queue)
        )

    def _check_ours(self, consumer: Consumer | AsyncConsumer) -> None:
        if consumer.flow.url.removesuffix("/v1") != self.url:
            raise ValueError(
                f"this consumer calls another service, {consumer.flow.url}: give it url=service.url"
            )

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # -------------------------------------------------------------- what happens to them

    @property
    def now(self) -> datetime:
        """The service's time."""
        return datetime.fromtimestamp(self._server.now(), UTC)

    def advance(self, seconds: float) -> None:
        """Let time pass for the service: holddowns, deadlines and leases end in it.

        Flows that poll (every `Consumer`, `Flow` and `AsyncFlow`) renew their leases meanwhile,
        unless they were killed. A flow that only a `Client` has bound does not.
        """
        check_seconds(seconds=seconds)
        self._time().advance(seconds, self._flows.renews)

    def kill(self, who: Who) -> None:
        """Kill a consumer, as `kill -9` does: nothing that it does arrives any more.

        Its calls raise `Killed`, in asyncio `CancelledError`; the handler that is running ends
        first. The service does not know yet: let its lease run out with `advance` or `expire`.
        `who`: a consumer, a flow, or a flow's id.
        """
        flow_ids = self._ids(who)
        if not isinstance(who, str):
            # It forgets them when its thread ends.
            self._killed[who] = flow_ids
        for flow_id in flow_ids:
            self._flows.kill(flow_id)
        stop = getattr(who, "stop", None)
        if stop is not None:
            stop(now=True)

    def expire(self, who: Who) -> None:
        """A lease runs out: the partitions go to others. One that was not killed binds again."""
        self._time().expire(self._ids(who), self._flows.renews)

    def revoke(self, queue: str) -> Rival:
        """Another consumer joins, so the owners have to hand over a share of their partitions.

        They are asked at once, without a holddown. `Rival.close` gives back what they gave.
        """
        return Rival(self, queue, self._flows)

    def _ids(self, who: Who) -> list[str]:
        if isinstance(who, str):
            return [who]
        if who in self._killed:
            return self._killed[who]
        flow: Any = getattr(who, "flow", who)
        return [] if flow.flow_id is None else [flow.flow_id]


def _run(consumer: Consumer | AsyncConsumer, until: Callable[[], bool] = lambda: False) -> None:
    """Run it in this thread."""
    running = consumer.run(until)
    if running is not None:
        asyncio.run(running)


class Rival:
    """Another consumer of the queue, which takes its share and does nothing with it."""

    def __init__(self, service: MemoryService, queue: str, flows: Flows) -> None:
        self._client, self._queue = service.client, queue
        self._bound = self._client.bind(queue, "rival")
        flows.keep_alive(self._bound.flow_id)
        self._client.rebalance_now(queue)

    @property
    def partitions(self) -> frozenset[int]:
        """What was handed over to it so far."""
        view = self._client.poll(
            self._queue, self._bound.flow_id, self._bound.flow_token, after=0, wait_seconds=0
        )
        return frozenset(one.partition for one in view.partitions) if view else frozenset()

    def close(self) -> None:
        """It leaves, and its partitions go back."""
        try:
            self._client.unbind(self._queue, self._bound.flow_id, self._bound.flow_token)
        except (FlowGone, QueueNotFound):
            return
        self._client.rebalance_now(self._queue)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
