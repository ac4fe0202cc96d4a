"""Size: what a split or a merge costs in a queue that has seen many, and what is remembered of them
(the contract, *Lineage*).

Costs are counted in executed lines of the core and in entries of the journal, as in `test_scale`.
"""

from __future__ import annotations

import sys

import pytest

from broker.core import commands as c
from broker.core import records as r
from broker.core.model import MOST_PARTITIONS, Settings
from broker.core.queue import Queue
from broker.core.rebalancer import decide
from tests.broker.core.large import commit
from tests.broker.core.test_scale import cost, size_of

# It takes seconds to make the queue.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("scale")]


def dynamic(*roots: str) -> Queue:
    """A queue of one flow that owns these roots."""
    settings = Settings(partition_count=0, partitioning="dynamic", rebalance_delay=0.0)
    queue = Queue("id", "large", settings, 0.0)
    first = tuple(r.Child(number, key, ()) for number, key in enumerate(roots))
    commit(queue, (r.ChildrenAdded(first, 0.0), r.WaitsEnded(tuple(range(len(roots))), 0.0)))
    decide(queue, c.Bind("f", "i-f", "test", 10.0), 0.0)
    queue.journal.forget()
    return queue


class Source:
    """A source of one partition that is split in two and merged again, over and over."""

    def __init__(self) -> None:
        self.queue = dynamic("token-0")
        self.keys = 0
        self.now = ["token-0"]
        self.entries = 0
        # As long as the key of a hash range, `LO-HI.N`, with a number of six digits.
        self.form = "token-{:018}".format

    def _key(self) -> str:
        self.keys += 1
        return self.form(self.keys)

    def report(self, parents: list[str], children: tuple[c.NewChild, ...]) -> list[c.Children]:
        """What the owners of the parents say at their ends."""
        assert self.queue.lineage is not None
        numbers = [self.queue.lineage.numbers[key] for key in parents]
        return [c.Children("f", (c.ChildrenItem(n, 1, children, True),)) for n in numbers]

    def round(self) -> list[c.Children]:
        """The next split or merge."""
        count = 2 if len(self.now) == 1 else 1
        children = tuple(c.NewChild(self._key(), tuple(self.now)) for _ in range(count))
        commands = self.report(self.now, children)
        self.now = [child.key for child in children]
        return commands

    def live(self, rounds: int) -> None:
        """So many splits and merges."""
        for _ in range(rounds):
            for command in self.round():
                decide(self.queue, command, 1.0)
                self.queue.journal.forget()

    def lines(self) -> int:
        """What a split and a merge cost."""
        total = 0
        for _ in range(2):
            for command in self.round():
                _, lines = cost(self.queue, lambda: decide(self.queue, command, 1.0))  # noqa: B023
                self.entries = max(self.entries, self.queue.journal.mark())
                self.queue.journal.forget()
                total += lines
        return total


def test_a_split_costs_the_same_after_many() -> None:
    """Each round leaves one or two keys of removed partitions."""
    source = Source()
    source.live(20)
    before, size = source.lines(), size_of(source.queue)
    keys = source.keys
    source.live(4_000)
    # The collector does not see keys of dictionaries that are texts.
    grown = (size_of(source.queue) - size) / (source.keys - keys) + sys.getsizeof(source.now[0])
    after = source.lines()
    print(f"{before} lines at first, {after} after; {grown:.0f} bytes for each remembered key")
    assert after <= before + 60
    assert source.entries < 120
    assert len(source.queue.partitions) <= 3
    # The contract says so for keys of 24 characters.
    assert grown <= 300


def test_what_is_remembered_of_the_longest_keys_is_bounded() -> None:
    """The contract: at most 800 bytes of a removed partition, with keys of 200 characters."""
    source = Source()
    # Not Latin-1: two bytes for each character in memory.
    source.form = "\u0101{:0199}".format
    source.now = ["token-0"]
    source.live(20)
    size, keys = size_of(source.queue), source.keys
    source.live(2_000)
    grown = (size_of(source.queue) - size) / (source.keys - keys) + sys.getsizeof(source.now[0])
    print(f"{grown:.0f} bytes for each remembered key")
    assert grown <= 800


def test_a_partition_with_very_many_children_costs_as_much_for_each() -> None:
    queue = dynamic("a")
    many = MOST_PARTITIONS - 1
    children = tuple(c.NewChild(f"k{n}", ("a",)) for n in range(many))
    report = c.Children("f", (c.ChildrenItem(0, 1, children),))
    _, lines = cost(queue, lambda: decide(queue, report, 1.0))
    assert lines < 200 * many
    queue.journal.forget()
    finish = c.Children("f", (c.ChildrenItem(0, 1, (), True),))
    decision, lines = cost(queue, lambda: decide(queue, finish, 1.0))
    assert len(decision.effects.partitions) == many + 1
    assert lines < 300 * many
