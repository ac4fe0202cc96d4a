"""Plays scenario transcripts: commands to a queue and, after `----`, their results.

A file is a series of blocks. Each continues with the queue of the block before. Lines with `#` are
comments.

    start S1=0,1 S2=2 S3= warmup max_handoff_time=3
                                    a queue that is Ready, with flows in the order of binding
    start partitions=8              a queue without flows
    bind NAME [instance=NAME] [warmup] [key=KEY moves=COUNT]
                                    the instance is the flow's name unless given; how much its key
                                    may take from others in an hour
    unbind NAME | expire NAME
    drain NAME [timeout=SECONDS]
    release NAME PARTITION... [epoch=N] [finished]
                                    the epoch is the current one unless given
    ready NAME PARTITION... [epoch=N]
    advance SECONDS                 timers run when they are due
    settle                          until no timer is left
    resize COUNT [discard]
    set SETTING=VALUE...
    rebalance                       an administrator's "rebalance now"
    positions PARTITION...          an administrator sets positions
    outage SECONDS                  no replica serves; afterwards deadlines are moved
    status                          the owners, and the handoffs in progress
    view NAME                       what a flow is told

The oracle of tests/broker/core checks every step. `REWRITE=1 pytest tests/scenarios` writes the
present results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from broker.core import commands as c
from broker.core import records as r
from broker.core.draft import Decision
from tests.broker.core.oracle import snapshot, view
from tests.broker.core.world import World


def played(text: str) -> str:
    """The transcript with the present results."""
    player = _Player()
    blocks = []
    for block in text.strip("\n").split("\n\n"):
        said = block.split("\n----")[0].split("\n")
        lines = [line for line in said if line and not line.startswith("#")]
        for line in lines:
            player.play(line)
        output = player.output()
        blocks.append("\n".join([*said, "----", *output] if lines else said))
    return "\n\n".join(blocks) + "\n"


def play(path: Path, *, rewrite: bool) -> None:
    """Plays a file and compares the results, or writes the present ones."""
    text = path.read_text("utf-8")
    now = played(text)
    if rewrite:
        path.write_text(now, "utf-8")
        return
    assert now == text, f"REWRITE=1 writes what comes now to {path.name}"


class _Player:
    def __init__(self) -> None:
        self.world = World(1)
        self._lines: list[str] = []
        self._outages = 0

    def output(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines

    def play(self, line: str) -> None:
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        act: Callable[..., None] = getattr(self, f"_{name}")
        act(*plain, **options)

    def _say(self, line: str) -> None:
        self._lines.append(f"{_seconds(self.world.now):>6}  {line}")

    def _do(self, command: c.Command) -> Decision:
        self._teller.before(self.world)
        decision = self.world.do(command)
        for line in self._teller.tell(decision.records):
            self._say(line)
        return decision

    # The language

    def _start(self, *flags: str, **options: str) -> None:
        settings = {name: _value(text) for name, text in options.items() if name in _SETTINGS}
        owned = {
            name: [int(number) for number in text.split(",") if number]
            for name, text in options.items()
            if name not in _SETTINGS and name != "partitions"
        }
        if owned:
            self.world = World.owning(owned, warmup="warmup" in flags, **settings)
        else:
            self.world = World(int(options["partitions"]), **settings)
        self._teller = _Teller(self.world)
        self._status()

    def _bind(
        self,
        name: str,
        *flags: str,
        instance: str | None = None,
        key: str | None = None,
        moves: str | None = None,
    ) -> None:
        """`moves`: how many the key may take in an hour."""
        quota = None if moves is None else c.Quota(1000, 0, int(moves))
        instance, warmup = f"i-{instance or name}", "warmup" in flags
        self._do(c.Bind(name, instance, "test", 10.0, warmup, key_id=key, quota=quota))

    def _unbind(self, name: str) -> None:
        self._do(c.Unbind(name))

    def _expire(self, name: str) -> None:
        self._do(c.Unbind(name, "lease_expired"))

    def _drain(self, name: str, timeout: str | None = None) -> None:
        self._do(c.Drain(name, None if timeout is None else float(timeout.rstrip("s"))))

    def _release(self, name: str, *words: str, epoch: str | None = None) -> None:
        items = tuple(
            c.ReleaseItem(int(word), self._epoch(int(word), epoch), finished="finished" in words)
            for word in words
            if word.isdigit()
        )
        self._answer(name, "releases", c.Release(name, items))

    def _ready(self, name: str, *words: str, epoch: str | None = None) -> None:
        items = tuple(c.ReadyItem(int(word), self._epoch(int(word), epoch)) for word in words)
        self._answer(name, "is ready for", c.Ready(name, items))

    def _epoch(self, number: int, given: str | None) -> int:
        found = self.world.queue.partitions.get(number)
        return int(given) if given is not None else found.epoch if found else 0

    def _answer(self, name: str, verb: str, command: c.Release | c.Ready) -> None:
        place = len(self._lines)
        results: tuple[c.Result, ...] = self._do(command).answer
        told, self._lines = self._lines[place:], self._lines[:place]
        for result in results:
            current = "" if result.current_epoch is None else f", now {result.current_epoch}"
            self._say(f"{name} {verb} p{result.partition}: {result.outcome}{current}")
        self._lines += told

    def _advance(self, text: str) -> None:
        until = self.world.now + float(text.rstrip("s"))
        while (due := self.world.queue.next_deadline()) is not None and due <= until:
            self.world.now = max(self.world.now, due)
            self._do(c.Advance())
        self.world.now = until

    def _settle(self) -> None:
        while (due := self.world.queue.next_deadline()) is not None:
            self.world.now = max(self.world.now, due)
            self._do(c.Advance())
        self._status()

    def _resize(self, count: str, *flags: str) -> None:
        self._do(c.Change({"partition_count": int(count)}, "discard" in flags))

    def _set(self, **options: str) -> None:
        self._do(c.Change({name: _value(text) for name, text in options.items()}))

    def _rebalance(self) -> None:
        self._do(c.RebalanceNow())

    def _positions(self, *numbers: str) -> None:
        self._do(c.RaiseEpochs(tuple(int(number) for number in numbers)))

    def _outage(self, text: str) -> None:
        began, seconds = self.world.now, float(text.rstrip("s"))
        self.world.wait(seconds)
        self._outages += 1
        self._do(c.MoveDeadlines(self._outages, began, seconds))

    def _status(self) -> None:
        queue = self.world.queue
        words = [str(queue.status)]
        if queue.trigger:
            words.append(f"({queue.trigger})")
        if queue.scale_status != "Ready":
            words.append(queue.scale_status)
        due = queue.next_deadline()
        if due is not None:
            words.append(f"next due at {_seconds(due)}")
        self._say(" ".join(words))
        for flow in sorted(queue.flows.values(), key=lambda flow: flow.bind_number):
            has = " ".join(self._tag(number) for number in sorted(flow.owned)) or "stands by"
            self._say(f"  {flow.id}: {has}{' (draining)' if flow.draining else ''}")
        if queue.unassigned:
            self._say(
                "  nobody: " + " ".join(self._tag(number) for number in sorted(queue.unassigned))
            )

    def _tag(self, number: int) -> str:
        partition = self.world.partition(number)
        tag = f"p{number}"
        if partition.epoch > 1:
            tag += f"/{partition.epoch}"
        if partition.retiring:
            tag += "(retiring)"
        if number in self.world.queue.handoffs:
            tag += f"({partition.state} to {self.world.successor(number) or 'nobody yet'})"
        return tag

    def _view(self, name: str) -> None:
        seen = view(snapshot(self.world.queue), name)
        if seen is None:
            self._say(f"{name} is gone")
            return
        partitions, draining, held_until = seen
        active = "active" if self.world.queue.flows[name].active else "inactive"
        held = "" if held_until is None else f", held back until {_seconds(held_until)}"
        self._say(f"{name} sees: {active}{', draining' if draining else ''}{held}")
        for number, (state, epoch, handed_over, deadline) in partitions.items():
            words = [f"  p{number} epoch {epoch} {state}"]
            if handed_over:
                words.append(f"handed over {handed_over}")
            if deadline is not None:
                words.append(f"deadline {_seconds(deadline)}")
            self._say(", ".join(words))


_SETTINGS = (
    "access_type",
    "max_concurrent_handoffs",
    "max_handoff_time",
    "max_warmup_time",
    "rebalance_delay",
)


class _Teller:
    """Tells records in words. It remembers facts from earlier records that a record does not
    contain.
    """

    def __init__(self, world: World) -> None:
        self.before(world)

    def before(self, world: World) -> None:
        """Remembers the state before the next records."""
        self._epochs = {p.number: p.epoch for p in world.queue.partitions.values()}
        self._owners = {p.number: p.owner.id for p in world.queue.partitions.values() if p.owner}
        self._successors = {n: world.successor(n) for n in world.queue.handoffs}
        self._deadlines = {n: h.deadline for n, h in world.queue.handoffs.items()}
        self._retiring = set(world.queue.retiring)
        running = world.queue.rebalance
        self._rebalance = running.id if running else 0
        self._counts = [running.handoffs, running.forced, running.granted] if running else [0] * 3

    def tell(self, records: Iterable[r.Record]) -> list[str]:
        return [line for record in records for line in self._tell(record)]

    def _tell(self, record: r.Record) -> list[str]:
        match record:
            case r.Paused(partitions, until):
                end = "" if until is None else f" until {_seconds(until)}"
                return [f"{_list(partitions) if partitions else 'all'} paused{end}"]
            case r.Resumed(partitions, why):
                return [f"{_list(partitions) if partitions else 'all'} resumed ({why})"]
            case r.Pinned(partitions, client_name):
                return [f"{_list(partitions)} pinned to {client_name}"]
            case r.Unpinned(partitions):
                return [f"{_list(partitions)} unpinned"]
            case r.SettingsChanged():
                return [f"{name} is now {value}" for name, value in record.changes.items()]
            case r.FlowBound():
                held = record.held_until
                waits = "" if held is None else f", held back until {_seconds(held)}"
                return [f"{record.flow_id} bound{' with warm-up' if record.warmup else ''}{waits}"]
            case r.FlowsAdmitted():
                return [f"{flow_id} joins" for flow_id in record.flow_ids]
            case r.FlowLeft():
                alone = [n for n, owner in self._owners.items() if owner == record.flow_id]
                for number in alone:
                    del self._owners[number]
                left = f", {_list(alone)} without an owner" if alone else ""
                return [f"{record.flow_id} left ({record.reason}){left}"]
            case r.FlowDraining(flow_id, deadline):
                end = "" if deadline is None else f", its warm-ups end at {_seconds(deadline)}"
                return [f"{flow_id} drains{end}"]
            case r.HolddownStarted():
                return [f"holddown until {_seconds(record.until)} ({record.trigger})"]
            case r.HolddownSettled():
                return ["holddown settled: Ready"]
            case r.RebalanceStarted():
                self._rebalance, self._counts = record.rebalance_id, [0, 0, 0]
                return [f"rebalance {record.rebalance_id} started ({record.trigger})"]
            case r.PairsFirst(until):
                if until is None:
                    return ["nothing waits for a pair"]
                return [f"pairs first, until {_seconds(until)}"]
            case r.RebalanceFinished():
                handoffs, forced, granted = self._counts
                result = f"{handoffs} by handoff ({forced} forced), {granted} granted"
                return [f"rebalance {self._rebalance} finished: {result}: Ready"]
            case r.GrantedOutside():
                return [f"outside of a rebalance ({record.trigger}):"]
            case r.Granted():
                return [self._grant(grant) for grant in record.grants]
            case r.Released():
                owner = self._owners.pop(record.partition)
                return [f"{self._name(record.partition)}: {owner} -> nobody, graceful"]
            case r.ReleasedInPart():
                return [f"{self._name(record.partition)}: released, its group not yet"]
            case r.WarmupsStarted(moves, deadline):
                return [self._move(*move, "warming", deadline) for move in moves]
            case r.RevokesStarted(moves, deadline):
                return [self._move(*move, "revoking", deadline) for move in moves]
            case r.WarmupsEnded():
                why = "" if record.ready else " (not warm)"
                return [
                    self._move(n, self._owners[n], self._successors[n], "revoking", record.deadline)
                    + why
                    for n in record.partitions
                ]
            case r.WarmupsReady():
                return [
                    f"{self._name(n)}: {self._successors[n]} is ready, and waits for the rest"
                    for n in record.partitions
                ]
            case r.HandoffsRedirected():
                return [self._redirect(*redirect, record.deadline) for redirect in record.redirects]
            case r.HandoffsCalledOff():
                return [
                    f"{self._name(n)}: {self._owners[n]} keeps it, warm-up called off"
                    for n in record.partitions
                ]
            case r.PartitionsAdded():
                numbers = range(record.first, record.end)
                back = [n for n in numbers if n in self._retiring]
                new = [n for n in numbers if n not in self._retiring]
                return [f"{_list(back)} taken back"] * bool(back) + [f"{_list(new)} added"] * bool(
                    new
                )
            case r.PartitionsRetired():
                return [f"{_list(record.partitions)} retiring"]
            case r.PartitionsRemoved():
                lines = [
                    f"{self._name(move.partition)}: {move.owner} -> {move.successor} ended"
                    for move in record.ended
                ]
                return [*lines, f"{_list(record.partitions)} removed ({record.outcome})"]
            case r.EpochsRaised():
                for number in record.partitions:
                    self._epochs[number] += 1
                why = "positions set" if record.handed_over == "forced" else "retires again"
                return [f"{self._name(number)}: {why}" for number in record.partitions]
            case r.DeadlinesMoved():
                return [f"deadlines moved by {_seconds(record.seconds)}"]
            case r.ClockWentBack():
                return [f"clock went back, deadlines by {_seconds(-record.seconds)}"]
            case r.CutsAwaited():
                return ["the log is to say its cuts"]
            case r.CutsTaken():
                return [
                    f"{self._name(number)}: cut at {cut}{', reached' if is_reached else ''}"
                    for number, cut, is_reached in record.cuts
                ]
            case r.CutsReached():
                return [f"{self._name(number)}: reached its cut" for number in record.partitions]
            case r.ChildrenAdded():
                return [
                    f"{self._name(number)}: {key} after {' '.join(parents) or 'nothing'}"
                    for number, key, parents in record.children
                ]
            case r.WaitsEnded():
                return [f"{self._name(number)}: waits no more" for number in record.partitions]
            case r.PartitionFinished():
                return [f"{self._name(record.partition)}: finished by {record.flow_id}"]
            case r.FinishedRemoved():
                return [f"removed: {_list(record.partitions)}"]

    def _grant(self, grant: r.Grant) -> str:
        number = grant.partition
        self._epochs[number] = grant.epoch
        self._owners[number] = grant.flow_id
        self._counts[0] += grant.by_handoff
        self._counts[1] += grant.by_force
        self._counts[2] += not grant.by_handoff
        previous = f"{grant.previous} -> " if grant.previous else ""
        return f"{self._name(number)}: {previous}{grant.flow_id}, {grant.handed_over}"

    def _move(
        self, number: int, owner: str, successor: str | None, phase: str, deadline: float
    ) -> str:
        self._successors[number], self._deadlines[number] = successor, deadline
        return f"{self._name(number)}: {owner} -> {successor}, {phase} until {_seconds(deadline)}"

    def _redirect(self, number: int, successor: str | None, deadline: float | None) -> str:
        owner, instead = self._owners[number], self._successors[number]
        phase = "warming" if deadline is not None else "revoking"
        self._successors[number] = successor
        until = _seconds(self._deadlines[number] if deadline is None else deadline)
        return (
            f"{self._name(number)}: {owner} -> {successor} instead of {instead},"
            f" {phase} until {until}"
        )

    def _name(self, number: int) -> str:
        return f"p{number} epoch {self._epochs.get(number, 0)}"


def _list(numbers: Iterable[int]) -> str:
    return " ".join(f"p{number}" for number in sorted(numbers))


def _value(text: str) -> Any:
    if text == "none":
        return None
    try:
        return int(text) if text.isdigit() else float(text.rstrip("s"))
    except ValueError:
        return text


def _seconds(seconds: float) -> str:
    return f"{seconds:g}s"
