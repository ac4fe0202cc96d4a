"""Flows, handoffs and pins of a queue, each with what is looked up of them.

All but the pins themselves and `warmed` follows from flows and partitions, so it is derived and not
recorded: `placement` keeps it right.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.model import Flow, Handoff, Instance, Pin
from broker.core.structures import Heap


class QueueFlows(dict[str, Flow]):
    """The bound flows, by their id.

    `of_key` counts those of each access key. `held` are those that are held back (`budget`),
    `weighted` those with a weight or a maximum (`shares`).
    """

    __slots__ = ("by_bind_number", "by_instance", "held", "of_key", "weighted")

    def __init__(self) -> None:
        super().__init__()
        self.by_instance: dict[Instance, Flow] = {}
        self.by_bind_number: dict[int, Flow] = {}
        self.of_key: dict[str, int] = {}
        self.held: dict[str, Flow] = {}
        self.weighted: dict[str, Flow] = {}


class QueuePins:
    """The pins: `of` has them by the first partition of a group.

    Those in force are `homes` (`pins`), of which the `misplaced` are not at home.
    """

    __slots__ = ("homes", "misplaced", "of")

    def __init__(self) -> None:
        self.of: dict[int, Pin] = {}
        self.homes: dict[int, Flow] = {}
        self.misplaced: set[int] = set()


class QueueHandoffs(dict[int, Handoff]):
    """The handoffs, by partition.

    Some are `warming`, and some of those that are revoking are `without_successor`. `warmed` names
    the flow that said ready in the latest handoff of a partition, and for which epoch.
    """

    __slots__ = ("_deadlines", "warmed", "warming", "without_successor")

    def __init__(self) -> None:
        super().__init__()
        self.warming: set[int] = set()
        self.without_successor: set[int] = set()
        self.warmed: dict[int, tuple[str, int]] = {}
        # Some entries may be of handoffs that are over, or had another deadline.
        self._deadlines: Heap[tuple[float, int]] = Heap()

    def push(self, handoff: Handoff) -> None:
        """The handoff has another deadline, or is one again."""
        self._deadlines.push((handoff.deadline, handoff.number))
        self._deadlines.trim(len(self), self._all)

    def first_deadline(self) -> float | None:
        """The earliest deadline; None without handoffs."""
        entry = self._deadlines.first(self._holds)
        return None if entry is None else entry[0]

    def due(self, now: float) -> list[Handoff]:
        """The handoffs whose deadline has come, the earliest first, then by partition."""
        found: dict[int, Handoff] = {}

        def is_new(entry: tuple[float, int]) -> bool:
            return self._holds(entry) and entry[1] not in found

        while (entry := self._deadlines.first(is_new)) is not None and entry[0] <= now:
            found[entry[1]] = self[entry[1]]
        for handoff in found.values():
            self.push(handoff)
        return [*found.values()]

    def _holds(self, entry: tuple[float, int]) -> bool:
        deadline, number = entry
        handoff = self.get(number)
        return handoff is not None and handoff.deadline == deadline

    def _all(self) -> Iterable[tuple[float, int]]:
        return [(handoff.deadline, handoff.number) for handoff in self.values()]
