"""The judge of dynamic queues (the contract, *Lineage*).

It knows the graph from what was asked and what was answered, not from the records. From the core it
takes only what a queue looks like.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker.core import commands as c
from broker.core import records as r
from broker.core.draft import Decision
from broker.core.graph import Lineage
from broker.core.queue import Queue
from broker.core.structures import Journal
from tests.broker.core.oracle import asks_of, check_pauses, check_state, graph, snapshot
from tests.judge.rules import Owners

OK = "ok"
MOVES = (r.RevokesStarted, r.WarmupsStarted, r.RebalanceStarted, r.HolddownStarted)


class LineageOracle:
    """The graph, and which of its partitions are finished, as an observer of the calls knows it."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        self.parents: dict[str, frozenset[str]] = {key: frozenset() for key in roots}
        self.numbers = {key: number for number, key in enumerate(roots)}
        self.finished: set[str] = set()
        self.gone: set[str] = set()
        self.owners = Owners()

    def check(
        self,
        before: dict[str, Any],
        queue: Queue,
        command: c.Command,
        decision: Decision,
        now: float,
    ) -> None:
        """Checks one decision, applied to the queue."""
        check_state(queue, now)
        check_pauses(before, snapshot(queue), command, decision, now)
        ended = self._follow(queue, command, decision)
        self._check_graph(queue)
        self._check_grants(before, queue, decision)
        if isinstance(command, c.Children | c.AddChildren) or ended:
            self._check_nothing_else_moves(before, queue, decision)

    def _follow(self, queue: Queue, command: c.Command, decision: Decision) -> bool:
        """Takes in what was asked and answered; whether a partition was finished."""
        keys = {number: key for key, number in self.numbers.items()}
        finished = set(self.finished)
        match command:
            case c.Children():
                for item, result in zip(command.items, decision.answer, strict=True):
                    if result.outcome == OK:
                        self._add(queue, item.children)
                        if item.finished:
                            self.finished.add(keys[item.partition])
            case c.AddChildren() if decision.answer == OK:
                self._add(queue, command.children)
            case c.Release():
                for one, result in zip(command.items, decision.answer, strict=True):
                    if result.outcome == OK and one.finished:
                        self.finished.add(keys[one.partition])
        return self.finished != finished

    def _add(self, queue: Queue, children: tuple[c.NewChild, ...]) -> None:
        assert queue.lineage is not None
        for child in children:
            assert {*child.parents} <= self.parents.keys(), "a parent that nobody knows"
            known = self.parents.setdefault(child.key, frozenset(child.parents))
            assert known == {*child.parents} or child.key in self.finished
            number = queue.lineage.numbers[child.key]
            assert child.partition in (None, number)
            assert self.numbers.setdefault(child.key, number) == number
        assert len(set(self.numbers.values())) == len(self.numbers), "two keys have one number"

    def _check_graph(self, queue: Queue) -> None:
        """A partition waits, is kept and is forgotten exactly as the graph says."""
        lineage = queue.lineage
        assert lineage is not None
        assert lineage.numbers == self.numbers
        followed: dict[str, set[str]] = {key: set() for key in self.parents}
        for key, parents in self.parents.items():
            for parent in parents:
                followed[parent].add(key)
        apart = 0
        for key, number in self.numbers.items():
            partition = queue.partitions.get(number)
            done = key in self.finished
            if partition is None:
                assert done, f"{key} is gone and was not finished"
                if key in self.gone:
                    continue
                self.gone.add(key)
                assert followed[key] <= self.finished, f"{key} is gone, what follows it is not"
                continue
            assert not (done and followed[key] <= self.finished), f"{key} is kept for nothing"
            assert (partition.state == "finished") == done
            free = self.parents[key] <= self.finished
            if partition.state == "waiting":
                assert not free, f"{key} waits for nothing"
            else:
                assert free, f"{key} is {partition.state} before its parents are finished"
            apart += partition.state in ("waiting", "finished")
        assert queue.settings.partition_count == len(queue.partitions) - apart
        assert queue.operational_partition_count == len(queue.partitions)
        self._check_restored(lineage)

    def _check_restored(self, lineage: Lineage) -> None:
        """What is counted follows from what is stored."""
        again = Lineage(Journal())
        nodes = lineage.nodes.values()
        existing = [(node.number, node.key, node.parents) for node in nodes]
        removed = [(k, n) for k, n in lineage.numbers.items() if n not in lineage.nodes]
        again.restore(existing, lineage.waiting, lineage.finished, removed)
        again.relink(sorted(lineage.nodes))
        assert graph(again) == graph(lineage)

    def _check_grants(self, before: dict[str, Any], queue: Queue, decision: Decision) -> None:
        """An epoch has one owner, and epochs count on."""
        epochs = {p["number"]: p["epoch"] for p in before["partitions"]}
        for record in decision.records:
            if isinstance(record, r.EpochsRaised):
                for number in record.partitions:
                    epochs[number] = epochs.get(number, 0) + 1
            if isinstance(record, r.Granted):
                for grant in record.grants:
                    epochs[grant.partition] = epochs.get(grant.partition, 0) + 1
                    assert grant.epoch == epochs[grant.partition]
                    assert not self.owners.claim(grant.partition, grant.epoch, grant.flow_id)

    def _check_nothing_else_moves(
        self, before: dict[str, Any], queue: Queue, decision: Decision
    ) -> None:
        """What begins or ends triggers nothing: outside of a rebalance only the partitions whose
        waits ended get owners, each the flow that has the fewest then."""
        if before["status"] == "Rebalancing" or asks_of(queue) is not None:
            # By weight, an end may give a flow below its maximum what no flow could take before.
            return
        records = decision.records
        assert not any(isinstance(record, MOVES) for record in records)
        settles = before["flows_before"] == queue.takers and before["status"] == "Holddown"
        known = {p["number"]: p for p in before["partitions"]}
        waited = {n for n, p in known.items() if p["state"] == "waiting"}
        grants = [g for one in records if isinstance(one, r.Granted) for g in one.grants]
        for grant in grants:
            new = grant.partition not in known or grant.partition in waited
            assert new or settles
        if settles or queue.handoffs:
            return
        held = Counter({f["id"]: 0 for f in before["flows"].values() if not f["draining"]})
        seats = {f["id"]: f["bind_number"] for f in before["flows"].values()}
        only = min(held, key=seats.__getitem__) if queue.exclusive and held else None
        for partition in before["partitions"]:
            owner = (partition["owner"] or "").removeprefix("flow ")
            here = queue.partitions.get(partition["number"])
            if owner in held and here is not None and here.state != "finished":
                held[owner] += 1
        for grant in grants:
            fewest = only or min(held, key=lambda flow: (held[flow], seats[flow]))
            assert grant.flow_id == fewest
            held[fewest] += 1
