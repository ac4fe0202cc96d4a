"""`Consumer`: workers in threads, or the caller's loop. See the package's docstring.

Beside it: its end in order on signals.
"""

from __future__ import annotations

import inspect
import signal
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType, GeneratorType
from typing import Protocol, Self

from counterpoise.consumer.base import WAIT_SECONDS, BaseConsumer, OnQuarantined, Thread
from counterpoise.consumer.message import Failure, Message
from counterpoise.consumer.work import Each, Handle, OfRows, Worker
from counterpoise.options import has_run

# A worker in a thread of its own asks `until` nothing; messages and the end wake it.
WORKER_WAIT_SECONDS = 5.0


class Stoppable(Protocol):
    """A `Consumer` or an `AsyncConsumer`."""

    def stop(self, *, now: bool = False) -> None: ...


@contextmanager
def stop_on_signals(consumer: Stoppable) -> Iterator[None]:
    """Hand over in order on the first SIGINT, SIGTERM or SIGHUP, end without waiting on the second.

    SIGHUP: the terminal is gone. It stays ignored under nohup. For the main thread; in another
    thread it does nothing. Afterwards the earlier handlers are restored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        consumer.stop(now=signals > 1)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Consumer(BaseConsumer):
    """Processes a queue and shares it with other consumers. Runs once.

    With `concurrency=1` the thread that calls `run` handles the messages, with more each worker is
    a thread.
    """

    _iteration: Callable[[], Generator[Message, None, None] | None] = staticmethod(lambda: None)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Work until stopped, or until `until`, called about ten times a second, returns True.

        Raises RuntimeError the second time, the handler's exception if the policy is to halt, the
        service's refusal of the flow, `LogError` if the log cannot be read from the queue's
        position, and at the end `EndRefused` if what comes after a partition could not be reported.
        """
        self._must_have_handler()
        self._begin()
        if not self._prepared(until):
            return
        with self._running() as threads:
            if self._concurrency > 1:
                self._in_threads(threads, until)
                return
            worker = self._worker()
            while not self._lanes.closed:
                worker.turn(WAIT_SECONDS)
                if until():
                    self.stop(now=True)

    def __iter__(self) -> Iterator[Message]:
        """The messages of all owned partitions; see the package's docstring, *Iterating*."""
        self._must_be_iterable()
        iteration = self._iterate()
        self._iteration = weakref.ref(iteration)
        return iteration

    def _iterate(self) -> Generator[Message, None, None]:
        self._begin()
        if not self._prepared():
            return
        with self._running():
            worker = self._worker()
            while not self._lanes.closed:
                yield from worker.messages(WAIT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(now=True)
        iteration = self._iteration()
        # One in which another thread waits for a message ends by itself.
        if isinstance(iteration, GeneratorType) and not iteration.gi_running:
            iteration.close()

    # -------------------------------------------------------------- workers

    def _check(self, handle: Handle | OfRows | None, each: Each | None) -> None:
        if inspect.iscoroutinefunction(handle) or inspect.iscoroutinefunction(each):
            raise TypeError(
                "a handler of a Consumer must be a plain function; for async ones there is "
                "AsyncConsumer"
            )
        super()._check(handle, each)

    def _told(self, on_quarantined: OnQuarantined | None) -> OnQuarantined | None:
        if on_quarantined is None:
            return None

        def told(partition: int, failure: Failure) -> None:
            has_run(on_quarantined(partition, failure))

        return told

    def _in_threads(self, threads: list[Thread], until: Callable[[], bool]) -> None:
        def work_of(worker: Worker) -> Callable[[], None]:
            def work() -> None:
                while not self._lanes.closed:
                    worker.turn(WORKER_WAIT_SECONDS)

            return work

        settling = threads[0]
        for number in range(self._concurrency):
            threads.append(self._thread(f"worker-{number}", work_of(self._worker())))
        while not settling.wait(WAIT_SECONDS):
            if until():
                self.stop(now=True)
