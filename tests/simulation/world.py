"""One run: everybody there is, what happens to them, and the end of it."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import broker.calls.flows
import broker.calls.logs
import broker.calls.queues
import broker.coordinator
import broker.core.queue
import broker.core.replay
import broker.replica
from broker.calls import views
from broker.core.errors import BrokerError, Unavailable
from broker.core.transitions import PARTITION_TRANSITIONS, QUEUE_TRANSITIONS
from counterpoise.calls import Call
from counterpoise.errors import CounterpoiseError, Unreachable, error_of
from tests.judge.violation import Violation
from tests.simulation.checker import Checker
from tests.simulation.consumers import AT_ONCE, PATIENCE_SECONDS, Client, Consumer, Done
from tests.simulation.plan import Event, Plan
from tests.simulation.service import QUEUE, Node, Observed, Weather, problem, serve
from tests.world.log import Log
from tests.world.loop import VirtualLoop
from tests.world.store import picture

# No run takes more callbacks than this: nothing comes to an end.
MOST_STEPS = 200_000
# After the last fault everything must be settled within the time that leases, holddowns and
# handoffs may take, the time for the messages, and so long for all to find each other again.
FIND_SECONDS, FIND_LATENCIES = 8.0, 60
# The lease of a consumer that comes when there is nobody else.
LEASE_SECONDS = 3.0
BATCH_SECONDS, BATCH_LATENCIES = 0.5, 12
STEP_SECONDS = 0.5
TICK_SECONDS = 0.25
CLIENT_SECONDS = 10.0
# An undisturbed consumer does something in each of its partitions at least so often; not so where
# calls take so long that they are given up now and then.
PAUSE_SECONDS, PAUSE_LATENCIES = 1.0, 10
GIVEN_UP_LATENCY, GIVEN_UP_SECONDS = 0.1, 8.0
# Between two outages the database answers for so long: each replica stamps meanwhile.
BETWEEN_SECONDS = 1.4
# A replica that was disturbed needs so long to be itself again.
RECOVER_SECONDS = 2.5


@dataclass
class Outcome:
    """What came of a run. `counts`: how often what happened."""

    plan: Plan
    violation: Violation | None
    transcript: list[str]
    counts: Counter[str] = field(default_factory=Counter)


class World:
    """Replicas, consumers, administrators, and the weather between them."""

    def __init__(self, plan: Plan, recording: bool) -> None:
        self.plan = plan
        config = plan.config
        self.loop = loop = VirtualLoop(MOST_STEPS)
        self.lines: list[str] | None = [] if recording else None
        self.trace = self._trace if recording else None
        latency = config.latency[1]
        pause = PAUSE_SECONDS + PAUSE_LATENCIES * latency
        if latency >= GIVEN_UP_LATENCY:
            pause += GIVEN_UP_SECONDS
        self.checker = Checker(0.5 + 25 * latency, pause)
        self.checker.on_violation = loop.failures.append
        self.database = Observed(loop, self.checker)
        if recording:
            self.database.wrote = self._wrote
        self.weather = Weather()
        self.log = Log(self.checker)
        self.rng = random.Random(plan.seed ^ 0x5EED)
        self.ids = 0
        self.counts: Counter[str] = Counter()
        self.nodes: list[Node] = []
        self.consumers: list[Consumer] = []
        self.joined = 0
        self.calm = False

    # What is seen

    def _trace(self, text: str) -> None:
        assert self.lines is not None
        self.lines.append(f"{self.loop.now:8.3f}  {text}")

    def _wrote(self, records: Any) -> None:
        for record in records:
            self._trace(f"      db: {record}")

    def new_id(self, kind: str = "id-") -> str:
        self.ids += 1
        return f"{kind}{self.ids}"

    def failed(self, error: BaseException | None) -> None:
        """The service failed in itself."""
        if self.checker.found is None:
            self.checker.found = Violation(0, f"the service failed: {error!r}")
            self.checker.found.__cause__ = error
            self.loop.failures.append(self.checker.found)

    # The run

    def run(self) -> Violation | None:
        loop, plan = self.loop, self.plan
        for number in range(plan.config.replicas):
            self.nodes.append(self._node(f"r{number}"))
        try:
            loop.run_until(0.6)
            loop.create_task(self._create())
            loop.run_until(1.5)
            began = loop.now
            assert self.log.count, "the queue was not created"
            for event in plan.events:
                loop.call_at(began + event.at, self._happen, event)
            loop.call_later(TICK_SECONDS, self._tick)
            loop.run_until(began + plan.end)
            self._clear_up()
            self._settle()
        except Violation as violation:
            self.checker.found = self.checker.found or violation
        except Exception as error:
            self.failed(error)
        if self.trace is not None:
            self.trace(str(self.checker.found or "all is well"))
        return self.checker.found

    def _settle(self) -> None:
        """Plays until there is nothing left to do. Raises Violation if that takes too long."""
        loop, checker = self.loop, self.checker
        calm, granted = loop.now, checker.granted_seconds()
        loop.run_until(calm + STEP_SECONDS)
        latency = self.plan.config.latency[1]
        batches = checker.backlog() / AT_ONCE
        seconds = max(LEASE_SECONDS, checker.under_way_seconds()) + PATIENCE_SECONDS
        seconds += FIND_SECONDS + FIND_LATENCIES * latency
        seconds += batches * (BATCH_SECONDS + BATCH_LATENCIES * latency)
        while (left := self._unsettled()) is not None:
            most = seconds + checker.granted_seconds() - granted
            if loop.now > calm + most:
                promise, text = left
                raise Violation(promise, f"{most:.1f} s after the last fault: {text}")
            loop.run_until(loop.now + STEP_SECONDS)
        self._compare()

    def _compare(self) -> None:
        """What each replica has in memory is what is stored. Raises Violation."""
        (queue_id,) = self.database.queues
        stored = self.database.load(queue_id)
        for node in self.nodes:
            coordinator = node.replica._coordinators.get(queue_id)
            memory = coordinator.queue if coordinator is not None else None
            if memory is None or memory.revision != stored.revision:
                continue
            if picture(memory) != picture(stored):
                text = f"{node.name} has {picture(memory)}, but {picture(stored)} is stored"
                raise Violation(7, text)

    async def _create(self) -> None:
        spec = views.QueueSpec(QUEUE, **self.plan.config.settings)
        await self.nodes[0].calls.queues.create(spec)

    def _node(self, name: str) -> Node:
        rng = random.Random(hash((self.plan.seed, len(self.nodes), self.ids)))
        config, weather = self.plan.config, self.weather
        node = Node(name, rng, self.loop, self.database, self.log, weather, config, self._commit_id)
        node.on_crash = self._crashed
        node.disturbed = self._disturb
        node.on_stalled = self._stalled
        return node

    def _stalled(self) -> None:
        self.counts["stalled commits"] += 1

    def _commit_id(self) -> str:
        return self.new_id("t")

    def _tick(self) -> None:
        now = self.database.clock()
        self.checker.tick(now)
        self.checker.worked(now, self._able())
        self.loop.call_later(TICK_SECONDS, self._tick)

    def _able(self) -> set[str]:
        """The flows whose processes can be expected to get on with their work."""
        now = self.loop.now
        return {
            one.core.bound.flow_id
            for one in self.consumers
            if one.core.bound is not None
            and not (one.dead or one.frozen or one.leaving or one.ended or one.stubborn)
            and one.hindered_until < now
        }

    def _clear_up(self) -> None:
        """Nothing goes wrong from here on."""
        self.calm = True
        self.weather.clear()
        self._disturb(0.0)
        for place, node in enumerate(self.nodes):
            node.cut = False
            node.next_commit = None
            node.thaw()
            if node.dead:
                self.nodes[place] = self._node(node.name)
            node.next_commit = None
        for consumer in self.consumers:
            consumer.stubborn = consumer.cold = 0.0
            consumer.thaw()
        if not any(self._stays(consumer) for consumer in self.consumers):
            self._join(LEASE_SECONDS, False)
        if self.trace is not None:
            self.trace("-- from here on nothing goes wrong --")

    def _stays(self, consumer: Consumer) -> bool:
        gone = consumer.dead or consumer.leaving or consumer.core.status == "gone"
        instances = [one.instance for one in self.consumers if one is not consumer]
        return not (gone or consumer.core.view.draining or consumer.instance in instances)

    def _unsettled(self) -> tuple[int, str] | None:
        if not any(self._stays(one) for one in self.consumers) and not self._anybody():
            self._join(LEASE_SECONDS, False)
        left = self.checker.unsettled()
        if left is not None:
            return left
        known = {}
        for consumer in self.consumers:
            core = consumer.core
            if not consumer.dead and core.bound is not None:
                known[core.bound.flow_id] = core.view
        for flow_id in self.checker.flows:
            if flow_id not in known:
                return 9, f"{flow_id} is bound, and nobody is behind it"
        for number, row in self.checker.partitions.items():
            if row.owner is not None:
                owned = known[row.owner].partitions.get(number)
                if owned is None or (owned.epoch, owned.state) != (row.epoch, row.state):
                    return 9, f"{row.owner} does not know that it owns p{number}"
        return None

    def _anybody(self) -> bool:
        """Whether anybody is there who will process what there is."""
        return any(
            not one.dead
            and not one.leaving
            and one.core.status != "gone"
            and not one.core.view.draining
            for one in self.consumers
        )

    # The network

    def send(self, process: Client, call: Call[Any], done: Done) -> None:
        """A client's call, and its answer if there is one in time."""
        rng, weather, loop = process.rng, self.weather, self.loop
        waiting = [True]
        if call.method == "DELETE":
            self.checker.sent("unbind", call.path.split("/")[4])
        if not self.plan.config.sticky:
            process.door = rng.randrange(100)
        node = self.nodes[process.door % len(self.nodes)]

        def end(value: Any, error: CounterpoiseError | None) -> None:
            if waiting:
                waiting.clear()
                if error is not None:
                    process.door = rng.randrange(100)
                done(value, error)

        def answer(value: Any, error: CounterpoiseError | None) -> None:
            fate = rng.random()
            if fate >= weather.lost / 2:
                slow = 1 + 30 * (fate > 1 - weather.lost / 2)
                process.later(node.latency() * slow, end, value, error)

        timeout = call.timeout_seconds or CLIENT_SECONDS
        process.later(timeout, end, None, Unreachable(f"no answer within {timeout:g} s"))
        fate = rng.random()
        if self.trace is not None:
            body = call.body or call.query or ""
            lost = " (lost)" if fate < weather.lost / 2 else ""
            self.trace(f"{process.name} -> {node.name}{lost} {call.method} {call.path} {body}")
        if fate < weather.lost / 2:
            return
        slow = 1 + 30 * (fate > 1 - weather.lost / 2)
        loop.call_later(node.latency() * slow, self._deliver, node, process.name, call, answer)
        if rng.random() < weather.doubles:
            late = rng.choice((0.05, 0.5, 2.0, 5.0))
            self.counts["doubled"] += 1
            loop.call_later(
                late, self._deliver, node, process.name + " again", call, lambda value, error: None
            )

    def _deliver(self, node: Node, sender: str, call: Call[Any], answer: Done) -> None:
        if node.dead or not node.ready:
            answer(None, Unreachable("refused"))
        else:
            node.do(lambda: self.loop.create_task(self._serve(node, sender, call, answer)))

    async def _serve(self, node: Node, sender: str, call: Call[Any], answer: Done) -> None:
        try:
            body = await serve(node.calls, call, self.checker)
        except BrokerError as error:
            told: Any = error
            body = None
            parts = call.path.split("/")
            if len(parts) > 4:
                self.checker.refused(parts[4], error.code)
        except Exception as error:
            self.failed(error)
            return
        else:
            told = None
        await node.alive()
        if self.trace is not None and call.method != "GET":
            said = _short(body) if told is None else f"{told.code} {told.detail[:60]}"
            self.trace(f"{node.name} answers {sender} {call.path.split('/')[-1]}: {said}")
        elif self.trace is not None and (body is not None or told is not None):
            said = _short(body) if told is None else told.code
            self.trace(f"{node.name} tells {sender} {said}")
        if told is not None:
            self.counts[f"answer {told.code}"] += 1
            status, document = problem(told)
            retry = told.retry_after_seconds if isinstance(told, Unavailable) else None
            answer(None, error_of(status, document, retry))
        else:
            answer(call.parse(body), None)

    # What happens

    def _happen(self, event: Event) -> None:
        self.counts[f"event {event.kind}"] += 1
        if self.trace is not None:
            self.trace(f"** {event.kind} {' '.join(map(str, event.args))}")
        getattr(self, "_on_" + event.kind.replace(" ", "_"))(*event.args)

    def _disturb(self, seconds: float) -> None:
        self.checker.disturbed(self.database.clock() + seconds + RECOVER_SECONDS)

    def _later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Unless everything was put right before."""

        def unless_calm() -> None:
            if not self.calm:
                callback(*args)

        self.loop.call_later(seconds, unless_calm)

    # Consumers

    def _join(self, lease: float, warmup: bool, instance: str | None = None) -> Consumer:
        self.joined += 1
        name = f"c{self.joined}"
        consumer = Consumer(
            name,
            instance or f"i{self.joined}",
            lease,
            warmup,
            random.Random(hash((self.plan.seed, 77, self.joined))),
            self.loop,
            self,
            self.log,
            self.checker,
            self.plan.config,
            self.trace,
        )
        self.consumers.append(consumer)
        consumer.open()
        return consumer

    def _one(self, who: int) -> Consumer | None:
        there = [one for one in self.consumers if not (one.dead or one.leaving or one.ended)]
        return there[who % len(there)] if there else None

    def _on_join(self, lease: float, warmup: bool) -> None:
        if sum(not (one.dead or one.ended) for one in self.consumers) < 7:
            self._join(lease, warmup)

    def _on_leave(self, who: int) -> None:
        one = self._one(who)
        if one is not None:
            one.do(one.leave)

    def _on_drain(self, who: int, seconds: float | None) -> None:
        one = self._one(who)
        if one is not None:
            one.do(one.drain, seconds)

    def _on_expel(self, who: int, gently: bool) -> None:
        """By an administrator."""
        one = self._one(who)
        flow_id = one.core.bound.flow_id if one is not None and one.core.bound else None
        if flow_id is None:
            return
        if gently:
            self._administer(lambda calls: calls.flows.drain(QUEUE, flow_id, None, by_flow=False))
        else:
            self.checker.sent("unbind", flow_id)
            self._administer(lambda calls: calls.flows.unbind(QUEUE, flow_id))

    def _on_replace(self, who: int, seconds: float) -> None:
        """One leaves, another comes."""
        one = self._one(who)
        if one is not None:
            one.do(one.leave)
            self._later(seconds, self._on_join, one.lease, one.warmup)

    def _on_freeze(self, who: int, seconds: float) -> None:
        one = self._one(who)
        if one is not None and not one.frozen:
            one.frozen = True
            self._later(seconds, one.thaw)

    def _on_kill(self, who: int) -> None:
        one = self._one(who)
        if one is not None:
            one.dead = True

    def _on_restart(self, who: int, seconds: float) -> None:
        one = self._one(who)
        if one is not None:
            one.dead = True
            self.loop.call_later(seconds, self._join, one.lease, one.warmup, one.instance)

    def _on_restart_over(self, who: int) -> None:
        one = self._one(who)
        if one is not None:
            self._join(one.lease, one.warmup, one.instance)

    def _on_stubborn(self, who: int, seconds: float) -> None:
        one = self._one(who)
        if one is not None:
            one.stubborn = seconds

    def _on_cold(self, who: int, seconds: float) -> None:
        one = self._one(who)
        if one is not None:
            one.cold = seconds

    def _on_publish(self, count: int, salt: int) -> None:
        rng = random.Random(salt)
        for _ in range(count):
            if self.log.count:
                self.log.append(rng.randrange(self.log.count))
        for one in self.consumers:
            if not one.dead:
                one.later(0.05, one.poke)

    # Administrators

    def _administer(self, work: Callable[[Any], Awaitable[Any]], *what: Any) -> None:
        """`what`: what is asked for, see `Asked.begin`."""
        self.loop.create_task(self._persist(work, what))

    async def _persist(self, work: Callable[[Any], Awaitable[Any]], what: tuple[Any, ...]) -> None:
        """An administrator who tries again until there is an answer."""
        asked = self.checker.asked
        while True:
            node = self.rng.choice(self.nodes)
            if node.dead or not node.ready:
                await self.loop.sleep(0.3)
                continue

            async def attempt(node: Node = node) -> bool:
                await node.alive()
                request = asked.begin(*what) if what else 0
                node.asked.add(request)
                try:
                    await work(node.calls)
                except Unavailable:
                    asked.end(request)
                    return False
                except BrokerError as error:
                    self.counts[f"refused {error.code}"] += 1
                except Exception as error:
                    self.failed(error)
                asked.end(request)
                await node.alive()
                return True

            task = self.loop.create_task(attempt())
            await asyncio.wait([task], timeout=3.0)
            if task.done() and task.result():
                return
            await self.loop.sleep(0.3)

    def _change(self, changes: dict[str, Any], discard: bool = False) -> None:
        self._administer(
            lambda calls: calls.queues.change(QUEUE, changes, discard), "change", changes, discard
        )

    def _on_resize(self, count: int, discard: bool) -> None:
        self._change({"partition_count": count}, discard)

    _on_discard = _on_resize

    def _on_flip(self, count: int, pause: float) -> None:
        """There and back and there again, with messages in between."""
        before = self.checker.queue["partition_count"]
        for turn, wanted in enumerate((count, before, count)):
            self._later(2 * turn * pause, self._on_resize, wanted, False)
            self._later((2 * turn + 1) * pause, self._on_publish, 6, turn)

    def _on_settings(self, name: str, value: Any) -> None:
        self._change({name: value})

    def _on_access(self, access_type: str) -> None:
        self._change({"access_type": access_type})

    def _on_rebalance(self) -> None:
        self._administer(lambda calls: calls.queues.rebalance(QUEUE), "rebalance")

    def _on_positions(self, everywhere: bool, who: int) -> None:
        """Back to where the log begins, or a little."""
        existing = sorted(n for n, row in self.checker.partitions.items() if row.state != "removed")
        if everywhere:
            self._administer(lambda calls: calls.logs.set_positions(QUEUE, "earliest"), "positions")
            return
        number = existing[who % len(existing)]
        first, last = self.log.firsts.get(number, 0), self.checker.positions.get(number, 0)
        back = (first + max(first, last)) // 2
        where = {number: str(back)}
        self._administer(
            lambda calls: calls.logs.set_positions(QUEUE, where), "positions", {number: back}
        )

    # Replicas

    def _replica(self, which: int) -> Node | None:
        up = [node for node in self.nodes if not node.dead]
        return up[which % len(up)] if up else None

    def _crashed(self, node: Node) -> None:
        """Somebody starts it again, as another process."""
        if self.trace is not None:
            self.trace(f"{node.name} is down")
        for request in node.asked:
            self.checker.asked.end(request)
        self._disturb(node.away_seconds)
        self.loop.call_later(node.away_seconds, self._again, node)

    def _again(self, node: Node) -> None:
        if node in self.nodes:
            self._disturb(0.0)
            self.nodes[self.nodes.index(node)] = self._node(node.name)

    def _on_crash(self, which: int, seconds: float) -> None:
        node = self._replica(which)
        if node is not None:
            node.away_seconds = seconds
            node.crash()

    def _on_stop(self, which: int, seconds: float) -> None:
        node = self._replica(which)
        if node is not None:
            node.away_seconds = seconds
            self.loop.create_task(node.stop())
            self._disturb(3.0)
            # Whoever asked it to stop does not wait for ever.
            self._later(2.0, node.crash)

    def _at_next_commit(self, which: int, seconds: float, fate: str) -> None:
        node = self._replica(which)
        if node is not None and node.next_commit is None:
            node.next_commit, node.away_seconds = fate, seconds

    def _on_crash_before(self, which: int, seconds: float) -> None:
        self._at_next_commit(which, seconds, "crash before")

    def _on_crash_after(self, which: int, seconds: float) -> None:
        self._at_next_commit(which, seconds, "crash after")

    def _on_unknown(self, which: int) -> None:
        self._at_next_commit(which, 1.0, "unknown")

    def _on_stall(self, seconds: float) -> None:
        """The next commit that begins handoffs takes long; all else goes on."""
        self.weather.stall_seconds = seconds

    def _on_freeze_node(self, which: int, seconds: float) -> None:
        node = self._replica(which)
        if node is not None:
            node.freeze()
            self._disturb(seconds)
            self._later(seconds, node.thaw)

    def _on_blackout(self, seconds: float, with_memory: bool) -> None:
        """All replicas at once."""
        for node in list(self.nodes):
            if node.dead:
                continue
            node.away_seconds = seconds
            if with_memory:
                node.freeze()
                self._later(seconds, node.thaw)
            else:
                node.crash()
        self._disturb(seconds)

    def _on_outages(self, first: float, second: float) -> None:
        """When handoffs begin next, nobody serves, and again before anybody has committed."""

        def begin() -> None:
            if self.calm:
                return
            between = first + BETWEEN_SECONDS
            self._weather(between + second, "away", True, False)
            self._later(first, setattr, self.weather, "mute", True)
            self._later(first, setattr, self.weather, "away", False)
            self._later(between, setattr, self.weather, "away", True)
            self._later(between, setattr, self.weather, "mute", False)

        self.database.on_handoffs = begin

    def _on_clock_step(self, seconds: float) -> None:
        """Whoever looks at it next, a second later at most, finds the database's clock set."""
        self.database.clock_set_by += seconds
        self.checker.clock_set(seconds, self.database.clock())
        self._disturb(0.0)

    def _on_interrupt(self, which: int) -> None:
        node = self._replica(which)
        if node is not None:
            self.checker.hindered(self.database.clock() + RECOVER_SECONDS)
            node.store.interrupt()

    # The weather

    def _weather(self, seconds: float, name: str, value: Any, normal: Any) -> None:
        setattr(self.weather, name, value)
        self._disturb(seconds)
        self._later(seconds, setattr, self.weather, name, normal)

    def _on_cut(self, which: int, seconds: float) -> None:
        node = self._replica(which)
        if node is not None:
            node.cut = True
            self._disturb(seconds)
            self._later(seconds, setattr, node, "cut", False)

    def _on_away(self, seconds: float) -> None:
        self._weather(seconds, "away", True, False)

    _on_long_away = _on_away

    def _on_slow(self, factor: float, seconds: float) -> None:
        self._weather(seconds, "slow", min(factor, 1.0 / self.plan.config.latency[1]), 1.0)
        self._disturb(seconds + 3.0)

    def _on_refuses(self, chance: float, seconds: float) -> None:
        self._weather(seconds, "refuses", chance, 0.0)

    def _on_forgets(self, chance: float, seconds: float) -> None:
        self._weather(seconds, "forgets", chance, 0.0)

    def _on_lost(self, chance: float, seconds: float) -> None:
        self._weather(seconds, "lost", chance, 0.0)

    def _on_doubles(self, chance: float, seconds: float) -> None:
        self._weather(seconds, "doubles", chance, 0.0)

    def _on_deaf(self, chance: float, seconds: float) -> None:
        self._weather(seconds, "notify_lost", chance, 0.0)


def _short(body: Any) -> str:
    if body is None:
        return "done"
    update = body.get("update", body)
    seen = " ".join(
        f"p{p['partition']}e{p['epoch']}:{p['state']}@{p['position']}" for p in update["partitions"]
    )
    results = " ".join(f"p{r['partition']}={r['outcome']}" for r in body.get("results", ()))
    return f"{results} [{update['flow_id']} rev {update['revision']}: {seen}]".strip()


class _Counting(dict[Any, Any]):
    """A table of transitions that counts the pairs that were looked up."""

    counts: Counter[Any]

    def __getitem__(self, key: Any) -> Any:
        self.counts[key] += 1
        return super().__getitem__(key)


class _Id(str):
    @property
    def hex(self) -> str:
        return self


class _Quiet:
    """In the place of a logger."""

    def __init__(self, failed: Callable[[BaseException | None], None]) -> None:
        self._failed = failed

    def warning(self, *args: Any, **values: Any) -> None:
        """Faults are what this is about."""

    def exception(self, *args: Any, **values: Any) -> None:
        self._failed(sys.exc_info()[1])


@contextmanager
def replaced(*what: tuple[Any, str, Any]) -> Iterator[None]:
    """Attributes of modules and classes have other values for a while."""
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in what]
    for owner, name, value in what:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def run(plan: Plan, *, recording: bool = False) -> Outcome:
    """Plays a plan. The same plan gives the same outcome."""
    world = World(plan, recording)
    pairs: Counter[Any] = Counter()
    tables = []
    for table in (PARTITION_TRANSITIONS, QUEUE_TRANSITIONS):
        counting = _Counting(table)
        counting.counts = pairs
        tables.append(counting)
    quiet = _Quiet(world.failed)
    with replaced(
        (broker.calls.flows, "uuid4", lambda: _Id(world.new_id("f"))),
        (broker.calls.queues, "uuid4", lambda: _Id(world.new_id("q"))),
        (broker.calls.flows, "secrets", SimpleNamespace(token_urlsafe=lambda n: world.new_id("s"))),
        (broker.coordinator, "_log", quiet),
        (broker.calls.logs, "_log", quiet),
        (broker.replica, "_log", quiet),
        (broker.core.queue, "PARTITION_TRANSITIONS", tables[0]),
        (broker.core.replay, "QUEUE_TRANSITIONS", tables[1]),
    ):
        violation = world.run()
    counts = world.counts
    counts.update({f"record {name}": n for name, n in world.database.records.items()})
    counts.update({f"pair {state.value}, {event.value}": n for (state, event), n in pairs.items()})
    counts["transactions"] = world.checker.transactions
    counts["messages"] = sum(lane.end for lane in world.checker.lanes.values())
    counts["outages before one commit"] = world.checker.deadlines.several_outages
    counts["steps"] = world.loop.steps
    counts["outages"] = len(world.database.outages)
    counts["virtual milliseconds"] = int(world.loop.now * 1000)
    return Outcome(plan, violation, world.lines or [], counts)
