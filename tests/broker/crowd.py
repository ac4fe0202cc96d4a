"""Consumers that come, work, go and fall silent, and a checker that knows the rules, not the code.

The same crowd tries replicas in virtual time (`FacadeDoor`) and service processes over HTTP
(`HttpDoor`). Every call goes through a door chosen at random, so whatever one replica told must
hold at the others. The checker looks only at answers: what was acknowledged before a call began,
the call's answer must know.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import broker.core.errors as broker_errors
from broker.calls import views
from counterpoise import errors as client_errors
from counterpoise import wire
from counterpoise.client import AsyncClient
from tests.broker.shell import Service

AGAIN = (broker_errors.Unavailable, client_errors.ServiceUnavailable)
GONE = (broker_errors.FlowGone, client_errors.FlowGone)


class Door(Protocol):
    """A way to one replica."""

    async def bind(self, who: str, instance: str, lease: float, warmup: bool) -> Any: ...
    async def unbind(self, flow_id: str, token: str) -> Any: ...
    async def poll(self, flow_id: str, token: str, after: int, wait: float) -> Any: ...
    async def commit(self, flow_id: str, token: str, seq: int, items: Sequence[Any]) -> Any: ...
    async def release(self, flow_id: str, token: str, seq: int, items: Sequence[Any]) -> Any: ...
    async def ready(self, flow_id: str, token: str, items: Sequence[Any]) -> Any: ...
    async def drain(self, flow_id: str, token: str) -> Any: ...


class FacadeDoor:
    """Straight into a replica's facade."""

    def __init__(self, service: Service, queue: str) -> None:
        self.service, self.queue = service, queue

    async def bind(self, who: str, instance: str, lease: float, warmup: bool) -> Any:
        return await self.service.bind(self.queue, who, instance, lease, warmup)

    async def unbind(self, flow_id: str, token: str) -> Any:
        with suppress(broker_errors.FlowGone):  # Repeating it is no error, as over HTTP.
            await self._known(flow_id, token)
        return await self.service.unbind(self.queue, flow_id)

    async def poll(self, flow_id: str, token: str, after: int, wait: float) -> Any:
        await self._known(flow_id, token)
        return await self.service.wait_update(self.queue, flow_id, after, wait)

    async def commit(self, flow_id: str, token: str, seq: int, items: Sequence[Any]) -> Any:
        await self._known(flow_id, token)
        given = [views.CommitItem(*item) for item in items]
        return await self.service.commit(self.queue, flow_id, seq, given)

    async def release(self, flow_id: str, token: str, seq: int, items: Sequence[Any]) -> Any:
        await self._known(flow_id, token)
        given = [views.ReleaseItem(*item) for item in items]
        return await self.service.release(self.queue, flow_id, seq, given)

    async def ready(self, flow_id: str, token: str, items: Sequence[Any]) -> Any:
        await self._known(flow_id, token)
        given = [views.ReadyItem(*item) for item in items]
        return await self.service.ready(self.queue, flow_id, given)

    async def drain(self, flow_id: str, token: str) -> Any:
        await self._known(flow_id, token)
        return await self.service.drain(self.queue, flow_id, None)

    async def _known(self, flow_id: str, token: str) -> None:
        await self.service.authenticate(self.queue, flow_id, token)


class HttpDoor:
    """Over HTTP, as consumers come."""

    def __init__(self, client: AsyncClient, queue: str) -> None:
        self.client, self.queue = client, queue

    async def bind(self, who: str, instance: str, lease: float, warmup: bool) -> Any:
        return await self.client.bind(self.queue, who, instance, lease, warmup)

    async def unbind(self, flow_id: str, token: str) -> Any:
        return await self.client.unbind(self.queue, flow_id, token)

    async def poll(self, flow_id: str, token: str, after: int, wait: float) -> Any:
        return await self.client.poll(self.queue, flow_id, token, after, wait)

    async def commit(self, flow_id: str, token: str, seq: int, items: Sequence[Any]) -> Any:
        given = [wire.CommitItem(*item) for item in items]
        return await self.client.commit(self.queue, flow_id, token, given, seq)

    async def release(self, flow_id: str, token: str, seq: int, items: Sequence[Any]) -> Any:
        given = [wire.ReleaseItem(*item) for item in items]
        return await self.client.release(self.queue, flow_id, token, given, seq)

    async def ready(self, flow_id: str, token: str, items: Sequence[Any]) -> Any:
        given = [wire.ReadyItem(*item) for item in items]
        return await self.client.ready(self.queue, flow_id, token, given)

    async def drain(self, flow_id: str, token: str) -> Any:
        return await self.client.drain(self.queue, flow_id, token)


@dataclass
class Checker:
    """What the answers have said so far, and whether it fits together."""

    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    gone: Counter[str] = field(default_factory=Counter)

    def known(self) -> tuple[dict[int, tuple[int, int]], dict[int, int]]:
        """What a call that begins now must know."""
        return dict(self.acknowledged), dict(self.epochs)

    def saw(self, flow_id: str, view: Any, known: Any) -> None:
        """A flow was told its view, by a call that began when this was known."""
        acknowledged, epochs = known
        for seen in view.partitions:
            number, epoch, position = seen.partition, seen.epoch, int(seen.position or 0)
            what = f"partition {number} epoch {epoch} at {position}, told {flow_id}"
            if seen.state != "warming":
                owner = self.owners.setdefault((number, epoch), flow_id)
                assert owner == flow_id, f"{what}: {owner} owns it in this epoch"
            assert epoch >= epochs.get(number, 0), f"{what}: epoch {epochs[number]} was told before"
            since, reached = acknowledged.get(number, (0, 0))
            assert position >= reached, f"{what}: {reached} was acknowledged in epoch {since}"
            self.epochs[number] = max(self.epochs.get(number, 0), epoch)

    def acted(self, what: str, items: Sequence[Any], results: Any, known: Any) -> None:
        """A flow's commit or release was answered."""
        _, epochs = known
        for (number, epoch, *position), result in zip(items, results, strict=True):
            self.outcomes[f"{what} {result.outcome}"] += 1
            if result.outcome != "ok" or not position:
                continue
            if what == "commit":
                stale = epoch < epochs.get(number, 0)
                assert not stale, f"a commit to {number} in epoch {epoch} after {epochs[number]}"
            reached = (epoch, int(position[0]))
            self.acknowledged[number] = max(self.acknowledged.get(number, (0, 0)), reached)


class Consumer:
    """One application: binds, follows, works, and leaves as it is told."""

    def __init__(
        self,
        who: str,
        doors: Sequence[Door],
        checker: Checker,
        rng: random.Random,
        *,
        lease: float,
        warmup: bool = False,
    ) -> None:
        self.who, self.doors, self.checker, self.rng = who, doors, checker, rng
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
            known = self.checker.known()
            bound = await self._call(
                lambda door: door.bind(self.who, f"i-{self.who}", self.lease, self.warmup)
            )
            self.flow_id, self.token = bound.flow_id, bound.flow_token
            self.checker.saw(self.flow_id, bound.update, known)
            self.view = bound.update
            try:
                await self._follow()
            except GONE as error:
                self.checker.gone[str(error.reason)] += 1
        if self.leaving and not self.silent:
            await self._call(lambda door: door.unbind(self.flow_id, self.token))

    async def _follow(self) -> None:
        while not (self.leaving or self.silent):
            await self._work(self.view)
            after, known = self.view.revision, self.checker.known()
            wait = self.rng.choice([0.1, 0.3, 1.0])
            view = await self._call(
                lambda door, after=after, wait=wait: door.poll(  # type: ignore[misc]
                    self.flow_id, self.token, after, wait
                )
            )
            self._told(view, known)
            if self.view.draining and not self.view.active:
                self.leaving = True

    def _told(self, view: Any, known: Any) -> None:
        if view is not None:
            self.checker.saw(self.flow_id, view, known)
            if view.revision >= self.view.revision:
                self.view = view

    async def _work(self, view: Any) -> None:
        commits: list[Any] = []
        releases: list[Any] = []
        warm: list[Any] = []
        for seen in view.partitions:
            key = (seen.partition, seen.epoch)
            reached = self.at[key] = max(self.at.get(key, 0), int(seen.position or 0))
            luck = self.rng.random()
            if seen.state == "warming":
                if luck < 0.7:
                    warm.append(key)
            elif seen.state == "revoking" and luck < 0.6:
                releases.append((*key, str(reached + 1)))
            elif seen.state == "retiring" and luck < 0.6:
                releases.append((*key, str(reached + 1), True))
            elif luck < 0.3:
                commits.append((*key, str(reached + 1)))
        if commits:
            await self._act("commit", commits)
        if releases:
            await self._act("release", releases)
        if warm:
            await self._call(lambda door: door.ready(self.flow_id, self.token, warm))

    async def _act(self, what: str, items: list[Any]) -> None:
        self.seq += 1
        seq, known = self.seq, self.checker.known()
        answer = await self._call(
            lambda door: getattr(door, what)(self.flow_id, self.token, seq, items)
        )
        self.checker.acted(what, [item[:3] for item in items], answer.results, known)
        for number, epoch, position, *_ in items:
            self.at[number, epoch] = int(position)
        self._told(answer.update, known)

    async def drain(self) -> None:
        """Leaves in order: hands over all it owns first."""
        try:
            await self._call(lambda door: door.drain(self.flow_id, self.token))
        except GONE as error:
            self.checker.gone[str(error.reason)] += 1

    async def _call(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        """Through any door, again and again until one answers."""
        while True:
            try:
                return await call(self.rng.choice(self.doors))
            except AGAIN:
                await asyncio.sleep(0.05 + 0.2 * self.rng.random())


class Crowd:
    """Consumers by name."""

    def __init__(self, doors: Sequence[Door], rng: random.Random, *, lease: float = 10.0) -> None:
        self.doors, self.rng, self.lease = doors, rng, lease
        self.checker = Checker()
        self.consumers: list[Consumer] = []
        self.past: list[Consumer] = []
        self.count = 0

    def join(self, *, lease: float | None = None, warmup: bool | None = None) -> Consumer:
        self.count += 1
        consumer = Consumer(
            f"c{self.count}",
            self.doors,
            self.checker,
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
        """A consumer's process is started anew under the same name, while the old one goes on."""
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
        """Raises what a consumer met."""
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
