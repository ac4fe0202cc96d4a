"""The graph of a dynamic queue: which partition comes after which (the contract, *Lineage*).

A partition is named by its **key**, and follows its **parents**. It may be processed once all of
them are finished, so a key of messages that passes from a parent to a child keeps its order. What
follows from the graph:

- A partition **waits** while one of its parents is not finished. `pending` counts those parents.
  The graph only grows at its young end: a partition can follow known ones only. So it has no
  cycle, and each wait ends when the partitions before it end.
- A finished partition is **kept** while a partition that follows it is unfinished. `open` counts
  those. Then its node goes, and of it stay only its key and its number.
- A key means the same partition for as long as the queue exists. So a child that is reported again,
  by another parent or after its removal, is recognized.

No step needs more than the neighbours of one partition, so it costs the same however large the
graph is, or once was. The order of keys among the parents of a child is that of its report.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence

from broker.core.structures import Journal


class Node:
    """A partition in the graph. `parents` are keys, also of removed partitions; `children` those of
    partitions that exist."""

    __slots__ = ("children", "key", "number", "open", "parents", "pending")

    def __init__(self, number: int, key: str, parents: tuple[str, ...]) -> None:
        self.number = number
        self.key = key
        self.parents = parents
        self.children: dict[str, None] = {}
        self.pending = 0
        self.open = 0


class Lineage:
    """The partitions of one dynamic queue. Only `replay` changes it.

    `nodes` are the partitions that exist, by number. `numbers` has each key that ever was, `taken`
    each number. `waiting` and `finished` are the partitions in these states. `over` are those of
    the waiting that have nothing left to wait for: their waits are to be ended. `parent_count` is
    the number of parents that the nodes name, together.
    """

    def __init__(self, journal: Journal) -> None:
        self.nodes: dict[int, Node] = {}
        self.numbers: dict[str, int] = {}
        self.taken: set[int] = set()
        self.next_number = 0
        self.waiting: set[int] = set()
        self.finished: set[int] = set()
        self.over: set[int] = set()
        self.parent_count = 0
        self._sorted: list[int] = []
        self._journal = journal

    # Queries

    @property
    def apart(self) -> int:
        """How many partitions exist and take no part in the balance."""
        return len(self.waiting) + len(self.finished)

    def above(self, number: int) -> Iterator[int]:
        """The partitions that exist above this number, lowest first, as long as none changes."""
        first = bisect_right(self._sorted, number)
        return (self._sorted[at] for at in range(first, len(self._sorted)))

    def node_of(self, key: str) -> Node | None:
        """The partition of this key, if it exists."""
        number = self.numbers.get(key)
        return None if number is None else self.nodes.get(number)

    def unfinished(self, keys: Iterable[str]) -> Iterator[Node]:
        """Those of these partitions that are not finished."""
        for key in keys:
            node = self.node_of(key)
            if node is not None and node.number not in self.finished:
                yield node

    def removable(self, number: int) -> tuple[int, ...]:
        """Which partitions nothing unfinished follows since this one is finished, lowest first."""
        node = self.nodes[number]
        parents = (self.node_of(key) for key in node.parents)
        near = {node, *(parent for parent in parents if parent is not None)}
        return tuple(sorted(n.number for n in near if n.number in self.finished and not n.open))

    # How it changes

    def add(self, number: int, key: str, parents: tuple[str, ...]) -> None:
        """A partition is there, and waits."""
        journal, node = self._journal, Node(number, key, parents)
        assert key not in self.numbers, "a key is another partition's"
        assert number not in self.taken, "a number is another partition's"
        journal.put(self.nodes, number, node)
        insort(self._sorted, number)
        journal.did(self._unsort, number)
        journal.put(self.numbers, key, number)
        journal.add(self.taken, number)
        if number >= self.next_number:
            journal.set(self, next_number=number + 1)
        journal.set(self, parent_count=self.parent_count + len(parents))
        self._link(node)
        journal.add(self.waiting, number)
        if not node.pending:
            journal.add(self.over, number)

    def end_wait(self, number: int) -> None:
        """The partition is no longer waiting."""
        assert number in self.over, "a parent is not finished"
        self._journal.discard(self.waiting, number)
        self._journal.discard(self.over, number)

    def finish(self, number: int) -> None:
        """The partition is finished: its children wait for one less, its parents are followed by
        one less."""
        journal, node = self._journal, self.nodes[number]
        journal.add(self.finished, number)
        for key in node.parents:
            parent = self.node_of(key)
            if parent is not None:
                journal.set(parent, open=parent.open - 1)
        for key in node.children:
            child = self.node_of(key)
            if child is not None:
                journal.set(child, pending=child.pending - 1)
                if not child.pending:
                    journal.add(self.over, child.number)

    def remove(self, number: int) -> None:
        """Only the key and the number are remembered."""
        assert number in self.finished, "it is not finished"
        assert not self.nodes[number].open, "a partition that follows it is not finished"
        parents = self.nodes[number].parents
        for key in parents:
            parent = self.node_of(key)
            if parent is not None:
                self._journal.drop(parent.children, self.nodes[number].key)
        self._journal.set(self, parent_count=self.parent_count - len(parents))
        self._journal.drop(self.nodes, number)
        self._unsort(number)
        self._journal.did(insort, self._sorted, number)
        self._journal.discard(self.finished, number)

    def _link(self, node: Node) -> None:
        journal = self._journal
        assert all(key in self.numbers for key in node.parents), "a parent is not known"
        for key in node.parents:
            parent = self.node_of(key)
            if parent is None:
                continue
            journal.put(parent.children, node.key, None)
            if node.number not in self.finished:
                journal.set(parent, open=parent.open + 1)
            if parent.number not in self.finished:
                journal.set(node, pending=node.pending + 1)

    def _unsort(self, number: int) -> None:
        del self._sorted[bisect_left(self._sorted, number)]

    def restore(
        self,
        existing: Sequence[tuple[int, str, tuple[str, ...]]],
        waiting: Iterable[int],
        finished: Iterable[int],
        removed: Iterable[tuple[str, int]],
    ) -> None:
        """The graph of stored partitions (number, key, parents), and the keys of removed ones.

        It is complete when all its nodes are linked (`relink`).
        """
        for number, key, parents in existing:
            self.nodes[number] = Node(number, key, parents)
            self.numbers[key] = number
            self.parent_count += len(parents)
        self._sorted = sorted(self.nodes)
        self.numbers.update(removed)
        self.taken.update(self.numbers.values())
        self.next_number = max(self.taken, default=-1) + 1
        self.waiting.update(waiting)
        self.finished.update(finished)

    def relink(self, numbers: Iterable[int]) -> None:
        """Links the next of the restored partitions, lowest number first."""
        for number in numbers:
            node = self.nodes[number]
            self._link(node)
            if number in self.waiting and not node.pending:
                self._journal.add(self.over, number)
