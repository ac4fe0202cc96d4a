"""Consumers over HTTP that come, work, leave and fall silent, with a journal of their calls.

Every call goes to a random service, so all replicas must agree with each answer. The calls and
answers are a journal, which `tests.judge` judges: an answer must reflect everything that was
acknowledged before its call was sent. The simulation plays more than this, in virtual time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from counterpoise.client import AsyncClient
from counterpoise.errors import FlowGone, ServiceUnavailable
from counterpoise.wire import CommitItem, ReadyItem, ReleaseItem
from tests.judge.journal import Asked, Done, Entry, Line, Told
from tests.judge.judge import Verdict, judge


class Notes:
    """The journal of a crowd, in memory."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.gone: Counter[str] = Counter()
        self._calls = itertools.count(1)

    def write(self, entry: Entry) -> None:
        self.lines.append(Line(time.monotonic(), entry))

    def asked(self) -> int:
        """A call is sent; returns its number."""
        call = next(self._calls)
        self.write(Asked(call))
        return call

    def told(self, call: int, flow_id: str, view: Any) -> None:
        """A call's answer told a flow its view."""
        for seen in view.partitions:
            position = int(seen.position or 0)
            self.write(Told(call, flow_id, seen.partition, seen.epoch, seen.state, position))

    def done(self, call: int, what: str, items: Sequence[Any], results: Any) -> None:
        """A flow's commit or release was answered."""
        for item, result in zip(items, results, strict=True):
            position = None if item.position is None else int(item.position)
            where = (item.partition, item.epoch, position)
            self.write(Done(call, what, *where, result.outcome))

    def verdict(self) -> Verdict:
        return judge(self.lines, None, 0.0)


class Consumer:
    """One application: binds, follows, works, and leaves when told."""

    def __init__(
        self,
        who: str,
        crowd: Crowd,
        rng: random.Random,
        *,
        lease: float,
        warmup: bool = False,
    ) -> None:
        self.who, self.rng = who, rng
        self.queue, self.clients, self.notes = crowd.queue, crowd.clients, crowd.notes
        self.lease, self.warmup = lease, warmup
        self.flow_id, self.token = "", ""
        self.seq = 0
        self.at: dict[tuple[int, int], int] = {}
        self.view: Any = None
        self.silent = self.leaving = False
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self.live())

    async def live(self) -> None:
        """Until it leaves or falls silent."""
        while not (self.leaving or self.silent):
            call = self.notes.asked()
            bound = await self._call(
                lambda client: client.bind(
                    self.queue, self.who, f"i-{self.who}", self.lease, self.warmup
                )
            )
            self.flow_id, self.token = bound.flow_id, bound.flow_token
            self.notes.told(call, self.flow_id, bound.update)
            self.view = bound.update
            try:
                await self._follow()
            except FlowGone as error:
                self.notes.gone[str(error.reason)] += 1
        if self.leaving and not self.silent:
            await self._call(lambda client: client.unbind(self.queue, self.flow_id, self.token))

    async def _follow(self) -> None:
        while not (self.leaving or self.silent):
            await self._work(self.view)
            after, call = self.view.revision, self.notes.asked()
            wait = self.rng.choice([0.1, 0.3, 1.0])
            view = await self._flow_call("poll", after, wait)
            self._told(call, view)
            if self.view.draining and not self.view.active:
                self.leaving = True

    def _told(self, call: int, view: Any) -> None:
        if view is not None:
            self.notes.told(call, self.flow_id, view)
            if view.revision >= self.view.revision:
                self.view = view

    async def _work(self, view: Any) -> None:
        commits: list[CommitItem] = []
        releases: list[ReleaseItem] = []
        warm: list[ReadyItem] = []
        for seen in view.partitions:
            key = (seen.partition, seen.epoch)
            reached = self.at[key] = max(self.at.get(key, 0), int(seen.position or 0))
            luck = self.rng.random()
            if seen.state == "warming":
                if luck < 0.7:
                    warm.append(ReadyItem(*key))
            elif seen.state == "revoking" and luck < 0.6:
                releases.append(ReleaseItem(*key, str(reached + 1)))
            elif seen.state == "retiring" and luck < 0.6:
                releases.append(ReleaseItem(*key, str(reached + 1), True))
            elif luck < 0.3:
                commits.append(CommitItem(*key, str(reached + 1)))
        if commits:
            await self._act("commit", commits)
        if releases:
            await self._act("release", releases)
        if warm:
            await self._flow_call("ready", warm)

    async def _act(self, what: str, items: Sequence[Any]) -> None:
        self.seq += 1
        call = self.notes.asked()
        answer = await self._flow_call(what, items, self.seq)
        self.notes.done(call, what, items, answer.results)
        for item in items:
            self.at[item.partition, item.epoch] = int(item.position)
        self._told(call, answer.update)

    async def drain(self) -> None:
        """Leaves in order: hands over all its partitions first."""
        try:
            await self._flow_call("drain")
        except FlowGone as error:
            self.notes.gone[str(error.reason)] += 1

    async def _flow_call(self, method: str, *arguments: Any) -> Any:
        return await self._call(
            lambda client: getattr(client, method)(self.queue, self.flow_id, self.token, *arguments)
        )

    async def _call(self, call: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
        """Calls a service, and others until one answers."""
        while True:
            try:
                return await call(self.rng.choice(self.clients))
            except ServiceUnavailable:
                await asyncio.sleep(0.05 + 0.2 * self.rng.random())


class Crowd:
    """Consumers by name."""

    def __init__(
        self, clients: Sequence[AsyncClient], queue: str, rng: random.Random, *, lease: float = 10.0
    ) -> None:
        self.clients, self.queue, self.rng, self.lease = clients, queue, rng, lease
        self.notes = Notes()
        self.consumers: list[Consumer] = []
        self.past: list[Consumer] = []
        self.count = 0

    def join(self, *, lease: float | None = None, warmup: bool | None = None) -> Consumer:
        self.count += 1
        consumer = Consumer(
            f"c{self.count}",
            self,
            random.Random(self.rng.random()),
            lease=self.lease if lease is None else lease,
            warmup=self.rng.random() < 0.3 if warmup is None else warmup,
        )
        consumer.start()
        self.consumers.append(consumer)
        return consumer

    def _take(self) -> Consumer | None:
        able = [one for one in self.consumers if one.flow_id and not one.leaving]
        if not able:
            return None
        one = self.rng.choice(able)
        self.consumers.remove(one)
        self.past.append(one)
        return one

    def leave(self) -> None:
        one = self._take()
        if one is not None:
            one.leaving = True

    def fall_silent(self) -> None:
        one = self._take()
        if one is not None:
            one.silent = True

    async def restart(self) -> None:
        """A consumer's process is started again under the same name, while the old one runs on."""
        able = [one for one in self.consumers if one.flow_id and not one.leaving]
        if able:
            old = self.rng.choice(able)
            await self._stop(old)
            old.start()

    async def _stop(self, one: Consumer) -> None:
        assert one.task is not None
        one.task.cancel()
        await asyncio.wait([one.task])

    async def drain(self) -> None:
        one = self._take()
        if one is not None:
            self.consumers.append(one)
            self.past.remove(one)
            await one.drain()

    def check(self) -> None:
        """Raises the error of any consumer."""
        for one in (*self.consumers, *self.past):
            if one.task is not None and one.task.done() and not one.task.cancelled():
                one.task.result()

    async def go_home(self) -> None:
        """All leave."""
        for one in self.consumers:
            one.leaving = True
        await asyncio.gather(
            *(one.task for one in (*self.consumers, *self.past) if one.task is not None),
            return_exceptions=True,
        )
        self.check()
        self.verdict()

    def verdict(self) -> Verdict:
        """The judge's verdict; fails unless every promise was kept."""
        verdict = self.notes.verdict()
        assert verdict.kept, verdict.examples()
        return verdict
