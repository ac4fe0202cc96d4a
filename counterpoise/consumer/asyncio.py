"""`AsyncConsumer`: `Consumer` for programs with an event loop.

    async def handle(message): ...

    await AsyncConsumer("flights", each=handle, concurrency=20).run()

    async for message in AsyncConsumer("flights"):
        ...

What it shares with `Consumer`
------------------------------
Everything but the waiting of workers. The ledger, the lanes, the reader, the settler, the watchdog
and the keeper of the retry queue are the same objects in the same threads (`BaseConsumer`). So
partitions are read, committed, released and renewed while the loop is busy, or blocked. One more
thread, the *host*, begins and ends them, so whoever waits for the end may be cancelled.

Workers are tasks, `concurrency` of them. A task has its turns with the same `Worker`, whose steps
it takes with `await` (`counterpoise.consumer.work`). So what is handled next, what counts as
handled and what a failure leads to is written once.

- `Invoke`: each message has a task of its own. So its context variables and its cancellation are
  its own, too.
- `Wait`: in a thread, because logs and clients of the policies block.

A *bell* is the bridge: lanes ring it when there is work, and a worker takes a piece from them in
the loop, when it begins it. So a loop that does not run has nothing in hand, and memory is bounded
by the lanes alone.

Why not otherwise: a thread for each message in hand that waits for its coroutine would need no
steps. But then a loop that computes lets each message wait for two switches between threads (5 ms
each), and a thousand messages at once need a thousand threads. And with flow, log and all in the
loop, each log would be written twice, and a handler that blocks the loop would cost the lease.

Cancellation
------------
A message whose handler was cancelled is not handled, whatever the handler raises then: no policy
takes it for poison. If the handler returns nevertheless, it has handled the message. Before `run`
raises `CancelledError`, the handled messages are committed and the flow is unbound. If it is
cancelled once more, it does not wait for that; the host does it all the same. A dead letter that is
being stored is stored to the end first, because nothing may be written for a partition after it was
released.

A handler that is cancelled by itself (it awaited something that was cancelled) has failed like with
any other exception.

The end of the loop
-------------------
If the loop is closed while the consumer runs, no handler ends any more: it commits what was handled
before, and unbinds. A loop that has stopped, or is blocked by something else, may go on. So only
when messages have waited for it for `max_processing_seconds`, the watchdog lets the lease expire.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
import logging
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from types import AsyncGeneratorType
from typing import Any, Self

from counterpoise.consumer.base import LEAVE_SECONDS, WAIT_SECONDS, BaseConsumer, F, OnQuarantined
from counterpoise.consumer.message import Message
from counterpoise.consumer.watchdog import Activity
from counterpoise.consumer.work import Each, Handle, Invoke, OfRows, Steps, Worker
from counterpoise.lease_time import lease_time

logger = logging.getLogger("counterpoise.consumer")
# How long a loop whose body awaits nothing keeps other tasks waiting.
TURN_SECONDS = 0.01
# How often a thread that waits for the loop looks whether it is closed.
LOOK_SECONDS = 1.0
# The answer of a function that is no async one.
PLAIN = object()


class Bell:
    """Wakes the workers that wait in an event loop, one at each ring. Any thread may ring it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, unheard: Activity) -> None:
        """`unheard` tells the watchdog since when the loop has not answered."""
        self._loop = loop
        self._unheard = unheard
        unheard.thread_id = threading.get_ident()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_ringing = False
        # It was rung while no worker waited.
        self._missed = False

    def ring(self) -> None:
        """Wake a worker, as soon as the loop gets to it."""
        if not self._is_ringing:
            self._is_ringing = True
            self._unheard.since = self._unheard.since or lease_time()
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._is_ringing = False
        self.wake()

    def wake(self) -> None:
        """Wake a worker; for the loop's thread."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self._missed = True
        self._unheard.since = 0.0

    async def wait(self) -> None:
        """Wait for a ring. A worker that is woken wakes the next one when it finds work."""
        if not self._missed:
            waiting = self._loop.create_future()
            self._waiting.append(waiting)
            await waiting
        self._missed = False
        self._unheard.since = 0.0


class AsyncConsumer(BaseConsumer):
    """`Consumer` for asyncio, for one event loop. Runs once.

    Its handler is an async function, which `concurrency` tasks of the loop that calls `run` call.
    Callbacks may be plain or async; they run one after another. `renew_while` is a plain one, which
    a thread calls.
    """

    def _set_up(self) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._bell: Bell | None = None
        self._ended = asyncio.Event()
        self._ended_with: BaseException | None = None
        self._handlers: set[asyncio.Future[Any]] = set()
        self._iteration: Callable[[], AsyncGenerator[Message, None] | None] = lambda: None
        self._iterating: asyncio.Task[Any] | None = None

    # -------------------------------------------------------------- use

    async def run(self, until: Callable[[], bool] | None = None) -> None:
        """Work until stopped, or until `until`, called about ten times a second, returns True.

        Raises like `Consumer.run`. If it is cancelled, the handlers are cancelled, and the handled
        messages are committed before it raises.
        """
        self._must_have_handler()
        self._begin()
        async with self._hosted():
            name = f"consumer-{self.queue}"
            workers = [
                asyncio.create_task(self._work(), name=f"{name}-worker-{number}")
                for number in range(self._concurrency)
            ]
            try:
                while not self._ended.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(None if until is None else WAIT_SECONDS):
                            await self._ended.wait()
                    if until is not None and until():
                        self.stop(now=True)
                await asyncio.wait(workers, timeout=LEAVE_SECONDS)
            finally:
                self.stop(now=True)
                if not self._loop.is_closed():
                    for worker in workers:
                        worker.cancel()
                    await asyncio.wait(workers)

    def __aiter__(self) -> AsyncIterator[Message]:
        """The messages of all owned partitions; see the package's docstring, *Iterating*."""
        self._must_be_iterable()
        iteration = self._iterate()
        self._iteration = weakref.ref(iteration)
        return iteration

    async def _iterate(self) -> AsyncGenerator[Message, None]:
        self._begin()
        async with self._hosted() as bell:
            await bell.wait()
            worker = self._worker()
            went_on = lease_time()
            while not self._lanes.closed:
                found = False
                with closing(worker.messages(0)) as messages:
                    for message in messages:
                        found = True
                        if lease_time() - went_on > TURN_SECONDS:
                            await asyncio.sleep(0)
                            went_on = lease_time()
                        self._iterating = asyncio.current_task()
                        yield message
                if not found:
                    await bell.wait()

    async def close(self) -> None:
        """End as after `stop(now=True)`, and wait until the flow is unbound.

        In the loop's own body, or after it was left, the message in hand is not handled. Raises
        RuntimeError in a handler, which would wait for itself.
        """
        if asyncio.current_task() in self._handlers:
            raise RuntimeError("in a handler call stop(now=True): close() waits for the handler")
        self.stop(now=True)
        iteration, by = self._iteration(), self._iterating
        in_body = by is not None and not by.done() and by is not asyncio.current_task()
        # One that waits for a message ends by itself.
        waits = isinstance(iteration, AsyncGeneratorType) and iteration.ag_running
        if iteration is not None and not waits and not in_body:
            await iteration.aclose()
        if self._begun:
            await self._ended.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -------------------------------------------------------------- the host

    @asynccontextmanager
    async def _hosted(self) -> AsyncIterator[Bell]:
        """Run all threads until the end of the block. Raises the error that has ended them."""
        self._loop = asyncio.get_running_loop()
        self._bell = bell = Bell(self._loop, self._watchdog.activity())
        name = f"consumer-{self.queue}-host"
        threading.Thread(target=self._host, name=name, daemon=True).start()
        try:
            yield bell
        finally:
            self.stop(now=True)
            # If this is cancelled, the host ends all the same.
            if not self._loop.is_closed():
                await self._ended.wait()
        if self._ended_with is not None:
            raise self._ended_with

    def _host(self) -> None:
        try:
            if self._prepared(self._loop.is_closed):
                with self._running() as (settling, *_):
                    settling.wait()
        except BaseException as error:
            self._ended_with = error
        finally:
            self._lanes.close()
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._ended.set)

    def _look(self) -> None:
        if self._loop.is_closed() and not self._lanes.deserted:
            logger.error(
                "queue %s: its event loop was closed before the consumer had ended: what was not "
                "handled comes again. Await its run, or leave its async with block, before",
                self.queue,
            )
            self._lanes.desert()
            self.stop(now=True)
        super()._look()

    def _wake_workers(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    # -------------------------------------------------------------- workers

    async def _work(self) -> None:
        bell = self._bell
        assert bell is not None
        try:
            await bell.wait()
            worker = self._worker()  # Before the first piece its rules were not known.
            while not self._lanes.closed:
                _check_cancelled()
                steps = worker.begin(0.0)
                if steps is None:
                    await bell.wait()
                else:
                    bell.wake()
                    await self._take_steps(worker, steps)
        except BaseException as error:
            self._fail(error)
        finally:
            bell.wake()

    async def _take_steps(self, worker: Worker, steps: Steps[None]) -> None:
        """As `counterpoise.consumer.work.take_steps`."""
        try:
            step = next(steps)
            while True:
                try:
                    if type(step) is Invoke:
                        answer = await self._called(worker, step)
                    else:
                        answer = await self._waited(step.function)
                except BaseException as error:
                    step = steps.throw(error)
                    continue
                if answer is PLAIN:
                    raise TypeError(NOT_ASYNC)
                step = steps.send(answer)
        except StopIteration:
            pass
        finally:
            steps.close()

    async def _called(self, worker: Worker, call: Invoke) -> object:
        """Call a function of the program in a task of its own; PLAIN if it is not async."""
        _check_cancelled()
        started = call.function(*call.arguments)
        if not inspect.isawaitable(started):
            return PLAIN
        handler = asyncio.ensure_future(started)
        self._handlers.add(handler)
        worker.activity.coroutine = started
        try:
            await handler
        except asyncio.CancelledError:
            _check_cancelled()
            raise RuntimeError(
                "the handler was cancelled, and not by its consumer: something that it awaited was"
            ) from None
        except Exception:
            _check_cancelled()
            raise
        finally:
            worker.activity.coroutine = None
            self._handlers.discard(handler)
        return None

    async def _waited(self, function: Callable[[], Any]) -> Any:
        """Invoke it in a thread. If this is cancelled, it waits to the end all the same; the next
        `Invoke` is not begun then.
        """
        run = contextvars.copy_context().run
        waiting = self._loop.run_in_executor(None, run, function)
        while not waiting.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([waiting])
        return waiting.result()

    # -------------------------------------------------------------- functions of the program

    def _check(self, handle: Handle | OfRows | None, each: Each | None) -> None:
        if _is_plain(handle) or _is_plain(each):
            raise TypeError(NOT_ASYNC)
        super()._check(handle, each)

    def _callback(self, function: F | None) -> Any:
        if function is None:
            return None

        def call(*arguments: Any) -> None:
            loop = self._loop
            if loop.is_closed():
                return
            told = asyncio.run_coroutine_threadsafe(_tell(function, *arguments), loop)
            while not told.done() and not loop.is_closed():
                concurrent.futures.wait([told], LOOK_SECONDS)
            if told.done():
                told.result()

        return call

    def _told(self, on_quarantined: OnQuarantined | None) -> OnQuarantined | None:
        return None if on_quarantined is None else functools.partial(_tell, on_quarantined)


NOT_ASYNC = (
    "a handler of an AsyncConsumer must be an async function, which does not block the event loop: "
    "write async def (without yield), or take Consumer for a plain function"
)


def _is_plain(function: object) -> bool:
    """Whether it is certainly no async function. A lambda may return what an async one does."""
    inner = inspect.unwrap(function) if callable(function) else None
    while isinstance(inner, functools.partial):
        inner = inner.func
    is_async = inspect.iscoroutinefunction(inner)
    return inspect.isroutine(inner) and not is_async and inner.__name__ != "<lambda>"


async def _tell(function: Callable[..., Any], *arguments: Any) -> None:
    answer = function(*arguments)
    if inspect.isawaitable(answer):
        await answer


def _check_cancelled() -> None:
    """Raise CancelledError if this task was cancelled."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
