"""`Flow`: one consumer's binding to a queue, for programs with threads.

    def granted(owned):
        print("mine from now on:", owned.partition, "from", owned.position)

    with Flow("flights", on_granted=granted) as flow:
        while not stopping:
            for partition, owned in flow.partitions.items():
                position = work(partition, owned)
                flow.commit([(partition, owned.epoch, position)])
                if owned.state == "revoking":
                    flow.release(partition, epoch=owned.epoch)
            flow.wait(0.1)

A background thread binds, polls and renews. Callbacks run on a second thread, one after another in
the order of events, so that a slow callback does not cost the lease. They may call every method of
the flow except `close`. Their exceptions are logged. All methods are safe to call from any thread.
"""

from __future__ import annotations

import functools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, Self, TypeVar

from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError, Unreachable
from counterpoise.flow import programs
from counterpoise.flow.base import BaseFlow
from counterpoise.flow.core import FlowCore
from counterpoise.flow.programs import MayRenew, Pause, Program, Send, Sent
from counterpoise.flow.view import Notice
from counterpoise.lease_time import lease_time
from counterpoise.options import check_time_left, has_run
from counterpoise.wire import Condition

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("counterpoise.flow")

# How long close waits for a running poll or callback before it leaves them behind.
_JOIN_SECONDS = 2.0


def _method(
    program: Callable[Concatenate[FlowCore, P], Program[R]],
) -> Callable[Concatenate[Flow, P], R]:
    @functools.wraps(program)
    def method(self: Flow, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._check_process()
        return self._run(program(self._core, *args, **kwargs))

    return method


class Flow(BaseFlow):
    """A flow with threads. `BaseFlow` has the properties.

    `client_name`: for people. `instance_id`: a consumer that restarts with the same one takes its
    old partitions back at once; random by default. `lease_seconds`: 1..3600. `warmup`: get a notice
    before a partition comes. `at_once`: no holddown if no other flow is bound. `keeps_state`: it
    has state that no handoff takes along, so the queue must be exclusive (`StateKept`). `weight`:
    1..1000, its share of the partitions beside those of others. `max_partitions`: it gets no more.
    `rebind=False`: stay gone after an expired lease. `timeout_seconds`: how long a method tries.
    `renew_while`: called before every poll; while it returns False, the lease is not renewed in the
    background. Callbacks: see `Callbacks`.

    Nothing happens before `open`. Methods raise `ServiceUnavailable` when the service did not
    answer within `timeout_seconds`, and once the flow is gone for good: `FlowGone` with the reason
    `replaced`, `unbound` or `queue_recreated`, `QueueNotFound`, ...
    """

    def _set_up(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closing = threading.Event()
        self._client: Client | None = None
        self._keeper: threading.Thread | None = None
        self._teller: threading.Thread | None = None
        self._to_tell: queue.SimpleQueue[Notice | None] = queue.SimpleQueue()

    # -------------------------------------------------------------- opening and closing

    def open(self, wait_seconds: float = 30.0) -> Self:
        """Start to bind, and wait at most `wait_seconds` (0: do not wait) until bound.

        Raises the service's refusal (`QueueNotFound`, `Invalid`, ...), and `ServiceUnavailable`
        when time is up; then the flow is closed.
        """
        self._check_process()
        check_time_left(wait_seconds=wait_seconds)
        client = Client(self._url, token=self._token, timeout_seconds=self._timeout_seconds)
        with self._lock:
            try:
                self._core.open()
            except CounterpoiseError:
                client.close()
                raise
            self._client = client
        name = f"flow-{self.queue}"
        self._keeper = threading.Thread(target=self._keep, name=name, daemon=True)
        if self._callbacks.any:
            self._teller = threading.Thread(target=self._tell, name=f"{name}-tell", daemon=True)
            self._teller.start()
        self._keeper.start()
        if wait_seconds > 0:
            try:
                self._wait_bound(wait_seconds)
            except BaseException:
                self.close(timeout_seconds=1.0)
                raise
        return self

    def _wait_bound(self, wait_seconds: float) -> None:
        limit = min(wait_seconds, threading.TIMEOUT_MAX)
        with self._changed:
            if not self._changed.wait_for(lambda: self._core.status != "binding", limit):
                raise self._core.last_error or Unreachable(
                    f"the service did not answer within {wait_seconds:g} s"
                )
            self._core.check()

    def close(self, *, timeout_seconds: float = 5.0, reason: str | None = None) -> None:
        """Unbind and stop the threads. Never raises; takes a few seconds at most.

        `reason`: `driver_lost` if the program for which the flow was bound has been killed, for the
        queue's history. If the service cannot be reached within `timeout_seconds`, the lease has to
        expire. In a forked child this does nothing: the flow is the parent's.
        """
        client = self._client
        if self._pid != os.getpid() or client is None or self._closing.is_set():
            return
        check_time_left(timeout_seconds=timeout_seconds)
        self._closing.set()
        if not self._run(programs.leave(self._core, timeout_seconds, reason)):
            logger.warning("flow on %s: the unbind did not reach the service", self.queue)
        self._to_tell.put(None)
        for thread in (self._teller, self._keeper):
            if thread is None or thread is threading.current_thread():
                continue
            if thread.is_alive():  # else it is over, or `open` starts it, and it ends at once
                thread.join(_JOIN_SECONDS)
        client.close()

    def __enter__(self) -> Self:
        return self.open() if self.status == "new" else self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -------------------------------------------------------------- use

    def wait(self, timeout_seconds: float | None = None, after: int | None = None) -> bool:
        """Wait until the view or the status changes; False if it did not in time.

        `after`: a `version` read before, so that a change in between is not missed.
        """
        self._check_process()
        check_time_left(timeout_seconds=timeout_seconds)
        limit = None if timeout_seconds is None else min(timeout_seconds, threading.TIMEOUT_MAX)
        with self._changed:
            self._core.check()
            seen = self._core.version if after is None else after
            changed = self._changed.wait_for(lambda: self._core.version != seen, limit)
            self._core.check()
            return changed

    def report(
        self, conditions: Iterable[Condition], *, timeout_seconds: float | None = None
    ) -> None:
        """Say what is wrong with this consumer's work: all of it, () if nothing is.

        People see it where they see the queue. Sent only when it has changed, so ask often; that
        renews the lease. Nothing is sent while the flow is not bound.
        """
        self._check_process()
        check_time_left(timeout_seconds=timeout_seconds)
        limit = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        self._run(self._reports.report(self._core, conditions, lease_time(), limit))

    commit = _method(programs.commit)
    release = _method(programs.release)
    release_many = _method(programs.release_many)
    children = _method(programs.children)
    children_many = _method(programs.children_many)
    finish = _method(programs.finish)
    ready = _method(programs.ready)
    refresh = _method(programs.refresh)
    drain = _method(programs.drain)
    unbind = _method(programs.unbind)
    log_access = _method(programs.log_access)

    # -------------------------------------------------------------- threads and effects

    def _keep(self) -> None:
        try:
            self._run(programs.keep_bound(self._core))
        except SystemExit:  # a test has killed the flow (counterpoise.testing)
            return
        except Exception:  # a defect of ours: report it instead of stopping silently
            logger.exception("flow on %s: the background thread ended", self.queue)

    def _tell(self) -> None:
        while (notice := self._to_tell.get()) is not None:
            call = self._callbacks.call_for(notice, lease_time())
            if call is None:
                continue
            try:
                has_run(call())
            except BaseException as error:
                # `Killed`, as above, is a kind of SystemExit. Anything else ends this call alone.
                if isinstance(error, SystemExit) and type(error) is not SystemExit:
                    return
                logger.exception("flow on %s: a callback failed for %s", self.queue, notice)

    def _run(self, program: Program[R]) -> R:
        """Carry out a program's effects; the lock is held only between them."""
        sent: Sent | None = None
        try:
            while True:
                with self._publishing():
                    try:
                        effect = next(program) if sent is None else program.send(sent)
                    except StopIteration as end:
                        result: R = end.value
                        return result
                sent = self._perform(effect)
        finally:
            with self._publishing():
                program.close()

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        """Hold the lock; afterwards publish the changes."""
        with self._changed:
            version = self._core.version
            try:
                yield
            finally:
                self._publish(version)

    def _publish(self, version: int) -> None:
        due = self._core.notices.take()
        self._log_lines.write(self._core, due)
        if self._callbacks.any:
            for notice in due:
                self._to_tell.put(notice)
        if self._core.version != version:
            self._changed.notify_all()

    def _perform(self, effect: programs.Effect) -> Sent:
        started = lease_time()
        match effect:
            case Pause(seconds):
                in_background = threading.current_thread() is self._keeper
                (self._closing.wait if in_background else time.sleep)(seconds)
                return self._sent(started)
            case MayRenew():
                return self._sent(started, value=self._may_renew())
            case Send(call):
                assert self._client is not None
                try:
                    return self._sent(started, value=self._client.send(call))
                except CounterpoiseError as error:
                    return self._sent(started, error=error)
                except Exception as error:
                    if not self._closing.is_set():
                        logger.exception("flow on %s: a call failed", self.queue)
                    return self._sent(started, error=Unreachable(f"the call failed: {error!r}"))
