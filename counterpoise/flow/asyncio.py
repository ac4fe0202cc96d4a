"""`AsyncFlow`: `Flow` with await, on the same core. For one event loop.

    async with AsyncFlow("flights", on_granted=granted) as flow:
        while not stopping:
            ...
            await flow.commit([(partition, owned.epoch, position)])
            await flow.wait(0.1)

Callbacks may be plain or async functions. They run one after another in a background task.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from counterpoise.client import AsyncClient
from counterpoise.errors import CounterpoiseError, Unreachable
from counterpoise.flow import programs
from counterpoise.flow.base import BaseFlow
from counterpoise.flow.core import FlowCore
from counterpoise.flow.programs import MayRenew, Pause, Program, Send, Sent
from counterpoise.flow.view import Notice
from counterpoise.lease_time import lease_time
from counterpoise.options import check_time_left
from counterpoise.wire import Condition

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("counterpoise.flow")

_JOIN_SECONDS = 2.0


def _method(
    program: Callable[Concatenate[FlowCore, P], Program[R]],
) -> Callable[Concatenate[AsyncFlow, P], Coroutine[Any, Any, R]]:
    @functools.wraps(program)
    async def method(self: AsyncFlow, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._check_process()
        return await self._run(program(self._core, *args, **kwargs))

    return method


class AsyncFlow(BaseFlow):
    """`Flow` for asyncio, with coroutines.

    What blocks the event loop for longer than the lease costs the partitions, also in a callback.
    """

    def _set_up(self) -> None:
        self._client: AsyncClient | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._teller: asyncio.Task[None] | None = None
        self._to_tell: asyncio.Queue[Notice | None] = asyncio.Queue()
        self._closed = asyncio.Event()
        # Replaced at every change; waiting callers hold the previous one.
        self._change = asyncio.Event()

    # -------------------------------------------------------------- opening and closing

    async def open(self, wait_seconds: float = 30.0) -> Self:
        """Start to bind, and wait until bound; see `Flow.open`."""
        self._check_process()
        check_time_left(wait_seconds=wait_seconds)
        client = AsyncClient(self._url, token=self._token, timeout_seconds=self._timeout_seconds)
        try:
            self._core.open()
        except CounterpoiseError:
            await client.close()
            raise
        self._client = client
        name = f"flow-{self.queue}"
        if self._callbacks.any:
            self._teller = asyncio.create_task(self._tell(), name=f"{name}-tell")
        self._keeper = asyncio.create_task(self._keep(), name=name)
        if wait_seconds > 0:
            try:
                await self._wait_bound(wait_seconds)
            except BaseException:
                await self.close(timeout_seconds=1.0)
                raise
        return self

    async def _wait_bound(self, wait_seconds: float) -> None:
        if not await self._until(lambda: self._core.status != "binding", wait_seconds):
            raise self._core.last_error or Unreachable(
                f"the service did not answer within {wait_seconds:g} s"
            )
        self._core.check()

    async def close(self, *, timeout_seconds: float = 5.0, reason: str | None = None) -> None:
        """Unbind and end the tasks; see `Flow.close`. If this is cancelled, the flow is closed, and
        its lease may have to expire.
        """
        client = self._client
        if self._pid != os.getpid() or client is None or self._closed.is_set():
            return
        check_time_left(timeout_seconds=timeout_seconds)
        self._closed.set()
        reached = False
        others = [
            task
            for task in (self._teller, self._keeper)
            if task is not None and task is not asyncio.current_task()
        ]
        try:
            reached = await self._run(programs.leave(self._core, timeout_seconds, reason))
            self._to_tell.put_nowait(None)
            if others:
                await asyncio.wait(others, timeout=_JOIN_SECONDS)
        finally:
            # Also when it is cancelled: nobody can close it a second time.
            if not reached:
                logger.warning("flow on %s: the unbind did not reach the service", self.queue)
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await client.close()

    async def __aenter__(self) -> Self:
        return await self.open() if self.status == "new" else self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -------------------------------------------------------------- use

    async def wait(self, timeout_seconds: float | None = None, after: int | None = None) -> bool:
        """Wait until the view or the status changes; see `Flow.wait`."""
        self._check_process()
        check_time_left(timeout_seconds=timeout_seconds)
        self._core.check()
        seen = self._core.version if after is None else after
        changed = await self._until(lambda: self._core.version != seen, timeout_seconds)
        self._core.check()
        return changed

    async def report(
        self, conditions: Iterable[Condition], *, timeout_seconds: float | None = None
    ) -> None:
        """Say what is wrong with this consumer's work; see `Flow.report`."""
        self._check_process()
        check_time_left(timeout_seconds=timeout_seconds)
        limit = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        await self._run(self._reports.report(self._core, conditions, lease_time(), limit))

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

    # -------------------------------------------------------------- tasks and effects

    async def _keep(self) -> None:
        try:
            await self._run(programs.keep_bound(self._core))
        except Exception:  # a defect of ours: report it instead of stopping silently
            logger.exception("flow on %s: the background task ended", self.queue)

    async def _tell(self) -> None:
        while (notice := await self._to_tell.get()) is not None:
            call = self._callbacks.call_for(notice, lease_time())
            if call is None:
                continue
            try:
                answer = call()
                if inspect.isawaitable(answer):
                    await answer
            except asyncio.CancelledError:
                # Of this task, or only of what the callback has waited for.
                if self._teller is None or self._teller.cancelling():
                    raise
                logger.exception("flow on %s: a callback was cancelled for %s", self.queue, notice)
            except Exception:
                logger.exception("flow on %s: a callback failed for %s", self.queue, notice)

    async def _sleep(self, seconds: float, until_closed: bool) -> None:
        if not until_closed:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()

    async def _until(self, holds: Callable[[], bool], timeout_seconds: float | None) -> bool:
        """Wait for a change that makes it hold; False if it does not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while not holds():
                    await self._change.wait()
        return holds()

    async def _run(self, program: Program[R]) -> R:
        """Carry out a program's effects."""
        sent: Sent | None = None
        try:
            while True:
                with self._publishing():
                    try:
                        effect = next(program) if sent is None else program.send(sent)
                    except StopIteration as end:
                        result: R = end.value
                        return result
                sent = await self._perform(effect)
        finally:
            with self._publishing():
                program.close()

    @contextmanager
    def _publishing(self) -> Iterator[None]:
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
                self._to_tell.put_nowait(notice)
        if self._core.version != version:
            self._change.set()
            self._change = asyncio.Event()

    async def _perform(self, effect: programs.Effect) -> Sent:
        started = lease_time()
        match effect:
            case Pause(seconds):
                in_background = asyncio.current_task() is self._keeper
                await self._sleep(seconds, until_closed=in_background)
                return self._sent(started)
            case MayRenew():
                return self._sent(started, value=self._may_renew())
            case Send(call):
                assert self._client is not None
                try:
                    return self._sent(started, value=await self._client.send(call))
                except CounterpoiseError as error:
                    return self._sent(started, error=error)
                except Exception as error:
                    if not self._closed.is_set():
                        logger.exception("flow on %s: a call failed", self.queue)
                    return self._sent(started, error=Unreachable(f"the call failed: {error!r}"))
