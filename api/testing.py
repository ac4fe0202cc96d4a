"""The whole service in memory, HTTP included, for tests of consumers (`counterpoise.testing`).

A request goes through the same application as in production, without a socket. The service runs in
virtual time on a thread of its own: between two requests nothing happens, and time passes only when
`advance` moves it. So no outcome depends on how fast the machine is.

A caller hands in an `Exchange` and is called back, on that thread, with what the application sends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from api.app import create_app
from broker.settings import load
from broker.testing.database import MemoryDatabase
from broker.testing.loop import VirtualLoop
from broker.testing.process import Process
from broker.testing.service import MemoryBroker
from counterpoise.logs.memory import MemoryLogs

T = TypeVar("T")

# A session of tests may make one service serve for long.
MOST_STEPS = 10**12
# Leases are renewed as often as consumers would at least.
RENEWALS_A_LEASE = 3
SWEEP_SECONDS = 1.0


@dataclass
class Exchange:
    """One request. `sent` is called with each message of the answer (ASGI), then with None."""

    scope: Mapping[str, Any]
    body: bytes
    sent: Callable[[Mapping[str, Any] | None], object]
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    over: bool = False


class _Loop(VirtualLoop):
    """Virtual time for all but logs outside of this process, as Redis: they need real time."""

    def run_in_executor(
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Does it here and now. Meanwhile no time passes."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class MemoryServer:
    """The service at `host` (a name that only this process knows).

    `epoch`: its time in Unix seconds when it starts. `settings`: other settings of the service.
    """

    def __init__(self, host: str, epoch: float, settings: Mapping[str, Any] | None = None) -> None:
        self._loop = _Loop(most_steps=MOST_STEPS)
        self._epoch = epoch
        self.database = MemoryDatabase(self.now)
        self.logs = MemoryLogs(self.now)
        # What a shell has set for a real service is nothing to a test.
        given = load(
            {},
            **{
                "host": "127.0.0.1",
                "allowed_hosts": host,
                # A burst of a test is no flood, and the time in which a rate recovers stands still.
                "flow_requests_per_second": 0.0,
                "address_requests_per_second": 0.0,
                **(settings or {}),
            },
        )
        self.broker = MemoryBroker(given, self.database, Process(self._loop), self.logs)
        self.app = create_app(self.broker, given)
        # It would be for ever, because its time stands still.
        self.app.state.rates.hold_seconds = 0.0
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._failures: list[BaseException] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="counterpoise-memory", daemon=True)

    def now(self) -> float:
        """The service's time in Unix seconds."""
        return self._epoch + self._loop.now

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()
        self._run(self.broker.start())

    def stop(self) -> None:
        """End. Requests that wait are answered as when a service stops."""

        async def end() -> None:
            self.app.state.open_calls.end()
            await self.broker.stop()

        self._run(end(), seconds=60.0)
        self._stopped = True
        self._jobs.put(None)
        self._thread.join()

    # -------------------------------------------------------------- requests, from any thread

    def exchange(
        self,
        scope: Mapping[str, Any],
        body: bytes,
        sent: Callable[[Mapping[str, Any] | None], object],
    ) -> Exchange:
        """Hand in a request."""
        exchange = Exchange(scope, body, sent)
        self._jobs.put(lambda: self._begin(exchange))
        if self._stopped:  # nobody takes it
            sent(None)
        return exchange

    def hang_up(self, exchange: Exchange) -> None:
        """The caller waits no longer."""
        self._jobs.put(lambda: self._hang_up(exchange))

    def _begin(self, exchange: Exchange) -> None:
        if not exchange.over:
            exchange.task = self._loop.create_task(self._answer(exchange))

    def _hang_up(self, exchange: Exchange) -> None:
        exchange.over = True
        if exchange.task is not None:
            exchange.task.cancel()

    async def _answer(self, exchange: Exchange) -> None:
        whole = [{"type": "http.request", "body": exchange.body, "more_body": False}]

        async def receive() -> MutableMapping[str, Any]:
            if whole:
                return whole.pop()
            await self._loop.create_future()
            raise AssertionError("a future without an end")

        async def send(message: MutableMapping[str, Any]) -> None:
            exchange.sent(message)

        try:
            await self.app({**exchange.scope, "app": self.app}, receive, send)
        except asyncio.CancelledError:
            pass
        except Exception as error:
            exchange.sent({"type": "http.failed", "error": error})
        finally:
            exchange.sent(None)

    # -------------------------------------------------------------- time, and what happens in it

    def advance(self, seconds: float, renews: Callable[[str, bool], bool]) -> None:
        """Let so much time pass. `renews`: whether the flow of this id, which a running client
        has bound (it sent a `binder`) or not, renews its lease meanwhile.
        """

        self._call(lambda: self._pass_time(seconds, renews))

    def expire(self, flow_ids: Sequence[str], renews: Callable[[str, bool], bool]) -> None:
        """The leases of these flows end now, and the service notices."""

        def end_leases() -> None:
            # A renewal that waits for others would come after the end.
            self._loop.call_soon(self.broker.replica.renewals.hurry)
            self._loop.run_until(self._loop.now)
            for flow_id in flow_ids:
                if flow_id in self.database.flows:
                    self.database.flows[flow_id].lease_expires_at = self.now()
            # In the same turn: a poll that came before the service notices would renew the lease.
            self._pass_time(
                SWEEP_SECONDS, lambda id, binder: id not in flow_ids and renews(id, binder)
            )

        self._call(end_leases)

    # -------------------------------------------------------------- the thread

    def _pass_time(self, seconds: float, renews: Callable[[str, bool], bool]) -> None:
        """`advance`, in one turn of the thread."""
        end = self._loop.now + seconds
        while True:
            alive = {
                id: flow.values.lease_seconds
                for id, flow in self.database.flows.items()
                if renews(id, flow.values.binder is not None)
            }
            self.database.renew(list(alive))
            shortest = min(alive.values(), default=seconds)
            step = max(0.01, shortest / RENEWALS_A_LEASE)
            if self._loop.now + step >= end:
                break
            self._loop.run_until(self._loop.now + step)
        self._loop.run_until(end)

    def _call(self, work: Callable[[], T]) -> T:
        """Do it on the thread, between two requests, and wait for it."""
        done: Future[T] = Future()

        def job() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self._jobs.put(job)
        result = done.result()
        if self._failures:
            raise self._failures.pop(0)
        return result

    def _run(self, work: Awaitable[T], seconds: float = 0.0) -> T:
        """Run it on the loop, at most so much virtual time, and wait for it."""

        def run() -> T:
            task = self._loop.create_task(_awaited(work))
            end = self._loop.now + seconds
            self._loop.run_until(self._loop.now)
            while not task.done() and self._loop.now < end:
                self._loop.run_until(min(end, self._loop.now + SWEEP_SECONDS))
            result: T = task.result()
            return result

        return self._call(run)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
                self._loop.run_until(self._loop.now)
            except BaseException as error:  # a defect of ours: the next call from outside says it
                self._failures.append(error)


async def _awaited(work: Awaitable[T]) -> T:
    return await work
