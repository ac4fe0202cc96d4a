"""The events of a run: one method for each kind of event (`plan.py`)."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.core.access import anybody
from broker.service import Calls
from tests.simulation.account import OVER
from tests.simulation.consumers import Application
from tests.simulation.ending import SOON_SECONDS
from tests.simulation.plan import Event
from tests.simulation.reshaping import Reshaping
from tests.simulation.service import FOLLOWER, QUEUE, Node

if TYPE_CHECKING:
    pass

# How long the database answers between two outages; each replica stamps meanwhile.
BETWEEN_SECONDS = 1.4
# How long a replica needs to recover from a disturbance.
RECOVER_SECONDS = 2.5


class Happenings(Reshaping):
    """Applies events to this world."""

    def happen(self, event: Event) -> None:
        self.world.counts[f"event {event.kind}"] += 1
        if self.world.trace is not None:
            self.world.trace(f"** {event.kind} {' '.join(map(str, event.args))}")
        getattr(self, "_on_" + event.kind.replace(" ", "_"))(*event.args)

    # Consumers

    def _one(self, who: int) -> Application | None:
        there = [one for one in self.world.consumers if not (one.dead or one.leaving or one.ended)]
        return there[who % len(there)] if there else None

    def _on_join(self, lease: float, warmup: bool, queue: str = QUEUE) -> None:
        if sum(not (one.dead or one.ended) for one in self.world.consumers) < 7:
            self.world.join(lease, warmup, queue=queue)

    def _on_join_follower(self, lease: float, warmup: bool) -> None:
        self._on_join(lease, warmup, FOLLOWER)

    def _on_leave(self, who: int) -> None:
        one = self._one(who)
        if one is not None:
            one.do(one.leave)

    def _on_drain(self, who: int, seconds: float | None) -> None:
        one = self._one(who)
        if one is not None:
            one.do(one.drain, seconds)

    def _on_expel(self, who: int, gently: bool) -> None:
        """An administrator unbinds it."""
        one = self._one(who)
        if one is None or one.core.bound is None:
            return
        flow_id, queue = one.core.bound.flow_id, one.queue
        if gently:
            self._administer(partial(_drain, queue, flow_id))
        else:
            one.checker.sent("unbind", flow_id)
            self._administer(lambda calls: calls.flows.unbind(queue, flow_id))

    def _on_replace(self, who: int, seconds: float) -> None:
        """One leaves, another comes."""
        one = self._one(who)
        if one is not None:
            one.do(one.leave)
            self._later(seconds, self._on_join, one.lease, one.warmup, one.queue)

    def _on_desert(self, gently: bool) -> None:
        """When the next handoffs begin, all leave or drain: owners and their successors."""

        def begin() -> None:
            if not self.world.calm:
                for one in self.world.consumers:
                    act = (one.drain, None) if gently else (one.leave,)
                    self.world.loop.call_soon(one.do, *act)

        self.world.database.on_handoffs.append(begin)

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
            self.world.loop.call_later(
                *(seconds, self.world.join),
                *(one.lease, one.warmup, one.instance, one.queue),
            )

    def _on_restart_over(self, who: int) -> None:
        one = self._one(who)
        if one is not None:
            self.world.join(one.lease, one.warmup, one.instance, one.queue)

    def _on_stubborn(self, who: int, seconds: float) -> None:
        one = self._one(who)
        if one is not None:
            one.stubborn = seconds

    def _on_cold(self, who: int, seconds: float) -> None:
        one = self._one(who)
        if one is not None:
            one.cold = seconds

    def _on_publish(self, count: int, salt: int) -> None:
        if self.world.plan.config.reshapes:
            self._on_burst(salt, count, salt)
            return
        rng = random.Random(salt)
        for _ in range(count):
            if self.world.log.count:
                self.world.append(rng.randrange(self.world.log.count))
        for one in self.world.consumers:
            if not one.dead:
                one.later(0.05, one.poke)

    # Administrators

    def _on_resize(self, count: int, discard: bool) -> None:
        if self.world.plan.topic:
            self._grow(count)
            return
        self._change({"partition_count": count}, discard)

    _on_discard = _on_resize

    def _grow(self, count: int) -> None:
        """A topic only grows. Its queue follows, whichever replica maintains it."""
        world = self.world
        if count <= world.log.count:
            return
        world.log.count = count
        request = world.checker.asked.begin("change", {"partition_count": count})

        def follow() -> None:
            if world.checker.queue["partition_count"] < count:
                world.loop.call_later(0.1, follow)
            else:
                world.checker.asked.end(request)

        follow()

    def _on_flip(self, count: int, pause: float) -> None:
        """There and back and there again, with messages in between."""
        before = self.world.checker.queue["partition_count"]
        for turn, wanted in enumerate((count, before, count)):
            self._later(2 * turn * pause, self._on_resize, wanted, False)
            self._later((2 * turn + 1) * pause, self._on_publish, 6, turn)

    def _on_revive(self, count: int, pause: float) -> None:
        """Fewer partitions. The next report that one is finished is late: before it arrives, the
        partitions are back, have messages, and retire again."""
        before = self.world.checker.queue["partition_count"]

        def begin() -> float:
            self._later(0.0, self._on_resize, before, False)
            self._later(pause, self._on_publish, 12, count)
            self._later(2 * pause, self._on_resize, count, False)
            return 3 * pause

        self.world.network.on_finished.append(begin)
        self._on_resize(count, False)

    def _on_settings(self, name: str, value: Any) -> None:
        self._change({name: value})

    def _on_access(self, access_type: str) -> None:
        self._change({"access_type": access_type})

    def _on_rebalance(self) -> None:
        self._administer(lambda calls: calls.queues.rebalance(QUEUE), "rebalance")

    def _on_positions(self, everywhere: bool, who: int) -> None:
        """Back to the start of the log, or a little."""
        existing = sorted(
            n for n, row in self.world.checker.partitions.items() if row.state != "removed"
        )
        if everywhere:
            self._administer(lambda calls: calls.positions.set(QUEUE, "earliest"), "positions")
            return
        number = existing[who % len(existing)]
        first = self.world.log.firsts.get(number, 0)
        last = self.world.checker.positions.get(number, 0)
        back = (first + max(first, last)) // 2
        where = {number: str(back)}
        self._administer(
            lambda calls: calls.positions.set(QUEUE, where), "positions", {number: back}
        )

    def _on_pause(self, which: int | None, seconds: float, by_itself: bool) -> None:
        """A partition, None: the queue, is paused for so long."""
        number = None
        if which is not None:
            there = [n for n, row in self.world.checker.partitions.items() if row.state not in OVER]
            if not there:
                return
            number = sorted(there)[which % len(there)]
        given = {"seconds": seconds} if by_itself else {}
        self._administer(
            lambda calls: calls.pauses.pause(QUEUE, number, reason="a test", **given),
            *("pause", {"name": "" if number is None else str(number)}),
        )
        if not by_itself:
            self._later(seconds, self._resume, number)

    def _resume(self, number: int | None) -> None:
        self._administer(
            lambda calls: calls.pauses.resume(QUEUE, number),
            *("resume", {"name": "" if number is None else str(number)}),
        )

    def resume_rest(self) -> None:
        """When all faults have ended, what does not end soon by itself is resumed."""
        checker, now = self.world.checker, self.world.database.clock()
        for name, (_, until, _) in checker.queue.get("pauses", {}).items():
            lasting = until is None or until > now + SOON_SECONDS
            if lasting and not checker.asked.pause("resume", name):
                self._resume(int(name) if name else None)

    # Replicas

    def _replica(self, which: int) -> Node | None:
        up = [node for node in self.world.nodes if not node.dead]
        return up[which % len(up)] if up else None

    def _on_crash(self, which: int, seconds: float) -> None:
        node = self._replica(which)
        if node is not None:
            node.away_seconds = seconds
            node.crash()

    def _on_stop(self, which: int, seconds: float) -> None:
        node = self._replica(which)
        if node is not None:
            node.away_seconds = seconds
            self.world.loop.create_task(node.stop())
            self.world.disturb(3.0)
            # The operator that asked it to stop does not wait for ever.
            self._later(2.0, node.crash)

    def _at_next_commit(self, which: int, seconds: float, fate: str) -> None:
        node = self._replica(which)
        if node is not None and node.next_commit is None:
            node.next_commit, node.away_seconds = fate, seconds

    def _on_crash_before(self, which: int, seconds: float) -> None:
        self._at_next_commit(which, seconds, "crash before")

    def _on_crash_after(self, which: int, seconds: float) -> None:
        self._at_next_commit(which, seconds, "crash after")

    def _at_next_log_call(self, which: int, seconds: float, fate: str) -> None:
        node = self._replica(which)
        if node is not None and node.next_log_call is None:
            node.next_log_call, node.away_seconds = fate, seconds

    def _on_crash_before_log(self, which: int, seconds: float) -> None:
        self._at_next_log_call(which, seconds, "before")

    def _on_crash_after_log(self, which: int, seconds: float) -> None:
        self._at_next_log_call(which, seconds, "after")

    def _on_log_away(self, seconds: float) -> None:
        self._weather(seconds, "log_away", True, False)

    def _on_unknown(self, which: int) -> None:
        self._at_next_commit(which, 1.0, "unknown")

    def _on_stall(self, seconds: float) -> None:
        """The next commit that begins handoffs is slow; all else continues."""
        self.world.weather.stall_seconds = seconds

    def _on_freeze_node(self, which: int, seconds: float) -> None:
        node = self._replica(which)
        if node is not None:
            node.freeze()
            self.world.disturb(seconds)
            self._later(seconds, node.thaw)

    def _on_blackout(self, seconds: float, with_memory: bool) -> None:
        """All replicas at once."""
        for node in list(self.world.nodes):
            if node.dead:
                continue
            node.away_seconds = seconds
            if with_memory:
                node.freeze()
                self._later(seconds, node.thaw)
            else:
                node.crash()
        self.world.disturb(seconds)

    def _on_outages(self, first: float, second: float) -> None:
        """When the next handoffs begin, no replica serves; and again before any replica has
        committed.
        """

        def begin() -> None:
            if self.world.calm:
                return
            between = first + BETWEEN_SECONDS
            self._weather(between + second, "away", True, False)
            self._later(first, setattr, self.world.weather, "mute", True)
            self._later(first, setattr, self.world.weather, "away", False)
            self._later(between, setattr, self.world.weather, "away", True)
            self._later(between, setattr, self.world.weather, "mute", False)

        self.world.database.on_handoffs.append(begin)

    def _on_clock_step(self, seconds: float) -> None:
        """The database's clock is set; replicas find out a second later at most."""
        self.world.database.clock_set_by += seconds
        for checker in self.world.checkers.values():
            checker.clock_set(seconds, self.world.database.clock())
        self.world.disturb(0.0)

    def _on_interrupt(self, which: int) -> None:
        node = self._replica(which)
        if node is not None:
            for checker in self.world.checkers.values():
                checker.hindered(self.world.database.clock() + RECOVER_SECONDS)
            node.store.interrupt()

    # The weather

    def _weather(self, seconds: float, name: str, value: Any, normal: Any) -> None:
        setattr(self.world.weather, name, value)
        self.world.disturb(seconds)
        self._later(seconds, setattr, self.world.weather, name, normal)

    def _on_cut(self, which: int, seconds: float) -> None:
        node = self._replica(which)
        if node is not None:
            node.cut = True
            self.world.disturb(seconds)
            self._later(seconds, setattr, node, "cut", False)

    def _on_away(self, seconds: float) -> None:
        self._weather(seconds, "away", True, False)

    _on_long_away = _on_away

    def _on_slow(self, factor: float, seconds: float) -> None:
        self._weather(seconds, "slow", min(factor, 1.0 / self.world.plan.config.latency[1]), 1.0)
        self.world.disturb(seconds + 3.0)

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


async def _drain(queue: str, flow_id: str, calls: Calls) -> None:
    """As an administrator."""
    await calls.flows.drain(await calls.bound_flows.of(queue, flow_id), None, anybody())
